"""Batches socket writes under load.

Most of the cost of an event is in the kernel: the wake-up, and a write for it alone. When small pieces follow each
other closely, the process pauses briefly, so that the next poll returns several pieces of each stream at once. Network
cards delay interrupts for the same reason. A lone stream with an event every few milliseconds is never delayed; where
events of several coincide, by no more than the pause.
"""

import time
from collections.abc import Callable
from typing import Final

CLOSE_SECONDS: Final = 0.0001
"""Pieces that follow each other within this time, on any streams, count as load."""
PAUSE_SECONDS: Final = 0.0001
"""Length of the pause. With the kernel's overhead 0.15 ms: the longest delay of an event."""
SMALL: Final = 4096
"""Pieces of at least this size are worth a write of their own."""


class WriteBatcher:
    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`call_soon` is the event loop's: it calls back after everything from the last poll has been passed on."""
        self._call_soon = call_soon
        self._now = now
        self._sleep = sleep
        self.is_due = False
        """Whether the process pauses after this turn of the loop anyway."""
        self._polled_at = 0.0
        """About when the last turn of the loop that passed on a piece has ended."""

    def passed(self, piece: bytes) -> None:
        """A piece of a response was passed on: pause after this turn of the loop if pieces come quickly."""
        if self.is_due or len(piece) >= SMALL:
            return
        now = self._now()
        if now - self._polled_at < CLOSE_SECONDS:
            self.is_due = True
            self._call_soon(self._pause)
        else:  # slow streams do without the callback
            self._polled_at = now

    def _pause(self) -> None:
        """Block the whole process: it has nothing to do until the next data arrives on those sockets. Not after a turn
        that was long itself: by then more data is there."""
        self.is_due = False
        if self._now() - self._polled_at < CLOSE_SECONDS:
            self._sleep(PAUSE_SECONDS)
        self._polled_at = self._now()
