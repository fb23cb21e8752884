"""A connection to SQLite that survives every cancellation: whatever happens, its thread ends and its file is closed."""

import asyncio
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiosqlite


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
        self._opened: sqlite3.Connection | None = None
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
        # Without an isolation level the driver leaves transactions to us: its own begin late and let claims cross.
        self._opened = sqlite3.connect(self._path, timeout=self._busy_seconds, isolation_level=None)
        for pragma in self._pragmas:
            self._opened.execute(f"PRAGMA {pragma}")
        return self._opened

    def _close_file(self) -> None:
        if self._opened is not None:
            self._opened.close()
