"""Bounded concurrency in which those who hang hold up nobody."""

import asyncio
from datetime import timedelta


class Lane:
    """So many at once. Whoever takes longer than most gives its slot back and goes on without one."""

    def __init__(self, slots: int, *, patience: timedelta, most_slow: int = 10_000) -> None:
        self.free = asyncio.Semaphore(slots)
        self.patience = patience.total_seconds()
        self.most_slow = most_slow
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
        if self._lane.slow < self._lane.most_slow:
            self._is_slow = True
            self._lane.slow += 1
            self._lane.free.release()
