"""Connections to replicas and to control: those in use, those kept for the next request, and how new ones are made."""

import asyncio
import ssl
from collections.abc import Container

from corral.gateway.config import Limits, TimeOuts
from corral.gateway.rests import Rests
from corral.gateway.upstream import Origin, UpstreamConnection


class Pool:
    """The last connection that was given back is the first to be used again: so the others may grow old and go."""

    def __init__(
        self,
        limits: Limits,
        time_outs: TimeOuts,
        loop: asyncio.AbstractEventLoop,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`tls` says whom to trust where an origin speaks TLS."""
        self._limits = limits
        self._time_outs = time_outs
        self._loop = loop
        self._tls = tls
        self._rests = Rests(loop.call_soon)
        self._open: set[UpstreamConnection] = set()
        self._idle: dict[Origin, list[UpstreamConnection]] = {}

    @property
    def open_count(self) -> int:
        return len(self._open)

    @property
    def idle_count(self) -> int:
        return sum(map(len, self._idle.values()))

    def take(self, origin: Origin) -> UpstreamConnection | None:
        """A kept connection, if there is one."""
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()
            if connection.is_usable:
                return connection
        return None

    async def connect(self, origin: Origin) -> UpstreamConnection:
        """A new connection. OSError or TimeoutError when it cannot be made."""

        def make() -> UpstreamConnection:
            return UpstreamConnection(self, origin, self._rests)

        async with asyncio.timeout(self._time_outs.connect):
            if origin.socket:
                _, connection = await self._loop.create_unix_connection(make, origin.socket)
            else:
                tls = self._trust() if origin.tls else None
                _, connection = await self._loop.create_connection(make, origin.host, origin.port, ssl=tls)
        self._open.add(connection)
        return connection

    def _trust(self) -> ssl.SSLContext:
        """The system's authorities unless others were named; read only when somebody speaks TLS."""
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def release(self, connection: UpstreamConnection) -> None:
        idle = self._idle.setdefault(connection.origin, [])
        if len(idle) >= self._limits.idle_upstream:
            connection.abort()
            return
        connection.idle_since = self._loop.time()
        idle.append(connection)

    def lost(self, connection: UpstreamConnection) -> None:
        self._open.discard(connection)
        idle = self._idle.get(connection.origin)
        if idle and connection in idle:
            idle.remove(connection)

    def sweep(self, now: float) -> None:
        """Close what was not used for long; the oldest come first."""
        for idle in self._idle.values():
            for connection in list(idle):
                if now - connection.idle_since < self._time_outs.idle_upstream:
                    break
                idle.remove(connection)
                connection.abort()

    def keep_only(self, origins: Container[Origin]) -> None:
        """Close what is kept for origins that are gone; answers under way go on."""
        for origin in [origin for origin in self._idle if origin not in origins]:
            for connection in self._idle.pop(origin):
                connection.abort()

    def close(self) -> None:
        for connection in list(self._open):
            connection.abort()
        self._idle.clear()
