"""Memory budgets for request bodies, per request and for the whole process, and for unfinished heads; and inflation of
gzip bodies.

Bodies for models may be compressed with gzip. They are inflated here because engines accept only plain ones.

Requests without a valid key have a small budget of their own. When it is used up, the oldest of their bodies that is
still being received is dropped, so a request that arrives in one piece, as those of workers do, always finds room.
"""

import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from corral.gateway.answers import GatewayRefusal
from corral.gateway.config import Limits

GZIP: Final = frozenset({b"gzip", b"x-gzip"})
_STEP: Final = 64 * 1024
_WINDOW: Final = 16 * 1024
"""Bytes given to the decompressor at once: it copies whatever it does not consume."""
_MOST_MEMBERS: Final = 4096
"""Maximum number of gzip members in a body. Tools that compress in blocks write one for every 64 kB or more."""
_PADDING: Final = re.compile(rb"\0*")


@dataclass(slots=True, kw_only=True)
class Bodies:
    """Counts the bytes of all request bodies that are held in memory."""

    keyed: int = 0
    keyless: int = 0
    strangers: "dict[HeldBody, Callable[[], bool]]" = field(default_factory=dict)
    """Bodies of requests without a valid key, oldest first, each with a callback that drops it while it is being
    received."""

    @property
    def held(self) -> int:
        return self.keyed + self.keyless


class HeldBody:
    """The part of the budget that one client connection uses."""

    __slots__ = ("_all", "_held", "_is_keyless", "_limit", "_limits")

    def __init__(self, bodies: Bodies, limits: Limits) -> None:
        self._all = bodies
        self._limits = limits
        self._limit = limits.body
        self._held = 0
        self._is_keyless = False

    def begin_keyless(self, limit: int, give_up: Callable[[], bool]) -> None:
        """Account the following body to requests without a valid key, until `release`."""
        self._is_keyless = True
        self._limit = limit
        self._all.strangers[self] = give_up

    def add(self, size: int) -> None:
        """Account `size` more bytes. They stay accounted until `release`, even if this raises `GatewayRefusal`."""
        self._held += size
        bodies = self._all
        if not self._is_keyless:
            bodies.keyed += size
            if self._held > self._limit:
                raise body_too_large(self._limit)
            if bodies.keyed > self._limits.bodies:
                raise overloaded()
            return
        bodies.keyless += size
        if self._held > self._limit:
            raise keyless_too_large(self._limit)
        budget = self._limits.keyless_bodies
        if bodies.keyless > budget:
            for other, give_up in list(bodies.strangers.items()):
                if other is not self and give_up() and bodies.keyless <= budget:
                    return
            raise overloaded()

    def release(self) -> None:
        if self._is_keyless:
            self._all.keyless -= self._held
            self._all.strangers.pop(self, None)
            self._is_keyless, self._limit = False, self._limits.body
            self._held = 0
        elif self._held:
            self._all.keyed -= self._held
            self._held = 0


class UnfinishedHeads:
    """Counts the bytes of heads that have begun, on connections that have shown no valid key.

    When the budget is used up, the oldest of these heads is given up. One that arrives in one piece is never counted.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._sizes: dict[Callable[[], None], int] = {}
        """By the callback that gives a head up, the oldest first."""
        self.held = 0

    def grow(self, give_up: Callable[[], None], size: int) -> None:
        """Count `size` more bytes of a head. May give up any head, this one included; each is expected to `drop`."""
        self._sizes[give_up] = self._sizes.get(give_up, 0) + size
        self.held += size
        while self.held > self._budget:
            next(iter(self._sizes))()

    def drop(self, give_up: Callable[[], None]) -> None:
        """Stop counting a head: it is complete, or its connection is closed."""
        self.held -= self._sizes.pop(give_up, 0)


def overloaded() -> GatewayRefusal:
    return GatewayRefusal.busy(503, "too many requests are being received", code="overloaded", closes=True)


class Inflation:
    """A gzip body that is inflated in bounded steps."""

    __slots__ = ("_at", "_body", "_inflater", "_limit", "_members", "_pieces", "_size")

    def __init__(self, body: bytes, *, limit: int) -> None:
        self._body = body
        self._at = 0
        self._limit = limit
        self._inflater = _inflater()
        self._members = 1
        self._pieces: list[bytes] = []
        self._size = 0

    def run(self, most: int | None = None) -> bool:
        """Inflate until the end, or until about `most` bytes were read or produced. Return whether the end is reached.

        Raise `GatewayRefusal` when the body is not valid gzip or becomes too large.
        """
        worked = 0
        while most is None or worked < most:
            before = self._at
            piece = self._next()
            worked += self._at - before + len(piece)
            if self._inflater.eof:
                if padding := _PADDING.match(self._body, self._at):  # zeros may follow a gzip member
                    self._at = padding.end()
                if self._at == len(self._body):
                    return True
                self._members += 1
                if self._members > _MOST_MEMBERS:
                    raise _bad_gzip(f"it has more than {_MOST_MEMBERS} members")
                self._inflater = _inflater()
            elif not piece and self._at == len(self._body):
                raise _bad_gzip("it ends too early")
        return False

    def _next(self) -> bytes:
        inflater = self._inflater
        window = self._body[self._at : self._at + _WINDOW]
        try:
            piece = inflater.decompress(window, min(_STEP, self._limit - self._size + 1))
        except zlib.error as error:
            raise _bad_gzip(str(error)) from None
        self._at += len(window) - len(inflater.unused_data if inflater.eof else inflater.unconsumed_tail)
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size > self._limit:
            raise body_too_large(self._limit, when="once it is inflated")
        return piece

    @property
    def content(self) -> bytes:
        return b"".join(self._pieces)


def check_encoding(encoding: bytes) -> None:
    """Raise `GatewayRefusal` for a content encoding other than gzip."""
    if encoding not in GZIP:
        name = encoding.decode("latin-1")
        text = f"bodies with the Content-Encoding {name} are not understood; send gzip, or the body as it is"
        raise GatewayRefusal(415, text, code="unsupported_content_encoding", headers={"Accept-Encoding": "gzip"})


def _inflater() -> "zlib._Decompress":
    return zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)


def _bad_gzip(why: str) -> GatewayRefusal:
    return GatewayRefusal(400, f"the body is not valid gzip: {why}", code="invalid_gzip")


def body_too_large(limit: int, *, when: str = "") -> GatewayRefusal:
    knob = "the setting gateway.max_request (CORRAL_MAX_REQUEST) allows more"
    reason = f"the body is larger than {limit} bytes {when}".rstrip()
    return GatewayRefusal(413, f"{reason}; {knob}", code="body_too_large", closes=True)


def keyless_too_large(limit: int) -> GatewayRefusal:
    text = f"without a valid API key the body may have {limit} bytes here"
    return GatewayRefusal(413, text, code="body_too_large", closes=True)
