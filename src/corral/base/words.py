"""Formats lists of names within sentences."""

from collections.abc import Sequence
from typing import Final

_NAMED: Final = 5


def listed(names: Sequence[str], *, most: int = _NAMED) -> str:
    """Join names with commas, and count those beyond the first few: `w1, w2 and 998 more`."""
    first, more = ", ".join(names[:most]), len(names) - most
    return f"{first} and {more} more" if more > 0 else first
