"""Policy time: liveness, leases, backoff and schedules read the clock only through here."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """What the time is, and how to wait for it to pass."""

    def now(self) -> datetime:
        """The wall clock, always in UTC."""

    def monotonic(self) -> float:
        """Seconds that never jump; only differences mean anything."""

    async def sleep(self, seconds: float) -> None:
        """Wait until so much policy time has passed."""


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
