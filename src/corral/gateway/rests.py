"""Rests while events rush in, so that the next look at the sockets finds several of each stream at once.

Most of what an event costs is being woken for it and writing it alone, in the kernel. Network cards hold back their
interrupts for the same reason.
"""

import asyncio
import os
import time
from typing import Final

_RUSH_SECONDS: Final = float(os.environ.get("RUSH", "0.001"))
_REST_SECONDS: Final = float(os.environ.get("REST", "0.00005"))
_SMALL: Final = 4096


class Rests:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_due = False
        self._last = 0.0

    def after(self, piece: bytes) -> None:
        """A piece of an answer was passed on."""
        if not self._is_due and len(piece) < _SMALL:
            self._is_due = True
            self._loop.call_soon(self._rest)

    def _rest(self) -> None:
        """Before the loop looks at its sockets again."""
        self._is_due = False
        if time.monotonic() - self._last < _RUSH_SECONDS:
            time.sleep(_REST_SECONDS)
        self._last = time.monotonic()
