"""Keeps the proof that control can hear: its process runs, the database answers, NATS is connected.

Silence of a node counts only over such time. All frontends share one row, so the restart of one among several
resets nothing; after an outage of all of them every node gets its full time again.
"""

import logging
from datetime import timedelta

from corral.base.clock import Clock
from corral.bus.port import Bus
from corral.domain.node import Hearing, LivenessPolicy
from corral.state.hearing import HearingPeriods

log = logging.getLogger(__name__)

PERIOD = timedelta(seconds=1)
LARGEST_JUMP = timedelta(seconds=2)
"""A wall clock that moves this much more or less than real time was set by someone."""


class HearingKeeper:
    """Confirms once a second, and starts anew when the clock was set."""

    def __init__(self, periods: HearingPeriods, bus: Bus, clock: Clock, policy: LivenessPolicy) -> None:
        self._periods = periods
        self._bus = bus
        self._clock = clock
        self._policy = policy
        now = clock.now()
        self._current = Hearing(since=now, until=now)
        self._wall = now
        self._monotonic = clock.monotonic()

    @property
    def current(self) -> Hearing:
        return self._current

    async def tick(self) -> None:
        """Confirm when this process can hear; otherwise learn whether another one can."""
        now = self._clock.now()
        if self._clock_jumped():
            self._current = await self._periods.restart(now)
        elif self._bus.connected:
            self._current = await self._periods.confirm(now, longest_gap=self._policy.tolerated_deafness)
        else:
            self._current = await self._periods.read() or self._current

    def _clock_jumped(self) -> bool:
        wall, monotonic = self._clock.now(), self._clock.monotonic()
        jump = (wall - self._wall) - timedelta(seconds=monotonic - self._monotonic)
        self._wall, self._monotonic = wall, monotonic
        if abs(jump) <= LARGEST_JUMP:
            return False
        log.warning(
            "the clock of this machine was set; every node gets its full time again",
            extra={"event": "clock.jumped", "seconds": round(jump.total_seconds(), 3)},
        )
        return True
