"""Connections to replicas and to control: opens new ones, and keeps idle ones for the next request."""

import asyncio
import ssl
from collections import defaultdict
from collections.abc import Container
from functools import partial

from corral.gateway.config import Limits, TimeOuts
from corral.gateway.dialling import EngineDialler, FleetDialler
from corral.gateway.upstream import Origin, UpstreamConnection
from corral.gateway.write_batching import WriteBatcher


class Pool:
    """Reuses the connection that was released last, so that surplus connections get old and are closed."""

    def __init__(  # noqa: PLR0913 - each is a collaborator
        self,
        limits: Limits,
        time_outs: TimeOuts,
        loop: asyncio.AbstractEventLoop,
        *,
        control: Origin,
        engines: EngineDialler,
        fleet: FleetDialler,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`tls` holds the trusted certificates for origins with TLS. `engines` opens connections to engines that
        somebody else runs, `fleet` to workers with TLS."""
        self._limits = limits
        self._time_outs = time_outs
        self._loop = loop
        self._control = control
        self._surely_kept = min(limits.idle_control, limits.idle_upstream)
        """This many idle connections are kept to any origin."""
        self._tls = tls
        self._engines = engines
        self._fleet = fleet
        self._batcher = WriteBatcher(loop.call_soon)
        self._open: set[UpstreamConnection] = set()
        self._idle: defaultdict[Origin, list[UpstreamConnection]] = defaultdict(list)

    @property
    def open_count(self) -> int:
        return len(self._open)

    @property
    def idle_count(self) -> int:
        return sum(map(len, self._idle.values()))

    def take(self, origin: Origin) -> UpstreamConnection | None:
        """Return an idle connection, or None."""
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()
            if connection.is_usable():
                return connection
        return None

    async def connect(self, origin: Origin) -> UpstreamConnection:
        """Open a connection. Raise OSError or TimeoutError when that fails."""
        make = partial(UpstreamConnection, self, origin, self._batcher)
        async with asyncio.timeout(self._time_outs.connect):
            if origin.socket:
                _, connection = await self._loop.create_unix_connection(make, origin.socket)
            elif origin.engine_ca is not None:
                connection = await self._engines.dial(make, origin)
            elif origin.door:
                connection = await self._fleet.dial(make, origin)
            else:
                if origin.tls and self._tls is None:  # the system's certificates are read on first use
                    self._tls = ssl.create_default_context()
                tls = self._tls if origin.tls else None
                _, connection = await self._loop.create_connection(make, origin.host, origin.port, ssl=tls)
        self._open.add(connection)
        return connection

    def release(self, connection: UpstreamConnection) -> None:
        idle = self._idle[connection.origin]
        if len(idle) >= self._surely_kept and len(idle) >= self._most_idle(connection.origin):
            connection.abort()
            return
        connection.idle_since = self._loop.time()
        idle.append(connection)

    def _most_idle(self, origin: Origin) -> int:
        return self._limits.idle_control if origin == self._control else self._limits.idle_upstream

    def lost(self, connection: UpstreamConnection) -> None:
        self._open.discard(connection)
        idle = self._idle.get(connection.origin)
        if idle and connection in idle:
            idle.remove(connection)

    def sweep(self, now: float) -> None:
        """Close connections that were idle for too long; the oldest come first in each list."""
        for idle in self._idle.values():
            for connection in list(idle):
                if now - connection.idle_since < self._time_outs.idle_upstream:
                    break
                idle.remove(connection)
                connection.abort()

    def keep_only(self, origins: Container[Origin]) -> None:
        """Close idle connections to origins that are gone. Responses in progress continue."""
        for origin in [origin for origin in self._idle if origin not in origins]:
            for connection in self._idle.pop(origin):
                connection.abort()

    def close(self) -> None:
        for connection in list(self._open):
            connection.abort()
        self._idle.clear()
