"""One HTTP/2 connection, as its client: calls beside each other, flow control both ways, and its end."""

import asyncio
from collections.abc import Callable
from typing import Final, cast

from hpack import Decoder
from hpack.exceptions import HPACKError

from . import frames
from .call import Call, Code, Status
from .frames import Frame, FrameReader, FrameTooLarge, ProtocolViolated, frame
from .keepalive import Keepalive, Pinger
from .open_calls import CALL_WINDOW, CREDIT_BYTES, FrameSender, OpenCalls

_CONNECTION_WINDOW: Final = 2**30
"""Renewed as bytes come, read or not, so that the slow reader of one call holds back no other."""
_FIRST_WINDOW: Final = 65_535
_FRAME_LIMIT: Final = 65_536
_HEADERS_LIMIT: Final = 4 * 1024 * 1024
"""gRPC's servers send the whole text of an error, however long. Only its own call may suffer from that."""

_GREETING: Final = (
    frames.PREFACE
    + frames.settings(
        {frames.ENABLE_PUSH: 0, frames.INITIAL_WINDOW_SIZE: CALL_WINDOW, frames.MAX_FRAME_SIZE: _FRAME_LIMIT}
    )
    + frames.window_update(0, _CONNECTION_WINDOW - _FIRST_WINDOW)
)


class HeaderBlocks:
    """Joins header blocks that come in several frames, and decodes them."""

    def __init__(self) -> None:
        self._decoder = Decoder(_HEADERS_LIMIT)
        self._first: Frame | None = None
        self._block = bytearray()

    def take(self, read: Frame) -> tuple[Frame, list[tuple[bytes, bytes]]] | None:
        """Return the frame that a block began with and its headers, once the block is complete.

        Every block is decoded, also one of a call that has ended: later blocks may refer to it.
        """
        if read.kind == frames.HEADERS:
            first, block = read, frames.content_of(read)
            if not read.flags & frames.END_HEADERS:
                self._first, self._block = read, bytearray(block)
                return None
        else:
            if self._first is None or self._first.stream != read.stream:
                raise ProtocolViolated("headers that go on without a beginning")
            self._block += read.payload
            if len(self._block) > _HEADERS_LIMIT:
                raise ProtocolViolated(f"headers of more than {_HEADERS_LIMIT} bytes")
            if not read.flags & frames.END_HEADERS:
                return None
            first, block, self._first = self._first, bytes(self._block), None
        headers = self._decoder.decode(block, raw=True)
        return first, [(bytes(name), bytes(value)) for name, value in headers]


class Http2Connection(asyncio.Protocol):
    """Made by `create_connection`, usable once `greeted` is done. A connection that has ended stays ended."""

    def __init__(self, keepalive: Keepalive) -> None:
        loop = asyncio.get_running_loop()
        self.greeted: asyncio.Future[None] = loop.create_future()
        """Done when the peer has shown that it speaks HTTP/2, or when the connection has ended: see `takes_calls`."""
        self.gone: asyncio.Future[None] = loop.create_future()
        """Done when the socket is closed."""
        self.why_closed = ""
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader(_FRAME_LIMIT)
        self._blocks = HeaderBlocks()
        self._sender = FrameSender(self.end)
        self._calls = OpenCalls(self._sender, when_idle=self._close_when_idle)
        self._by_number = self._calls.by_number
        self.places = self._calls.places
        """Where to wait until the peer allows one more call."""
        self._pinger = Pinger(keepalive, is_needed=self._calls.__bool__, ping=self._ping, fail=self.end)
        self._expected: int | None = frames.SETTINGS
        """The only kind of frame that may come next; None: any."""
        self._takes_calls = False
        self._has_ended = False
        self._uncredited = 0

    @property
    def takes_calls(self) -> bool:
        """Not before the peer's greeting, and not after it announced its end (GOAWAY)."""
        return self._takes_calls and self._transport is not None and not self._transport.is_closing()

    def begin(self, head: bytes, body: bytes) -> Call:
        """Begin a call with one framed request or, if the body is empty, with a stream of requests.

        `head` is a header block that changes no table. The caller has seen that there is a place.
        """
        if not self._calls:
            self._pinger.start()
        call = self._calls.begin(head, body)
        self._takes_calls = self._takes_calls and self._calls.next_number < frames.MAX_NUMBER
        return call

    def end(self, why: str) -> None:
        """End the connection and all its calls at once. What the peer said before (GOAWAY) is part of the reason."""
        if self._has_ended:
            return
        self._has_ended = True
        self._takes_calls = False
        self.why_closed = f"{self.why_closed}; {why}" if self.why_closed else why
        self._pinger.stop()
        if not self.greeted.done():
            self.greeted.set_result(None)
        self._calls.end_all(self.why_closed)
        self.places.close()
        if self._transport is not None:
            (self._transport.abort if self._transport.get_write_buffer_size() else self._transport.close)()

    async def close(self, why: str) -> None:
        """End the connection, and wait until its socket is closed."""
        self.end(why)
        if self._transport is not None:
            await asyncio.wait({self.gone})

    # For the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._sender.use(self._transport)
        self._sender.write(_GREETING)

    def data_received(self, data: bytes) -> None:
        self._pinger.hear()
        try:
            for read in self._reader.feed(data):
                if self._expected is not None and read.kind != self._expected:
                    is_first = self._expected == frames.SETTINGS
                    text = "its first frame is not its settings" if is_first else "headers that are cut off"
                    raise ProtocolViolated(text)
                take = _TAKEN.get(read.kind)
                if take is not None:  # frames of unknown kinds are to be ignored
                    take(self, read)
                elif read.kind == frames.PUSH_PROMISE:
                    raise ProtocolViolated("it pushes, which was forbidden")
        except (ProtocolViolated, HPACKError) as error:
            self.end(f"it breaks HTTP/2: {error}" if self.greeted.done() else _what_it_speaks(error))

    def eof_received(self) -> None:
        """End at once: what is still to be sent may never be read."""
        self.end("the connection was closed" if self.greeted.done() else "it closed the connection before any HTTP/2")

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(str(exc) if exc else "the connection was closed")
        self.gone.set_result(None)

    def pause_writing(self) -> None:
        self._sender.pause()

    def resume_writing(self) -> None:
        self._sender.resume()

    # What the peer sends.

    def _take_data(self, read: Frame) -> None:
        self._pinger.has_heard_data = True
        size = len(read.payload)
        self._uncredited += size
        if self._uncredited >= _CONNECTION_WINDOW // 2:
            self._sender.write(frames.window_update(0, self._uncredited))
            self._uncredited = 0
        call = self._by_number.get(read.stream) or self._calls.get(read)
        if call is None:
            return
        call.uncredited += size
        if call.uncredited > CALL_WINDOW:
            raise ProtocolViolated("it sends more than it may")
        call.take_data(frames.content_of(read) if read.flags & frames.PADDED else read.payload)
        if read.flags & frames.END_STREAM:
            call.end(Status(Code.INTERNAL, "the stream ended without a status"))
            self._calls.finish(call)
        elif call.uncredited >= CREDIT_BYTES and call.is_read:  # the rest of a large message must be able to come
            self._calls.credit(call)

    def _take_headers(self, read: Frame) -> None:
        self._pinger.has_heard_data = True
        block = self._blocks.take(read)
        if block is None:
            self._expected = frames.CONTINUATION
            return
        self._expected = None
        first, headers = block
        if (call := self._calls.get(first)) is not None:
            is_end = bool(first.flags & frames.END_STREAM)
            call.take_headers(headers, is_end=is_end)
            if is_end:
                self._calls.finish(call)

    def _take_window(self, read: Frame) -> None:
        count = frames.number_of(read) & frames.MAX_NUMBER
        if not read.stream:
            self._sender.grow(count)
        elif (call := self._calls.get(read)) is not None:
            self._sender.grow_call(call, count)

    def _take_reset(self, read: Frame) -> None:
        code = frames.number_of(read)
        if (call := self._calls.get(read)) is not None:
            self._calls.remove(call)
            call.take_reset(code)

    def _take_settings(self, read: Frame) -> None:
        if read.flags & frames.ACK:
            return
        for name, value in frames.settings_of(read):
            if name == frames.MAX_CONCURRENT_STREAMS:
                self.places.allow(value)
            elif name == frames.MAX_FRAME_SIZE:
                self._sender.limit_frames(value)
            elif name == frames.INITIAL_WINDOW_SIZE:
                self._sender.resize_windows(value, list(self._by_number.values()))
        self._sender.write(frame(frames.SETTINGS, frames.ACK, 0))
        if not self.greeted.done():
            self._takes_calls = True
            self._expected = None
            self.greeted.set_result(None)
        self._sender.flush()

    def _ping(self) -> None:
        self._sender.write(frame(frames.PING, 0, 0, bytes(frames.PING_BYTES)))

    def _take_ping(self, read: Frame) -> None:
        if len(read.payload) != frames.PING_BYTES:
            raise ProtocolViolated(f"a ping of {len(read.payload)} bytes")
        if not read.flags & frames.ACK:  # that anything came is the answer to ours: see Pinger.hear
            self._sender.write(frame(frames.PING, frames.ACK, 0, read.payload))

    def _take_goaway(self, read: Frame) -> None:
        """Calls that the peer has begun go on; the others may be tried on another connection."""
        last, code = frames.number_of(read) & frames.MAX_NUMBER, frames.number_of(read, 4)
        text = read.payload[8:200].decode(errors="replace")
        self.why_closed = f"the server takes no more calls (code {code}{text and ': '}{text})"
        self._takes_calls = False
        self._calls.refuse_after(last, self.why_closed)
        self.places.close()
        self._close_when_idle()

    def _close_when_idle(self) -> None:
        if not self._takes_calls and not self._calls and self._transport is not None:
            self._pinger.stop()
            self._transport.close()


_TAKEN: Final[dict[int, Callable[[Http2Connection, Frame], None]]] = {
    frames.DATA: Http2Connection._take_data,
    frames.HEADERS: Http2Connection._take_headers,
    frames.CONTINUATION: Http2Connection._take_headers,
    frames.WINDOW_UPDATE: Http2Connection._take_window,
    frames.RST_STREAM: Http2Connection._take_reset,
    frames.SETTINGS: Http2Connection._take_settings,
    frames.PING: Http2Connection._take_ping,
    frames.GOAWAY: Http2Connection._take_goaway,
}


def _what_it_speaks(error: Exception) -> str:
    """Say why the first bytes of a peer are not HTTP/2."""
    if not isinstance(error, FrameTooLarge):
        return f"it does not speak HTTP/2: {error}"
    if error.start.startswith(b"HTTP/"):
        return "it does not speak HTTP/2 but HTTP/1"
    return f"it does not speak HTTP/2: its first bytes are {error.start!r}"
