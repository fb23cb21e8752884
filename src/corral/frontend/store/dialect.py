"""The few statements that SQLite and PostgreSQL do not share."""

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Table, Text, any_, func, literal, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

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
