"""Stops processes that nobody needs: started by an administrator's install, because LocalAI's protocol wants an
address in the answer, and not used by any model since."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

from corral.base.clock import Clock
from corral.base.tasks import first_done
from corral.worker.processes.process import Launch


class UnusedProcesses:
    """Remembers when each was asked for last."""

    def __init__(self, end: Callable[[Launch], Awaitable[None]], *, clock: Clock, after: timedelta) -> None:
        """`end` must be idempotent; an `after` of zero keeps all processes running."""
        self._end = end
        self._clock = clock
        self._after = after.total_seconds()
        self._due: dict[str, tuple[float, Launch]] = {}
        self._used: set[str] = set()
        self._rung = asyncio.Event()

    def asked_for(self, launch: Launch, *, by_model: bool) -> None:
        """A process was requested. From a model's first request on it is in use."""
        if by_model:
            self._used.add(launch.mark)
            self._due.pop(launch.mark, None)
        elif launch.mark not in self._used and self._after:
            self._due[launch.mark] = (self._clock.monotonic() + self._after, launch)
            self._rung.set()

    def forget(self, launch: Launch) -> None:
        """Stop tracking a process that is gone."""
        self._used.discard(launch.mark)
        self._due.pop(launch.mark, None)

    async def run(self) -> None:
        """Until cancelled. Waits for nothing while there is nothing to end."""
        while True:
            self._rung.clear()
            if not self._due:
                await self._rung.wait()
            elif await first_done(self._rung.wait(), self._clock.sleep(self._seconds_left())) == 1:
                await self.sweep()

    async def sweep(self) -> None:
        """End those whose time is over."""
        while (launch := self._overdue()) is not None:
            del self._due[launch.mark]
            await self._end(launch)

    def _overdue(self) -> Launch | None:
        now = self._clock.monotonic()
        return next((launch for due, launch in self._due.values() if due <= now), None)

    def _seconds_left(self) -> float:
        return min(due for due, _ in self._due.values()) - self._clock.monotonic()
