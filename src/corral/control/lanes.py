"""Bounded concurrency in which those who hang hold up nobody."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta


class Lane:
    """So many at once. Whoever takes longer than most gives its slot back and goes on without one."""

    def __init__(self, slots: int, *, patience: timedelta, most_slow: int = 10_000) -> None:
        self._free = asyncio.Semaphore(slots)
        self._patience = patience.total_seconds()
        self._most_slow = most_slow
        self.slow = 0
        """How many go on without a slot."""

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        await self._free.acquire()
        is_slow = False

        def let_others_pass() -> None:
            nonlocal is_slow
            if self.slow < self._most_slow:
                is_slow = True
                self.slow += 1
                self._free.release()

        timer = asyncio.get_running_loop().call_later(self._patience, let_others_pass)
        try:
            yield
        finally:
            timer.cancel()
            if is_slow:
                self.slow -= 1
            else:
                self._free.release()
