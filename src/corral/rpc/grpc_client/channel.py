"""gRPC calls to one address. A connection is opened when it is first needed, and again after it was lost."""

import asyncio
import math
import socket
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import urlsplit

from hpack import Encoder, NeverIndexedHeaderTuple

from .call import Call, CallFailed, Code, Status, framed
from .connection import Http2Connection
from .keepalive import Keepalive

CONNECT_SECONDS: Final = 20.0
"""For a connection, up to the peer's first frame. A call with an earlier deadline ends at that."""
_MAX_TIMEOUT_VALUE: Final = 99_999_999
"""Timeouts have at most eight digits in gRPC."""
_CLOSED: Final = "the channel was closed"
_LATE: Final = Status(Code.DEADLINE_EXCEEDED, "no answer before the deadline")


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS for a channel: the context, and the name that the server's certificate must be good for."""

    context: ssl.SSLContext
    server_name: str


class Channel:
    """Begins calls to one server. Calls go on beside each other; a channel that was closed stays closed.

    `metadata` is sent with every call. Its values may be secrets: no peer or proxy may keep them in a table.
    """

    def __init__(
        self,
        address: str,
        *,
        user_agent: str = "grpc-client",
        metadata: Iterable[tuple[str, str]] = (),
        keepalive: Keepalive = Keepalive(),  # noqa: B008 - a value that does not change
        tls: Tls | None = None,
    ) -> None:
        self._address = address
        self._user_agent = user_agent
        self._metadata = tuple(metadata)
        self._keepalive = keepalive
        self._tls = tls
        self._heads: dict[str, bytes] = {}
        self._connection: Http2Connection | None = None
        self._earlier: list[Http2Connection] = []
        """Connections that take no more calls, but may still have some open."""
        self._connecting: asyncio.Task[Http2Connection | str] | None = None
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def begin(self, path: str, request: bytes, deadline: float | None = None) -> Call:
        """Begin a call with one request, until a moment on the event loop's clock. CallFailed if it cannot begin.

        The caller ends the call, by `cancel` or a `with` block, in any case.
        """
        return await self._begin(path, framed(request), deadline)

    async def begin_stream(self, path: str, deadline: float | None = None) -> Call:
        """Begin a call with a stream of requests: see `Call.send` and `Call.done_sending`. Otherwise like `begin`."""
        return await self._begin(path, b"", deadline)

    async def close(self) -> None:
        """End all calls as unavailable, also when the caller of this is cancelled meanwhile."""
        self._is_closed = True
        connections = [*self._earlier, *([self._connection] if self._connection else [])]
        for connection in connections:
            connection.end(_CLOSED)
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait({self._connecting})
        for connection in connections:
            await connection.close(_CLOSED)

    async def _begin(self, path: str, body: bytes, deadline: float | None) -> Call:
        if deadline is None:
            connection = await self._ready()
            return connection.begin(self._head(path), body)
        try:
            async with asyncio.timeout_at(deadline):
                connection = await self._ready()
        except TimeoutError:
            text = "no room for one more call" if self._connection is not None else "no connection"
            raise CallFailed(Status(Code.DEADLINE_EXCEEDED, f"{text} before the deadline")) from None
        seconds_left = deadline - asyncio.get_running_loop().time()
        call = connection.begin(self._head(path) + _timeout_field(seconds_left), body)
        call.fail_at(deadline, _LATE)
        return call

    async def _ready(self) -> Http2Connection:
        """Return a connection that takes one more call."""
        while True:
            if self._is_closed:
                raise _unavailable("the channel is closed")
            connection = self._connection
            if connection is None or not connection.takes_calls:
                connection = await self._connected()
            if connection.places.is_full:
                await connection.places.wait()
            if connection.takes_calls:  # else it ended while other tasks ran
                return connection

    async def _connected(self) -> Http2Connection:
        """Connect. All callers share one attempt, which goes on when one of them is cancelled."""
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect(), name=f"connect to {self._address}")
        connecting = self._connecting
        await asyncio.wait({connecting})
        if connecting.cancelled():
            raise _unavailable(_CLOSED)
        if isinstance(outcome := connecting.result(), str):
            raise _unavailable(outcome)
        return outcome

    async def _connect(self) -> Http2Connection | str:
        """Return a new connection, or why there is none."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS) as limit:
                place = urlsplit(f"//{self._address}")
                if not place.hostname or not place.port:
                    raise ValueError(f"{self._address!r} is no host:port")
                connection = await self._open(place.hostname, place.port)
        except (OSError, ValueError) as error:
            return f"no HTTP/2 within {CONNECT_SECONDS:g} s" if limit.expired() else f"cannot connect: {error}"
        finally:
            self._connecting = None
        if not connection.takes_calls:
            return connection.why_closed
        if self._connection is not None:
            earlier = [*self._earlier, self._connection]
            self._earlier = [connection for connection in earlier if not connection.gone.done()]
        self._connection = connection
        return connection

    async def _open(self, host: str, port: int) -> Http2Connection:
        loop = asyncio.get_running_loop()
        transport, connection = await loop.create_connection(
            lambda: Http2Connection(self._keepalive),
            host,
            port,
            ssl=None if self._tls is None else self._tls.context,
            server_hostname=None if self._tls is None else self._tls.server_name,
        )
        try:
            _notice_dead_machines(transport)
            await asyncio.wait({connection.greeted})
        except BaseException:
            await connection.close("given up")
            raise
        return connection

    def _head(self, path: str) -> bytes:
        """Return the header block of a method. It does not change the peer's table, so every call can use it."""
        head = self._heads.get(path)
        if head is None:
            fields = [
                (":method", "POST"),
                (":scheme", "http" if self._tls is None else "https"),
                (":path", path),
                (":authority", self._address),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
                ("user-agent", self._user_agent),
                ("grpc-accept-encoding", "identity"),
            ]
            secrets = [NeverIndexedHeaderTuple(name, value) for name, value in self._metadata]
            encoder = Encoder()
            encoder.header_table_size = 0
            head = self._heads[path] = encoder.encode([*fields, *secrets], huffman=False)
        return head


def _unavailable(why: str) -> CallFailed:
    return CallFailed(Status(Code.UNAVAILABLE, why))


def _notice_dead_machines(transport: asyncio.BaseTransport) -> None:
    """Have TCP notice a machine that lost its power or its network.

    Pings notice it too, but not without open calls, and late in a call that has been silent for long. This costs
    nothing. The last option is for data that is sent after that, which the others do not see.
    """
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


def _timeout_field(seconds: float) -> bytes:
    """Return the header with the time that is left, rounded up: our side notices first that it has passed."""
    milliseconds = max(math.ceil(seconds * 1000), 1)
    is_short = milliseconds <= _MAX_TIMEOUT_VALUE
    text = f"{milliseconds}m" if is_short else f"{min(math.ceil(seconds), _MAX_TIMEOUT_VALUE)}S"
    return b"\0\x0cgrpc-timeout" + bytes([len(text)]) + text.encode()
