"""Pauses between attempts.

Apart from `clock`, which needs asyncio: commands and pure decisions compute pauses and must not import that.
"""

import random
from datetime import timedelta

import msgspec


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
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
