"""One connection to a replica or to control: sends one request at a time, and passes the response on as it arrives.

The parser has no callbacks for headers and bodies: it only finds the ends of messages, and the bytes are handed on
untouched. Anything but exactly one well-formed response is a failure.
"""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol, cast
from urllib.parse import urlsplit

import httptools
import msgspec

from corral.base.errors import InvalidInput
from corral.gateway.write_batching import WriteBatcher
from corral.wire import view

_END: Final = b"\r\n\r\n"
_START: Final = b"HTTP/1."
_MAX_HEAD: Final = 64 * 1024
_LENGTH: Final = b"\r\ncontent-length:"
_CODING: Final = b"\r\ntransfer-encoding:"
_OURS: Final = re.compile(
    rb"\r\n(?:connection|keep-alive|proxy-connection|upgrade|x-request-id|access-control-[^:\r\n]*):[^\r\n]*",
    re.IGNORECASE,
)
"""Hop-by-hop headers, and headers that the gateway sets itself."""
_TOLD_BY_GATEWAY: Final = re.compile(rb"\r\n(?:x-request-id|access-control-[^:\r\n]*):[^\r\n]*", re.IGNORECASE)
"""Headers that the gateway sets itself, also when a response opens a tunnel."""
_ABOUT_HOST: Final = re.compile(
    rb"\r\n(?:set-cookie2?|alt-svc|strict-transport-security|clear-site-data|nel|report-to):[^\r\n]*",
    re.IGNORECASE,
)
_CHUNKED: Final = re.compile(rb"\r\n(?:transfer-encoding|trailer):[^\r\n]*", re.IGNORECASE)
_EVENTS: Final = (b"\r\ncontent-type: text/event-stream", b"\r\ncontent-type: application/x-ndjson")
"""Types of answers that come piece by piece. The second one is Ollama's."""
_UNBUFFERED: Final = b"x-accel-buffering:"
"""nginx buffers a response unless this header says no; other proxies pass events on by default."""
_CLOSE: Final = b"Connection: close\r\n"
_LAST_LINES: Final = _CLOSE + b"\r\n"
"""The end of a head after whose body the connection is closed."""
_LONGEST_KEPT: Final = 1024
"""Longest head, in bytes, that is remembered to skip parsing an identical one."""
_LENGTH_VALUE: Final = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)[ \t]*\r\n", re.IGNORECASE)
_ENCODED: Final = re.compile(rb"\r\ncontent-encoding:", re.IGNORECASE)
_PORTS: Final = {"http": 80, "https": 443}
_BODILESS: Final = frozenset({204, 304})
_LINE_END: Final = b"\r\n"


class Origin(msgspec.Struct, frozen=True, cache_hash=True):
    """Address of an upstream: host and port, with or without TLS, or the path of a unix socket.

    Connections are looked up by it for every request, so its hash is computed once.
    """

    host: str
    port: int
    socket: str
    tls: bool = False
    engine_ca: str | None = None
    """For an external engine, the PEM of the authorities that check its certificate; empty for those of the system.
    None for Corral's own processes."""
    door: str = ""
    """Host and port that is dialled instead, of a worker with TLS; empty for others."""
    node: str = ""
    """The node that must be behind the door."""

    @classmethod
    def of(cls, url: str) -> "Origin":
        """Parse `http://host:port`, `https://host:port` or `unix:/path`. Raise InvalidInput for anything else."""
        if url.startswith("unix:"):
            return cls("", 0, url.removeprefix("unix:"))
        try:
            parts = urlsplit(url)
            port = parts.port or _PORTS.get(parts.scheme, 80)
        except ValueError:
            raise InvalidInput("url", f"{url!r} has no usable port") from None
        if parts.scheme not in _PORTS or not parts.hostname:
            raise InvalidInput("url", f"{url!r} is neither http://host:port, https://host:port nor unix:/path")
        return cls(parts.hostname, port, "", parts.scheme == "https")

    @property
    def host_header(self) -> bytes:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}".encode() if host else b"localhost"

    @property
    def public_host(self) -> bytes:
        """The Host header as browsers write it: without the usual port, which some servers on the internet refuse."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host.encode() if self.port == _PORTS["https" if self.tls else "http"] else f"{host}:{self.port}".encode()


class UpstreamFailure(StrEnum):
    """Why there is no response, or no complete one."""

    REFUSED = "the connection was refused"
    CONNECT_TIMED_OUT = "the connection was not made in time"
    CLOSED = "the connection was closed before the end of the answer"
    STALE = "a kept connection was closed before the first byte"
    GARBAGE = "the answer was not well-formed HTTP"
    DENIED = "the replica did not take its key"
    MODEL_GONE = view.MODEL_GONE
    FIRST_BYTE_TIMED_OUT = "no answer came in time"
    IDLE_TIMED_OUT = "the answer stopped before its end"
    UNTRUSTED = "TLS could not be agreed upon, or the certificate is not trusted"
    FORBIDDEN = "its address is one that nobody is sent to"
    REDIRECTED = "it answered with a redirect, which is not followed"
    OVERLOADED = "the engine said that it cannot answer now"
    DECLINED = "the engine said that it does not answer this request"


TIME_OUTS: Final = {
    UpstreamFailure.CONNECT_TIMED_OUT: "connect",
    UpstreamFailure.FIRST_BYTE_TIMED_OUT: "first_byte",
    UpstreamFailure.IDLE_TIMED_OUT: "idle",
}
"""Failures that are timeouts, with their names in `config.TimeOuts`."""


class AnswerHead:
    """The head of a response, and how the end of its body is found. Reused for responses with an identical head."""

    __slots__ = ("_lines", "is_about_host", "is_chunked", "is_events", "own_length", "raw", "status")

    def __init__(self, status: int, raw: bytes) -> None:
        self.status = status
        self.raw = raw
        lower = raw.lower()
        self.is_chunked = _CODING in lower
        self.own_length = self.is_chunked or _LENGTH in lower or status in _BODILESS
        """Whether the end of the body is known from the head; otherwise it is the end of the connection."""
        is_ours = (
            b"connection:" in lower
            or b"keep-alive:" in lower
            or b"upgrade:" in lower
            or b"x-request-id:" in lower
            or b"access-control-" in lower
        )
        self._lines = (_OURS.sub(b"", raw) if is_ours else raw)[:-2]
        """The header lines that are passed on, without the final empty line."""
        self.is_about_host = (
            b"set-cookie" in lower
            or b"clear-site-data" in lower
            or b"strict-transport-" in lower
            or b"alt-svc" in lower
            or b"report-to" in lower
            or b"\nnel:" in lower
        )
        """Whether it may have headers that speak of the host that answers: browsers take them for this gateway's."""
        self.is_events = any(kind in lower for kind in _EVENTS)
        if self.is_events and _UNBUFFERED not in lower:
            self._lines += b"X-Accel-Buffering: no\r\n"

    def is_short(self, most: int) -> bool:
        """Whether the body announces at most `most` bytes, and is neither chunked nor compressed."""
        length = None if self.is_chunked else _LENGTH_VALUE.search(self.raw)
        return length is not None and int(length[1]) <= most and not _ENCODED.search(self.raw)

    def without_host(self) -> "AnswerHead":
        """Return the head without what it says of the host that answers, cookies for example. No replica may set the
        cookie of a session."""
        return AnswerHead(self.status, _ABOUT_HOST.sub(b"", self.raw))

    def for_client(self, first: bytes, *, closes: bool, added: bytes) -> bytes:
        """Return the head for a client, with the gateway's own connection headers, and the first bytes of the body.
        `added` are complete header lines."""
        return b"".join((self._lines, added, _LAST_LINES if closes else _LINE_END, first))

    def for_tunnel(self, *, added: bytes) -> bytes:
        """Return the head for a client that becomes a tunnel: connection headers are passed on."""
        return b"%b%b\r\n" % (_TOLD_BY_GATEWAY.sub(b"", self.raw)[:-2], added)

    def for_http10(self, *, added: bytes) -> bytes:
        """Return the head for an HTTP/1.0 client, which does not understand chunks: the response ends with the
        connection."""
        return b"%b%b%b\r\n" % (_CHUNKED.sub(b"", self._lines), added, _CLOSE)


_NO_ANSWER: Final = AnswerHead(0, b"HTTP/1.1 ?")
"""Placeholder that no parsed head is equal to."""


class Taker(Protocol):
    """Receives the head, the body and the end of one response."""

    def upstream_began(self, head: AnswerHead, first: bytes) -> None: ...
    def upstream_data(self, data: bytes) -> None: ...
    def upstream_ended(self) -> None: ...
    def upstream_failed(self, failure: UpstreamFailure) -> None: ...
    def upstream_full(self) -> None: ...
    def upstream_writable(self) -> None: ...


class Keeper(Protocol):
    """Owns connections while they are idle."""

    def release(self, connection: "UpstreamConnection") -> None: ...
    def lost(self, connection: "UpstreamConnection") -> None: ...


@dataclass(slots=True, eq=False, repr=False)
class UpstreamConnection(asyncio.Protocol):
    """Owned by a taker from `send` until the end of its response, and by the keeper otherwise."""

    _keeper: Keeper
    origin: Origin
    _batcher: WriteBatcher
    served: int = 0
    idle_since: float = 0.0
    _transport: asyncio.Transport = field(init=False)
    _parser: httptools.HttpResponseParser = field(init=False)
    _taker: Taker | None = None
    _last_head: AnswerHead = _NO_ANSWER
    """Head of the last response. An identical head is not parsed again."""
    _held: bytes = b""
    _in_head: bool = False
    _is_head_request: bool = False
    _seen: bool = False
    _own_length: bool = False
    _complete: bool = False
    _is_garbage: bool = False
    """Whether anything but one well-formed response came."""
    _keep_alive: bool = False
    _paused: bool = False
    _closed: bool = False
    _tunnel: bool = False

    def __post_init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)

    def send(self, taker: Taker, head: bytes, body: bytes, *, is_head: bool = False) -> None:
        self._taker = taker
        self._held = b""
        self._in_head = True
        self._is_head_request = is_head
        self._seen = self._complete = self._is_garbage = self._keep_alive = False
        self.served += 1
        if len(body) < 65536:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)

    def write(self, data: bytes | memoryview) -> None:
        """Send data into a tunnel, or more of a request's body."""
        self._transport.write(data)

    def abort(self) -> None:
        """Give up the response in progress, if any, and the connection. The taker is not called any more."""
        self._taker = None
        if not self._closed:
            self._transport.abort()

    def close(self) -> None:
        """Close after everything that was written has been sent."""
        self._taker = None
        self._transport.close()

    def is_usable(self) -> bool:
        """Whether a request can be sent. No property, because those cost more, and each request asks this."""
        return not self._closed and not self._transport.is_closing()

    def pause(self) -> None:
        if not self._paused and self.is_usable():
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused and self.is_usable():
            self._paused = False
            self._transport.resume_reading()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        taker = self._taker
        if taker is None:
            self._transport.abort()  # data without a request
        elif self._in_head:
            self._seen = True
            self._read_head(taker, self._held + data if self._held else data)
        elif self._tunnel:
            taker.upstream_data(data)
        else:
            try:  # what `_is_sound` does, without a call for every event of every stream
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade:
                pass
            except httptools.HttpParserError:
                self._is_garbage = True
            if self._is_garbage:
                self._fail(UpstreamFailure.GARBAGE)
                return
            taker.upstream_data(data)
            if self._complete:
                self._finish(taker)
            elif not self._batcher.is_due:
                self._batcher.passed(data)

    def eof_received(self) -> None:
        self._at_end()

    def connection_lost(self, error: Exception | None) -> None:
        self._closed = True
        self._keeper.lost(self)
        self._at_end(broken=error is not None)
        self._parser = cast(httptools.HttpResponseParser, None)  # breaks a reference cycle

    def pause_writing(self) -> None:
        if self._taker is not None:
            self._taker.upstream_full()

    def resume_writing(self) -> None:
        if self._taker is not None:
            self._taker.upstream_writable()

    # Called by the parser.

    def on_message_begin(self) -> None:
        if self._complete:
            self._is_garbage = True

    def on_message_complete(self) -> None:
        # Read it now: after `feed_data` the parser has forgotten it.
        self._keep_alive = self._parser.should_keep_alive()
        self._complete = True

    # The response.

    def _is_sound(self, data: bytes) -> bool:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return True
        except httptools.HttpParserError:
            return False
        return not self._is_garbage

    def _read_head(self, taker: Taker, data: bytes) -> None:
        """Parse the head from all bytes so far. Interim heads (1xx) are skipped."""
        if data.startswith(self._last_head.raw) and not self._is_head_request:
            self._begin_again(taker, data)
            return
        while True:
            end = data.find(_END) + len(_END)
            if not data.startswith(_START[: len(data)]) or end > _MAX_HEAD:
                self._fail(UpstreamFailure.GARBAGE)
                return
            if end < len(_END):
                self._held = data
                if len(data) > _MAX_HEAD:
                    self._fail(UpstreamFailure.GARBAGE)
                return
            raw, data = data[:end], data[end:]
            if not self._is_sound(raw) and self._parser.get_status_code() != 101:
                self._fail(UpstreamFailure.GARBAGE)
                return
            status = self._parser.get_status_code()
            if status == 101 or status >= 200:
                break
            self._complete = False
        head = AnswerHead(status, raw)
        self._last_head = head if status != 101 and len(raw) <= _LONGEST_KEPT else _NO_ANSWER
        self._begin(taker, head, data)

    def _begin(self, taker: Taker, head: AnswerHead, first: bytes) -> None:
        self._in_head = False
        self._own_length = head.own_length
        if head.status == 101:
            self._tunnel = True
            taker.upstream_began(head, first)
            return
        if self._is_head_request:  # the parser would wait for a body that never comes
            self._complete, self._keep_alive = True, False
        if first and (self._is_head_request or not self._is_sound(first)):
            self._fail(UpstreamFailure.GARBAGE)
            return
        self._hand_over(taker, head, first)

    def _begin_again(self, taker: Taker, data: bytes) -> None:
        """Begin a response with the same head as the last one. The parser gets all of it at once."""
        head = self._last_head
        self._in_head = False
        self._own_length = head.own_length
        if not self._is_sound(data):
            self._fail(UpstreamFailure.GARBAGE)
            return
        self._hand_over(taker, head, data[len(head.raw) :])

    def _hand_over(self, taker: Taker, head: AnswerHead, first: bytes) -> None:
        """Hand over the head and what came of the body with it."""
        taker.upstream_began(head, first)
        if self._taker is not taker:
            return
        if self._complete:
            self._finish(taker)
        elif not self._batcher.is_due:  # engines that are quick write the next piece at once
            self._batcher.passed(first)

    def _finish(self, taker: Taker) -> None:
        self._taker = None
        transport = self._transport
        if self._keep_alive and not transport.is_closing() and not transport.get_write_buffer_size():
            if self._paused:
                self.resume()
            self._keeper.release(self)
        else:
            transport.abort()
        taker.upstream_ended()

    def _at_end(self, *, broken: bool = False) -> None:
        """The upstream closed the connection: the end of a tunnel, or of a response without a length."""
        taker = self._taker
        if taker is None:
            return
        self._taker = None
        if not self._seen and self.served > 1:
            taker.upstream_failed(UpstreamFailure.STALE)
        elif self._in_head or broken or (self._own_length and not self._tunnel):
            taker.upstream_failed(UpstreamFailure.CLOSED)
        else:
            taker.upstream_ended()

    def _fail(self, failure: UpstreamFailure) -> None:
        taker = self._taker
        self.abort()
        if taker is not None:
            taker.upstream_failed(failure)


class Unchunker:
    """Takes the chunked body of a response in any pieces and writes the payload as it arrives.

    The parser of the upstream connection has already checked that the chunks are well-formed.
    """

    __slots__ = ("_chunk_left", "_held", "_is_over", "_write")

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._held = b""
        """The beginning of a size line whose end has not arrived yet."""
        self._chunk_left = 0
        """Bytes that are missing of the current chunk and of the line end after it."""
        self._is_over = False

    def write(self, data: bytes) -> None:
        data = self._held + data if self._held else data
        content, at = [], 0
        while at < len(data) and not self._is_over:
            if not self._chunk_left:
                end = data.find(_LINE_END, at)
                if end < 0:
                    break
                size = int(data[at:end].partition(b";")[0], 16)
                self._is_over = not size  # only trailers follow, and they are dropped
                self._chunk_left = size + len(_LINE_END)
                at = end + len(_LINE_END)
                continue
            end = min(at + self._chunk_left, len(data))
            content.append(data[at : min(at + max(self._chunk_left - len(_LINE_END), 0), end)])
            self._chunk_left -= end - at
            at = end
        self._held = b"" if self._is_over else data[at:]
        if content:
            self._write(b"".join(content))
