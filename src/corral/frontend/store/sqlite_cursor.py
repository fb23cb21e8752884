"""Cursors for SQLite that run a whole statement in one visit to the thread of their connection.

The driver's own cursor visits that thread four times for each statement: to be made, to execute, to fetch and to close.
A visit costs more than most of our statements, because two threads must wake each other for it.
"""

import sqlite3
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import closing
from typing import Any, NamedTuple, Self


class Outcome(NamedTuple):
    """What a statement left behind in its connection and its cursor."""

    description: Any = None
    rows: tuple[Any, ...] = ()
    rowcount: int = -1
    lastrowid: int | None = None
    in_transaction: bool = False


Run = Callable[[sqlite3.Cursor], object]


def run_whole(connection: sqlite3.Connection, run: Run) -> Outcome:
    """Run a statement to its end and fetch all rows. Must be called in the thread of the connection.

    No statement stays unfinished: SQLite would keep the connection and its locks for as long.
    """
    with closing(connection.cursor()) as cursor:
        run(cursor)
        rows = tuple(cursor.fetchall()) if cursor.description else ()
        return Outcome(cursor.description, rows, cursor.rowcount, cursor.lastrowid, connection.in_transaction)


class WholeCursor:
    """A cursor as SQLAlchemy uses it: it holds the rows of the last statement, and nothing inside SQLite."""

    def __init__(self, run: Callable[[Run], Awaitable[Outcome]]) -> None:
        self._run = run
        self._outcome = Outcome()
        self.arraysize = 1

    async def execute(self, statement: str, parameters: Any = ()) -> Self:
        self._outcome = await self._run(lambda cursor: cursor.execute(statement, parameters))
        return self

    async def executemany(self, statement: str, parameters: Iterable[Any]) -> Self:
        self._outcome = await self._run(lambda cursor: cursor.executemany(statement, parameters))
        return self

    async def fetchone(self) -> Any:
        """The next row, or None."""
        first, self._outcome = self._outcome.rows[:1], self._outcome._replace(rows=self._outcome.rows[1:])
        return first[0] if first else None

    async def fetchall(self) -> tuple[Any, ...]:
        """The rows that were not fetched before."""
        rows, self._outcome = self._outcome.rows, self._outcome._replace(rows=())
        return rows

    async def close(self) -> None:
        """Nothing is left to close."""

    @property
    def description(self) -> Any:
        return self._outcome.description

    @property
    def rowcount(self) -> int:
        return self._outcome.rowcount

    @property
    def lastrowid(self) -> int | None:
        return self._outcome.lastrowid

    def __await__(self) -> Generator[Any, None, Self]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
