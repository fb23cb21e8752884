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

from corral.state.columns import UtcTime, Whole
from corral.state.dialect import is_postgres

_NAME: Final = "given"
_DOCUMENT: Final = "given_rows"


class RowSet:
    """The rows that a statement is about, as values of these columns."""

    def __init__(self, *columns: Column[Any]) -> None:
        self._columns = columns
        self._tables: dict[str, FromClause] = {}

    def table(self, connection: AsyncConnection) -> FromClause:
        """Something to select from or to join with. Its JSON columns are text: see `value`."""
        dialect = connection.dialect.name
        if dialect not in self._tables:
            self._tables[dialect] = self._arrays() if is_postgres(connection) else self._document()
        return self._tables[dialect]

    def value(self, connection: AsyncConnection, name: str) -> ColumnElement[Any]:
        """What a column of ours is set to."""
        given = self.table(connection).c[name]
        own = next(one for one in self._columns if one.name == name)
        return cast(given, postgresql.JSON) if isinstance(own.type, JSON) and is_postgres(connection) else given

    def same(self, connection: AsyncConnection, table: Table, *names: str) -> ColumnElement[bool]:
        """A row of the table is one of these, by the columns of these names."""
        given = self.table(connection)
        return and_(*(table.c[name] == given.c[name] for name in names))

    def parameters(self, connection: AsyncConnection, rows: Sequence[Mapping[str, object]]) -> dict[str, object]:
        """The rows themselves, to execute the statement with."""
        columns = {one.name: _stored(one, rows, connection.dialect) for one in self._columns}
        if is_postgres(connection):
            return {_parameter(name): values for name, values in columns.items()}
        return {_DOCUMENT: json.dumps(list(zip(*columns.values(), strict=True)), allow_nan=False)}

    def _arrays(self) -> FromClause:
        arrays = (
            bindparam(_parameter(one.name), type_=postgresql.ARRAY(_array_type(one.type))) for one in self._columns
        )
        columns = (column(one.name, _array_type(one.type)) for one in self._columns)
        return func.unnest(*arrays).table_valued(*columns, name=_NAME).render_derived()

    def _document(self) -> FromClause:
        rows = func.json_each(bindparam(_DOCUMENT, type_=Text)).table_valued("value")
        values = (
            func.json_extract(rows.c.value, f"$[{number}]", type_=_array_type(one.type)).label(one.name)
            for number, one in enumerate(self._columns)
        )
        return select(*values).subquery(_NAME)


def _parameter(name: str) -> str:
    return f"{_NAME}_{name}"


def _array_type(own: TypeEngine[Any]) -> TypeEngine[Any]:
    """The plain type of what the column's own type stores."""
    if isinstance(own, UtcTime):
        return own
    return BigInteger() if isinstance(own, Whole) else Text()


def _stored(column: Column[Any], rows: Sequence[Mapping[str, object]], dialect: Dialect) -> list[object]:
    """The values of one column as the driver takes them."""
    values = [row[column.name] for row in rows]
    process = column.type.dialect_impl(dialect).bind_processor(dialect)
    return values if process is None else [process(value) for value in values]
