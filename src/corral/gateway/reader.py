"""Reads the requests of one connection in turn: what is well-formed, and where it ends.

The parser decides that. Only a head that it has accepted before on the same connection is not shown to it again: most
clients change nothing from request to request but the length of the body. What is kept for that is what one client
sent, and it goes with its connection, so no key outlives the client that presented it.
"""

import re
from typing import Final, cast

import httptools

from corral.gateway.answers import Refusal
from corral.gateway.head import RequestHead, read_head

_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)[ \t]*\r\n", re.IGNORECASE)
_UPGRADE: Final = re.compile(rb"\r\nupgrade:[^\r\n]*", re.IGNORECASE)
_MOST_DIGITS: Final = 18
_SMALL: Final = 1024
"""Bytes of a piece of a body that is not worth an object of its own."""
_LONGEST_KEPT: Final = 2048
"""Bytes of a head that are kept to know it again, for as long as the connection is there."""


class RequestReader:
    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._in_head = False
        self._known: RequestHead | None = None
        self._before_length = self._after_length = b""
        """The known head as it came, without the digits of its Content-Length."""
        self._knows_end = False
        """Whether the parser was not asked about this request: then its body is as long as its head says."""
        self.body: list[bytes | bytearray] = []
        self.body_size = 0
        self.is_complete = False
        self.has_overrun = False
        """More than the message came in one piece with its last chunk. The excess was not kept."""

    def read_head(self, raw: bytes) -> RequestHead:
        """From the first byte to the empty line, and nothing after it. Raises Refusal."""
        self.body = []
        self.body_size = 0
        self.is_complete = self.has_overrun = False
        head = self._recalled(raw)
        if head is None:
            head = self._parsed(raw)
            self._remember(raw, head)
        return head

    def feed(self, data: bytes) -> None:
        """A piece of the body; never more than is missing, where the head says a length. Raises Refusal."""
        if self._knows_end:
            self.on_body(data)
            self.is_complete = self.body_size == (self._known and self._known.length)
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # by another request, sent together with the last chunk
            self.has_overrun = True
        except httptools.HttpParserError as error:
            raise Refusal.bad_framing(str(error)) from None

    def close(self) -> None:
        """Drop the body and the parser, which refers back to this object: a body of 32 MB must not wait for the
        garbage collector. No other method may be called afterwards."""
        self._parser = cast(httptools.HttpRequestParser, None)
        self._known = None
        self.body = []

    def take_body(self) -> bytes:
        body = bytes(self.body[0]) if len(self.body) == 1 else b"".join(self.body)
        self.body = []
        return body

    def _recalled(self, raw: bytes) -> RequestHead | None:
        """The last head once more, if this one differs in nothing but the length. Its own request is over."""
        head = self._known
        if head is None or not (raw.startswith(self._before_length) and raw.endswith(self._after_length)):
            return None
        digits = raw[len(self._before_length) : -len(self._after_length)]
        if not digits.isdigit() or len(digits) > _MOST_DIGITS:
            return None
        head.length = int(digits)
        self._knows_end = True
        self.is_complete = not head.length
        return head

    def _parsed(self, raw: bytes) -> RequestHead:
        self._knows_end = False
        wants_upgrade = self._feed_head(raw)
        head = read_head(raw)
        if wants_upgrade and not head.upgrades_to_websocket:  # of which the parser took no body
            self._feed_head(_UPGRADE.sub(b"", raw))
        if self.is_complete == (head.is_chunked or bool(head.length)):
            raise Refusal.bad_framing("the length of the body is unclear")
        return head

    def _feed_head(self, raw: bytes) -> bool:
        """Whether the parser takes it for a request to upgrade. Raises Refusal."""
        self._in_head = True
        self.is_complete = False
        try:
            self._parser.feed_data(raw)
        except httptools.HttpParserUpgrade:
            self._parser = httptools.HttpRequestParser(self)
            return True
        except httptools.HttpParserError as error:
            raise Refusal.bad_framing(str(error)) from None
        if self._in_head:
            raise Refusal.bad_framing("the head has no end")
        return False

    def _remember(self, raw: bytes, head: RequestHead) -> None:
        """Where it can come again: with any length, and on a connection that goes on."""
        self._known = None
        if head.length is None or head.upgrades_to_websocket or not head.keep_alive or len(raw) > _LONGEST_KEPT:
            return
        length = _LENGTH.search(raw)
        if length is not None:
            self._known = head
            self._before_length, self._after_length = raw[: length.start(1)], raw[length.end(1) :]

    # What the parser calls. Headers are not among it, so trailers are dropped: some would trust them.

    def on_message_begin(self) -> None:
        if self.is_complete:
            self.has_overrun = True

    def on_headers_complete(self) -> None:
        self._in_head = False

    def on_body(self, body: bytes) -> None:
        if not self.is_complete:
            self.body_size += len(body)
            if len(body) < _SMALL and self.body:
                self._collect(body)
            else:
                self.body.append(body)

    def _collect(self, piece: bytes) -> None:
        """Small pieces together: each alone would take many times its size."""
        last = self.body[-1]
        if isinstance(last, bytearray):
            last += piece
        else:
            self.body.append(bytearray(piece))

    def on_message_complete(self) -> None:
        self.is_complete = True
