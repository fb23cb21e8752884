"""The clock that decides timeouts, leases and schedules; tests replace it."""

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Port for policy time, replaced by a manual clock in tests."""

    def now(self) -> datetime:
        """Return the wall-clock time, always in UTC."""

    def monotonic(self) -> float:
        """Return seconds that never jump; only differences mean anything."""

    async def sleep(self, seconds: float) -> None:
        """Wait until this much policy time has passed."""


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
