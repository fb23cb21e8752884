"""A clock that moves only when a test says so."""

import asyncio
import heapq
import itertools
from collections.abc import Sized
from datetime import UTC, datetime, timedelta
from typing import Final

START: Final = datetime(2030, 1, 1, tzinfo=UTC)
_ROUNDS: Final = 25
"""How often tasks get a turn after a wake-up: enough for a chain of awaits without I/O."""
_IDLE_ROUNDS: Final = 3
"""After this many rounds of the event loop without other work, no task is left to run."""


class ManualClock:
    """Implements `base.clock.Clock`. Waiting costs no real time; I/O still does, so wait for its effects by gates."""

    def __init__(self, start: datetime = START) -> None:
        self._start = start
        self._passed = timedelta(0)
        self._order = itertools.count()
        self._sleepers: list[tuple[timedelta, int, asyncio.Future[None]]] = []
        self._changed = asyncio.Event()

    def now(self) -> datetime:
        return self._start + self._passed

    def monotonic(self) -> float:
        return self._passed.total_seconds()

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken = asyncio.get_running_loop().create_future()
        entry = (self._passed + timedelta(seconds=seconds), next(self._order), woken)
        heapq.heappush(self._sleepers, entry)
        self._changed.set()
        try:
            await woken
        finally:
            if entry in self._sleepers:  # cancelled before its time
                self._sleepers.remove(entry)
                heapq.heapify(self._sleepers)

    @property
    def sleeping(self) -> int:
        """How many tasks wait for this clock."""
        return len(self._sleepers)

    async def until_sleeping(self, count: int) -> None:
        """Wait until at least so many tasks wait for this clock: the gate before `advance`."""
        while self.sleeping < count:
            self._changed.clear()
            await self._changed.wait()

    async def advance(self, duration: timedelta) -> None:
        """Let policy time pass: sleepers wake one after another, each at its own time, and tasks run in between."""
        await self._let_tasks_run()
        end = self._passed + duration
        while self._sleepers and self._sleepers[0][0] <= end:
            self._passed, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                woken.set_result(None)
            await self._let_tasks_run()
        self._passed = end
        await self._let_tasks_run()

    def jump(self, by: timedelta) -> None:
        """Set the wall clock without passing time."""
        self._start += by

    async def _let_tasks_run(self) -> None:
        ready: Sized = getattr(asyncio.get_running_loop(), "_ready", range(1))
        idle = 0
        for _ in range(_ROUNDS):
            await asyncio.sleep(0)
            idle = 0 if ready else idle + 1
            if idle == _IDLE_ROUNDS:
                return


class HurriedClock(ManualClock):
    """Every sleep returns at once and advances the time. `slept` records the requested durations."""

    def __init__(self, start: datetime = START) -> None:
        super().__init__(start)
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self._passed += timedelta(seconds=seconds)
        await asyncio.sleep(0)
