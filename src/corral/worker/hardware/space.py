"""An amount of memory or disk."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Total and free bytes."""

    total: int
    available: int
