"""An amount of memory or disk."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """So many bytes, of which so many are free."""

    total: int
    available: int
