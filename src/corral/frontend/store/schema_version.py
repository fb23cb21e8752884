"""Which version of the schema a database has: read without the library of migrations.

Most starts find the version of this program, and need neither the library nor the migrations themselves.
"""

from typing import Final

from sqlalchemy import Connection, column, select, table

from corral.frontend.store.db import Database

NEWEST: Final = "0019"
"""The revision of the last migration in `migrations/versions`."""
_TABLE: Final = "alembic_version"


async def has_schema(database: Database) -> bool:
    """Whether any version of Corral has written its tables there."""
    return await _revision(database) is not None


async def is_newest(database: Database) -> bool:
    """Whether no migration is missing. A frontend that migrates meanwhile can only make it newer."""
    return await _revision(database) == NEWEST


async def _revision(database: Database) -> str | None:
    async with database.read() as connection:
        return await connection.run_sync(_read_revision)


def _read_revision(connection: Connection) -> str | None:
    if not connection.dialect.has_table(connection, _TABLE):
        return None
    return connection.scalar(select(column("version_num")).select_from(table(_TABLE)))
