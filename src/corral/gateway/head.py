"""Heads of requests: read strictly, and written anew for whoever answers.

What a client sent is never copied into an upstream head as it was: the head is put together from what the parser
understood, and the body gets a Content-Length of its own. So nobody behind the gateway can understand another request
than the one the gateway saw.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

import httptools

from corral.gateway.answers import Refusal
from corral.protocol.keys import bearer

_FORWARDED: Final = b"x-forwarded-"
_TARGET: Final = re.compile(rb"/[!-\"$-~]*", re.DOTALL)
"""A path with an optional query: no other form of a target, and no fragment."""
_HOST: Final = re.compile(rb"[!-~]*")
_KNOWN_OPTIONS: Final = frozenset({b"close", b"keep-alive", b"upgrade", b""})
WEBSOCKET: Final = b"websocket"
API_KEY: Final = b"x-api-key: "
_END: Final = b"\r\n\r\n"
_VERSIONS: Final = frozenset({b"HTTP/1.0", b"HTTP/1.1"})
_NO_OPTIONS: Final[frozenset[bytes]] = frozenset()
_MOST_REMEMBERED: Final = 1024
_LONGEST_REMEMBERED: Final = 256
_passed_on: Final[set[bytes]] = set()
"""Fields that were looked at before: clients send the same ones with every request."""


class RequestHead:
    """One request without its body."""

    __slots__ = (
        "authorization",
        "expects_continue",
        "has_api_key",
        "host",
        "is_chunked",
        "is_http10",
        "keep_alive",
        "key",
        "length",
        "lines",
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
        self.lines: list[bytes] = []
        """Header fields that are passed on unchanged."""
        self.host: bytes | None = None
        self.authorization: bytes | None = None
        self.key: str | None = None
        """What the sender presented as its API key."""
        self.length: int | None = None
        self.has_api_key = False
        """Whether one of the lines is its own header for that."""
        self.is_chunked = False
        self.is_http10 = False
        self.keep_alive = False
        self.expects_continue = False
        self.upgrade = b""
        self.options: frozenset[bytes] = _NO_OPTIONS
        """The words of `Connection`."""

    @property
    def wants_tunnel(self) -> bool:
        """Other upgrades than WebSocket are left unanswered, as HTTP allows: the request is an ordinary one."""
        return self.upgrade == WEBSOCKET and b"upgrade" in self.options and self.method == b"GET"


def read_head(raw: bytes) -> RequestHead:
    """Of a head that the parser has found well-formed: so lines end with CRLF and nowhere else. Raises Refusal."""
    line, *fields = raw[: -len(_END)].split(b"\r\n")
    words = line.split(b" ")
    if len(words) != 3 or words[2] not in _VERSIONS or not _TARGET.fullmatch(words[1]):
        raise Refusal.bad_framing("the request line needs a method, a path and HTTP/1.1")
    head = RequestHead()
    head.method, target, version = words
    head.path, _, head.query = target.partition(b"?")
    head.is_http10 = version == b"HTTP/1.0"
    lines = head.lines
    for field in fields:
        if field in _passed_on:
            lines.append(field)
            continue
        name, _, value = field.partition(b":")
        name = name.lower()
        take = _TAKERS.get(name)
        if take is not None:
            take(head, value.strip(b" \t"))
        elif not name.startswith(_FORWARDED) and b"_" not in name:  # which some read as a hyphen
            lines.append(field)
            _remember(field)
    _check(head)
    return head


def _remember(field: bytes) -> None:
    """That it is passed on. Bounded, since whoever sends fields decides what they are."""
    if len(field) <= _LONGEST_REMEMBERED:
        if len(_passed_on) >= _MOST_REMEMBERED:
            _passed_on.clear()
        _passed_on.add(field)


def _take_host(head: RequestHead, value: bytes) -> None:
    if head.host is not None or not _HOST.fullmatch(value):
        raise Refusal.bad_framing("the Host header is malformed")
    head.host = value


def _take_length(head: RequestHead, value: bytes) -> None:
    head.length = int(value)


def _take_authorization(head: RequestHead, value: bytes) -> None:
    if head.authorization is not None:
        raise Refusal.bad_framing("there are two Authorization headers")
    head.authorization = value
    head.key = bearer(value.decode("latin-1")) or head.key


def _take_api_key(head: RequestHead, value: bytes) -> None:
    head.lines.append(API_KEY + value)
    head.has_api_key = True
    head.key = head.key or value.decode("latin-1") or None


def _take_connection(head: RequestHead, value: bytes) -> None:
    head.options |= {option.strip(b" \t").lower() for option in value.split(b",")}


def _take_coding(head: RequestHead, value: bytes) -> None:
    if value.lower() != b"chunked":
        raise Refusal.bad_framing("the only transfer coding is chunked")
    head.is_chunked = True


def _take_expectation(head: RequestHead, value: bytes) -> None:
    if value.lower() != b"100-continue":
        raise Refusal(417, "this expectation cannot be met", code="expectation_failed", closes=True)
    head.expects_continue = True


def _take_upgrade(head: RequestHead, value: bytes) -> None:
    head.upgrade = value.lower()


def _drop(head: RequestHead, value: bytes) -> None:
    """Meant for us alone, or not to be believed."""


_TAKERS: Final[Mapping[bytes, Callable[[RequestHead, bytes], None]]] = {
    b"host": _take_host,
    b"connection": _take_connection,
    b"content-length": _take_length,
    b"transfer-encoding": _take_coding,
    b"expect": _take_expectation,
    b"upgrade": _take_upgrade,
    b"authorization": _take_authorization,
    b"x-api-key": _take_api_key,
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
        _drop,
    ),
}
"""What becomes of a header field. Those that are not here are passed on."""


def _check(head: RequestHead) -> None:
    """What no single field tells."""
    if head.host is None and not head.is_http10:
        raise Refusal.bad_framing("the Host header is missing")
    if head.is_chunked and head.is_http10:
        raise Refusal.bad_framing("HTTP/1.0 knows no chunks")
    if head.upgrade and (head.is_chunked or head.length):
        raise Refusal.bad_framing("a request to upgrade has no body")
    head.keep_alive = not head.is_http10 and b"close" not in head.options
    if head.options and not head.options <= _KNOWN_OPTIONS:
        options = head.options
        head.lines = [line for line in head.lines if line[: line.index(b":")].lower() not in options]


class RequestReader:
    """Reads the requests of one connection in turn. The parser says what is well-formed, and where it ends."""

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._in_head = False
        self.body: list[bytes] = []
        self.body_size = 0
        self.is_complete = False
        self.has_overrun = False
        """More than the message came in one piece with its last chunk. The excess was not kept."""

    def read_head(self, raw: bytes) -> RequestHead:
        """From the first byte to the empty line, and nothing after it. Raises Refusal."""
        self._in_head = True
        self.body = []
        self.body_size = 0
        self.is_complete = self.has_overrun = False
        try:
            self._parser.feed_data(raw)
        except httptools.HttpParserUpgrade:
            self._parser = httptools.HttpRequestParser(self)
        except httptools.HttpParserError as error:
            raise Refusal.bad_framing(str(error)) from None
        if self._in_head:
            raise Refusal.bad_framing("the head has no end")
        head = read_head(raw)
        if self.is_complete == (head.is_chunked or bool(head.length)):
            raise Refusal.bad_framing("the length of the body is unclear")
        return head

    def feed(self, data: bytes) -> None:
        """A piece of the body. Raises Refusal."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # by another request, sent together with the last chunk
            self.has_overrun = True
        except httptools.HttpParserError as error:
            raise Refusal.bad_framing(str(error)) from None

    def take_body(self) -> bytes:
        body = self.body[0] if len(self.body) == 1 else b"".join(self.body)
        self.body = []
        return body

    # What the parser calls. Headers are not among it, so trailers are dropped: some would trust them.

    def on_message_begin(self) -> None:
        if self.is_complete:
            self.has_overrun = True

    def on_headers_complete(self) -> None:
        self._in_head = False

    def on_body(self, body: bytes) -> None:
        if not self.is_complete:
            self.body.append(body)
            self.body_size += len(body)

    def on_message_complete(self) -> None:
        self.is_complete = True


def write_head(
    head: RequestHead, *, target: bytes, host: bytes, authorization: bytes | None, added: bytes, length: int
) -> bytes:
    """The head as it goes upstream; `added` are whole header lines."""
    first = b"%b %b HTTP/1.%b\r\nHost: %b" % (head.method, target, b"0" if head.is_http10 else b"1", host)
    lines = [first, *head.lines]
    if authorization is not None:
        lines.append(b"Authorization: " + authorization)
    if length or head.is_chunked or head.length is not None:
        lines.append(b"Content-Length: %d" % length)
    lines += (added, b"")
    return b"\r\n".join(lines)
