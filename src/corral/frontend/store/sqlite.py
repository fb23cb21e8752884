"""SQLite: its file, and the driver that runs its statements."""

import asyncio
import fcntl
import os
import sqlite3
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import aiosqlite

from corral.base.errors import DatabaseInUse, PathNotUsable
from corral.base.private_files import make_private_directory


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
        _take(descriptor, path)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _take(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(descriptor, 32, 0).decode("ascii", errors="replace").strip()
        who = f"process {holder}" if holder else "another process"
        raise DatabaseInUse(
            f"{path} is already in use by {who}; an SQLite file serves one frontend, several frontends need PostgreSQL",
            path=str(path),
            holder=holder,
        ) from error


_PAUSE_SECONDS: Final = 0.02


class _SqliteConnection(sqlite3.Connection):
    """Closes its cursors first. SQLite keeps a connection and its locks as long as a statement is unfinished, and a
    task that was cancelled in the middle of one leaves its cursor to the garbage collector."""

    def __init__(self, path: Path, *, busy_seconds: float) -> None:
        # Without an isolation level the driver leaves transactions to us: its own begin late and let claims cross.
        super().__init__(path, timeout=busy_seconds, isolation_level=None)
        self._cursors: weakref.WeakSet[sqlite3.Cursor] = weakref.WeakSet()

    def cursor(self, *arguments: Any, **options: Any) -> Any:
        cursor = super().cursor(*arguments, **options)
        self._cursors.add(cursor)
        return cursor

    def close(self) -> None:
        while self._cursors:
            self._cursors.pop().close()
        super().close()


class SqliteConnection(aiosqlite.Connection):
    """May be stopped more than once, and before it is open.

    The driver's own waits for ever for a second stop, which comes when a task is cancelled again while it cleans up;
    and it forgets a file that was opened for somebody who had been cancelled meanwhile.
    """

    def __init__(self, path: Path, *, busy_seconds: float, pragmas: Sequence[str]) -> None:
        super().__init__(self._open, iter_chunk_size=64)
        self._path = path
        self._busy_seconds = busy_seconds
        self._pragmas = pragmas
        self._file: _SqliteConnection | None = None
        self._told_to_stop = False
        self._thread.daemon = True  # a program that ends without closing must still end

    def stop(self) -> "asyncio.Future[Any] | None":
        if self._told_to_stop:
            return None
        self._told_to_stop = True
        self._tx.put_nowait((None, self._close_file))
        return super().stop()

    # In the thread of this connection.

    def _open(self) -> sqlite3.Connection:
        self._file = _SqliteConnection(self._path, busy_seconds=self._busy_seconds)
        for pragma in self._pragmas:
            self._set(self._file, pragma)
        return self._file

    def _set(self, file: _SqliteConnection, pragma: str) -> None:
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
