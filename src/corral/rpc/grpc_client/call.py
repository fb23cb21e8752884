"""One gRPC call on its HTTP/2 stream: the messages that came, in their order, those to send, and how it ended.

Messages that the reader has not taken yet count against the stream's window. So a slow reader holds back the server of
its own call and nobody else.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple, Protocol, Self
from urllib.parse import unquote

from . import frames

MAX_MESSAGE_BYTES: Final = 50 * 1024 * 1024
_MAX_DETAILS: Final = 8192
_MAX_SHOWN: Final = 100
_PREFIX_BYTES: Final = 5


class Code(IntEnum):
    """How a call ended, by gRPC's names and numbers."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class Status(NamedTuple):
    """A code, and the server's text or, where it sent none, ours."""

    code: Code
    details: str = ""


class CallFailed(Exception):
    """A call could not begin, or a message could not be sent: `status` says why."""

    def __init__(self, status: Status) -> None:
        super().__init__(f"{status.code.name}: {status.details}")
        self.status = status


_CODES_OF_RESETS: Final = {
    frames.CANCEL: Code.CANCELLED,
    frames.ENHANCE_YOUR_CALM: Code.UNAVAILABLE,
    frames.INADEQUATE_SECURITY: Code.PERMISSION_DENIED,
}
_CODES_OF_HTTP: Final = {
    b"400": Code.INTERNAL,
    b"401": Code.UNAUTHENTICATED,
    b"403": Code.PERMISSION_DENIED,
    b"404": Code.UNIMPLEMENTED,
    b"429": Code.UNAVAILABLE,
    b"502": Code.UNAVAILABLE,
    b"503": Code.UNAVAILABLE,
    b"504": Code.UNAVAILABLE,
}
"""gRPC's specification of what an HTTP status means when the answer is not gRPC."""


class Carrier(Protocol):
    """The connection, as a call sees it."""

    def credit(self, call: "Call") -> None:
        """The reader has taken all messages: the peer may send more."""

    def send(self, call: "Call", data: bytes) -> None:
        """Send a framed message as the peer's windows allow."""

    def half_close(self, call: "Call") -> None:
        """Tell the peer that no message follows."""

    def abandon(self, call: "Call") -> None:
        """Tell the peer, unless it has ended the call itself, that the call is over."""


class Call:
    """Filled by its connection, used by one reader and one sender, which may be different tasks.

    Whoever begins a call ends it in any case, by `cancel` or by leaving its `with` block; a call that has ended is not
    affected by that.
    """

    def __init__(self, carrier: Carrier, number: int, *, is_half_closed: bool) -> None:
        self.number = number
        self.window = 0
        """Bytes that may still be sent."""
        self.unsent: memoryview | None = None
        self.is_half_closed = is_half_closed
        """No message follows those that were sent or are in `unsent`."""
        self.uncredited = 0
        """Bytes that came and that the peer has not been allowed to replace yet."""
        self.status: Status | None = None
        """None while the call goes on."""
        self.was_refused = False
        """The peer says that it did not begin the call, so it is safe to try it again."""
        self._carrier = carrier
        self._messages: deque[bytes] = deque()
        self._partial = bytearray()
        self._has_head = False
        self._reading: asyncio.Future[None] | None = None
        self._sending: asyncio.Future[None] | None = None
        self._late: tuple[float, Status] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    async def next(self) -> bytes | None:
        """Return the next message, or None at the end; then `status` says why. Cancelling this loses no message."""
        messages = await self.next_ready(1)
        return messages[0] if messages else None

    async def next_ready(self, at_most: int) -> list[bytes]:
        """Wait for a message, and return it with those that have come as well. An empty list is the end: then `status`
        says why. Cancelling this loses no message."""
        while not self._messages:
            if self.status is not None:
                return []
            self._reading = asyncio.get_running_loop().create_future()
            try:
                await self._reading
            finally:
                self._reading = None
        messages = [self._messages.popleft() for _ in range(min(at_most, len(self._messages)))]
        if not self._messages:
            self._carrier.credit(self)
        return messages

    async def send(self, message: bytes) -> bool:
        """Send a message of a request stream; returns when all of it is on its way, which a slow peer delays.

        False: the call has ended, and nothing more needs to be sent; `next` and `status` have the answer. Cancelling a
        send cancels the call, because the peer may have half of the message.
        """
        if self.is_half_closed or self._sending is not None:
            raise RuntimeError("the requests have ended" if self.is_half_closed else "another message is being sent")
        data = framed(message)
        if self.status is None:
            self._carrier.send(self, data)
        while self.unsent is not None and self.status is None:
            self._sending = asyncio.get_running_loop().create_future()
            try:
                await self._sending
            except asyncio.CancelledError:
                self.cancel()
                raise
            finally:
                self._sending = None
        return self.status is None

    def done_sending(self) -> None:
        """End the requests; the answers go on."""
        if self._sending is not None:
            raise RuntimeError("a message is still being sent")
        if not self.is_half_closed:
            self.is_half_closed = True
            if self.status is None:
                self._carrier.half_close(self)

    @property
    def is_read(self) -> bool:
        """Whether the reader has taken all complete messages."""
        return not self._messages

    def cancel(self) -> None:
        """End the call if it has not ended. Messages that came before can still be read."""
        self.fail(Status(Code.CANCELLED, "given up"))

    def fail(self, status: Status) -> None:
        """End the call on this side, with this status unless it has ended before."""
        if self.status is None:
            self.end(status)
            self._carrier.abandon(self)

    def fail_at(self, moment: float, status: Status) -> None:
        """End the call at a moment of the event loop's clock, unless it ends before."""
        self._late = moment, status
        self._timer = asyncio.get_running_loop().call_at(moment, self.fail, status)

    # For the connection.

    def has_sent(self) -> None:
        """All of the message is on its way."""
        _wake(self._sending)

    def take_data(self, data: bytes) -> None:
        """Add bytes of messages."""
        if not self._has_head:
            self.fail(Status(Code.INTERNAL, "data came before the headers"))
            return
        if self._partial:
            self._partial += data
            if self._message_end(self._partial, 0) is None:
                return
            data = bytes(self._partial)
            self._partial.clear()
        begin = 0
        while (end := self._message_end(data, begin)) is not None:
            self._messages.append(data[begin + _PREFIX_BYTES : end])
            begin = end
        if self.status is None:
            self._partial += data[begin:]
        if self._messages:
            _wake(self._reading)

    def take_headers(self, headers: Iterable[tuple[bytes, bytes]], *, is_end: bool) -> None:
        """Take the headers or, at the end, the trailers."""
        fields = dict(headers)
        if not self._has_head and not (fields.get(b":status", b"").startswith(b"1") and not is_end):
            self._has_head = True
            if b"grpc-status" not in fields and (status := _status_of_http(fields)) is not None:
                self.fail(status)
                return
        if is_end:
            status = _status_of(fields)
            is_cut = bool(self._partial) and status.code is Code.OK
            self.end(Status(Code.INTERNAL, "the stream ended within a message") if is_cut else status)

    def take_reset(self, code: int) -> None:
        """The peer ended the stream with an error code. At the deadline that is all that some servers send."""
        if code == frames.CANCEL and self._late is not None and asyncio.get_running_loop().time() >= self._late[0]:
            self.end(self._late[1])
        if code == frames.REFUSED_STREAM:
            self.refuse("the server has too many calls")
        self.end(Status(_CODES_OF_RESETS.get(code, Code.INTERNAL), f"the stream was reset with code {code}"))

    def refuse(self, why: str) -> None:
        """End the call as one that the peer has not begun, unless it has answered already."""
        self.was_refused = self.status is None and not self._has_head
        self.end(Status(Code.UNAVAILABLE, why))

    def end(self, status: Status) -> None:
        """End the call; only the first status counts."""
        if self.status is None:
            self.status = status
            if self._timer is not None:
                self._timer.cancel()
            _wake(self._reading)
            _wake(self._sending)

    def _message_end(self, data: bytes | bytearray, begin: int) -> int | None:
        """Return the end of the message that begins there, if it is complete. An unreadable message ends the call."""
        if len(data) < begin + _PREFIX_BYTES or self.status is not None:
            return None
        length = int.from_bytes(data[begin + 1 : begin + _PREFIX_BYTES])
        if data[begin]:
            self.fail(Status(Code.INTERNAL, "the message is compressed, which was not offered"))
            return None
        if length > MAX_MESSAGE_BYTES:
            self.fail(_too_large("received", length))
            return None
        end = begin + _PREFIX_BYTES + length
        return end if len(data) >= end else None


def framed(message: bytes) -> bytes:
    """Return the message with gRPC's prefix. Raise CallFailed if it is too large."""
    if len(message) > MAX_MESSAGE_BYTES:
        raise CallFailed(_too_large("sent", len(message)))
    return b"\0" + len(message).to_bytes(4) + message


def _too_large(way: str, length: int) -> Status:
    return Status(Code.RESOURCE_EXHAUSTED, f"{way} message larger than max ({length} vs. {MAX_MESSAGE_BYTES})")


def _wake(waiting: "asyncio.Future[None] | None") -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)


def _status_of_http(fields: dict[bytes, bytes]) -> Status | None:
    """Return the status of an answer that is not gRPC, else None."""
    answer = fields.get(b":status", b"")
    if answer != b"200":
        return Status(_CODES_OF_HTTP.get(answer, Code.UNKNOWN), f"HTTP status {_shown(answer) or 'missing'}")
    kind = fields.get(b"content-type", b"")
    if not kind.startswith(b"application/grpc"):
        return Status(Code.UNKNOWN, f"it does not speak gRPC but {_shown(kind) or 'nothing known'}")
    return None


def _shown(value: bytes) -> str:
    return value[:_MAX_SHOWN].decode(errors="replace")


def _status_of(fields: dict[bytes, bytes]) -> Status:
    try:
        code = Code(int(fields[b"grpc-status"]))
    except KeyError:
        return Status(Code.UNKNOWN, "the stream ended without a status")
    except ValueError:
        code = Code.UNKNOWN
    details = unquote(fields.get(b"grpc-message", b"").decode(errors="replace"), errors="replace")
    return Status(code, details[:_MAX_DETAILS])
