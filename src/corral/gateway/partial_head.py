"""Collects a request head that arrives in several pieces. Most heads arrive in one and do not get here."""

import re
from typing import Final

from corral.gateway.answers import Refusal

END: Final = b"\r\n\r\n"
_BARE_LF: Final = re.compile(rb"(?<!\r)\n")


class PartialHead:
    __slots__ = ("_came", "_limit", "_scanned")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._came = bytearray()
        self._scanned = 0

    def add(self, data: bytes) -> bytes:
        """Return everything received once the head is complete, else b"". Raise `Refusal`."""
        came = self._came
        came += data
        since = max(self._scanned - len(END), 0)
        self._scanned = len(came)
        found = came.find(END, since)
        if _BARE_LF.search(came, since, found if found >= 0 else len(came)):
            raise Refusal.bad_framing("a line ends without a carriage return")
        if found >= 0:
            return bytes(came)
        if len(came) > self._limit:
            raise head_too_large()
        return b""


def head_too_large() -> Refusal:
    return Refusal(431, "the head of the request is too large", code="head_too_large", closes=True)
