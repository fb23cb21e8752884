"""One gRPC call on its HTTP/2 stream: messages in the order they came, and how it ended.

What a consumer has not taken yet counts against the stream's window, so a slow one holds back its own backend and
nobody else; see `Connection.credit`.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Final, Protocol
from urllib.parse import unquote

from corral.rpc.http2 import frames
from corral.rpc.status import Code, Status

MAX_MESSAGE_BYTES: Final = 50 * 1024 * 1024
_LONGEST_DETAILS: Final = 8192
_PREFIX_BYTES: Final = 5

_BY_RESET: Final = {
    frames.CANCEL: Code.CANCELLED,
    frames.ENHANCE_YOUR_CALM: Code.UNAVAILABLE,
    frames.INADEQUATE_SECURITY: Code.PERMISSION_DENIED,
}
_BY_HTTP: Final = {
    b"400": Code.INTERNAL,
    b"401": Code.UNAUTHENTICATED,
    b"403": Code.PERMISSION_DENIED,
    b"404": Code.UNIMPLEMENTED,
    b"429": Code.UNAVAILABLE,
    b"502": Code.UNAVAILABLE,
    b"503": Code.UNAVAILABLE,
    b"504": Code.UNAVAILABLE,
}
"""For answers that are not gRPC's: what its specification makes of them."""


class Carrier(Protocol):
    """What carries a stream."""

    def credit(self, stream: "Stream") -> None:
        """Its consumer has taken all that came."""

    def abandon(self, stream: "Stream") -> None:
        """Nothing more of it is wanted; tell the peer unless it has ended by itself."""


class Stream:
    """Filled by its connection, read by one consumer."""

    def __init__(self, carrier: Carrier, number: int, window: int) -> None:
        self.number = number
        self.window = window
        """How much may still be sent on it."""
        self.unsent: memoryview | None = None
        self.uncredited = 0
        """Bytes that came and for which the peer has not been given room again."""
        self.status: Status | None = None
        """None as long as it goes on."""
        self.was_refused = False
        """The peer says that it did nothing about it, so it may be tried again."""
        self._carrier = carrier
        self._messages: deque[bytes] = deque()
        self._partial = bytearray()
        self._has_head = False
        self._waiting: asyncio.Future[None] | None = None
        self._late: tuple[float, Status] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def next(self) -> bytes | None:
        """The next message; None when there is none any more, and `status` says why."""
        while not self._messages:
            if self.status is not None:
                return None
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            finally:
                self._waiting = None
        message = self._messages.popleft()
        if not self._messages:
            self._carrier.credit(self)
        return message

    @property
    def is_taken(self) -> bool:
        """Whether its consumer has all complete messages."""
        return not self._messages

    def cancel(self) -> None:
        """End it, if it has not ended."""
        self.fail(Status(Code.CANCELLED, "given up"))

    def fail(self, status: Status) -> None:
        """End it on this side. Messages that came before are still given out."""
        if self.status is None:
            self.end(status)
            self._carrier.abandon(self)

    def fail_at(self, moment: float, status: Status) -> None:
        """Unless it ends before, by the clock of the event loop."""
        self._late = moment, status
        self._timer = asyncio.get_running_loop().call_at(moment, self.fail, status)

    # What the connection heard.

    def take_data(self, data: bytes) -> None:
        if not self._has_head:
            self.fail(Status(Code.INTERNAL, "it answers without a head"))
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
            self._wake()

    def take_headers(self, headers: Iterable[tuple[bytes, bytes]], *, is_end: bool) -> None:
        fields = dict(headers)
        if not self._has_head and not (fields.get(b":status", b"").startswith(b"1") and not is_end):
            self._has_head = True
            if b"grpc-status" not in fields and (refusal := _refusal(fields)) is not None:
                self.fail(refusal)
                return
        if is_end:
            status = _status_of(fields)
            is_cut = bool(self._partial) and status.code is Code.OK
            self.end(Status(Code.INTERNAL, "the stream ended within a message") if is_cut else status)

    def take_reset(self, code: int) -> None:
        """A server that notices first that the deadline has passed says no more than this."""
        if code == frames.CANCEL and self._late is not None and asyncio.get_running_loop().time() >= self._late[0]:
            self.end(self._late[1])
        if code == frames.REFUSED_STREAM:
            self.refuse("the backend has too many calls")
        self.end(Status(_BY_RESET.get(code, Code.INTERNAL), f"the stream was reset with code {code}"))

    def refuse(self, why: str) -> None:
        self.was_refused = self.status is None and not self._has_head
        self.end(Status(Code.UNAVAILABLE, why))

    def end(self, status: Status) -> None:
        """The first reason counts."""
        if self.status is None:
            self.status = status
            if self._timer is not None:
                self._timer.cancel()
            self._wake()

    def end_of_data(self) -> None:
        """The peer says that nothing follows, without a status."""
        self.end(Status(Code.INTERNAL, "the stream ended without a status"))

    def _message_end(self, data: bytes | bytearray, begin: int) -> int | None:
        """Where the message ends that begins there, if all of it came. One that cannot be taken ends the call."""
        if len(data) < begin + _PREFIX_BYTES or self.status is not None:
            return None
        length = int.from_bytes(data[begin + 1 : begin + _PREFIX_BYTES])
        if data[begin]:
            self.fail(Status(Code.INTERNAL, "the message is compressed, which was not offered"))
            return None
        if length > MAX_MESSAGE_BYTES:
            text = f"received message larger than max ({length} vs. {MAX_MESSAGE_BYTES})"
            self.fail(Status(Code.RESOURCE_EXHAUSTED, text))
            return None
        end = begin + _PREFIX_BYTES + length
        return end if len(data) >= end else None

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


def _refusal(fields: dict[bytes, bytes]) -> Status | None:
    """Of an answer that is none of gRPC's."""
    answer = fields.get(b":status", b"")
    if answer != b"200":
        return Status(_BY_HTTP.get(answer, Code.UNKNOWN), f"HTTP status {answer.decode(errors='replace') or 'missing'}")
    kind = fields.get(b"content-type", b"")
    if not kind.startswith(b"application/grpc"):
        return Status(Code.UNKNOWN, f"it does not speak gRPC but {kind.decode(errors='replace') or 'nothing known'}")
    return None


def _status_of(fields: dict[bytes, bytes]) -> Status:
    try:
        code = Code(int(fields[b"grpc-status"]))
    except KeyError:
        return Status(Code.UNKNOWN, "the stream ended without a status")
    except ValueError:
        code = Code.UNKNOWN
    details = unquote(fields.get(b"grpc-message", b"").decode(errors="replace"), errors="replace")
    return Status(code, details[:_LONGEST_DETAILS])
