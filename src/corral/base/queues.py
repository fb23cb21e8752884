"""Bounded work: lanes for as many at once as allowed, and batches that share one transaction."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Final, Generic, TypeVar, cast

from corral.base.errors import CorralError

_MOST_SLOW: Final = 10_000
"""How many may go on without a slot."""


class Lane:
    """Limits how many run at once. One that takes longer than most gives its slot back and goes on without it."""

    def __init__(self, slots: int, *, patience: timedelta) -> None:
        self.free = asyncio.Semaphore(slots)
        self.patience = patience.total_seconds()
        self.slow = 0
        """How many go on without a slot."""

    def slot(self) -> "Slot":
        """One of the slots, held while inside of `async with`."""
        return Slot(self)


class Slot:
    """A class and not a generator: every message to a node goes through one."""

    __slots__ = ("_is_slow", "_lane", "_timer")

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._is_slow = False

    async def __aenter__(self) -> None:
        await self._lane.free.acquire()
        self._timer = asyncio.get_running_loop().call_later(self._lane.patience, self._let_others_pass)

    async def __aexit__(self, *_: object) -> None:
        self._timer.cancel()
        if self._is_slow:
            self._lane.slow -= 1
        else:
            self._lane.free.release()

    def _let_others_pass(self) -> None:
        if self._lane.slow < _MOST_SLOW:
            self._is_slow = True
            self._lane.slow += 1
            self._lane.free.release()


_LARGEST: Final = 250
_SPACING_SECONDS: Final = 0.02
"""From the beginning of one transaction to that of the next. An item that comes alone does not wait: it is over."""
_GATHERING_SECONDS: Final = 0.005
"""How long the first item waits for others that are known to be under way."""

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class _BatchItem(Generic[ItemT, ResultT]):
    __slots__ = ("item", "must_write", "stored")

    def __init__(self, item: ItemT) -> None:
        self.item = item
        self.stored: asyncio.Future[ResultT | None] = asyncio.get_running_loop().create_future()
        self.must_write = False
        """Set when `stored` is done without a result: this one writes for all that wait."""


class Batches(Generic[ItemT, ResultT]):
    """Stores items in batches. The first caller of `store` writes the queue for all; one that comes alone does not
    wait."""

    def __init__(
        self,
        write: Callable[[Sequence[ItemT]], Awaitable[Sequence[ResultT]]],
        *,
        under_way: Callable[[], int] = lambda: 0,
        spacing_seconds: float = _SPACING_SECONDS,
    ) -> None:
        """`write` stores all or nothing, and answers for each. `under_way` may come soon, those that wait included.

        A spacing of 0 is for reads: those that come while one is under way share the next.
        """
        self._write_all = write
        self._under_way = under_way
        self._spacing_seconds = spacing_seconds
        self._queue: list[_BatchItem[ItemT, ResultT]] = []
        self._is_writing = False
        self._not_before = 0.0

    async def store(self, item: ItemT) -> ResultT:
        """What `write` answers for it. Fails as that does; then nothing was stored.

        If cancelled, it is stored only when its transaction is under way already.
        """
        waiting: _BatchItem[ItemT, ResultT] = _BatchItem(item)  # naming the types in the call costs as much as the call
        self._queue.append(waiting)
        if self._is_writing:
            # No lock: those who share a transaction would get it one after the other, each in a turn of the event loop
            # of its own, and send what follows one by one.
            try:
                await waiting.stored
            except asyncio.CancelledError:
                if waiting.must_write:
                    self._queue.remove(waiting)
                    self._appoint_writer()
                raise
        if waiting.must_write or not waiting.stored.done():
            await self._write_until_stored(waiting)
        return cast("ResultT", waiting.stored.result())

    async def _write_until_stored(self, waiting: _BatchItem[ItemT, ResultT]) -> None:
        self._is_writing = True
        if waiting.must_write:
            waiting.stored, waiting.must_write = asyncio.get_running_loop().create_future(), False
        try:
            while not waiting.stored.done():
                await self._write()
        finally:
            waiting.stored.cancel()  # if there is no answer yet: this one gives up, the others do not
            self._appoint_writer()

    def _appoint_writer(self) -> None:
        """Have the first that still waits write for the others."""
        writer = next((item for item in self._queue if not item.stored.done()), None)
        self._is_writing = writer is not None
        if writer is not None:
            writer.must_write = True
            writer.stored.set_result(None)

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        if len(self._queue) < _LARGEST:
            more_expected = self._under_way() > len(self._queue)
            await asyncio.sleep(max(self._not_before - loop.time(), _GATHERING_SECONDS if more_expected else 0))
        self._not_before = loop.time() + self._spacing_seconds
        waiting = [item for item in self._queue if not item.stored.cancelled()]
        batch, self._queue = waiting[:_LARGEST], waiting[_LARGEST:]
        try:
            results = await self._write_all([item.item for item in batch])
        except CorralError as error:
            for item in batch:
                if not item.stored.cancelled():
                    item.stored.set_exception(error)
            return
        except BaseException:
            self._queue = batch + self._queue
            raise
        for item, result in zip(batch, results, strict=True):
            if not item.stored.cancelled():
                item.stored.set_result(result)
