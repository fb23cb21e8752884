"""Stores what became of intents. Those that come together share a transaction, so that a thousand cost like ten."""

import asyncio
from dataclasses import dataclass, field
from typing import Final

from corral.base.errors import CorralError
from corral.base.ids import LeaseToken
from corral.state.intents import Change, Intents

_LARGEST_BATCH: Final = 250
_SPACING_SECONDS: Final = 0.02
"""From the beginning of one transaction to that of the next. Whoever comes alone finds that it is over."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Waiting:
    change: Change
    stored: asyncio.Future[bool] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class IntentWriter:
    """`store` waits in the queue. Whoever comes first empties it for all; one that comes alone waits for nobody."""

    def __init__(self, intents: Intents, token: LeaseToken) -> None:
        self._intents = intents
        self._token = token
        self._queue: list[_Waiting] = []
        self._writing = asyncio.Lock()
        self._not_before = 0.0

    async def store(self, change: Change) -> bool:
        """Whether it was still ours and wanted. Fails as the database does; then nothing was stored."""
        waiting = _Waiting(change=change)
        self._queue.append(waiting)
        async with self._writing:  # across the transaction on purpose: so the others come together, and share
            try:
                while not waiting.stored.done():
                    await self._write()
            finally:
                if not waiting.stored.done() and waiting in self._queue:  # this one gives up, the others do not
                    self._queue.remove(waiting)
        return await waiting.stored

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        if len(self._queue) < _LARGEST_BATCH:
            await asyncio.sleep(self._not_before - loop.time())
        self._not_before = loop.time() + _SPACING_SECONDS
        batch, self._queue = self._queue[:_LARGEST_BATCH], self._queue[_LARGEST_BATCH:]
        try:
            results = await self._intents.store(self._token, [one.change for one in batch])
        except CorralError as error:
            for one in batch:
                one.stored.set_exception(error)
            return
        except BaseException:
            self._queue = batch + self._queue
            raise
        for one, result in zip(batch, results, strict=True):
            one.stored.set_result(result)
