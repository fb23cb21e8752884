"""The client's side: reads requests strictly one after another, and writes the responses in the same order.

A client may send its next request before the last one is answered; a bounded part of it is kept until its turn. Few of
these requests are processed in one turn of the event loop, because the streams of other clients wait meanwhile. One
exception: data that follows a chunked body in the same piece is dropped, and the connection closed after the response,
because only the parser knows where the body ended. A client that closes its sending side counts as gone.
"""

import asyncio
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol, cast

from corral.base.ids import id_line
from corral.gateway.answers import CONTINUE, Answer, GatewayRefusal
from corral.gateway.bodies import HeldBody, body_too_large, keyless_too_large, overloaded
from corral.gateway.config import Limits, TimeOuts
from corral.gateway.exchange import Exchange, Services
from corral.gateway.head import RequestHead, path_seen_in
from corral.gateway.reader import END, PartialHead, RequestReader, head_too_large
from corral.gateway.routes import Admission, CorsPolicy, Router, error_shape
from corral.gateway.senders import RequestSender, Senders
from corral.gateway.upstream import Unchunker
from corral.wire.keys import UNCHECKED, KeylessRoute
from corral.wire.view import KeyEntry

_CR: Final = ord("\r")
_EMPTY_LINES: Final = b"\r\n" * 4
_NO_HEAD: Final = RequestHead()
_STEPS_IN_A_TURN: Final = 16
"""How many heads, or pieces of bodies, of one connection are processed before the loop turns to other connections."""
_STRANGER_STEPS_IN_A_TURN: Final = 4
"""How many heads, or pieces of bodies, of a connection without a valid key are processed in a turn: an empty line, a
head that came in pieces, and its body. There may be hundreds of such connections."""
_LINGER_BYTES: Final = 1024 * 1024
"""How much an answered client without a valid key may go on sending."""
_KNOWN_LINGER_BYTES: Final = 256 * 1024 * 1024
"""How much an answered client with a valid key may go on sending: client packages send a whole body that is too large
before they read the refusal."""
_LAST_LINGER_SECONDS: Final = 0.5
"""How long an answered client may go on sending once the gateway stops: enough to read an answer that is on its way.
Not one of `TimeOuts`, because their shortest decides how often all connections are checked."""
_LAST_HEAD_SECONDS: Final = 2.0
"""How long a head that has begun may take once the gateway stops: enough for a slow network, too little to hold the
stop up."""
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER with a timeout of 0: closing the socket then resets the connection."""


class _State(Enum):
    HEAD = 0
    BODY = 1
    BUSY = 2
    TUNNEL = 3
    LINGERING = 4
    CLOSING = 5


_HEAD, _BODY, _BUSY, _TUNNEL, _LINGERING, _CLOSING = _State
"""Module-level names, because looking a member up in its enum class costs more than most uses of it."""


class ClientRegistry(Protocol):
    """Counts all clients of the process."""

    is_draining: bool
    senders: Senders

    def opened(self, client: "ClientConnection") -> bool:
        """Register a client; return False when there are too many."""

    def closed(self, client: "ClientConnection") -> None: ...


class _Stall:
    """Measures how long a client reads nothing. Any change of its full write buffer's size counts as progress."""

    __slots__ = ("_since", "_size", "_transport")

    def __init__(self, transport: asyncio.WriteTransport, now: float) -> None:
        self._transport = transport
        self._since = now
        self._size = transport.get_write_buffer_size()

    def seconds(self, now: float) -> float:
        size = self._transport.get_write_buffer_size()
        if size != self._size:
            self._since, self._size = now, size
        return now - self._since


def _nowhere(data: bytes) -> None:
    """Discard data for a connection that is gone; the writer is notified separately."""


@dataclass(slots=True, weakref_slot=True, eq=False, repr=False)
class ClientConnection(asyncio.Protocol):
    """One client's connection. Implements `exchange.ClientSide`.

    It has slots, because there are more attributes than Python's shared-key dictionaries hold, and lookups would be
    slower.
    """

    _services: Services
    _router: Router
    _registry: ClientRegistry
    _limits: Limits = field(init=False)
    _time_outs: TimeOuts = field(init=False)
    _time: Callable[[], float] = field(init=False)
    _new_id_line: Callable[[], bytes] = field(init=False)
    _cors: CorsPolicy = field(init=False)
    _transport: asyncio.Transport = field(init=False)
    write: Callable[[bytes], None] = field(init=False)
    """The transport's own method, without a wrapper: it is called for every event of every stream."""
    _sender: RequestSender = field(init=False)
    _reader: RequestReader = field(default_factory=RequestReader, init=False)
    _state: _State = _HEAD
    _deadline: float = 0.0
    _held: bytes = b""
    _partial: PartialHead | None = None
    _head: RequestHead = _NO_HEAD
    _admission: Admission = UNCHECKED
    _remaining: int = 0
    _body: HeldBody = field(init=False)
    hold_body: Callable[[int], None] = field(init=False)
    body_sent: Callable[[], None] = field(init=False)
    _body_since: float = 0.0
    _exchange: Exchange | None = None
    _advancing: bool = False
    _reading_paused: bool = False
    _in_head: bool = False
    """Whether a byte of the next request has arrived, including empty lines before it."""
    _stall: _Stall | None = None
    closes: bool = False
    is_full: bool = False
    forwarded: bytes = b""
    id_line: bytes = b""
    answer_lines: bytes = b""

    def __post_init__(self) -> None:
        services = self._services
        self._limits, self._time_outs = services.config.limits, services.config.time_outs
        self._time = services.loop.time
        self._new_id_line = services.request_ids.new_line
        self._cors = self._router.cors
        self._body = body = HeldBody(services.bodies, self._limits)
        self.hold_body, self.body_sent = body.add, body.release

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.write = self._transport.write
        self._transport.set_write_buffer_limits(high=self._limits.write_buffer)
        peer, is_secure = transport.get_extra_info("peername"), transport.get_extra_info("sslcontext") is not None
        self._sender = RequestSender(self._registry.senders, peer, is_secure=is_secure)
        self._sender.connected(self, self._time())
        self.forwarded = self._sender.forwarded
        self._deadline = self._time() + self._time_outs.head
        self._services.tally.connections += 1
        self._services.tally.open_connections += 1
        if not self._registry.opened(self):
            # Close without reading a request: no other response may follow on this connection.
            self.refuse(GatewayRefusal.busy(503, "too many connections", code="too_many_connections", closes=True))

    def data_received(self, data: bytes) -> None:
        state = self._state
        if state is _HEAD or state is _BODY or state is _BUSY:
            self._held = self._held + data if self._held else data
            if state is not _BUSY:
                self._advance()
            if len(self._held) > self._limits.read_ahead:
                self.pause()
        elif state is _TUNNEL:
            if self._exchange is not None:
                self._exchange.client_data(data)
        elif state is _LINGERING:
            self._remaining -= len(data)
            if self._remaining <= 0:
                self._transport.abort()

    def eof_received(self) -> None:
        if self._exchange is not None:
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._leave_exchange()
        self._state = _CLOSING
        self.body_sent()
        self._reader.close()
        self._held = b""
        self._drop_partial()
        self.write = _nowhere
        self._services.tally.open_connections -= 1
        self._registry.closed(self)

    def pause_writing(self) -> None:
        self.is_full = True
        self._stall = _Stall(self._transport, self._time())
        if self._exchange is not None:
            self._exchange.client_full()

    def resume_writing(self) -> None:
        self.is_full = False
        self._stall = None
        if self._exchange is not None:
            self._exchange.client_writable()
        elif self._state is _HEAD:  # requests that waited until the response buffer had room
            self._advance()
            self._read_on()

    # Reading.

    def _advance(self) -> None:
        """Process buffered data until more is needed, a request is being answered, or it is the turn of other
        connections. Not re-entrant."""
        if self._advancing or not self._has_work():
            return
        self._advancing = True
        try:
            steps = _STEPS_IN_A_TURN if self._sender.is_known else _STRANGER_STEPS_IN_A_TURN
            while steps:
                steps -= 1
                self._step()
                if not self._held or not self._has_work():
                    return
        finally:
            self._advancing = False
        self._yield_turn()

    def _has_work(self) -> bool:
        """Whether there is data that can be processed now."""
        return bool(self._held) and not self.is_full and (self._state is _HEAD or self._state is _BODY)

    def _step(self) -> None:
        """Process one head, or a piece of a body."""
        data, self._held = self._held, b""
        try:
            if self._state is _HEAD:
                self._take_head(data)
            else:
                self._take_body(data)
        except GatewayRefusal as refusal:
            self._see_path(data)
            self.refuse(refusal)

    def _see_path(self, data: bytes) -> None:
        """Learn the path of a head that is not accepted, as far as it can be seen."""
        if self._head is _NO_HEAD:
            self._head = path_seen_in(data if self._partial is None else bytes(self._partial.received))

    def _yield_turn(self) -> None:
        """Go on in the next turn of the loop. Until then nothing is processed or read."""
        self._advancing = True
        self.pause()
        self._services.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._advancing = False
        self._advance()
        self._read_on()

    def _read_on(self) -> None:
        """Read from the socket again, unless enough is waiting already."""
        if self._reading_paused and not self._advancing and len(self._held) <= self._limits.read_ahead:
            self.resume()

    def _take_head(self, data: bytes) -> None:
        if self._partial is not None or (end := data.find(END)) < 0:
            self._begin_head()
            self._collect_head(data)
            return
        if data[0] == _CR and data.startswith(b"\r\n"):
            if data.startswith(_EMPTY_LINES):
                raise GatewayRefusal.bad_framing("there are only empty lines")
            self._begin_head()
            self._held = data[2:]  # some clients send an empty line after a body
            return
        end += len(END)
        if end > self._limits.head:
            raise head_too_large()
        self._begin_request(data[:end], data[end:])

    def _collect_head(self, data: bytes) -> None:
        """Keep a part of a head. Once it is complete, it is processed like one that arrived in one piece."""
        if self._partial is None:
            self._partial = PartialHead(self._limits.head)
        self._held = self._partial.add(data)
        if self._held:
            self._drop_partial()
        elif not self._sender.is_known:
            self._services.heads.grow(self._give_up_head, len(data))

    def _drop_partial(self) -> None:
        if self._partial is not None:
            self._partial = None
            self._services.heads.drop(self._give_up_head)

    def _give_up_head(self) -> None:
        """Drop a head that is not complete to make room for others."""
        self._see_path(b"")
        self.refuse(overloaded())

    def _begin_head(self) -> None:
        """Start the deadline of a head that arrives in pieces. It counts from the first byte."""
        if not self._in_head:
            self._in_head = True
            self._deadline = self._time() + self._time_outs.head

    def _begin_request(self, raw: bytes, remaining: bytes) -> None:
        reader = self._reader
        self._head = head = reader.read_head(raw)
        self._name_request(head)
        self._held = remaining  # set first: other requests may follow one that is refused
        self.closes = not head.keep_alive or self._registry.is_draining
        if head.is_preflight and reader.is_complete:
            self.answer(self._cors.preflight(head))
            return
        self._admission = self._admitted(head)
        if reader.is_complete:
            self._dispatch(head, b"")
            return
        self._remaining = length = head.length or 0
        if 0 < length <= len(remaining):  # the usual case: the body arrived with the head
            self._held = b""
            if length == len(remaining) and reader.knows_end:  # nothing is left for the parser to find
                self.hold_body(length)
                self._dispatch(head, remaining)
            else:
                self._take_body(remaining)
            return
        self._state = _BODY
        self._body_since = self._time()
        is_keyless = isinstance(self._admission, KeylessRoute)
        self._deadline = self._body_since + (self._time_outs.keyless_body if is_keyless else self._time_outs.body)
        if head.expects_continue and not remaining and not head.is_http10:
            self.write(CONTINUE)

    def _name_request(self, head: RequestHead) -> None:
        line = id_line(head.request_id) if head.request_id else self._new_id_line()
        self.id_line = self.answer_lines = line
        if self._cors.is_on:
            self.answer_lines = line + self._cors.lines(head.origin)

    def _admitted(self, head: RequestHead) -> Admission:
        try:
            admission = self._router.admit(head)
            if isinstance(admission, KeyEntry):
                if not self._sender.is_known:
                    self._meet_sender(head, None)
                if (head.length or 0) > self._limits.body:
                    raise body_too_large(self._limits.body)
            else:
                self._begin_keyless(head, admission)
            return admission
        except GatewayRefusal as refusal:
            refusal.closes = refusal.closes or not self._reader.is_complete or self._gets_many_refusals(head, refusal)
            raise

    def _gets_many_refusals(self, head: RequestHead, refusal: GatewayRefusal) -> bool:
        return not self._sender.is_known and self._sender.has_many_refusals(refusal, head, self._time())

    def _meet_sender(self, head: RequestHead, keyless: KeylessRoute | None) -> None:
        self._sender.meet(self, head, keyless, self._time())
        self.forwarded = self._sender.forwarded

    def _begin_keyless(self, head: RequestHead, route: KeylessRoute) -> None:
        self._meet_sender(head, route)
        if (head.length or 0) > route.max_body:
            raise keyless_too_large(route.max_body)
        if not self._reader.is_complete:
            self._body.begin_keyless(route.max_body, self._give_up_body)

    def _give_up_body(self) -> bool:
        """Drop the body to make room for others. Return False when it is no longer being received."""
        if self._state is not _BODY:
            return False
        self.refuse(overloaded())
        return True

    def _take_body(self, data: bytes) -> None:
        head, reader = self._head, self._reader
        if not head.is_chunked:
            if len(data) > self._remaining:
                data, self._held = data[: self._remaining], data[self._remaining :]
            self._remaining -= len(data)
        self.hold_body(reader.feed(data))
        if not reader.is_complete:
            return
        if reader.has_overrun:
            self.closes = True
        self._dispatch(head, reader.take_body())

    def _dispatch(self, head: RequestHead, body: bytes) -> None:
        """Start the exchange. Raise `GatewayRefusal`; later refusals of the exchange arrive through `refuse`."""
        self._state = _BUSY
        self._deadline = 0.0
        exchange = self._router.exchange(self, head, body, self._admission)
        if exchange is None:
            self.answer(self._router.answer(head, body, self._admission))
            return
        self._exchange = exchange
        exchange.start()

    # Answering: called by exchanges.

    @property
    def request_id(self) -> bytes:
        return self.id_line.partition(b": ")[2].rstrip()

    def unchunk(self) -> None:
        self.write = Unchunker(self.write).write

    def judged(self, status: int) -> None:
        self._sender.judged(self, self._head, status)

    def answer(self, answer: Answer) -> None:
        """Write a complete response to the client."""
        self._write_answer(answer)
        self.finish(keep=True)

    def finish(self, *, keep: bool) -> None:
        self._exchange = None
        self.body_sent()
        if not keep or self.closes or self._registry.is_draining or self._state is _TUNNEL:
            self._close()
            return
        self._state = _HEAD
        self._in_head = False
        self._head = _NO_HEAD  # so that a refusal of the next head is not answered in this request's format
        self.id_line = b""
        if self._sender.is_proxied:
            self._sender.leave(self)
        self._deadline = self._time() + self._time_outs.keep_alive
        if not self.is_full:
            if self._held:
                self._advance()
            if self._reading_paused:
                self._read_on()

    def refuse(self, refusal: GatewayRefusal) -> None:
        """Answer with an error. The connection stays open unless what follows cannot be trusted."""
        self._services.tally.refusals[refusal.code] += 1
        self._leave_exchange()
        refusal.closes = refusal.closes or self._sender.is_last_refusal()
        self.closes = self.closes or refusal.closes or self._registry.is_draining
        if not self.id_line:
            self._name_request(_NO_HEAD)
        self._write_answer(refusal.answer(self.request_id, shape=error_shape(self._head.path)))
        if refusal.closes:
            self._linger()
        else:
            self.finish(keep=True)

    def _write_answer(self, answer: Answer) -> None:
        is_head = self._head.method == b"HEAD"
        self.write(answer.as_bytes(closes=self.closes, is_head=is_head, added=self.answer_lines))

    def abort(self) -> None:
        self._leave_exchange()
        self._state = _CLOSING
        self._transport.abort()

    def reset(self) -> None:
        client_socket = self._transport.get_extra_info("socket")
        if client_socket is not None and not self._transport.is_closing():
            client_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.abort()

    def begin_tunnel(self) -> None:
        self._state = _TUNNEL
        data, self._held = self._held, b""
        if data and self._exchange is not None:
            self._exchange.client_data(data)

    def pause(self) -> None:
        if not self._reading_paused and not self._transport.is_closing():
            self._reading_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._reading_paused and not self._transport.is_closing():
            self._reading_paused = False
            self._transport.resume_reading()

    # Ending.

    def drain(self) -> None:
        """Accept no further request; finish the one in progress. A refused one is over, even if more of it arrives."""
        if self._state is _HEAD and self._partial is None:
            self._close()
        elif self._state is _TUNNEL:
            self.abort()
        elif self._state is _HEAD:
            self._deadline = min(self._deadline, self._time() + _LAST_HEAD_SECONDS)
        elif self._state is _LINGERING:
            self._deadline = min(self._deadline, self._time() + _LAST_LINGER_SECONDS)

    def sweep(self, now: float) -> None:
        """Close the connection if one of its timeouts has passed. Called periodically."""
        if self._stall is not None and self._stall.seconds(now) >= self._time_outs.stalled_client:
            self._services.tally.time_outs["stalled_client"] += 1
            self.abort()
        elif self._exchange is not None:
            self._exchange.sweep(now)
        elif (self._deadline and now >= self._deadline) or (self._state is _BODY and self._is_too_slow(now)):
            self._expire()

    def _is_too_slow(self, now: float) -> bool:
        """Whether the body arrives more slowly than the minimum speed."""
        seconds = now - self._body_since - self._time_outs.body_grace
        return seconds > 0 and not self.is_full and self._reader.body_size < seconds * self._limits.body_speed

    def _expire(self) -> None:
        match self._state:
            case _State.BODY:
                self._services.tally.time_outs["body"] += 1
                self.refuse(GatewayRefusal(408, "the body did not come in time", code="request_timeout", closes=True))
            case _State.HEAD if self._in_head:
                self._services.tally.time_outs["head"] += 1
                self._see_path(b"")
                self.refuse(GatewayRefusal(408, "the head did not come in time", code="request_timeout", closes=True))
            case _:
                self.abort()

    def _linger(self) -> None:
        """Keep reading for a moment, so that the client can read the response before the connection is reset."""
        self.body_sent()
        self._state = _LINGERING
        self._held = b""
        self._drop_partial()
        is_known = self._sender.is_known
        self._remaining = _KNOWN_LINGER_BYTES if is_known else _LINGER_BYTES
        self._deadline = self._time() + (self._time_outs.known_linger if is_known else self._time_outs.linger)
        if self._registry.is_draining:
            self.drain()
        self.resume()
        if self._transport.can_write_eof() and not self._transport.is_closing():
            self._transport.write_eof()

    def _close(self) -> None:
        """Close after everything that was written has been sent."""
        self._state = _CLOSING
        self._deadline = self._time() + self._time_outs.stalled_client
        self._held = b""
        self._transport.close()

    def _leave_exchange(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.client_gone()
