"""The calls of one connection: who may begin one, which are open, and what each of them sends and returns."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from . import frames
from .call import Call, Code, Status
from .frames import Frame, ProtocolViolated, frame
from .sending import FrameSender

CALL_WINDOW: Final = 1024 * 1024
"""Bytes that may wait for the reader of a call before its server is held back."""
CREDIT_BYTES: Final = CALL_WINDOW // 2
"""The window is renewed in steps of this size, not for every message."""


class Places:
    """Limits the calls of a connection to as many as the peer allows; the others wait in line."""

    def __init__(self) -> None:
        self._limit = frames.MAX_NUMBER
        self._taken = 0
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
        return self._limit - self._taken - self._promised

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
        """A call begins."""
        self._taken += 1

    def give_back(self) -> None:
        """A call has ended."""
        self._taken -= 1
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
