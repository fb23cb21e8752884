"""The listening side of a gateway: accepts clients, enforces their timeouts, and shuts down gracefully.

A connection counts from its accept, also with TLS. asyncio's own server reports a TLS connection only after its
handshake, so connections that send nothing would escape every limit. Here the gateway accepts these sockets itself,
and can close a pending handshake like any stranger.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import astuple
from functools import partial
from typing import Final

from corral.base.accepting import Acceptor
from corral.base.memory import FreedMemory
from corral.gateway.exchange import Services
from corral.gateway.relay import ClientConnection
from corral.gateway.routes import Router
from corral.gateway.senders import Evictable, RequestSender, Senders

log = logging.getLogger(__name__)

_SLOWEST_LOOK: Final = 0.5
_FASTEST_LOOK: Final = 0.01
_LOOKS: Final = 5
"""Timeouts are checked this many times within their duration, so they may fire late by that fraction."""


class Handshake:
    """A connection between its accept and the end of its TLS handshake. Can be evicted like any stranger."""

    __slots__ = ("_task",)

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def abort(self) -> None:
        self._task.cancel()


class TlsClientConnection(ClientConnection):
    """A TLS client. Once connected it is counted as a client, and its handshake no longer."""

    __slots__ = ("_handshake", "_server")

    def __init__(self, services: Services, router: Router, server: "Server", handshake: Handshake) -> None:
        super().__init__(services, router, server)
        self._server = server
        self._handshake: Handshake | None = handshake

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        handshake, self._handshake = self._handshake, None
        if handshake is not None:
            self._server.handshake_ended(handshake)
        super().connection_made(transport)


class TlsListener:
    """Accepts clients on a listening socket, and owns that socket."""

    def __init__(
        self, listener: socket.socket, tls: ssl.SSLContext, services: Services, router: Router, server: "Server"
    ) -> None:
        self._tls = tls
        self._services = services
        self._router = router
        self._server = server
        listener.listen(services.config.limits.backlog)
        self._acceptor = Acceptor(listener, self._shake_hands, failed=self._failed)

    def close(self) -> None:
        self._acceptor.close()

    async def wait_closed(self) -> None:
        """Return immediately: `close` leaves nothing behind. Handshakes and clients belong to the server."""

    def _failed(self, error: OSError) -> None:
        log.warning("cannot accept clients: %s", error, extra={"event": "gateway.accept_failed"})

    def _shake_hands(self, accepted: socket.socket, peer: object) -> None:
        handshake: Handshake
        is_taken = False

        def make() -> TlsClientConnection:
            nonlocal is_taken
            is_taken = True
            return TlsClientConnection(self._services, self._router, self._server, handshake)

        def ended(_: object) -> None:
            if not is_taken:  # cancelled before the loop took ownership of the socket
                accepted.close()
            self._server.handshake_ended(handshake)

        task = self._services.tasks.start(self._connect(accepted, make), name="tls handshake")
        handshake = Handshake(task)
        task.add_done_callback(ended)
        self._server.handshake_began(handshake, peer)

    async def _connect(self, accepted: socket.socket, make: Callable[[], TlsClientConnection]) -> None:
        time_outs = self._services.config.time_outs
        try:
            await self._services.loop.connect_accepted_socket(
                make,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=time_outs.head,
                ssl_shutdown_timeout=time_outs.linger,
            )
        except OSError as error:  # any error here is caused by the client
            log.debug("a TLS handshake failed: %s", error, extra={"event": "gateway.handshake_failed"})


class Server:
    """Owns all client connections of the process."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._router = Router(services)
        self._clients: set[ClientConnection] = set()
        self._handshakes: set[Handshake] = set()
        """TLS handshakes in progress."""
        self.senders = Senders(services.config, services.tally.refusals)
        self._freed = FreedMemory()
        self._all_gone = asyncio.Event()
        self._all_gone.set()
        shortest = min(astuple(services.config.time_outs))
        self._look_seconds = max(min(shortest / _LOOKS, _SLOWEST_LOOK), _FASTEST_LOOK)
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
        services = self._services
        listening: list[TlsListener | asyncio.AbstractServer] = []
        if services.config.tls is not None:
            listening.append(TlsListener(listener, services.config.tls, services, self._router, self))
        else:
            plain = (listener, *plain)
        for each in plain:
            make = partial(ClientConnection, services, self._router, self)
            backlog = services.config.limits.backlog
            listening.append(await services.loop.create_server(make, sock=each, backlog=backlog))
        try:
            yield
        finally:
            for server in listening:
                server.close()
            await self._drain()
            for server in listening:
                await server.wait_closed()

    async def _drain(self) -> None:
        """Close idle connections at once; cut off what is left at the drain timeout."""
        self.is_draining = True
        for handshake in list(self._handshakes):
            handshake.abort()
        for client in list(self._clients):
            client.drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._services.config.time_outs.drain):
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
        self._freed.look(self._services.bodies.held + self._services.heads.held, now)

    # Called by clients.

    def opened(self, client: ClientConnection) -> bool:
        """Register a client. Return False when there are too many and none of the others is a stranger."""
        self._clients.add(client)
        return self._has_room_for(client)

    def closed(self, client: ClientConnection) -> None:
        self._clients.discard(client)
        self._on_closed(client)

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
            self._on_closed(handshake)

    def _has_room_for(self, newcomer: Evictable) -> bool:
        """Whether the newcomer may stay, possibly after the oldest stranger was evicted."""
        self._all_gone.clear()
        strangers = self.senders.strangers
        connections = len(self._clients) + len(self._handshakes) - strangers.closing
        return connections <= self._services.config.limits.connections or strangers.make_room_for(newcomer)

    def _on_closed(self, connection: Evictable) -> None:
        self.senders.strangers.closed(connection)
        if not self._clients and not self._handshakes:
            self._all_gone.set()
