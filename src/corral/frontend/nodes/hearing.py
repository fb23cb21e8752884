"""Keeps the proof that control can hear: its process runs, the database answers, NATS is connected.

Silence of a node counts only over such time. All frontends share one row, so the restart of one among several
resets nothing; after an outage of all of them every node gets its full time again.
"""

import logging
from datetime import datetime, timedelta

from corral.base.clock import Clock
from corral.bus.port import Bus
from corral.frontend.nodes.decide.node import Hearing, LivenessPolicy
from corral.frontend.nodes.store.hearing import HearingPeriods

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
        self._must_restart = False
        """A jump was noticed; kept until the database knows of it."""
        self._jumps = 0
        self._is_first = True
        self._recovered_at: datetime | None = None

    @property
    def jumps(self) -> int:
        """How often the wall clock of this machine was set; each time all earlier plans for times became void."""
        return self._jumps

    @property
    def current(self) -> Hearing:
        return self._current

    @property
    def recovered_at(self) -> datetime | None:
        """When nobody had been able to hear for a while, for the last time in the life of this process."""
        return self._recovered_at

    async def tick(self) -> None:
        """Confirm when this process can hear; otherwise learn whether another one can."""
        now, before = self._clock.now(), self._current
        self._must_restart = self._clock_jumped() or self._must_restart
        if self._must_restart or await self._clock_was_set_back_meanwhile(now):
            self._current = await self._periods.restart(now)
            self._must_restart = False
            self._jumps += 1
        elif self._bus.connected:
            self._current = await self._periods.confirm(now, longest_gap=self._policy.tolerated_deafness)
        else:
            self._current = await self._periods.read() or self._current
        if not self._is_first and self._current.since != before.since:
            self._recovered_at = now
        self._is_first = False

    def _clock_jumped(self) -> bool:
        """Whether the wall clock moved otherwise than time itself since the last look."""
        wall, monotonic = self._clock.now(), self._clock.monotonic()
        jump = (wall - self._wall) - timedelta(seconds=monotonic - self._monotonic)
        self._wall, self._monotonic = wall, monotonic
        return _is_jump(jump, LARGEST_JUMP)

    async def _clock_was_set_back_meanwhile(self, now: datetime) -> bool:
        """Whether the database knows a later time at our start: then the clock was set back while we were away."""
        if not self._is_first:
            return False
        known = await self._periods.read()
        return known is not None and _is_jump(min(now - known.until, timedelta(0)), self._policy.tolerated_skew)


def _is_jump(jump: timedelta, tolerated: timedelta) -> bool:
    if abs(jump) <= tolerated:
        return False
    log.warning(
        "the clock of this machine was set; every node gets its full time again",
        extra={"event": "clock.jumped", "seconds": round(jump.total_seconds(), 3)},
    )
    return True
