"""The clock of one machine in a test: policy time is everybody's, but a machine can be set wrong, or freeze."""

import asyncio
from datetime import datetime, timedelta

from corral.base.clock import Clock


class MemberClock:
    """Implements `base.clock.Clock` on top of another one, and knows how many tasks of its machine wait for it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._off = timedelta(0)
        self._sleeping = 0
        self._changed = asyncio.Event()
        self._flowing = asyncio.Event()
        self._flowing.set()

    def now(self) -> datetime:
        return self._clock.now() + self._off

    def monotonic(self) -> float:
        return self._clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        self._sleeping += 1
        self._changed.set()
        try:
            await self._clock.sleep(seconds)
            await self._flowing.wait()
        finally:
            self._sleeping -= 1

    def jump(self, by: timedelta) -> None:
        """Set this machine's wall clock without passing time."""
        self._off += by

    def freeze(self) -> None:
        """Suspend the machine: its sleeping tasks do not wake, though time passes elsewhere."""
        self._flowing.clear()

    def thaw(self) -> None:
        self._flowing.set()

    @property
    def sleeping(self) -> int:
        return self._sleeping

    async def until_changed(self) -> None:
        """Wait for another task to sleep, or for `notify`."""
        self._changed.clear()
        await self._changed.wait()

    def notify(self) -> None:
        """For the owner of this clock, when something else changed that others wait for."""
        self._changed.set()
