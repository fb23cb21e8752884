"""Transactions that no cancellation can tear: a caller may go away at any moment, even again while things are undone.

Connecting, committing, rolling back and giving the connection back happen in a task of their own that nobody
cancels. Only the statements run in the caller's task: one that is cancelled in the middle costs its connection.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

_LAST_CHANCE: Final = timedelta(seconds=5)
"""How long closing waits for transactions that are still being undone."""


class _Undo(Exception):  # noqa: N818 - a signal, not an error
    """Rolls back."""


class Transactions:
    """Knows how many are open, so that closing can wait for them."""

    def __init__(self) -> None:
        self._open = 0
        self._none_open = asyncio.Event()
        self._none_open.set()

    @asynccontextmanager
    async def begin(self, engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
        """Committed at the end, rolled back on any error."""
        loop = asyncio.get_running_loop()
        given: asyncio.Future[AsyncConnection] = loop.create_future()
        worked: asyncio.Future[bool] = loop.create_future()
        self._open += 1
        self._none_open.clear()
        # Shielded because the keeper puts everything back by itself; `wait_for_all` waits for those left alone.
        keeper = asyncio.shield(self._keep(engine, given, worked))
        try:
            yield await given
        except BaseException:
            worked.set_result(False)
            if not given.cancel():
                await keeper
            raise
        worked.set_result(True)
        await keeper

    async def wait_for_all(self) -> None:
        """Until none is open, within reason."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_CHANCE.total_seconds()):
                await self._none_open.wait()

    async def _keep(
        self, engine: AsyncEngine, given: "asyncio.Future[AsyncConnection]", worked: "asyncio.Future[bool]"
    ) -> None:
        """Keep a connection for the caller from the beginning to the end of its transaction."""
        try:
            async with engine.begin() as connection:
                if not given.cancelled():
                    given.set_result(connection)
                if not await worked:
                    raise _Undo
        except _Undo:
            pass
        except Exception as error:
            if given.done():
                raise
            given.set_exception(error)
        finally:
            self._open -= 1
            if not self._open:
                self._none_open.set()
