"""An HTTP/1.1 client that costs next to nothing, so that the server is what gets measured."""

import asyncio
import re
from typing import Final, NamedTuple, Self, cast

_END_OF_HEAD: Final = b"\r\n\r\n"
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Answer(NamedTuple):
    status: int
    body: bytes


def request(method: str, path: str, *, bearer: str = "", body: bytes | None = None) -> bytes:
    """The bytes of a request, made once and sent often."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
    if bearer:
        lines.append(f"Authorization: Bearer {bearer}")
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


class Connection(asyncio.Protocol):
    """One kept connection with one request at a time. Understands only answers that state their length."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._body_at = 0
        self._end = 0
        self._waiting: asyncio.Future[Answer] | None = None

    @classmethod
    async def open(cls, host: str, port: int) -> Self:
        _, connection = await asyncio.get_running_loop().create_connection(cls, host, port)
        return connection

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    async def ask(self, request: bytes) -> Answer:
        """ConnectionError when the server hangs up instead of answering."""
        if self._transport is None:
            raise ConnectionResetError("the connection is closed")
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._waiting

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error or ConnectionResetError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._end and (head_end := self._received.find(_END_OF_HEAD)) >= 0:
            length = _LENGTH.search(self._received, 0, head_end)
            self._body_at = head_end + len(_END_OF_HEAD)
            self._end = self._body_at + (int(length[1]) if length else 0)
        if self._end and len(self._received) >= self._end:
            self._finish()

    def _finish(self) -> None:
        answer = Answer(int(self._received[9:12]), bytes(self._received[self._body_at : self._end]))
        self._received.clear()
        self._end = 0
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(answer)
