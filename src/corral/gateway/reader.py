"""Reads the requests of one client connection: validates them and finds where each ends.

The parser decides both. Only a head that it accepted before on the same connection is not parsed again: most clients
change nothing between requests but the length of the body. The remembered head belongs to its connection, so no key
outlives the client that presented it.
"""

import re
from typing import Final, cast

import httptools

from corral.gateway.answers import GatewayRefusal
from corral.gateway.head import RequestHead, read_head

END: Final = b"\r\n\r\n"
_BARE_LF: Final = re.compile(rb"(?<!\r)\n")
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)[ \t]*\r\n", re.IGNORECASE)
_UPGRADE: Final = re.compile(rb"\r\nupgrade:[^\r\n]*", re.IGNORECASE)
_MOST_DIGITS: Final = 18
_SMALL: Final = 1024
"""Pieces of a body up to this many bytes are joined: an object for each would cost more than the bytes."""
_LONGEST_KEPT: Final = 2048
"""Longest head, in bytes, that is remembered for the next request of the connection."""


class PartialHead:
    """Collects a head that arrives in several pieces. Most heads arrive in one and do not get here."""

    __slots__ = ("_limit", "_scanned", "received")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._scanned = 0
        self.received = bytearray()

    def add(self, data: bytes) -> bytes:
        """Return everything received once the head is complete, else b"". Raise `GatewayRefusal`."""
        received = self.received
        received += data
        since = max(self._scanned - len(END), 0)
        self._scanned = len(received)
        end = received.find(END, since)
        if _BARE_LF.search(received, since, end if end >= 0 else len(received)):
            raise GatewayRefusal.bad_framing("a line ends without a carriage return")
        if end >= 0:
            return bytes(received)
        if len(received) > self._limit:
            raise head_too_large()
        return b""


def head_too_large() -> GatewayRefusal:
    return GatewayRefusal(431, "the head of the request is too large", code="head_too_large", closes=True)


class RequestReader:
    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._in_head = False
        self._last_head: RequestHead | None = None
        self._before_length = self._after_length = b""
        """The remembered head as received, without the digits of its Content-Length."""
        self._length_start = self._length_end = 0
        """Where those digits begin, and where they end when counted from the end of the head."""
        self.knows_end = False
        """Whether the parser was skipped for this request; then the body is as long as the head says."""
        self.body: list[bytes | bytearray] = []
        self.body_size = 0
        self.is_complete = False
        self.has_overrun = False
        """More data than the message arrived in the same piece as its last chunk. The excess was dropped."""

    def read_head(self, raw: bytes) -> RequestHead:
        """Parse the bytes from the first one to the empty line, and nothing after it. Raise `GatewayRefusal`."""
        self.body = []
        self.body_size = 0
        self.is_complete = self.has_overrun = False
        return self._recalled(raw) or self._parsed(raw)

    def feed(self, data: bytes) -> int:
        """Add a piece of the body, never more than the head announced. Return how many bytes of the body are in it.

        Raise `GatewayRefusal`.
        """
        if self.knows_end:
            self.on_body(data)
            self.is_complete = self.body_size == (self._last_head and self._last_head.length)
            return len(data)
        before = self.body_size
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # caused by another request in the same piece as the last chunk
            self.has_overrun = True
        except httptools.HttpParserError as error:
            raise GatewayRefusal.bad_framing(str(error)) from None
        return self.body_size - before

    def close(self) -> None:
        """Drop the body and the parser. No other method may be called afterwards.

        The parser refers back to this object, and a body of 32 MB must not wait for the garbage collector.
        """
        self._parser = cast(httptools.HttpRequestParser, None)
        self._last_head = None
        self.body = []

    def take_body(self) -> bytes:
        body = b"".join(self.body)  # one piece of bytes is not copied
        self.body = []
        return body

    def _recalled(self, raw: bytes) -> RequestHead | None:
        """Return the remembered head if this one differs only in the length. The request it belonged to is over."""
        head = self._last_head
        if head is None or not (raw.startswith(self._before_length) and raw.endswith(self._after_length)):
            return None
        digits = raw[self._length_start : self._length_end]
        if not digits.isdigit() or len(digits) > _MOST_DIGITS:
            return None
        head.length = int(digits)
        self.knows_end = True
        self.is_complete = not head.length
        return head

    def _parsed(self, raw: bytes) -> RequestHead:
        """Parse the head, and remember it for the next request."""
        self.knows_end = False
        wants_upgrade = self._feed_head(raw)
        head = read_head(raw)
        if wants_upgrade and not head.upgrades_to_websocket:  # the parser did not read a body for it
            self._feed_head(_UPGRADE.sub(b"", raw))
        if self.is_complete == (head.is_chunked or bool(head.length)):
            raise GatewayRefusal.bad_framing("the length of the body is unclear")
        # A head can be repeated if it has a length and the connection stays open.
        self._last_head = None
        if head.length is None or head.upgrades_to_websocket or not head.keep_alive or len(raw) > _LONGEST_KEPT:
            return head
        length = _LENGTH.search(raw)
        if length is not None:
            self._last_head = head
            self._before_length, self._after_length = raw[: length.start(1)], raw[length.end(1) :]
            self._length_start, self._length_end = length.start(1), length.end(1) - len(raw)
        return head

    def _feed_head(self, raw: bytes) -> bool:
        """Return whether the parser treats it as an upgrade request. Raise `GatewayRefusal`."""
        self._in_head = True
        self.is_complete = False
        try:
            self._parser.feed_data(raw)
        except httptools.HttpParserUpgrade:
            self._parser = httptools.HttpRequestParser(self)
            return True
        except httptools.HttpParserError as error:
            raise GatewayRefusal.bad_framing(str(error)) from None
        if self._in_head:
            raise GatewayRefusal.bad_framing("the head has no end")
        return False

    # Called by the parser. It gets no header callbacks, so trailers are dropped: some servers would trust them.

    def on_message_begin(self) -> None:
        if self.is_complete:
            self.has_overrun = True

    def on_headers_complete(self) -> None:
        self._in_head = False

    def on_body(self, body: bytes) -> None:
        if not self.is_complete:
            self.body_size += len(body)
            if not self.body or len(body) >= _SMALL:
                self.body.append(body)
            elif isinstance(last := self.body[-1], bytearray):
                last += body
            else:
                self.body.append(bytearray(body))

    def on_message_complete(self) -> None:
        self.is_complete = True
