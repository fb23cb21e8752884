"""Request heads: parsing the client's, and writing the one for the upstream.

The client's head is never copied upstream. The upstream head is assembled from what the parser understood, and the body
gets its own Content-Length, so an upstream cannot see another request than the gateway did (request smuggling).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from typing import Final

from corral.base.ids import is_request_id
from corral.gateway.answers import GatewayRefusal
from corral.wire.keys import API_KEY_HEADERS, bearer
from corral.wire.refusals import OPENAI_PATHS
from corral.wire.sessions import CSRF_HEADER
from corral.wire.view import KeyEntry

_FORWARDED: Final = b"x-forwarded-"
_TARGET: Final = re.compile(rb"/[!-\"$-~]*", re.DOTALL)
"""A path with an optional query, and no fragment."""
_URL: Final = re.compile(rb"https?://([^/?]*)((?:[/?][!-\"$-~]*)?)", re.IGNORECASE)
"""What may be a URL instead: its host, which is checked next, and what follows it."""
_AUTHORITY: Final = re.compile(
    rb"(?:(?:[a-z0-9._~-]|%[0-9a-f]{2})+|\[([0-9a-f:.]+)\])(?::([0-9]{0,5}))?", re.IGNORECASE
)
"""A name or an IPv4 address, or an IPv6 address in brackets; then a port. Without a user, and without a zone."""
_HIGHEST_PORT: Final = 65535
_HOST: Final = re.compile(rb"[!-~]*")
_KNOWN_OPTIONS: Final = frozenset({b"close", b"keep-alive", b"upgrade", b""})
WEBSOCKET: Final = b"websocket"
PAGE_PATH: Final = b"/ui/"
"""The only path whose last slash says something: without it, browsers are led here."""
HOPS: Final = b"Corral-Hops"
MOST_HOPS: Final = 4
"""A request that came through so many fleets goes round in circles."""
_HOP_DIGITS: Final = 3
_API_KEYS: Final = tuple(name.encode() for name in API_KEY_HEADERS)
_END: Final = b"\r\n\r\n"
_OPENAI: Final = OPENAI_PATHS.encode()
_LONGEST_LINE: Final = 1024
"""How much of a head that was not accepted is searched for its path."""
_VERSIONS: Final = frozenset({b"HTTP/1.0", b"HTTP/1.1"})
_MOST_REMEMBERED: Final = 1024
_LONGEST_REMEMBERED: Final = 256
_OF_ONE_REQUEST: Final = frozenset({b"traceparent", b"tracestate", b"x-trace-id", b"idempotency-key"})
"""Header fields that no other request repeats: remembering them would only drive out the others."""
_passed_on: Final[set[bytes]] = set()
"""Header fields that are known to be passed on unchanged: clients repeat the same fields with every request."""


@dataclass(slots=True, eq=False, repr=False)
class RequestHead:
    """The head of one request, parsed."""

    method: bytes = b""
    path: bytes = b""
    query: bytes = b""
    lines: list[bytes] = field(default_factory=list)
    """Header fields that are passed on unchanged."""
    fields: bytes = b""
    """`lines` joined, ready to be written."""
    forwarded_for: bytes = b""
    """`X-Forwarded-For` as received; believed only from trusted proxies."""
    forwarded_proto: bytes = b""
    host: bytes | None = None
    authorization: bytes | None = None
    key: str | None = None
    """The API key that the sender presented."""
    key_hash: str | None = None
    """Hash of `key`, computed on first use. A repeated head on the same connection keeps it."""
    admitted_by: KeyEntry | None = None
    """The key that admits this head for as long as the view is the one of `admitted_in`. A repeated head keeps it."""
    admitted_in: int = 0
    """The revision of `view.Directory` in which the key was looked up."""
    api_key: bytes = b""
    """Header lines with the API key in LocalAI's own headers. Sent to control, never to replicas."""
    cookie: bytes = b""
    """All cookies of the sender. Sent to control, never to replicas: browsers send them with every request."""
    csrf: bytes = b""
    """The secret that pages send along with the cookie of a session. Sent to control, never to replicas."""
    request_id: bytes = b""
    """`X-Request-ID` of the sender if it is usable, else empty."""
    origin: bytes | None = None
    """The `Origin` header, which browsers send."""
    is_preflight: bool = False
    """Whether this is a CORS preflight request: see `routes.CorsPolicy`."""
    preflight_headers: bytes = b""
    """Header names that a preflight request asks about."""
    hops: int = 0
    """How many fleets passed the request on before this one, each to an engine that somebody else runs."""
    encoding: bytes = b""
    """The Content-Encoding of the body; empty when it is not encoded."""
    length: int | None = None
    is_chunked: bool = False
    is_http10: bool = False
    keep_alive: bool = False
    expects_continue: bool = False
    upgrades_to_websocket: bool = False
    model: str = ""
    """The model that the path named, before it was replaced by the one of the plain route: see `deployments`."""
    options: frozenset[bytes] = frozenset()
    """The options of the `Connection` header."""

    @property
    def wants_tunnel(self) -> bool:
        """Whether to open a WebSocket tunnel. Other upgrades are ignored, as HTTP allows: the request is an ordinary
        one."""
        return self.upgrades_to_websocket and b"upgrade" in self.options and self.method == b"GET"

    # Called with the values of header fields.

    def _take_host(self, value: bytes) -> None:
        if self.host is not None or not _HOST.fullmatch(value):
            raise GatewayRefusal.bad_framing("the Host header is malformed")
        self.host = value

    def _take_length(self, value: bytes) -> None:
        self.length = int(value)

    def _take_authorization(self, value: bytes) -> None:
        if self.authorization is not None:
            raise GatewayRefusal.bad_framing("there are two Authorization headers")
        self.authorization = value
        self.key = bearer(value.decode("latin-1")) or self.key

    def _take_api_key(self, value: bytes) -> None:
        self.api_key += b"%b: %b\r\n" % (_API_KEYS[0], value)
        self.key = self.key or value.decode("latin-1") or None

    def _take_cookie(self, value: bytes) -> None:
        self.cookie = b"%b; %b" % (self.cookie, value) if self.cookie else value

    def _take_csrf(self, value: bytes) -> None:
        self.csrf = value

    def _take_connection(self, value: bytes) -> None:
        self.options |= {option.strip(b" \t").lower() for option in value.split(b",")}

    def _take_coding(self, value: bytes) -> None:
        if value.lower() != b"chunked":
            raise GatewayRefusal.bad_framing("the only transfer coding is chunked")
        self.is_chunked = True

    def _take_encoding(self, value: bytes) -> None:
        coding = value.lower()
        if coding and coding != b"identity":
            self.encoding = b"%b, %b" % (self.encoding, coding) if self.encoding else coding

    def _take_request_id(self, value: bytes) -> None:
        if is_request_id(value):
            self.request_id = self.request_id or value

    def _take_origin(self, value: bytes) -> None:
        self.origin = value

    def _take_preflight_method(self, value: bytes) -> None:
        self.is_preflight = bool(value) and self.method == b"OPTIONS"

    def _take_preflight_headers(self, value: bytes) -> None:
        self.preflight_headers = value

    def _take_expectation(self, value: bytes) -> None:
        if value.lower() != b"100-continue":
            raise GatewayRefusal(417, "this expectation cannot be met", code="expectation_failed", closes=True)
        self.expects_continue = True

    def _take_upgrade(self, value: bytes) -> None:
        self.upgrades_to_websocket = value.lower() == WEBSOCKET

    def _take_forwarded_for(self, value: bytes) -> None:
        self.forwarded_for = self.forwarded_for + b"," + value if self.forwarded_for else value

    def _take_forwarded_proto(self, value: bytes) -> None:
        self.forwarded_proto = value.lower()

    def _take_hops(self, value: bytes) -> None:
        self.hops = int(value) if value.isdigit() and len(value) < _HOP_DIGITS else MOST_HOPS

    def _drop(self, value: bytes) -> None:
        """Drop a hop-by-hop header or one that only the gateway may set."""


def read_head(raw: bytes) -> RequestHead:
    """Parse a head that the parser has accepted, so its lines end with CRLF. Raise `GatewayRefusal`."""
    request_line, *fields = raw[: -len(_END)].split(b"\r\n")
    words = request_line.split(b" ")
    if len(words) != 3 or words[2] not in _VERSIONS or not _TARGET.fullmatch(words[1]):
        return _read_head_with_url(words, raw[len(request_line) :])
    method, target, version = words
    path, _, query = target.partition(b"?")
    if path.endswith(b"/") or path.startswith(b"//"):
        path = _without_extra_slashes(path)
    lines: list[bytes] = []
    head = RequestHead(method, path, query, lines, is_http10=version == b"HTTP/1.0")
    for line in fields:
        if line in _passed_on:
            lines.append(line)
            continue
        name, _, value = line.partition(b":")
        name = name.lower()
        take = _TAKERS.get(name)
        if take is not None:
            take(head, value.strip(b" \t"))
        elif not name.startswith(_FORWARDED) and b"_" not in name:  # some servers read an underscore as a hyphen
            lines.append(line)
            if len(line) <= _LONGEST_REMEMBERED and name not in _OF_ONE_REQUEST:
                if len(_passed_on) >= _MOST_REMEMBERED:  # bounded, because clients decide what they send
                    _passed_on.clear()
                _passed_on.add(line)
    _check(head)
    head.fields = b"\r\n".join([*head.lines, b""])
    return head


def _without_extra_slashes(path: bytes) -> bytes:
    """Return the path without slashes at its end, and with one at its start if it is below `/v1/`: base URLs of clients
    may end with a slash. All other paths have one spelling."""
    joined = b"/" + path.lstrip(b"/")
    if joined.startswith(_OPENAI):
        path = joined
    return path if path == PAGE_PATH else path.rstrip(b"/") or b"/"


def path_seen_in(raw: bytes) -> RequestHead:
    """Return a head that has only the path, of a head that is incomplete or was not accepted: so that its refusal has
    the form that clients of this path expect."""
    words = raw[:_LONGEST_LINE].lstrip(b"\r\n").split(b" ", 2)
    target = words[1] if len(words) > 2 else b""
    url = _URL.fullmatch(target)
    path, _, _ = (url[2] if url else target).partition(b"?")
    return RequestHead(path=_without_extra_slashes(path))


def _read_head_with_url(words: list[bytes], after: bytes) -> RequestHead:
    """Parse a head whose target is a URL, as clients send it to a proxy. Raise `GatewayRefusal` for any other.

    The host of the URL replaces the one of the Host header, which must be valid all the same. The rest of the URL is
    the target, and nothing else of it has an effect: the scheme does not tell how the client is connected.
    """
    url = _URL.fullmatch(words[1]) if len(words) == 3 and words[2] in _VERSIONS else None
    if url is None:
        text = "the request line needs a method, a path or an http URL, and HTTP/1.1"
        raise GatewayRefusal.bad_framing(text)
    authority, target = url.groups()
    if b"@" in authority:  # may be a password, so no part of the URL is repeated
        raise GatewayRefusal.bad_framing("the URL of the request line must not name a user")
    if not _is_authority(authority):
        raise GatewayRefusal.bad_framing("the host in the URL of the request line is malformed")
    if not target.startswith(b"/"):  # a URL without a path means the path "/"
        target = b"/" + target
    head = read_head(b"%b %b %b%b" % (words[0], target, words[2], after))
    head.host = authority
    return head


def _is_authority(text: bytes) -> bool:
    """Whether this is a host with an optional port, and nothing else."""
    authority = _AUTHORITY.fullmatch(text)
    if authority is None or int(authority[2] or 0) > _HIGHEST_PORT:
        return False
    if authority[1] is None:
        return True
    try:
        IPv6Address(authority[1].decode())
    except ValueError:
        return False
    return True


_TAKERS: Final[Mapping[bytes, Callable[[RequestHead, bytes], None]]] = {
    b"host": RequestHead._take_host,
    b"connection": RequestHead._take_connection,
    b"content-length": RequestHead._take_length,
    b"transfer-encoding": RequestHead._take_coding,
    b"content-encoding": RequestHead._take_encoding,
    b"x-request-id": RequestHead._take_request_id,
    b"origin": RequestHead._take_origin,
    b"access-control-request-method": RequestHead._take_preflight_method,
    b"access-control-request-headers": RequestHead._take_preflight_headers,
    b"expect": RequestHead._take_expectation,
    b"upgrade": RequestHead._take_upgrade,
    HOPS.lower(): RequestHead._take_hops,
    b"authorization": RequestHead._take_authorization,
    b"cookie": RequestHead._take_cookie,
    CSRF_HEADER.encode(): RequestHead._take_csrf,
    b"x-forwarded-for": RequestHead._take_forwarded_for,
    b"x-forwarded-proto": RequestHead._take_forwarded_proto,
    **dict.fromkeys(_API_KEYS, RequestHead._take_api_key),
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
        RequestHead._drop,
    ),
}
"""Handlers by header name. Fields without a handler are passed on."""


def _check(head: RequestHead) -> None:
    """Check rules that involve more than one header field."""
    if head.host is None and not head.is_http10:
        raise GatewayRefusal.bad_framing("the Host header is missing")
    if head.is_chunked and head.is_http10:
        raise GatewayRefusal.bad_framing("HTTP/1.0 knows no chunks")
    if head.upgrades_to_websocket and (head.is_chunked or head.length):
        raise GatewayRefusal.bad_framing("a request to upgrade has no body")
    head.keep_alive = not head.is_http10 and b"close" not in head.options
    if head.options and not head.options <= _KNOWN_OPTIONS:
        options = head.options
        head.lines = [line for line in head.lines if line[: line.index(b":")].lower() not in options]
        if not options.isdisjoint(_API_KEYS):
            head.api_key = b""
        if b"cookie" in options:
            head.cookie = b""


def own_lines(host: bytes, authorization: bytes | None) -> bytes:
    """Return the header lines that one upstream gets with every request."""
    lines = b"Host: %b\r\n" % host
    return lines if authorization is None else b"%bAuthorization: %b\r\n" % (lines, authorization)


def write_head(head: RequestHead, *, target: bytes, lines: bytes, added: bytes, length: int) -> bytes:
    """Return the head for the upstream. `lines` are its own ones, `added` others of this request; all are complete."""
    if not length and head.length is None and not head.is_chunked:
        return b"%b %b HTTP/1.1\r\n%b%b%b\r\n" % (head.method, target, lines, head.fields, added)
    form = b"%b %b HTTP/1.1\r\n%b%bContent-Length: %d\r\n%b\r\n"
    return form % (head.method, target, lines, head.fields, length, added)


def forwarded_lines(host: str, *, is_secure: bool) -> bytes:
    """Return the forwarding headers that replace those of the sender."""
    lines = b"X-Forwarded-Proto: https\r\n" if is_secure else b"X-Forwarded-Proto: http\r\n"
    return lines + b"X-Forwarded-For: " + host.encode() + b"\r\n" if host else lines
