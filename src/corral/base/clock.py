"""The clock of policy time, and how long to wait before a retry."""

import asyncio
import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Doubling pauses up to a cap, with jitter so that the nodes of a fleet do not retry in step."""

    first: timedelta
    cap: timedelta
    factor: float = 2.0
    spread: float = 0.2

    def steady(self, attempt: int) -> timedelta:
        """Return the pause after an attempt (counted from 1), without jitter."""
        exponent = min(max(attempt - 1, 0), 62)
        seconds = self.first.total_seconds() * self.factor**exponent
        return timedelta(seconds=min(seconds, self.cap.total_seconds()))

    def delay(self, attempt: int) -> timedelta:
        return self.steady(attempt) * random.uniform(1 - self.spread, 1 + self.spread)  # noqa: S311 - not a secret
