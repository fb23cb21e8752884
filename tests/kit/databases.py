"""Empty databases for tests, of both kinds, made in milliseconds: each is a copy of one that was migrated once."""

import itertools
import shutil
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from enum import StrEnum
from pathlib import Path
from typing import Final, Self

from corral.frontend.store.db import Database
from corral.frontend.store.migrations import upgrade
from tests.kit.postgres import PostgresServer

_TEMPLATE: Final = "migrated"


class DatabaseKind(StrEnum):
    SQLITE = "sqlite"
    POSTGRES = "postgres"


class DatabaseSource:
    """Starts PostgreSQL when it is first needed, and ends it when closed. Without PostgreSQL, tests fail."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._resources = ExitStack()
        self._server: PostgresServer | None = None
        self._numbers = itertools.count(1)
        self._templates: set[DatabaseKind] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    @property
    def postgres(self) -> PostgresServer:
        """The running server, for tests that stop it. They must leave it running."""
        if self._server is None:
            self._server = self._resources.enter_context(PostgresServer())
        return self._server

    @asynccontextmanager
    async def fresh_database(self, kind: DatabaseKind | str) -> AsyncIterator[Database]:
        """Open a migrated database without rows, for one test."""
        async with self.fresh_url(kind) as url:
            database = await Database.open(url)
            try:
                yield database
            finally:
                await database.close()

    @asynccontextmanager
    async def fresh_url(self, kind: DatabaseKind | str) -> AsyncIterator[str]:
        """The URL of a migrated database without rows, for one test; several processes may use it."""
        await self._make_template(DatabaseKind(kind))
        with ExitStack() as cleaning:
            yield self._copy(DatabaseKind(kind), cleaning)

    @asynccontextmanager
    async def blank_url(self, kind: DatabaseKind | str) -> AsyncIterator[str]:
        """The URL of a database that no migration has touched."""
        with ExitStack() as cleaning:
            if kind == DatabaseKind.SQLITE:
                yield f"sqlite:///{self._new_file(cleaning)}"
            else:
                yield self._new_postgres_database(cleaning, template="template1")

    def _copy(self, kind: DatabaseKind, cleaning: ExitStack) -> str:
        if kind is DatabaseKind.POSTGRES:
            return self._new_postgres_database(cleaning, template=_TEMPLATE)
        file = self._new_file(cleaning)
        shutil.copy(self._directory / _TEMPLATE, file)
        return f"sqlite:///{file}"

    def _new_file(self, cleaning: ExitStack) -> Path:
        folder = self._directory / f"database-{next(self._numbers)}"
        folder.mkdir()
        cleaning.callback(shutil.rmtree, folder, ignore_errors=True)
        return folder / "corral.db"

    def _new_postgres_database(self, cleaning: ExitStack, *, template: str) -> str:
        name = self.postgres.copy_database(template)
        cleaning.callback(self.postgres.drop_database, name)
        return self.postgres.url(name)

    async def _make_template(self, kind: DatabaseKind) -> None:
        if kind in self._templates:
            return
        if kind is DatabaseKind.POSTGRES:
            url = self.postgres.create_database(_TEMPLATE)
        else:
            url = str(self._directory / _TEMPLATE)
        database = await Database.open(url)
        try:
            await upgrade(database)
        finally:
            await database.close()
        self._templates.add(kind)
