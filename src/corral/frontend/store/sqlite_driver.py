"""A connection to SQLite that survives every cancellation: whatever happens, its thread ends and its locks are gone."""

import asyncio
import sqlite3
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import aiosqlite

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
