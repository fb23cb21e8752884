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
_PREFIX_BYTES: Final = 5

_BY_RESET: Final = {
    frames.REFUSED_STREAM: Code.UNAVAILABLE,
    frames.CANCEL: Code.CANCELLED,
    frames.ENHANCE_YOUR_CALM: Code.RESOURCE_EXHAUSTED,
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
        self._carrier = carrier
        self._messages: deque[bytes] = deque()
        self._partial = bytearray()
        self._has_head = False
        self._waiting: asyncio.Future[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None

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
        self._deadline = asyncio.get_running_loop().call_at(moment, self.fail, status)

    # What the connection heard.

    def take_data(self, data: bytes) -> None:
        if self._partial:
            self._partial += data
            data = bytes(self._partial) if self._is_message_there(self._partial) else b""
        while self._is_message_there(data):
            end = _PREFIX_BYTES + int.from_bytes(data[1:_PREFIX_BYTES])
            self._messages.append(data[_PREFIX_BYTES:end])
            data = data[end:]
            self._partial.clear()
        if self.status is None:
            self._partial += data
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
            self.end(_status_of(fields))

    def take_reset(self, code: int) -> None:
        self.end(Status(_BY_RESET.get(code, Code.INTERNAL), f"the stream was reset with code {code}"))

    def end(self, status: Status) -> None:
        """The first reason counts."""
        if self.status is None:
            self.status = status
            if self._deadline is not None:
                self._deadline.cancel()
            self._wake()

    def end_of_data(self) -> None:
        """The peer says that nothing follows, without a status."""
        self.end(Status(Code.INTERNAL, "the stream ended without a status"))

    def _is_message_there(self, data: bytes | bytearray) -> bool:
        """Whether it begins with a whole message. One that cannot be taken ends the call."""
        if len(data) < _PREFIX_BYTES or self.status is not None:
            return False
        length = int.from_bytes(data[1:_PREFIX_BYTES])
        if data[0]:
            self.fail(Status(Code.INTERNAL, "the message is compressed, which was not offered"))
            return False
        if length > MAX_MESSAGE_BYTES:
            text = f"received message larger than max ({length} vs. {MAX_MESSAGE_BYTES})"
            self.fail(Status(Code.RESOURCE_EXHAUSTED, text))
            return False
        return len(data) >= _PREFIX_BYTES + length

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
    return Status(code, unquote(fields.get(b"grpc-message", b"").decode(errors="replace"), errors="replace"))
