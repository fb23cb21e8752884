"""Migrations: bring a database to the schema of this version, once, by the process that comes first."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from corral.base.errors import SchemaTooNew
from corral.frontend.store.db import Database
from corral.frontend.store.dialect import wait_for_migration_lock


async def upgrade(database: Database) -> None:
    """Run what is missing, all or nothing. Frontends that start together wait for the first one.

    Alembic keeps the migration at hand in a global; within one process, one database at a time.
    """
    async with database.begin_patiently() as connection:
        await wait_for_migration_lock(connection)
        await connection.run_sync(_upgrade)


def _upgrade(connection: Connection) -> None:
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    scripts = ScriptDirectory.from_config(config)
    current = MigrationContext.configure(connection).get_current_revision()
    revisions = {script.revision for script in scripts.walk_revisions()}
    if current is not None and current not in revisions:
        raise SchemaTooNew(
            f"the database has schema {current}, which this version of Corral does not know;"
            " start the newer version that wrote it",
            schema=current,
        )
    if current != scripts.get_current_head():
        command.upgrade(config, "head")
