"""Heads of requests: read strictly, and written anew for whoever answers.

What a client sent is never copied into an upstream head as it was: the head is put together from what the parser
understood, and the body gets a Content-Length of its own. So nobody behind the gateway can understand another request
than the one the gateway saw.
"""

import re
from enum import Enum
from typing import Final

import httptools

from corral.gateway.answers import Refusal
from corral.protocol.keys import bearer


class _Kind(Enum):
    """What becomes of a header field."""

    DROPPED = 0
    HOST = 1
    CONNECTION = 2
    LENGTH = 3
    CODING = 4
    EXPECT = 5
    UPGRADE = 6
    AUTHORIZATION = 7
    API_KEY = 8


_KINDS: Final = {
    b"host": _Kind.HOST,
    b"connection": _Kind.CONNECTION,
    b"content-length": _Kind.LENGTH,
    b"transfer-encoding": _Kind.CODING,
    b"expect": _Kind.EXPECT,
    b"upgrade": _Kind.UPGRADE,
    b"authorization": _Kind.AUTHORIZATION,
    b"x-api-key": _Kind.API_KEY,
    **dict.fromkeys(
        [
            b"keep-alive",
            b"proxy-connection",
            b"proxy-authenticate",
            b"proxy-authorization",
            b"te",
            b"trailer",
            b"http2-settings",
            b"forwarded",
            b"x-real-ip",
        ],
        _Kind.DROPPED,
    ),
}
_FORWARDED: Final = b"x-forwarded-"
_TARGET: Final = re.compile(rb"/[!-\"$-~]*", re.DOTALL)
"""A path with an optional query: no other form of a target, and no fragment."""
_HOST: Final = re.compile(rb"[!-~]*")
_KNOWN_OPTIONS: Final = frozenset({b"close", b"keep-alive", b"upgrade", b""})
WEBSOCKET: Final = b"websocket"


class RequestHead:
    """One request without its body."""

    __slots__ = (
        "authorization",
        "expects_continue",
        "headers",
        "host",
        "is_chunked",
        "is_http10",
        "keep_alive",
        "key",
        "length",
        "method",
        "options",
        "path",
        "query",
        "upgrade",
    )

    def __init__(self) -> None:
        self.method = b""
        self.path = b""
        self.query = b""
        self.headers: list[tuple[bytes, bytes]] = []
        """Those that are passed on unchanged."""
        self.host: bytes | None = None
        self.authorization: bytes | None = None
        self.key: str | None = None
        """What the sender presented as its API key."""
        self.length: int | None = None
        self.is_chunked = False
        self.is_http10 = False
        self.keep_alive = False
        self.expects_continue = False
        self.upgrade = b""
        self.options: frozenset[bytes] = frozenset()
        """The words of `Connection`."""

    @property
    def wants_tunnel(self) -> bool:
        """Other upgrades than WebSocket are left unanswered, as HTTP allows: the request is an ordinary one."""
        return self.upgrade == WEBSOCKET and b"upgrade" in self.options and self.method == b"GET"


class RequestReader:
    """Reads the requests of one connection, one after another, with one parser."""

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._target = b""
        self._in_head = False
        self._head = RequestHead()
        self.body: list[bytes] = []
        self.body_size = 0
        self.is_complete = False
        self.has_overrun = False
        """More than the message came in one piece with its last chunk. The excess was not kept."""

    def read_head(self, data: bytes) -> RequestHead:
        """From the first byte to the empty line, and nothing after it. Raises Refusal."""
        self._head = RequestHead()
        self._target = b""
        self._in_head = True
        self.body = []
        self.body_size = 0
        self.is_complete = self.has_overrun = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._parser = httptools.HttpRequestParser(self)
        except httptools.HttpParserError as error:
            raise Refusal.bad_framing(_reason(error)) from None
        if self._in_head:
            raise Refusal.bad_framing("the head has no end")
        return self._checked(data)

    def feed(self, data: bytes) -> None:
        """A piece of the body. Raises Refusal."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # by another request, sent together with the last chunk
            self.has_overrun = True
        except httptools.HttpParserError as error:
            raise Refusal.bad_framing(_reason(error)) from None

    def take_body(self) -> bytes:
        body = self.body[0] if len(self.body) == 1 else b"".join(self.body)
        self.body = []
        return body

    def _checked(self, data: bytes) -> RequestHead:
        head = self._head
        if not data.startswith(head.method + b" " + self._target + b" HTTP/1."):
            raise Refusal.bad_framing("the request line is malformed")
        if head.host is None and not head.is_http10:
            raise Refusal.bad_framing("the Host header is missing")
        if head.is_chunked and head.is_http10:
            raise Refusal.bad_framing("HTTP/1.0 knows no chunks")
        if head.upgrade and (head.is_chunked or head.length):
            raise Refusal.bad_framing("a request to upgrade has no body")
        if not _TARGET.fullmatch(self._target):
            raise Refusal.bad_framing("the target is not a path")
        if not head.is_chunked and not head.length and not self.is_complete:
            raise Refusal.bad_framing("the length of the body is unclear")
        head.path, _, head.query = self._target.partition(b"?")
        if not head.options <= _KNOWN_OPTIONS:
            head.headers = [(name, value) for name, value in head.headers if name.lower() not in head.options]
        return head

    # What the parser calls.

    def on_message_begin(self) -> None:
        if self.is_complete and not self._in_head:
            self.has_overrun = True

    def on_url(self, url: bytes) -> None:
        if self._in_head:
            self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head or self.is_complete:
            return  # a trailer: nobody behind us needs one, and some would trust it
        lower = name.lower()
        kind = _KINDS.get(lower)
        if kind is None:
            if b"_" in lower:
                return  # read as a hyphen by some, so it could say what we drop otherwise
            if not lower.startswith(_FORWARDED):
                self._head.headers.append((name, value))
            return
        self._take(kind, value)

    def _take(self, kind: _Kind, value: bytes) -> None:
        head = self._head
        value = value.strip(b" \t")
        match kind:
            case _Kind.HOST:
                if head.host is not None or not _HOST.fullmatch(value):
                    raise Refusal.bad_framing("the Host header is malformed")
                head.host = value
            case _Kind.CONNECTION:
                head.options |= {option.strip(b" \t").lower() for option in value.split(b",")}
            case _Kind.LENGTH:
                head.length = int(value)
            case _Kind.CODING:
                if value.lower() != b"chunked":
                    raise Refusal.bad_framing("the only transfer coding is chunked")
                head.is_chunked = True
            case _:
                self._take_wish(kind, value)

    def _take_wish(self, kind: _Kind, value: bytes) -> None:
        head = self._head
        match kind:
            case _Kind.EXPECT:
                if value.lower() != b"100-continue":
                    raise Refusal(417, "this expectation cannot be met", code="expectation_failed", closes=True)
                head.expects_continue = True
            case _Kind.UPGRADE:
                head.upgrade = value.lower()
            case _Kind.AUTHORIZATION:
                if head.authorization is not None:
                    raise Refusal.bad_framing("there are two Authorization headers")
                head.authorization = value
                head.key = bearer(value.decode("latin-1")) or head.key
            case _Kind.API_KEY:
                head.headers.append((b"x-api-key", value))
                head.key = head.key or value.decode("latin-1") or None

    def on_headers_complete(self) -> None:
        if not self._in_head:
            return
        head, parser = self._head, self._parser
        head.method = parser.get_method()
        version = parser.get_http_version()
        if version not in ("1.0", "1.1"):
            raise Refusal.bad_framing(f"HTTP/{version} is not spoken here")
        head.is_http10 = version == "1.0"
        head.keep_alive = parser.should_keep_alive() and not head.is_http10
        self._in_head = False

    def on_body(self, body: bytes) -> None:
        if not self.is_complete:
            self.body.append(body)
            self.body_size += len(body)

    def on_message_complete(self) -> None:
        self.is_complete = True


def _reason(error: httptools.HttpParserError) -> str:
    """What the parser objects to, or what we did from inside a callback."""
    inner = error.__context__
    if isinstance(inner, Refusal):
        raise inner from None
    return str(error)


def write_head(
    head: RequestHead, *, target: bytes, host: bytes, authorization: bytes | None, added: bytes, length: int
) -> bytes:
    """The head as it goes upstream; `added` are whole header lines."""
    lines = [head.method, b" ", target, b" HTTP/1.0\r\nHost: " if head.is_http10 else b" HTTP/1.1\r\nHost: ", host]
    for name, value in head.headers:
        lines += (b"\r\n", name, b": ", value)
    if authorization is not None:
        lines += (b"\r\nAuthorization: ", authorization)
    if length or head.is_chunked or head.length is not None:
        lines.append(b"\r\nContent-Length: %d" % length)
    lines += (b"\r\n", added, b"\r\n")
    return b"".join(lines)
