"""Many rows in one statement, whose text is the same for any number of them: it is compiled and prepared only once.

PostgreSQL gets an array for each column, SQLite one JSON document. Either becomes a table that a statement joins with.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    ColumnElement,
    Dialect,
    FromClause,
    Table,
    Text,
    and_,
    bindparam,
    cast,
    column,
    func,
    select,
)
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import TypeEngine

from corral.frontend.store.columns import UtcTime, Whole

POSTGRES: Final = "postgresql"
_NAME: Final = "given"
_DOCUMENT: Final = "given_rows"


class RowSet:
    """The rows that a statement is about, as values of these columns.

    Statements are made once for each dialect and kept: making one costs more than running it.
    """

    def __init__(self, *columns: Column[Any]) -> None:
        self._columns = {one.name: one for one in columns}

    def table(self, dialect: str) -> FromClause:
        """Something to select from or to join with; a new one each time. Its JSON is text: see `value`."""
        return self._arrays() if dialect == POSTGRES else self._document()

    def value(self, table: FromClause, name: str, dialect: str) -> ColumnElement[Any]:
        """What a column of ours is set to."""
        is_json = isinstance(self._columns[name].type, JSON)
        return cast(table.c[name], postgresql.JSON) if is_json and dialect == POSTGRES else table.c[name]

    def parameters(self, connection: AsyncConnection, rows: Sequence[Mapping[str, object]]) -> dict[str, object]:
        """The rows themselves, to execute the statement with."""
        dialect = connection.dialect
        columns = {name: _stored(one, rows, dialect) for name, one in self._columns.items()}
        if dialect.name == POSTGRES:
            return {_parameter(name): values for name, values in columns.items()}
        return {_DOCUMENT: json.dumps(list(zip(*columns.values(), strict=True)), allow_nan=False)}

    def _arrays(self) -> FromClause:
        types = {name: _plain(one.type) for name, one in self._columns.items()}
        arrays = (bindparam(_parameter(name), type_=postgresql.ARRAY(type)) for name, type in types.items())
        columns = (column(name, type) for name, type in types.items())
        return func.unnest(*arrays).table_valued(*columns, name=_NAME).render_derived()

    def _document(self) -> FromClause:
        rows = func.json_each(bindparam(_DOCUMENT, type_=Text)).table_valued("value")
        values = (
            func.json_extract(rows.c.value, f"$[{number}]", type_=_plain(one.type)).label(name)
            for number, (name, one) in enumerate(self._columns.items())
        )
        return select(*values).subquery(_NAME)


def same(table: Table, given: FromClause, *names: str) -> ColumnElement[bool]:
    """A row of the table is one of the given ones, by the columns of these names."""
    return and_(*(table.c[name] == given.c[name] for name in names))


def _parameter(name: str) -> str:
    return f"{_NAME}_{name}"


def _plain(own: TypeEngine[Any]) -> TypeEngine[Any]:
    """The plain type of what the column's own type stores."""
    if isinstance(own, UtcTime):
        return own
    return BigInteger() if isinstance(own, Whole) else Text()


def _stored(column: Column[Any], rows: Sequence[Mapping[str, object]], dialect: Dialect) -> list[object]:
    """The values of one column as the driver takes them."""
    values = [row[column.name] for row in rows]
    process = column.type.dialect_impl(dialect).bind_processor(dialect)
    return values if process is None else [process(value) for value in values]
