"""Lists within sentences."""

from collections.abc import Sequence
from typing import Final

_NAMED: Final = 5


def listed(names: Sequence[str], *, most: int = _NAMED) -> str:
    """`w1, w2`, and not more than a few of a thousand."""
    shown, more = ", ".join(names[:most]), len(names) - most
    return f"{shown} and {more} more" if more > 0 else shown
