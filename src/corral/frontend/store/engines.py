"""Database engines: from a URL to a pool that is set up for PostgreSQL, or for SQLite with its file and its driver."""

import asyncio
import fcntl
import os
import re
import select
import sqlite3
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import aiosqlite
import asyncpg
import msgspec
from sqlalchemy import AsyncAdaptedQueuePool, Connection, NullPool, event
from sqlalchemy.exc import InvalidatePoolError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from corral.base.errors import DatabaseInUse, InvalidInput, PathNotUsable
from corral.base.private_files import make_private_directory
from corral.frontend.store.dialect import from_json, to_json
from corral.frontend.store.sqlite_cursor import Outcome, Run, WholeCursor, run_whole

_SETTING: Final = "database"
_FORMS: Final = "write a path, sqlite:///path or postgresql://user@host/name"
_HOST: Final = r"(?:\[[^\]@/?#]*\]|[^@:,/?#\[\]]*)(?::\d{1,5})?"
_POSTGRES_URL: Final = re.compile(
    rf"postgres(?:ql)?://(?:[^/?#]*@)?(?P<hosts>{_HOST}(?:,{_HOST})*)(?P<path>(?:/[^@/?#]*)?)(?:\?[^@#]*)?"
)
"""Strict, so that a password with a bare `/`, `?` or `#` is noticed and never taken for a host, a port or a name."""


def sqlite_path(url: str) -> Path | None:
    """The file that a URL or a bare path means; None for PostgreSQL. Anything else is refused with a sentence."""
    scheme, separator, path = url.partition("://")
    if separator and scheme in ("postgresql", "postgres"):
        return None
    if separator and scheme != "sqlite":
        raise InvalidInput(_SETTING, f"{scheme}:// is not a database that Corral knows; {_FORMS}")
    if separator and not path.startswith("/"):
        raise InvalidInput(_SETTING, f"sqlite:// needs three slashes before the path; {_FORMS}")
    name = path[1:] if separator else url
    if not name or name == ":memory:":
        raise InvalidInput(_SETTING, f"no file is named; {_FORMS}")
    return Path(name).absolute()


def shown_url(url: str) -> str:
    """The URL as people may see it: hosts and the name of the database."""
    match = _POSTGRES_URL.fullmatch(url)
    if match is None:
        problem = "the PostgreSQL URL cannot be read; percent-encode special characters of the user and password"
        raise InvalidInput(_SETTING, problem)
    return f"postgresql://{match['hosts']}{match['path']}"


_READERS: Final = 4
_POOL: Final = 15
"""Three frontends at their peak stay well below the hundred connections that PostgreSQL allows by default. What was
opened once is kept: news wake a dozen loops together, again and again, and a new connection costs both sides more than
the statements that it is for."""
_PING_AFTER_SECONDS: Final = 30.0
"""A connection to PostgreSQL that rested longer is tried before it is used: firewalls forget quiet connections."""
_USED_AT: Final = "corral_used_at"
_SINGLE: Final = "corral_single_statement"
_WRITER_PRAGMAS: Final = ("foreign_keys = ON", "journal_mode = WAL", "synchronous = NORMAL")
_READER_PRAGMAS: Final = ("query_only = ON",)
_PAUSE_SECONDS: Final = 0.02
"""Between tries to set a pragma while another program writes."""


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """How long to wait for the database before a caller gets the error that it is unavailable."""

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


class Engines(msgspec.Struct, frozen=True, kw_only=True):
    """The ways into one database."""

    writer: AsyncEngine
    reader: AsyncEngine
    """Sees one consistent snapshot per transaction, and cannot write."""
    single_read: AsyncEngine
    """Runs one statement that reads, without a transaction around it: no `BEGIN` and no `COMMIT` is sent."""
    single_write: AsyncEngine
    """Runs one statement that writes, without a transaction around it."""
    patient: AsyncEngine
    """Without a time limit on statements."""


def sqlite_engines(path: Path, timeouts: Timeouts) -> Engines:
    writer = _sqlite_engine(path, timeouts, connections=1, begin="BEGIN IMMEDIATE", pragmas=_WRITER_PRAGMAS)
    reader = _sqlite_engine(path, timeouts, connections=_READERS, begin="BEGIN", pragmas=_READER_PRAGMAS)
    return Engines(
        writer=writer,
        reader=reader,
        single_read=reader.execution_options(**{_SINGLE: True}),
        single_write=writer.execution_options(**{_SINGLE: True}),
        patient=writer,
    )


def _sqlite_engine(
    path: Path, timeouts: Timeouts, *, connections: int, begin: str, pragmas: tuple[str, ...]
) -> AsyncEngine:
    async def connect() -> aiosqlite.Connection:
        return await SqliteConnection(path, busy_seconds=timeouts.busy.total_seconds(), pragmas=pragmas)

    engine = create_async_engine(
        "sqlite+aiosqlite://",
        async_creator=connect,
        poolclass=AsyncAdaptedQueuePool,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=timeouts.queue.total_seconds(),
        **_COMMON,
    )

    @event.listens_for(engine.sync_engine, "begin")
    def begin_explicitly(connection: Connection) -> None:
        if not connection.get_execution_options().get(_SINGLE):
            connection.exec_driver_sql(begin)

    return engine


def postgres_engines(url: str, timeouts: Timeouts) -> Engines:
    writer = create_async_engine(
        "postgresql+asyncpg://",
        async_creator=_postgres_connector(url, timeouts),
        pool_size=_POOL,
        max_overflow=0,
        pool_timeout=timeouts.queue.total_seconds(),
        pool_use_lifo=True,
        **_COMMON,
    )
    _try_what_may_be_broken(writer)
    reader = writer.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    single = writer.execution_options(isolation_level="AUTOCOMMIT")
    patient = create_async_engine(
        "postgresql+asyncpg://",
        async_creator=_postgres_connector(url, timeouts, limited=False),
        poolclass=NullPool,
        **_COMMON,
    )
    return Engines(writer=writer, reader=reader, single_read=single, single_write=single, patient=patient)


def _try_what_may_be_broken(engine: AsyncEngine) -> None:
    """Replace a dead connection before somebody uses it.

    SQLAlchemy's own pre-ping sends two statements before every transaction. A server that ended a session has said so
    on its socket, and nothing else can arrive on an idle connection: so only connections are tried that have something
    to read, or were idle for long.
    """

    @event.listens_for(engine.sync_engine, "checkin")
    def note_use(_connection: Any, record: Any) -> None:
        record.info[_USED_AT] = time.monotonic()

    @event.listens_for(engine.sync_engine, "checkout")
    def try_it(connection: Any, record: Any, _fairy: Any) -> None:
        used_at = record.info.get(_USED_AT)
        if used_at is None:
            return  # made just now
        rested_long = time.monotonic() - used_at >= _PING_AFTER_SECONDS
        if (rested_long or _has_unread(connection.driver_connection)) and not _answers(engine, connection):
            raise InvalidatePoolError


def _has_unread(connection: Any) -> bool:
    """Whether the server has sent something to an idle connection, or has closed it."""
    if connection.is_closed():
        return True
    poll = select.poll()
    poll.register(connection._transport.get_extra_info("socket"), select.POLLIN)
    return bool(poll.poll(0))


def _answers(engine: AsyncEngine, connection: Any) -> bool:
    dialect = engine.sync_engine.dialect
    try:
        return bool(dialect.do_ping(connection))
    except dialect.loaded_dbapi.Error:
        return False


def _postgres_connector(url: str, timeouts: Timeouts, *, limited: bool = True) -> Callable[[], Awaitable[Any]]:
    """Connect with the driver's own reading of the URL: it knows `sslmode` and all other options, and keeps the
    password."""
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


_COMMON: Final[dict[str, Any]] = {"hide_parameters": True, "json_serializer": to_json, "json_deserializer": from_json}


def prepare_file(path: Path) -> None:
    """Create the file, readable by its owner only; SQLite gives its companions the same mode."""
    make_private_directory(path.parent)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(descriptor, 0o600)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise PathNotUsable(f"cannot use {path} as the database: {error.strerror}") from error


@contextmanager
def held_lock(path: Path) -> Iterator[None]:
    """Hold `<file>.lock`, with our process id in it. The kernel lets go when the process ends, however it ends."""
    lock = path.with_name(path.name + ".lock")
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise PathNotUsable(f"cannot lock the database {path}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 32, 0).decode("ascii", errors="replace").strip()
            owner = f"process {holder}" if holder else "another process"
            advice = "an SQLite file serves one frontend, several frontends need PostgreSQL"
            problem = f"{path} is already in use by {owner}; {advice}"
            raise DatabaseInUse(problem, path=str(path), holder=holder) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


class SqliteConnection(aiosqlite.Connection):
    """Runs each statement in one visit to its thread, and may be stopped more than once, and before it is open.

    The driver's own waits for ever for a second stop, which comes when a task is cancelled again while it cleans up;
    and it forgets a file that was opened for somebody who had been cancelled meanwhile.
    """

    def __init__(self, path: Path, *, busy_seconds: float, pragmas: Sequence[str]) -> None:
        super().__init__(self._open, iter_chunk_size=64)
        self._path = path
        self._busy_seconds = busy_seconds
        self._pragmas = pragmas
        self._file: sqlite3.Connection | None = None
        self._may_be_in_transaction = False
        self._told_to_stop = False
        self._thread.daemon = True  # a program that ends without closing must still end

    def stop(self) -> "asyncio.Future[Any] | None":
        if self._told_to_stop:
            return None
        self._told_to_stop = True
        self._tx.put_nowait((None, self._close_file))
        return super().stop()

    def cursor(self) -> WholeCursor:  # type: ignore[override]
        return WholeCursor(self._run_whole)

    async def commit(self) -> None:
        await self._end_transaction(self._conn.commit)

    async def rollback(self) -> None:
        await self._end_transaction(self._conn.rollback)

    async def _run_whole(self, run: Run) -> Outcome:
        self._may_be_in_transaction = True  # until its end is known: whoever is cancelled here does not hear of it
        outcome: Outcome = await self._execute(run_whole, self._conn, run)  # type: ignore[no-untyped-call]
        self._may_be_in_transaction = outcome.in_transaction
        return outcome

    async def _end_transaction(self, end: Callable[[], None]) -> None:
        """The pool rolls back after every commit, and single statements have no transaction: both need no visit."""
        if self._may_be_in_transaction:
            await self._execute(end)  # type: ignore[no-untyped-call]
            self._may_be_in_transaction = False

    # In the thread of this connection.

    def _open(self) -> sqlite3.Connection:
        # Without an isolation level the driver leaves transactions to us: its own begin late and let claims cross.
        self._file = sqlite3.connect(self._path, timeout=self._busy_seconds, isolation_level=None)
        for pragma in self._pragmas:
            self._set(self._file, pragma)
        return self._file

    def _set(self, file: sqlite3.Connection, pragma: str) -> None:
        """SQLite waits for locks, but not for those who write while the journal changes: it refuses at once."""
        until = time.monotonic() + self._busy_seconds
        while True:
            try:
                file.execute(f"PRAGMA {pragma}")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() >= until:
                    raise
                time.sleep(_PAUSE_SECONDS)
            else:
                return

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
