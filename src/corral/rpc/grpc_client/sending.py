"""What a connection sends: control frames at once, messages as far as the peer's windows allow.

Memory is bounded whatever the peer does: messages stay with their calls while a window is used up or while the socket
takes no more, and a peer that keeps asking for answers without reading them is given up.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from . import frames
from .call import Call
from .frames import ProtocolViolated, frame

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
        """Send a framed message: now what the windows allow, the rest later. `call.unsent` is None when all is out."""
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
                rest = unsent[count:]
                self._window -= count
                call.window -= count
                is_end = not rest and call.is_half_closed
                self._put(frame(frames.DATA, frames.END_STREAM if is_end else 0, call.number, unsent[:count]))
                if rest:
                    call.unsent = rest
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
