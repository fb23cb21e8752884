"""Bodies of requests that are held until they are passed on: how large one may be, and all of them together.

Bodies for models may come compressed with gzip, and are inflated here: engines do not take them otherwise.
"""

import zlib
from dataclasses import dataclass
from typing import Final

from corral.gateway.answers import Refusal
from corral.gateway.config import Limits

GZIP: Final = frozenset({b"gzip", b"x-gzip"})
_STEP: Final = 64 * 1024


@dataclass(slots=True, kw_only=True)
class Bodies:
    """How many bytes of bodies are held at the moment."""

    held: int = 0


class HeldBody:
    """What is held of one client's request."""

    __slots__ = ("_all", "_held", "_limits")

    def __init__(self, bodies: Bodies, limits: Limits) -> None:
        self._all = bodies
        self._limits = limits
        self._held = 0

    def add(self, size: int) -> None:
        """Raises Refusal. It is held all the same, until it is released."""
        bodies = self._all
        self._held += size
        bodies.held += size
        if self._held > self._limits.body:
            raise body_too_large(self._limits.body)
        if bodies.held > self._limits.bodies:
            refusal = Refusal.busy(503, "too many requests are being received", code="overloaded")
            refusal.closes = True
            raise refusal

    def release(self) -> None:
        self._all.held -= self._held
        self._held = 0


class Inflation:
    """A gzip body while it is inflated, in steps of which each is bounded."""

    __slots__ = ("_inflater", "_limit", "_pieces", "_rest", "_size")

    def __init__(self, body: bytes, *, limit: int) -> None:
        self._rest = body
        self._limit = limit
        self._inflater = _inflater()
        self._pieces: list[bytes] = []
        self._size = 0

    def run(self, most: int | None = None) -> bool:
        """Whether it is at its end, once this is done or about so many bytes came of it. Raises Refusal."""
        came = 0
        while most is None or came < most:
            piece = self._next()
            came += len(piece)
            if self._inflater.eof:
                self._rest = self._inflater.unused_data.lstrip(b"\0")  # padding is allowed
                if not self._rest:
                    return True
                self._inflater = _inflater()
            elif not piece:
                raise _bad_gzip("it ends too early")
        return False

    def _next(self) -> bytes:
        try:
            piece = self._inflater.decompress(self._rest, min(_STEP, self._limit - self._size + 1))
        except zlib.error as error:
            raise _bad_gzip(str(error)) from None
        self._rest = self._inflater.unconsumed_tail
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size > self._limit:
            raise body_too_large(self._limit, when="once it is inflated")
        return piece

    @property
    def content(self) -> bytes:
        return b"".join(self._pieces)


def check_encoding(encoding: bytes) -> None:
    """Refusal for what cannot be inflated."""
    if encoding not in GZIP:
        told = encoding.decode("latin-1")
        text = f"bodies with the Content-Encoding {told} are not understood; send gzip, or the body as it is"
        raise Refusal(415, text, code="unsupported_content_encoding", headers={"Accept-Encoding": "gzip"})


def _inflater() -> "zlib._Decompress":
    return zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)


def _bad_gzip(why: str) -> Refusal:
    return Refusal(400, f"the body is not valid gzip: {why}", code="invalid_gzip")


def body_too_large(limit: int, *, when: str = "") -> Refusal:
    knob = "the setting gateway.max_request (CORRAL_MAX_REQUEST) allows more"
    told = f"the body is larger than {limit} bytes {when}".rstrip()
    return Refusal(413, f"{told}; {knob}", code="body_too_large", closes=True)
