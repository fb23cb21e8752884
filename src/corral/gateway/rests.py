"""Rests while events rush in, so that the next look at the sockets finds several of each stream at once.

Most of what an event costs is in the kernel: being woken for it, and writing it alone. Network cards hold back their
interrupts for the same reason. Who gets an event every few milliseconds never waits for it.
"""

import time
from collections.abc import Callable
from typing import Final

RUSH_SECONDS: Final = 0.0001
"""Pieces that follow each other within this time are a rush, of whatever streams they are."""
REST_SECONDS: Final = 0.0001
"""With what the kernel adds to it, 0.15 ms: the most that an event is held back."""
SMALL: Final = 4096
"""Pieces of this size are worth being passed on alone."""


class Rests:
    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`call_soon` is the loop's: it calls when all that the loop has found by then is passed on."""
        self._call_soon = call_soon
        self._now = now
        self._sleep = sleep
        self._is_due = False
        self._looked_at = 0.0

    def after(self, piece: bytes) -> None:
        """A piece of an answer was passed on."""
        if not self._is_due and len(piece) < SMALL:
            self._is_due = True
            self._call_soon(self._rest)

    def _rest(self) -> None:
        """The whole process does: it has nothing else to do than what comes next from those sockets."""
        self._is_due = False
        if self._now() - self._looked_at < RUSH_SECONDS:
            self._sleep(REST_SECONDS)
        self._looked_at = self._now()
