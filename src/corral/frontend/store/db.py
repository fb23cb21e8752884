"""The database: short transactions on SQLite or PostgreSQL, and the one place where their errors are translated."""

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from datetime import datetime
from typing import Protocol, Self, TypeVar

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from corral.base.errors import DatabaseUnavailable
from corral.frontend.store.engines import (
    DEFAULT_TIMEOUTS,
    Engines,
    Timeouts,
    postgres_engines,
    shown_url,
    sqlite_engines,
    sqlite_path,
)
from corral.frontend.store.failures import translated
from corral.frontend.store.sqlite import held_lock, prepare_file

IdT = TypeVar("IdT", contravariant=True)


class ForgetStep(Protocol[IdT]):
    """What one room does when another room removes a node or a model: it runs in that room's transaction."""

    async def __call__(self, connection: AsyncConnection, id: IdT, /, *, reason: str, at: datetime) -> None: ...


class Database:
    """An open database. Close it, and every connection and the lock on the file are gone."""

    def __init__(self, where: str, engines: Engines, resources: ExitStack, *, is_ours_alone: bool) -> None:
        self._where = where
        self.is_ours_alone = is_ours_alone
        """Whether no other frontend can use it for as long as we have it open."""
        self._engines = engines
        self._resources = resources
        self._closed = False
        self.is_answering = True
        """Whether the last look at it was answered."""

    @classmethod
    async def open(cls, url: str, *, lock: bool = True, timeouts: Timeouts = DEFAULT_TIMEOUTS) -> Self:
        """Open and try it once. `lock` keeps a second frontend off an SQLite file; tools that only look go without."""
        with ExitStack() as resources:
            path = sqlite_path(url)
            if path is None:
                where, engines = shown_url(url), postgres_engines(url, timeouts)
            else:
                where, engines = str(path), sqlite_engines(path, timeouts)
                prepare_file(path)
                if lock:
                    resources.enter_context(held_lock(path))
            database = cls(where, engines, resources.pop_all(), is_ours_alone=path is not None and lock)
        try:
            await database._try_once()
        except BaseException:
            await database.close()
            raise
        return database

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self._engines.writer.dialect.name

    @property
    def engines(self) -> tuple[AsyncEngine, ...]:
        """For those who count statements and connections."""
        writer, reader = self._engines.writer, self._engines.reader
        return (writer,) if reader.pool is writer.pool else (writer, reader)

    def __repr__(self) -> str:
        return f"Database({self._where})"

    async def close(self) -> None:
        self._closed = True
        try:
            for engine in (self._engines.writer, self._engines.reader, self._engines.patient):
                await engine.dispose()
        finally:
            self._resources.close()

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncConnection]:
        """A short transaction that writes: committed at the end, rolled back on any error."""
        async with self._transaction(self._engines.writer) as connection:
            yield connection

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """One consistent snapshot; it cannot write."""
        async with self._noting_answers(), self._transaction(self._engines.reader) as connection:
            yield connection

    @asynccontextmanager
    async def look(self) -> AsyncIterator[AsyncConnection]:
        """For exactly one statement that reads: it costs no transaction. Use `read` for several that must agree."""
        async with self._noting_answers(), self._transaction(self._engines.single_read) as connection:
            yield connection

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """For exactly one statement that writes: it is committed by itself. Use `begin` for several."""
        async with self._transaction(self._engines.single_write) as connection:
            yield connection

    @asynccontextmanager
    async def begin_patiently(self) -> AsyncIterator[AsyncConnection]:
        """A transaction without a time limit on its statements: for migrations only."""
        async with self._transaction(self._engines.patient) as connection:
            yield connection

    async def check(self) -> None:
        """Is it there? DatabaseUnavailable when it is not."""
        async with self.look() as connection:
            await connection.execute(text("SELECT 1"))

    async def _try_once(self) -> None:
        async with self.begin() as connection:
            await connection.execute(text("SELECT 1"))

    @asynccontextmanager
    async def _noting_answers(self) -> AsyncIterator[None]:
        try:
            yield
        except DatabaseUnavailable:
            self.is_answering = False
            raise
        self.is_answering = True

    @asynccontextmanager
    async def _transaction(self, engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
        if self._closed:
            raise DatabaseUnavailable("the database is closed")
        with translated():
            async with engine.begin() as connection:
                yield connection
