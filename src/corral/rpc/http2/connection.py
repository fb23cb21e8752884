"""One HTTP/2 connection as its client: streams beside each other, windows both ways, and its end."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from hpack import Decoder
from hpack.exceptions import HPACKError

from corral.rpc.http2 import frames
from corral.rpc.http2.frames import Frame, FrameReader, ProtocolViolated, frame
from corral.rpc.http2.stream import Stream
from corral.rpc.status import Code, Status

STREAM_WINDOW: Final = 1024 * 1024
"""Bytes that may wait for a consumer before its backend is held back."""
_CONNECTION_WINDOW: Final = 2**30
"""Given back as it is used, so that the slow consumer of one stream holds back no other."""
_FIRST_WINDOW: Final = 65_535
_LARGEST_FRAME: Final = 65_536
_LARGEST_HEADERS: Final = 4 * 1024 * 1024
"""gRPC's servers send an error's whole text, however long, and its call alone is to suffer from it."""

_GREETING: Final = (
    frames.PREFACE
    + frames.settings(
        {frames.ENABLE_PUSH: 0, frames.INITIAL_WINDOW_SIZE: STREAM_WINDOW, frames.MAX_FRAME_SIZE: _LARGEST_FRAME}
    )
    + frames.window_update(0, _CONNECTION_WINDOW - _FIRST_WINDOW)
)


class Connection(asyncio.Protocol):
    """Made by `create_connection`; usable once `greeted` is done. It never opens itself again."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.greeted: asyncio.Future[None] = loop.create_future()
        """Done when the peer has shown that it speaks HTTP/2, or the connection is gone: see `takes_calls`."""
        self.why_closed = ""
        self._gone: asyncio.Future[None] = loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader(_LARGEST_FRAME)
        self._decoder = Decoder(_LARGEST_HEADERS)
        self._streams: dict[int, Stream] = {}
        self._sending: dict[int, Stream] = {}
        self._waiting_for_room: deque[asyncio.Future[None]] = deque()
        self._promised = 0
        """Places of those who were told that there is room and have not begun yet."""
        self._next_number = 1
        self._takes_calls = False
        self._most_streams = frames.MOST
        self._window = _FIRST_WINDOW
        self._stream_window = _FIRST_WINDOW
        self._max_frame = frames.LEAST_MAX_FRAME
        self._uncredited = 0
        self._headers: tuple[Frame, bytearray] | None = None

    @property
    def takes_calls(self) -> bool:
        """Not before the greeting, and not after a farewell."""
        return self._takes_calls and self._transport is not None and not self._transport.is_closing()

    @property
    def is_full(self) -> bool:
        """As many streams as the peer allows, or others wait for theirs."""
        return self._room <= 0 or bool(self._waiting_for_room)

    @property
    def is_gone(self) -> bool:
        return self._gone.done()

    @property
    def _room(self) -> int:
        return self._most_streams - len(self._streams) - self._promised

    async def room(self) -> None:
        """Wait for a place, which is to be taken at once, or for the end of the connection."""
        if not self.takes_calls:
            return
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting_for_room.append(waiting)
        try:
            await waiting
        except asyncio.CancelledError:
            if waiting in self._waiting_for_room:
                self._waiting_for_room.remove(waiting)
            elif not waiting.cancelled():
                self._promised -= 1
                self._pass_on_room()
            raise
        self._promised -= 1

    def request(self, head: bytes, body: bytes) -> Stream:
        """Begin a call. `head` is a header block that changes no table. The caller has seen that there is room."""
        number, self._next_number = self._next_number, self._next_number + 2
        self._takes_calls = self._next_number < frames.MOST
        stream = self._streams[number] = Stream(self, number, self._stream_window)
        opening = frame(frames.HEADERS, frames.END_HEADERS, number, head)
        if len(body) <= min(self._window, self._stream_window, self._max_frame):  # nearly always: one write is enough
            self._window -= len(body)
            stream.window -= len(body)
            self._write(opening + frame(frames.DATA, frames.END_STREAM, number, body))
        else:
            stream.unsent = memoryview(body)
            self._sending[number] = stream
            self._write(opening)
            self._send_more(stream)
        return stream

    async def close(self, why: str) -> None:
        """At once: what is under way ends as unavailable."""
        self.end(why)
        if self._transport is not None:
            await asyncio.wait({self._gone})

    # For streams.

    def credit(self, stream: Stream) -> None:
        if stream.status is None and stream.uncredited >= STREAM_WINDOW // 2:
            self._write(frames.window_update(stream.number, stream.uncredited))
            stream.uncredited = 0

    def abandon(self, stream: Stream) -> None:
        if self._streams.get(stream.number) is stream:
            self._write(frames.reset(stream.number, frames.CANCEL))
            self._remove(stream)

    # For the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(_GREETING)

    def data_received(self, data: bytes) -> None:
        try:
            for read in self._reader.feed(data):
                self._take(read)
        except (ProtocolViolated, HPACKError) as error:
            fault = "does not keep to" if self.greeted.done() else "does not speak"
            self.end(f"it {fault} HTTP/2: {error}")

    def eof_received(self) -> None:
        """At once: what is still to be sent may never be read."""
        self.end("the connection was closed")

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(str(exc) if exc else "the connection was closed")
        self._gone.set_result(None)

    # What the peer says.

    def _take(self, read: Frame) -> None:
        if self._headers is not None and read.kind != frames.CONTINUATION:
            raise ProtocolViolated("headers that are cut off")
        if not self.greeted.done() and read.kind != frames.SETTINGS:
            raise ProtocolViolated("it does not begin with its settings")
        take = _TAKEN.get(read.kind)
        if take is not None:  # what is unknown is to be passed over
            take(self, read)

    def _take_data(self, read: Frame) -> None:
        size = len(read.payload)
        self._uncredited += size
        if self._uncredited >= _CONNECTION_WINDOW // 2:
            self._write(frames.window_update(0, self._uncredited))
            self._uncredited = 0
        stream = self._streams.get(read.stream)
        if stream is None:
            self._check_was_begun(read)
            return
        stream.uncredited += size
        if stream.uncredited > STREAM_WINDOW:
            raise ProtocolViolated("it sends more than it may")
        stream.take_data(frames.content_of(read))
        if read.flags & frames.END_STREAM:
            stream.end_of_data()
            self._finish(stream)
        elif stream.is_taken:  # the rest of a large message must be able to come
            self.credit(stream)

    def _take_headers(self, read: Frame) -> None:
        block = frames.content_of(read)
        if read.flags & frames.END_HEADERS:
            self._take_block(read, block)
        else:
            self._headers = read, bytearray(block)

    def _take_more_headers(self, read: Frame) -> None:
        if self._headers is None or self._headers[0].stream != read.stream:
            raise ProtocolViolated("headers that go on without a beginning")
        first, block = self._headers
        block += read.payload
        if len(block) > _LARGEST_HEADERS:
            raise ProtocolViolated(f"headers of more than {_LARGEST_HEADERS} bytes")
        if read.flags & frames.END_HEADERS:
            self._headers = None
            self._take_block(first, bytes(block))

    def _take_block(self, read: Frame, block: bytes) -> None:
        """Decoded in any case: the next block may refer to it."""
        headers = self._decoder.decode(block, raw=True)
        stream = self._streams.get(read.stream)
        if stream is None:
            self._check_was_begun(read)
            return
        is_end = bool(read.flags & frames.END_STREAM)
        stream.take_headers(((bytes(name), bytes(value)) for name, value in headers), is_end=is_end)
        if is_end:
            self._finish(stream)

    def _check_was_begun(self, read: Frame) -> None:
        """What comes for a stream that ended on this side is of no interest; one that never was is a fault."""
        if not read.stream % 2 or read.stream >= self._next_number:
            raise ProtocolViolated(f"it speaks on stream {read.stream}, which was not begun")

    def _take_window(self, read: Frame) -> None:
        count = frames.number_of(read) & frames.MOST
        if not read.stream:
            self._window = _grown(self._window, count)
            for stream in list(self._sending.values()):
                self._send_more(stream)
        elif (known := self._streams.get(read.stream)) is not None:
            known.window = _grown(known.window, count)
            self._send_more(known)

    def _take_reset(self, read: Frame) -> None:
        code = frames.number_of(read)
        if (stream := self._streams.get(read.stream)) is not None:
            self._remove(stream)
            stream.take_reset(code)

    def _take_settings(self, read: Frame) -> None:
        if read.flags & frames.ACK:
            return
        for name, value in frames.settings_of(read):
            self._take_setting(name, value)
        self._write(frame(frames.SETTINGS, frames.ACK, 0))
        if not self.greeted.done():
            self._takes_calls = True
            self.greeted.set_result(None)
        for stream in list(self._sending.values()):
            self._send_more(stream)
        self._pass_on_room()

    def _take_setting(self, name: int, value: int) -> None:
        if name == frames.MAX_CONCURRENT_STREAMS:
            self._most_streams = value
        elif name == frames.MAX_FRAME_SIZE:
            if not frames.LEAST_MAX_FRAME <= value <= frames.MOST_MAX_FRAME:
                raise ProtocolViolated(f"frames of at most {value} bytes")
            self._max_frame = value
        elif name == frames.INITIAL_WINDOW_SIZE:
            for stream in self._streams.values():
                stream.window = _grown(stream.window, value - self._stream_window)
            self._stream_window = _grown(0, value)

    def _take_ping(self, read: Frame) -> None:
        if not read.flags & frames.ACK:
            self._write(frame(frames.PING, frames.ACK, 0, read.payload))

    def _take_push(self, _: Frame) -> None:
        raise ProtocolViolated("it pushes, which was forbidden")

    def _take_farewell(self, read: Frame) -> None:
        """Calls that it has begun go on; the others may be tried elsewhere."""
        last, code = frames.number_of(read) & frames.MOST, frames.number_of(read, 4)
        self._takes_calls = False
        said = read.payload[8:200].decode(errors="replace")
        self.why_closed = f"the backend takes no more calls (code {code}{said and ': '}{said})"
        for stream in [stream for stream in self._streams.values() if stream.number > last]:
            self._remove(stream)
            stream.refuse(self.why_closed)
        self._pass_on_room()
        self._close_when_idle()

    # The way out.

    def _send_more(self, stream: Stream) -> None:
        unsent = stream.unsent
        while unsent and (count := min(len(unsent), self._window, stream.window, self._max_frame)) > 0:
            piece, unsent = unsent[:count], unsent[count:]
            self._window -= count
            stream.window -= count
            self._write(frame(frames.DATA, 0 if unsent else frames.END_STREAM, stream.number, piece))
        stream.unsent = unsent or None
        if not unsent:
            self._sending.pop(stream.number, None)

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    # Ends.

    def _finish(self, stream: Stream) -> None:
        """The peer has ended it. Whatever it did not want to read of the request is not sent any more."""
        if self._streams.get(stream.number) is stream:
            if stream.unsent:
                self._write(frames.reset(stream.number, frames.NO_ERROR))
            self._remove(stream)

    def _remove(self, stream: Stream) -> None:
        self._streams.pop(stream.number, None)
        self._sending.pop(stream.number, None)
        self._pass_on_room()
        self._close_when_idle()

    def _pass_on_room(self) -> None:
        """To as many as there is room for; when no calls are taken any more, to all: they will see."""
        while self._waiting_for_room and (self._room > 0 or not self._takes_calls):
            waiting = self._waiting_for_room.popleft()
            if not waiting.done():  # else it was cancelled just now
                self._promised += 1
                waiting.set_result(None)

    def _close_when_idle(self) -> None:
        if not self._takes_calls and not self._streams and self._transport is not None:
            self._transport.close()

    def end(self, why: str) -> None:
        """At once. The first reason counts."""
        self.why_closed = self.why_closed or why
        self._takes_calls = False
        if not self.greeted.done():
            self.greeted.set_result(None)
        for stream in list(self._streams.values()):
            self._remove(stream)
            stream.end(Status(Code.UNAVAILABLE, self.why_closed))
        self._pass_on_room()
        if self._transport is not None:
            (self._transport.abort if self._transport.get_write_buffer_size() else self._transport.close)()


_TAKEN: Final[dict[int, Callable[[Connection, Frame], None]]] = {
    frames.DATA: Connection._take_data,
    frames.HEADERS: Connection._take_headers,
    frames.CONTINUATION: Connection._take_more_headers,
    frames.WINDOW_UPDATE: Connection._take_window,
    frames.RST_STREAM: Connection._take_reset,
    frames.SETTINGS: Connection._take_settings,
    frames.PING: Connection._take_ping,
    frames.PUSH_PROMISE: Connection._take_push,
    frames.GOAWAY: Connection._take_farewell,
}


def _grown(window: int, by: int) -> int:
    """A window may become negative, by a setting; but never too large."""
    if window + by > frames.MOST:
        raise ProtocolViolated("a window that is too large")
    return window + by
