"""The calls of one connection: who may begin one, which are open, and what is sent for them.

Control frames are sent at once, messages as far as the peer's windows allow. Memory is bounded whatever the peer does:
messages stay with their calls while a window is used up or while the socket takes no more, and a peer that keeps asking
for answers without reading them is given up.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from . import frames
from .call import Call, Code, Status
from .frames import Frame, ProtocolViolated, frame

CALL_WINDOW: Final = 1024 * 1024
"""Bytes that may wait for the reader of a call before its server is held back."""
CREDIT_BYTES: Final = CALL_WINDOW // 2
"""The window is renewed in steps of this size, not for every message."""
_FIRST_WINDOW: Final = 65_535
_MAX_FRAME_BYTES: Final = 65_536
"""Calls take turns by frames, so a peer that allows frames of 16 MiB does not get them."""
_BUFFER_BYTES: Final = 1024 * 1024
"""Bytes that wait for the socket before calls are held back."""
_MAX_BACKLOG_BYTES: Final = 4 * 1024 * 1024
"""Control frames for a peer that does not read."""


class FrameSender:
    """The sending half of one connection."""

    def __init__(self, fail: Callable[[str], None]) -> None:
        self._fail = fail
        self._transport: asyncio.Transport | None = None
        self._is_paused = False
        self._window = _FIRST_WINDOW
        self._call_window = _FIRST_WINDOW
        self._frame_limit = frames.MIN_FRAME_LIMIT
        self._unsent: dict[int, Call] = {}

    def use(self, transport: asyncio.Transport) -> None:
        """Send on this transport from now on."""
        self._transport = transport
        transport.set_write_buffer_limits(high=_BUFFER_BYTES)

    def write(self, data: bytes) -> None:
        """Send control frames, which no window limits. A peer that lets too many of them pile up is given up."""
        self._put(data)
        transport = self._transport
        if self._is_paused and transport is not None and transport.get_write_buffer_size() > _MAX_BACKLOG_BYTES:
            self._fail("it does not read what is sent to it")

    def open(self, call: Call, head: bytes, body: bytes) -> None:
        """Begin a call: its header block, and its one request unless the body is empty."""
        call.window = self._call_window
        opening = frame(frames.HEADERS, frames.END_HEADERS, call.number, head)
        size = len(body)
        if 0 < size <= min(self._window, self._call_window, self._frame_limit) and not self._is_paused:
            self._window -= size  # nearly always: one write is enough
            call.window -= size
            self._put(opening + frame(frames.DATA, frames.END_STREAM, call.number, body))
            return
        self.write(opening)
        if size and call.status is None:
            self.send(call, body)

    def send(self, call: Call, data: bytes) -> None:
        """Send a framed message: now what the windows allow, and the remainder when they open. `call.unsent` is None
        when all is out."""
        call.unsent = memoryview(data)
        self._unsent[call.number] = call
        self.flush()

    def drop(self, call: Call) -> None:
        """Forget what was not sent."""
        call.unsent = None
        self._unsent.pop(call.number, None)

    def flush(self) -> None:
        """Send what may be sent, one frame of each call in turn: a large message does not hold up the others."""
        can_send = True
        while can_send:
            can_send = False
            for call in list(self._unsent.values()):
                unsent = call.unsent
                if unsent is None or self._is_paused:
                    continue
                count = min(len(unsent), self._window, call.window, self._frame_limit)
                if count <= 0:
                    continue
                can_send = True
                remaining = unsent[count:]
                self._window -= count
                call.window -= count
                is_end = not remaining and call.is_half_closed
                self._put(frame(frames.DATA, frames.END_STREAM if is_end else 0, call.number, unsent[:count]))
                if remaining:
                    call.unsent = remaining
                else:
                    self.drop(call)
                    call.has_sent()

    def pause(self) -> None:
        """The socket takes no more for now."""
        self._is_paused = True

    def resume(self) -> None:
        """The socket takes more again."""
        self._is_paused = False
        self.flush()

    def grow(self, count: int) -> None:
        """The peer allows this many bytes more on the connection as a whole."""
        self._window = _grown(self._window, count)
        self.flush()

    def grow_call(self, call: Call, count: int) -> None:
        """The peer allows this many bytes more for one call."""
        call.window = _grown(call.window, count)
        self.flush()

    def limit_frames(self, limit: int) -> None:
        """Take note of the largest frame that the peer accepts; ours are not larger than is useful."""
        if not frames.MIN_FRAME_LIMIT <= limit <= frames.MAX_FRAME_LIMIT:
            raise ProtocolViolated(f"frames of at most {limit} bytes")
        self._frame_limit = min(limit, _MAX_FRAME_BYTES)

    def resize_windows(self, size: int, calls: list[Call]) -> None:
        """The peer changes the window that calls begin with, and by as much those of open calls, even below zero."""
        for call in calls:
            call.window = _grown(call.window, size - self._call_window)
        self._call_window = _grown(0, size)

    def _put(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)


def _grown(window: int, by: int) -> int:
    """A window may become negative, by a setting, but never larger than HTTP/2 allows."""
    if window + by > frames.MAX_NUMBER:
        raise ProtocolViolated("a window that is too large")
    return window + by


class Places:
    """Limits the calls of a connection to as many as the peer allows; the others wait in line."""

    def __init__(self) -> None:
        self._limit = frames.MAX_NUMBER
        self._open_count = 0
        self._promised = 0
        """Places of those who were woken and have not begun their call yet."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_open = True

    @property
    def is_full(self) -> bool:
        """Whether a new call has to wait: no place is free, or others wait already."""
        return self._free <= 0 or bool(self._waiting)

    @property
    def _free(self) -> int:
        return self._limit - self._open_count - self._promised

    async def wait(self) -> None:
        """Return when there is a place, which is to be taken at once, or when the connection takes no more calls."""
        if not self._is_open:
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn in self._waiting:
                self._waiting.remove(turn)
            elif not turn.cancelled():
                self._promised -= 1
                self._wake()
            raise
        self._promised -= 1

    def take(self) -> None:
        """Take one of the places for a call that begins."""
        self._open_count += 1

    def give_back(self) -> None:
        """Return the place of a call that has ended."""
        self._open_count -= 1
        self._wake()

    def allow(self, limit: int) -> None:
        """The peer allows this many calls at once."""
        self._limit = limit
        self._wake()

    def close(self) -> None:
        """The connection takes no more calls: all who wait look for another."""
        self._is_open = False
        self._wake()

    def _wake(self) -> None:
        while self._waiting and (self._free > 0 or not self._is_open):
            turn = self._waiting.popleft()
            if not turn.done():  # else its task was cancelled just now
                self._promised += 1
                turn.set_result(None)


class OpenCalls:
    """The calls that go on, by the numbers of their streams. It is what carries them: see `Carrier`."""

    def __init__(self, sender: FrameSender, *, when_idle: Callable[[], None]) -> None:
        self.places = Places()
        self.next_number = 1
        self._sender = sender
        self._when_idle = when_idle
        self.by_number: dict[int, Call] = {}

    def __bool__(self) -> bool:
        return bool(self.by_number)

    def begin(self, head: bytes, body: bytes) -> Call:
        """Begin a call with one framed request or, if the body is empty, with a stream of requests."""
        number, self.next_number = self.next_number, self.next_number + 2
        call = self.by_number[number] = Call(self, number, is_half_closed=bool(body))
        self.places.take()
        self._sender.open(call, head, body)
        return call

    def get(self, read: Frame) -> Call | None:
        """Return the call that a frame is for, None if it has ended here. Refuse a stream that never began."""
        call = self.by_number.get(read.stream)
        if call is None and (not read.stream % 2 or read.stream >= self.next_number):
            raise ProtocolViolated(f"it speaks on stream {read.stream}, which was not begun")
        return call

    def finish(self, call: Call) -> None:
        """The peer has ended the call. Requests that it did not want to read are not sent any more."""
        if call.number in self.by_number:
            if call.unsent is not None or not call.is_half_closed:
                self._sender.write(frames.reset(call.number, frames.NO_ERROR))
            self.remove(call)

    def remove(self, call: Call) -> None:
        """Forget a call, and pass its place on."""
        if self.by_number.pop(call.number, None) is not None:
            self._sender.drop(call)
            self.places.give_back()
            if not self.by_number:
                self._when_idle()

    def refuse_after(self, last: int, why: str) -> None:
        """End the calls that the peer will not begin: those after this number."""
        for call in [call for call in self.by_number.values() if call.number > last]:
            self.remove(call)
            call.refuse(why)

    def end_all(self, why: str) -> None:
        """End every call as unavailable."""
        for call in list(self.by_number.values()):
            self.remove(call)
            call.end(Status(Code.UNAVAILABLE, why))

    # As the carrier of the calls.

    def credit(self, call: Call) -> None:
        """Allow the peer to replace what was read."""
        if call.status is None and call.uncredited >= CREDIT_BYTES:
            self._sender.write(frames.window_update(call.number, call.uncredited))
            call.uncredited = 0

    def send(self, call: Call, data: bytes) -> None:
        """Send a framed message as the peer's windows allow."""
        self._sender.send(call, data)

    def half_close(self, call: Call) -> None:
        """Tell the peer that no message follows."""
        self._sender.write(frame(frames.DATA, frames.END_STREAM, call.number))

    def abandon(self, call: Call) -> None:
        """End a call that the peer has not ended."""
        if call.number in self.by_number:
            self._sender.write(frames.reset(call.number, frames.CANCEL))
            self.remove(call)
