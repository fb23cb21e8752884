"""Gives freed memory back to the system."""

import ctypes
from collections.abc import Callable
from typing import Final

_WORTH_IT: Final = 8 * 1024 * 1024
"""Fewer freed bytes than this are left to the next requests."""
_SECONDS: Final = 5.0
"""How often memory is given back at most: it takes milliseconds, in which nothing else happens."""
_trim: Final = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""glibc's function; other C libraries have none, and give memory back by themselves or never."""


def give_back() -> None:
    """Give free memory of the C library back to the system, where the library can."""
    if _trim is not None:
        _trim(0)


class FreedMemory:
    """Gives memory back after much of what a process held was freed.

    glibc returns only what is free at the end of its heap. One small object that stays there keeps all that was freed
    below it.
    """

    def __init__(self, give_back: Callable[[], None] = give_back) -> None:
        self._give_back = give_back
        self._most_held = 0
        self._next = 0.0

    def look(self, held: int, now: float) -> None:
        """Compare what is held now with the most since memory was given back. Call it periodically."""
        self._most_held = max(self._most_held, held)
        if self._most_held - held < _WORTH_IT or now < self._next:
            return
        self._most_held = held
        self._next = now + _SECONDS
        self._give_back()
