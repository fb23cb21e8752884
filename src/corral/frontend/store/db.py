"""The database: short transactions on SQLite or PostgreSQL, and what the drivers raise in our words.

Nothing outside this package sees an error of a driver or of SQLAlchemy. What may pass by itself (locked, gone,
starting, too slow) becomes DatabaseUnavailable, and DatabaseFull where room is all that lacks; damage becomes
DatabaseDamaged; a broken constraint becomes ConstraintViolated; a mistake in a statement stays what it is and crashes,
as programming errors do.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from datetime import datetime
from typing import Final, Protocol, Self, TypeVar

from asyncpg.exceptions import ClientConfigurationError
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as NoFreeConnection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from corral.base.errors import CorralError, DatabaseDamaged, DatabaseFull, DatabaseUnavailable, InvalidInput
from corral.frontend.store.engines import (
    DEFAULT_TIMEOUTS,
    Engines,
    Timeouts,
    held_lock,
    postgres_engines,
    prepare_file,
    shown_url,
    sqlite_engines,
    sqlite_path,
)
from corral.frontend.store.soundness import refuse_damaged

_OUR_MISTAKES: Final = ("22", "42")
"""Classes of SQLSTATE: bad data, bad statement or missing table."""
_PERMISSION_DENIED: Final = "42501"
"""In a class of our mistakes, but for the administrator of the database to mend."""

_FULL: Final = "53100"
_DAMAGED: Final = ("XX001", "XX002")
_SQLITE_DAMAGED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})

IdT = TypeVar("IdT", contravariant=True)


class ConstraintViolated(CorralError):
    """A row with these values is already there."""

    code = "constraint_violated"


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
        self.has_room = True
        """Whether the last write found room."""

    @classmethod
    async def open(cls, url: str, *, lock: bool = True, timeouts: Timeouts = DEFAULT_TIMEOUTS) -> Self:
        """Open and try it once. `lock` keeps a second frontend off an SQLite file; tools that only look go without.

        DatabaseDamaged: a quick look shows that the file is damaged.
        """
        with ExitStack() as resources:
            path = sqlite_path(url)
            if path is None:
                where, engines = shown_url(url), postgres_engines(url, timeouts)
            else:
                where, engines = str(path), sqlite_engines(path, timeouts)
                prepare_file(path)
                if lock:
                    resources.enter_context(held_lock(path))
                await asyncio.to_thread(refuse_damaged, path)
            database = cls(where, engines, resources.pop_all(), is_ours_alone=path is not None and lock)
        try:
            async with database.begin() as connection:
                await connection.execute(text("SELECT 1"))
        except BaseException:
            await database.close()
            raise
        return database

    @property
    def dialect(self) -> str:
        """The name of the database's dialect: `sqlite` or `postgresql`."""
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

    def begin(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """A short transaction that writes: committed at the end, rolled back on any error."""
        return self._noting_room(self._engines.writer)

    def read(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """One consistent snapshot; it cannot write."""
        return self._noting_answers(self._engines.reader)

    def look(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """For exactly one statement that reads: it costs no transaction. Use `read` for several that must agree."""
        return self._noting_answers(self._engines.single_read)

    def write(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """For exactly one statement that writes: it is committed by itself. Use `begin` for several."""
        return self._noting_room(self._engines.single_write)

    def begin_patiently(self) -> AbstractAsyncContextManager[AsyncConnection]:
        """A transaction without a time limit on its statements: for migrations only."""
        return self._transaction(self._engines.patient)

    async def check(self) -> None:
        """Is it there? DatabaseUnavailable when it is not."""
        async with self.look() as connection:
            await connection.execute(text("SELECT 1"))

    @asynccontextmanager
    async def _noting_room(self, engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
        try:
            async with self._transaction(engine) as connection:
                yield connection
        except DatabaseFull:
            self.has_room = False
            raise
        self.has_room = True

    @asynccontextmanager
    async def _noting_answers(self, engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
        try:
            async with self._transaction(engine) as connection:
                yield connection
        except DatabaseUnavailable:
            self.is_answering = False
            raise
        self.is_answering = True

    @asynccontextmanager
    async def _transaction(self, engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
        if self._closed:
            raise DatabaseUnavailable("the database is closed")
        with _translated_errors():
            async with engine.begin() as connection:
                yield connection


@contextmanager
def _translated_errors() -> Iterator[None]:
    try:
        yield
    except IntegrityError as error:
        raise ConstraintViolated(_reason(_driver_error(error))) from error
    except DBAPIError as error:
        cause = _driver_error(error)
        if isinstance(cause, ClientConfigurationError):
            raise InvalidInput("database", f"the PostgreSQL URL cannot be used: {_reason(cause)}") from error
        if _is_our_mistake(cause):
            raise
        raise _in_our_words(cause) from error
    except NoFreeConnection as error:
        raise _unavailable("all connections to it are busy") from error
    except OSError as error:
        # Connecting, and the driver's own time limit: SQLAlchemy lets these pass as they are.
        raise _unavailable(_reason(error)) from error


def _in_our_words(error: BaseException) -> DatabaseUnavailable:
    reason, state = _reason(error), getattr(error, "sqlstate", None)
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF if isinstance(error, sqlite3.Error) else None
    if state == _FULL or code == sqlite3.SQLITE_FULL:
        advice = "make room on the filesystem of the database, then it goes on by itself"
        return DatabaseFull(f"the database has no room to write: {reason}; {advice}", reason=reason)
    if state in _DAMAGED or code in _SQLITE_DAMAGED:
        advice = "run `corral doctor --deep`, and put back a backup of it"
        return DatabaseDamaged(f"the database is damaged: {reason}; {advice}", reason=reason)
    return _unavailable(reason)


def _unavailable(reason: str) -> DatabaseUnavailable:
    return DatabaseUnavailable(f"the database did not answer: {reason}", reason=reason)


def _driver_error(error: DBAPIError) -> BaseException:
    """What the driver raised, under the layers that SQLAlchemy put over it."""
    original = getattr(error.orig, "orig", None)
    return original if isinstance(original, BaseException) else error.orig or error


def _is_our_mistake(error: BaseException) -> bool:
    if isinstance(error, sqlite3.Error):
        # The primary code without its details; errors that the driver itself makes up have none.
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_IOERR) & 0xFF
        return code in (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISUSE, sqlite3.SQLITE_RANGE)
    if isinstance(error, ValueError):
        return True  # asyncpg could not encode an argument
    state = getattr(error, "sqlstate", None) or ""
    return state[:2] in _OUR_MISTAKES and state != _PERMISSION_DENIED


def _reason(error: BaseException) -> str:
    """The first line: the others may quote rows."""
    lines = str(error).strip().splitlines()
    if lines:
        return lines[0]
    return "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
