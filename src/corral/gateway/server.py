"""The listening side of a gateway: accepts clients, enforces their timeouts, and shuts down gracefully."""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import fields
from typing import Final

from corral.gateway.config import TimeOuts
from corral.gateway.exchange import Services
from corral.gateway.handshakes import Handshake, TlsListener
from corral.gateway.relay import ClientConnection
from corral.gateway.routes import Router
from corral.gateway.senders import RequestSender, Senders
from corral.gateway.sources import Evictable

log = logging.getLogger(__name__)

_SLOWEST_LOOK: Final = 0.5
_FASTEST_LOOK: Final = 0.01
_LOOKS: Final = 5
"""Timeouts are checked this many times within their duration, so they may fire late by that fraction."""


class Server:
    """Owns all client connections of the process."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._router = Router(services)
        self._clients: set[ClientConnection] = set()
        self._handshakes: set[Handshake] = set()
        """TLS handshakes in progress."""
        self.senders = Senders.of(services.config, services.tally.refusals)
        self._all_gone = asyncio.Event()
        self._all_gone.set()
        self._look_seconds = _look_seconds(services.config.time_outs)
        self.is_draining = False

    @property
    def client_count(self) -> int:
        return len(self._clients)

    @property
    def handshake_count(self) -> int:
        return len(self._handshakes)

    @asynccontextmanager
    async def serving(self, listener: socket.socket, *plain: socket.socket) -> AsyncIterator[None]:
        """Accept clients until the end of the block; then let requests in progress finish, up to the drain timeout.

        With TLS configured, the first listener uses it and the others never do.
        """
        tls = self._services.config.tls
        servers = [await self._listen(listener) if tls is None else self._listen_with(tls, listener)]
        servers += [await self._listen(listener) for listener in plain]
        try:
            yield
        finally:
            for server in servers:
                server.close()
            await self._drain()
            for server in servers:
                await server.wait_closed()

    def _listen_with(self, tls: ssl.SSLContext, listener: socket.socket) -> TlsListener | asyncio.AbstractServer:
        accepting = TlsListener(listener, tls, self._services, self._router, self)
        accepting.start()
        return accepting

    async def _listen(self, listener: socket.socket) -> TlsListener | asyncio.AbstractServer:
        def make() -> ClientConnection:
            return ClientConnection(self._services, self._router, self)

        backlog = self._services.config.limits.backlog
        return await self._services.loop.create_server(make, sock=listener, backlog=backlog)

    async def _drain(self) -> None:
        """Close idle connections at once; cut off what is left at the drain timeout."""
        self.is_draining = True
        for handshake in list(self._handshakes):
            handshake.abort()
        for client in list(self._clients):
            client.drain()
        bound = self._services.config.time_outs.drain
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(bound):
                await self._all_gone.wait()
        if self._clients:
            log.warning("cut off", extra={"event": "gateway.cut_off", "clients": len(self._clients)})
        for client in list(self._clients):
            client.abort()
        await self._all_gone.wait()

    async def watch_time_outs(self) -> None:
        """Check all connections periodically, which costs less than a timer for each."""
        while True:
            await asyncio.sleep(self._look_seconds)
            self._sweep(self._services.loop.time())

    def _sweep(self, now: float) -> None:
        """A method of its own: local variables of the loop above would keep the last client alive while it sleeps."""
        for client in list(self._clients):
            client.sweep(now)
        self.senders.strangers.sweep(now)
        self._services.pool.sweep(now)

    # Called by clients.

    def opened(self, client: ClientConnection) -> bool:
        """Register a client. Return False when there are too many and none of the others is a stranger."""
        self._clients.add(client)
        return self._has_room_for(client)

    def closed(self, client: ClientConnection) -> None:
        self._clients.discard(client)
        self._gone(client)

    # Called by handshakes.

    def handshake_began(self, handshake: Handshake, peer: object) -> None:
        """Register a handshake. Without room and without another stranger to evict it continues: the client then
        reads why it is refused, and the next newcomer takes its place."""
        self._handshakes.add(handshake)
        sender = RequestSender(self.senders, peer, is_secure=True)
        sender.connected(handshake, self._services.loop.time())
        self._has_room_for(handshake)

    def handshake_ended(self, handshake: Handshake) -> None:
        if handshake in self._handshakes:
            self._handshakes.discard(handshake)
            self._gone(handshake)

    def _has_room_for(self, newcomer: Evictable) -> bool:
        """Whether the newcomer may stay, possibly after the oldest stranger was evicted."""
        self._all_gone.clear()
        strangers = self.senders.strangers
        connections = len(self._clients) + len(self._handshakes) - strangers.closing
        return connections <= self._services.config.limits.connections or strangers.make_room_for(newcomer)

    def _gone(self, connection: Evictable) -> None:
        self.senders.strangers.closed(connection)
        if not self._clients and not self._handshakes:
            self._all_gone.set()


def _look_seconds(time_outs: TimeOuts) -> float:
    shortest: float = min(getattr(time_outs, field.name) for field in fields(time_outs))
    return max(min(shortest / _LOOKS, _SLOWEST_LOOK), _FASTEST_LOOK)
