"""The database: connections, short transactions, and the difference between a file and a server.

SQLite has one connection that writes, behind a fair queue, and a few that read; PostgreSQL has one pool. `begin()`
writes, `read()` sees one consistent snapshot and cannot write. Passwords stay inside the driver's connect call.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import SplitResult, urlsplit

import asyncpg
from sqlalchemy import URL, AsyncAdaptedQueuePool, Connection, NullPool, event, text
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from corral.base.errors import DatabaseUnavailable, InvalidInput
from corral.state.failures import translated
from corral.state.sqlite_file import held_lock, prepare_file

_SETTING: Final = "database"
_FORMS: Final = "write a path, sqlite:///path or postgresql://user@host/name"
_READERS: Final = 4
_POOL: Final = 5
_POOL_AT_PEAK: Final = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """How long to wait for the database before a caller is told that it is unavailable."""

    connect: timedelta = timedelta(seconds=5)
    """For one connection to PostgreSQL: long enough for a distant server, short enough for a start-up loop."""
    statement: timedelta = timedelta(seconds=15)
    """For one statement on PostgreSQL, waiting for locks included: our statements take milliseconds."""
    idle_in_transaction: timedelta = timedelta(seconds=30)
    """After which PostgreSQL ends the session of a frontend that froze inside a transaction, and frees its locks."""
    busy: timedelta = timedelta(seconds=2)
    """For SQLite's lock while another program (a shell, a backup) holds it."""
    queue: timedelta = timedelta(seconds=10)
    """For a free connection: longer means more work than the database can do."""


DEFAULT_TIMEOUTS: Final = Timeouts()


class Database:
    """An open database. Close it, and every connection and the lock on the file are gone."""

    def __init__(self, where: str, *, writer: AsyncEngine, reader: AsyncEngine, patient: AsyncEngine) -> None:
        self._where = where
        self._writer = writer
        self._reader = reader
        self._patient = patient
        self._resources = ExitStack()
        self._closed = False

    @classmethod
    async def open(cls, url: str, *, lock: bool = True, timeouts: Timeouts = DEFAULT_TIMEOUTS) -> Self:
        """Open and try it once. `lock` keeps a second frontend off an SQLite file; tools that only look go without."""
        with ExitStack() as resources:
            if (path := sqlite_path(url)) is not None:
                prepare_file(path)
                if lock:
                    resources.enter_context(held_lock(path))
                database = cls(str(path), **_sqlite_engines(path, timeouts))
            else:
                database = cls(_without_login(url), **_postgres_engines(url, timeouts))
            database._resources = resources.pop_all()
        try:
            await database._try_once()
        except BaseException:
            await database.close()
            raise
        return database

    @property
    def dialect(self) -> str:
        """`sqlite` or `postgresql`."""
        return self._writer.dialect.name

    @property
    def engines(self) -> tuple[AsyncEngine, ...]:
        """For those who count statements and connections."""
        shared = self._reader.pool is self._writer.pool
        return (self._writer,) if shared else (self._writer, self._reader)

    def __repr__(self) -> str:
        return f"Database({self._where})"

    async def close(self) -> None:
        self._closed = True
        try:
            for engine in (self._writer, self._reader, self._patient):
                await engine.dispose()
        finally:
            self._resources.close()

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncConnection]:
        """A short transaction that writes: committed at the end, rolled back on any error."""
        async with self._transaction(self._writer) as connection:
            yield connection

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """One consistent snapshot; it cannot write."""
        async with self._transaction(self._reader) as connection:
            yield connection

    @asynccontextmanager
    async def begin_patiently(self) -> AsyncIterator[AsyncConnection]:
        """A transaction without a time limit on its statements: for migrations only."""
        async with self._transaction(self._patient) as connection:
            yield connection

    async def check(self) -> None:
        """Is it there? DatabaseUnavailable when it is not."""
        async with self.read() as connection:
            await connection.execute(text("SELECT 1"))

    async def _try_once(self) -> None:
        async with self.begin() as connection:
            await connection.execute(text("SELECT 1"))

    @asynccontextmanager
    async def _transaction(self, engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
        if self._closed:
            raise DatabaseUnavailable("the database is closed")
        with translated():
            async with engine.begin() as connection:
                yield connection


def sqlite_path(url: str) -> Path | None:
    """The file that a URL or a bare path means; None for PostgreSQL. Anything else is refused with a sentence."""
    scheme, separator, rest = url.partition("://")
    if separator and scheme in ("postgresql", "postgres"):
        return None
    if separator and scheme != "sqlite":
        raise InvalidInput(_SETTING, f"{scheme}:// is not a database that Corral knows; {_FORMS}")
    if separator and not rest.startswith("/"):
        raise InvalidInput(_SETTING, f"sqlite:// needs three slashes before the path; {_FORMS}")
    name = rest[1:] if separator else url
    if not name or name == ":memory:":
        raise InvalidInput(_SETTING, f"no file is named; {_FORMS}")
    return Path(name).absolute()


def _without_login(url: str) -> str:
    """The URL as people may see it."""
    parts = _split(url)
    host = parts.netloc.rpartition("@")[2]
    return f"postgresql://{host}{parts.path}"


def _split(url: str) -> SplitResult:
    """Split, and make sure that it was understood: a password with a bare `/` or `#` would end up in the port."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        # The cause is not chained: its text may hold a part of the password.
        problem = "the PostgreSQL URL cannot be read; percent-encode special characters of the user and password"
        raise InvalidInput(_SETTING, problem) from None
    return parts


def _sqlite_engines(path: Path, timeouts: Timeouts) -> dict[str, AsyncEngine]:
    writer = _sqlite_engine(path, timeouts, connections=1, begin="BEGIN IMMEDIATE", pragmas=_WRITER_PRAGMAS)
    reader = _sqlite_engine(path, timeouts, connections=_READERS, begin="BEGIN", pragmas=_READER_PRAGMAS)
    return {"writer": writer, "reader": reader, "patient": writer}


_WRITER_PRAGMAS: Final = ("foreign_keys = ON", "journal_mode = WAL", "synchronous = NORMAL")
_READER_PRAGMAS: Final = ("query_only = ON",)


def _sqlite_engine(
    path: Path, timeouts: Timeouts, *, connections: int, begin: str, pragmas: tuple[str, ...]
) -> AsyncEngine:
    engine = create_async_engine(
        URL.create("sqlite+aiosqlite", database=str(path)),
        connect_args={"isolation_level": None, "timeout": timeouts.busy.total_seconds()},
        poolclass=AsyncAdaptedQueuePool,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=timeouts.queue.total_seconds(),
        **_COMMON,
    )

    # The driver would begin transactions late and on its own terms (isolation_level above switches that off).
    @event.listens_for(engine.sync_engine, "begin")
    def begin_explicitly(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    @event.listens_for(engine.sync_engine, "connect")
    def set_pragmas(connection: DBAPIConnection, record: object) -> None:
        cursor = connection.cursor()
        for pragma in pragmas:
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    return engine


def _postgres_engines(url: str, timeouts: Timeouts) -> dict[str, AsyncEngine]:
    writer = create_async_engine(
        "postgresql+asyncpg://",
        async_creator=_postgres_connector(url, timeouts),
        pool_size=_POOL,
        max_overflow=_POOL_AT_PEAK - _POOL,
        pool_timeout=timeouts.queue.total_seconds(),
        pool_pre_ping=True,
        pool_use_lifo=True,
        **_COMMON,
    )
    reader = writer.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    patient = create_async_engine(
        "postgresql+asyncpg://",
        async_creator=_postgres_connector(url, timeouts, limited=False),
        poolclass=NullPool,
        **_COMMON,
    )
    return {"writer": writer, "reader": reader, "patient": patient}


def _postgres_connector(url: str, timeouts: Timeouts, *, limited: bool = True) -> Callable[[], Awaitable[Any]]:
    """Connect with the driver's own reading of the URL: it knows `sslmode` and the rest, and keeps the password."""
    settings = {"application_name": "corral", "jit": "off"}
    if limited:
        settings["statement_timeout"] = _milliseconds(timeouts.statement)
        settings["idle_in_transaction_session_timeout"] = _milliseconds(timeouts.idle_in_transaction)
    # The server's own limit comes first; the driver's is for a server that says nothing at all.
    command_timeout = timeouts.statement.total_seconds() * 1.2 if limited else None

    async def connect() -> Any:
        return await asyncpg.connect(
            url, timeout=timeouts.connect.total_seconds(), command_timeout=command_timeout, server_settings=settings
        )

    return connect


def _milliseconds(duration: timedelta) -> str:
    return str(duration // timedelta(milliseconds=1))


def _to_json(value: object) -> str:
    """ASCII only, so that any string survives: PostgreSQL takes no NUL and no lone surrogate except as an escape."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))


_COMMON: Final[dict[str, Any]] = {"hide_parameters": True, "json_serializer": _to_json}
