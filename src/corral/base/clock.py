"""The clock that decides timeouts, leases and schedules; tests replace it."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol, Self

import msgspec


class Clock(Protocol):
    """Port for policy time, replaced by a manual clock in tests."""

    def now(self) -> datetime:
        """Return the wall-clock time, always in UTC."""

    def monotonic(self) -> float:
        """Return seconds that never jump; only differences mean anything."""

    async def sleep(self, seconds: float) -> None:
        """Wait until this much policy time has passed."""


class SystemClock:
    """The clock of the machine, for everything but tests."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Moment(msgspec.Struct, frozen=True):
    """Comes when the wall clock shows it, or when so much time has passed, whichever is first: a clock that is set back
    does not put it off, and a machine that slept does not miss it."""

    wall: datetime
    monotonic: float

    @classmethod
    def after(cls, clock: Clock, seconds: float) -> Self:
        return cls(clock.now() + timedelta(seconds=seconds), clock.monotonic() + seconds)

    def left(self, clock: Clock) -> float:
        """Seconds until then; 0 when it has come."""
        seconds = min((self.wall - clock.now()).total_seconds(), self.monotonic - clock.monotonic())
        return max(seconds, 0.0)

    def has_come(self, clock: Clock) -> bool:
        return self.left(clock) == 0
