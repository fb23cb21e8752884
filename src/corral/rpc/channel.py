"""gRPC calls to one address. A connection is opened when it is first needed, and again after it was lost.

gRPC's own library is not used here: it works in threads of its own, and to pass each message from one to the other
costs several times as much as the message. See docs/adr/0038-grpc-on-the-event-loop.md.
"""

import asyncio
import math
import socket
from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from hpack import Encoder, HeaderTuple, NeverIndexedHeaderTuple

from corral.base.tasks import end_tasks, start_task
from corral.rpc import errors
from corral.rpc.http2.connection import Connection
from corral.rpc.http2.stream import MAX_MESSAGE_BYTES, Stream
from corral.rpc.status import Code, Status, error_for

CONNECT_SECONDS: Final = 20.0
"""For a connection, to the peer's first words. A call with an earlier deadline ends at that."""
_MOST: Final = 99_999_999
"""gRPC's time-outs have at most eight digits."""
_CLOSED: Final = "the channel was closed"
_LATE: Final = Status(Code.DEADLINE_EXCEEDED, "no answer before the deadline")


class Channel:
    """Calls may go on beside each other. Closed once, and then for good."""

    def __init__(self, address: str, *, token: str) -> None:
        self._address = address
        self._token = token
        self._heads: dict[str, bytes] = {}
        self._connection: Connection | None = None
        self._earlier: list[Connection] = []
        """Those that take no more calls, but may still have some under way."""
        self._connecting: asyncio.Task[Connection | str] | None = None
        self._is_closed = False

    async def begin(self, path: str, request: bytes, deadline: float | None) -> Stream:
        """A call with its one request on the way, until a moment on the clock of the event loop. Its reader ends it, by
        `cancel`, in any case."""
        if len(request) > MAX_MESSAGE_BYTES:
            text = f"sent message larger than max ({len(request)} vs. {MAX_MESSAGE_BYTES})"
            raise error_for(self._address, Status(Code.RESOURCE_EXHAUSTED, text))
        if deadline is None:
            connection = await self._ready()
            return connection.request(self._head(path), _framed(request))
        try:
            async with asyncio.timeout_at(deadline):
                connection = await self._ready()
        except TimeoutError:
            text = "no room for one more call" if self._connection is not None else "no connection"
            raise error_for(self._address, Status(Code.DEADLINE_EXCEEDED, f"{text} before the deadline")) from None
        left = deadline - asyncio.get_running_loop().time()
        stream = connection.request(self._head(path) + _timeout_field(left), _framed(request))
        stream.fail_at(deadline, _LATE)
        return stream

    async def close(self) -> None:
        """What is under way ends as gone, also when whoever closes it is cancelled meanwhile."""
        self._is_closed = True
        connections = [*self._earlier, *([self._connection] if self._connection else [])]
        for connection in connections:
            connection.end(_CLOSED)
        if self._connecting is not None:
            await end_tasks(self._connecting)
        for connection in connections:
            await connection.close(_CLOSED)

    async def _ready(self) -> Connection:
        """A connection that takes one more call."""
        while True:
            if self._is_closed:
                raise self._gone("the channel is closed")
            connection = self._connection
            if connection is None or not connection.takes_calls:
                connection = await self._connected()
            if connection.is_full:
                await connection.room()
            if connection.takes_calls:  # else it ended while others had their turn
                return connection

    async def _connected(self) -> Connection:
        """All who wait for a connection wait for the same one, and nobody's going away ends it for the others."""
        if self._connecting is None:
            self._connecting = start_task(self._connect(), name=f"connect to backend {self._address}")
        connecting = self._connecting
        await asyncio.wait({connecting})
        if connecting.cancelled():
            raise self._gone(_CLOSED)
        if isinstance(outcome := connecting.result(), str):
            raise self._gone(outcome)
        return outcome

    async def _connect(self) -> Connection | str:
        """Or why not."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS) as limit:
                connection = await self._open()
        except (OSError, ValueError) as error:
            return f"no HTTP/2 within {CONNECT_SECONDS:g} s" if limit.expired() else f"cannot connect: {error}"
        finally:
            self._connecting = None
        if not connection.takes_calls:
            return connection.why_closed
        if self._connection is not None:
            self._earlier = [one for one in [*self._earlier, self._connection] if not one.is_gone]
        self._connection = connection
        return connection

    async def _open(self) -> Connection:
        host, port = _place(self._address)
        transport, connection = await asyncio.get_running_loop().create_connection(Connection, host, port)
        try:
            _notice_dead_peers(transport)
            await asyncio.wait({connection.greeted})
        except BaseException:
            await connection.close("given up")
            raise
        return connection

    def _gone(self, why: str) -> errors.BackendError:
        return error_for(self._address, Status(Code.UNAVAILABLE, why))

    def _head(self, path: str) -> bytes:
        """Without entries for the table that the peer keeps, so that it is the same for every call."""
        head = self._heads.get(path)
        if head is None:
            fields = [
                (":method", "POST"),
                (":scheme", "http"),
                (":path", path),
                (":authority", self._address),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
                ("user-agent", "corral"),
                ("grpc-accept-encoding", "identity"),
            ]
            secret = [NeverIndexedHeaderTuple("authorization", f"Bearer {self._token}")] if self._token else []
            head = self._heads[path] = _encoded([*fields, *secret])
        return head


def _notice_dead_peers(transport: asyncio.BaseTransport) -> None:
    """A machine that loses its power says nothing, and an answer without a deadline would be waited for for ever. The
    last option is for requests that are sent after that, which the others do not see."""
    handle = transport.get_extra_info("socket")
    handle.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 30),
        ("TCP_KEEPINTVL", 10),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 60_000),
    ):
        if hasattr(socket, name):  # not on every system
            handle.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _place(address: str) -> tuple[str, int]:
    place = urlsplit(f"//{address}")
    if not place.hostname or not place.port:
        raise ValueError(f"{address!r} is no host:port")
    return place.hostname, place.port


def _encoded(fields: Iterable[tuple[str, str] | HeaderTuple]) -> bytes:
    encoder = Encoder()
    encoder.header_table_size = 0
    return encoder.encode(fields, huffman=False)


def _timeout_field(seconds: float) -> bytes:
    """Rounded up: whoever gave the deadline is the one to notice it."""
    milliseconds = max(math.ceil(seconds * 1000), 1)
    text = f"{milliseconds}m" if milliseconds <= _MOST else f"{min(math.ceil(seconds), _MOST)}S"
    return b"\0\x0cgrpc-timeout" + bytes([len(text)]) + text.encode()


def _framed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4) + message
