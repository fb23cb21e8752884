"""Statements in which SQLite and PostgreSQL differ, and statements about many rows at once."""

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
    any_,
    bindparam,
    cast,
    column,
    func,
    literal,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.types import TypeEngine

from corral.frontend.store.columns import UtcTime, Whole

_MIGRATION_LOCK = 0x436F7272616C  # "Corral": the same number in every frontend, and hardly in another program
_FLEET_RULES_LOCK = _MIGRATION_LOCK + 1


def is_postgres(connection: AsyncConnection) -> bool:
    return connection.dialect.name == "postgresql"


def insert_into(connection: AsyncConnection, table: Table) -> postgresql.Insert | sqlite.Insert:
    """An INSERT that can be given an ON CONFLICT clause."""
    return upsert_into(connection.dialect.name, table)


def upsert_into(dialect: str, table: Table) -> postgresql.Insert | sqlite.Insert:
    """As `insert_into`, for statements that are made once and kept."""
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)


def among(connection: AsyncConnection, column: ColumnElement[str], values: Sequence[str]) -> ColumnElement[bool]:
    """`column` is one of `values`, as one parameter: the statement's text is the same for any number of them."""
    if is_postgres(connection):
        return column == any_(literal(list(values), postgresql.ARRAY(Text)))
    entries = func.json_each(literal(list(values), sqlite.JSON)).table_valued("value")
    return column.in_(select(entries.c.value))


async def wait_for_migration_lock(connection: AsyncConnection) -> None:
    """One migration at a time. SQLite needs nothing more: its write transaction is already the only one."""
    if is_postgres(connection):
        await connection.execute(select(func.pg_advisory_xact_lock(_MIGRATION_LOCK)))


async def wait_for_fleet_rules_lock(connection: AsyncConnection) -> None:
    """One change of the set of rules at a time: no row stands for the whole of them."""
    if is_postgres(connection):
        await connection.execute(select(func.pg_advisory_xact_lock(_FLEET_RULES_LOCK)))


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
