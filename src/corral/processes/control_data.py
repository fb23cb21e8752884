"""What control opens of its own data: the database, which may be away at the start, and the key of its secrets."""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

from corral.base.errors import DatabaseDamaged, DatabaseUnavailable, SecretsKeyMismatch
from corral.base.retry import Backoff
from corral.frontend.config import CREDENTIALS_FILE, ControlConfig
from corral.frontend.diagnosis.disk import DataDisk
from corral.frontend.store.db import Database
from corral.frontend.store.engines import sqlite_path
from corral.frontend.store.fleet_data import FleetData
from corral.frontend.store.schema_version import is_newest
from corral.frontend.store.secrets import SecretsKey, was_sealed

log = logging.getLogger(__name__)

_DATABASE_PATIENCE: Final = timedelta(seconds=60)
"""How long a start waits for a database that does not answer, before it says so and ends."""


def fleet_data(config: ControlConfig) -> FleetData:
    credentials = [file for file in (config.credentials_file, config.data / CREDENTIALS_FILE) if file is not None]
    return FleetData(
        directory=config.data,
        credentials=tuple(dict.fromkeys(credentials)),
        database=config.database_url,
        may_be_new=config.new_fleet,
    )


@asynccontextmanager
async def open_database(fleet: FleetData) -> AsyncIterator[Database]:
    """Open and migrate the database. Retry for a minute while it does not answer, and log every attempt.

    FleetMismatch, DatabaseDamaged: it is empty beside the keys of a fleet, or damaged; nothing is changed then.
    """
    fleet.expect_file()
    backoff = Backoff(first=timedelta(milliseconds=500), cap=timedelta(seconds=5))
    deadline = asyncio.get_running_loop().time() + _DATABASE_PATIENCE.total_seconds()
    for attempt in itertools.count(1):
        try:
            database = await Database.open(fleet.database)
            break
        except DatabaseDamaged:
            raise
        except DatabaseUnavailable as error:
            if asyncio.get_running_loop().time() > deadline:
                raise
            log.warning("waiting for the database", extra={"event": "database.waiting", "reason": error.message})
            await asyncio.sleep(backoff.delay(attempt).total_seconds())
    try:
        await fleet.expect(database)
        await migrate(database)
        yield database
    finally:
        await database.close()


async def migrate(database: Database) -> None:
    """Bring the database to the schema of this version. SchemaTooNew: a newer version has written it."""
    if await is_newest(database):
        return
    # Only now: the library of migrations takes a tenth of the time of a start.
    from corral.frontend.store.migrations import upgrade

    await upgrade(database)


async def load_secrets_key(config: ControlConfig, database: Database) -> SecretsKey:
    """Return the key. A new one is made only for a new database: it could not replace a lost one."""
    if config.secrets_key:
        return SecretsKey.from_text(config.secrets_key)
    if not config.secrets_key_file.exists() and await was_sealed(database):
        raise SecretsKeyMismatch(
            f"the secrets key {config.secrets_key_file} is missing, and this database was sealed with it;"
            " restore it from a backup or copy it from another frontend, or set CORRAL_SECRETS_KEY"
        )
    return SecretsKey.load_or_create(config.secrets_key_file)


def data_disk(config: ControlConfig) -> DataDisk:
    file = sqlite_path(config.database_url)
    return DataDisk([config.data] if file is None else [config.data, file.parent], config.disk)
