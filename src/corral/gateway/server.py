"""The listening side of a gateway: accepts clients, looks after their time-outs, and ends in good order."""

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
from corral.gateway.relay import ClientConnection
from corral.gateway.routes import Router
from corral.gateway.senders import Senders

log = logging.getLogger(__name__)

_SLOWEST_LOOK: Final = 0.5
_FASTEST_LOOK: Final = 0.01
_LOOKS: Final = 5
"""How often a time-out is looked at before it is over: it may come late by this share."""


class Server:
    """All clients of the process."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._router = Router(services)
        self._clients: set[ClientConnection] = set()
        self.senders = Senders.of(services.config, services.tally.refusals)
        self._all_gone = asyncio.Event()
        self._all_gone.set()
        self._look_seconds = _look_seconds(services.config.time_outs)
        self.is_draining = False

    @property
    def client_count(self) -> int:
        return len(self._clients)

    @asynccontextmanager
    async def serving(self, listener: socket.socket, *plain: socket.socket) -> AsyncIterator[None]:
        """Accept until the end of the block; then finish what is being answered, up to the bound.

        On the first one with TLS if that is configured, on the others always without.
        """
        servers = [await self._listen(listener, self._services.config.tls)]
        servers += [await self._listen(one, None) for one in plain]
        try:
            yield
        finally:
            for server in servers:
                server.close()
            await self._drain()
            for server in servers:
                await server.wait_closed()

    async def _listen(self, listener: socket.socket, tls: ssl.SSLContext | None) -> asyncio.AbstractServer:
        def make() -> ClientConnection:
            return ClientConnection(self._services, self._router, self)

        time_outs = self._services.config.time_outs
        return await self._services.loop.create_server(
            make,
            sock=listener,
            backlog=self._services.config.limits.backlog,
            ssl=tls,
            ssl_handshake_timeout=time_outs.head if tls else None,
            ssl_shutdown_timeout=time_outs.linger if tls else None,
        )

    async def _drain(self) -> None:
        """Idle connections end at once; what is left at the bound is cut off."""
        self.is_draining = True
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
        """One look at all connections every now and then costs less than a timer for each."""
        while True:
            await asyncio.sleep(self._look_seconds)
            self._sweep(self._services.loop.time())

    def _sweep(self, now: float) -> None:
        """Not inside the loop above, whose variables would keep the last client alive while it sleeps."""
        for client in list(self._clients):
            client.sweep(now)
        self.senders.strangers.sweep(now)
        self._services.pool.sweep(now)

    # What clients call.

    def opened(self, client: ClientConnection) -> bool:
        """False when there are too many, and no other of them is a stranger."""
        self._clients.add(client)
        self._all_gone.clear()
        strangers = self.senders.strangers
        if len(self._clients) - strangers.closing <= self._services.config.limits.connections:
            return True
        return strangers.make_room_for(client)

    def closed(self, client: ClientConnection) -> None:
        self._clients.discard(client)
        self.senders.strangers.closed(client)
        if not self._clients:
            self._all_gone.set()


def _look_seconds(time_outs: TimeOuts) -> float:
    shortest: float = min(getattr(time_outs, field.name) for field in fields(time_outs))
    return max(min(shortest / _LOOKS, _SLOWEST_LOOK), _FASTEST_LOOK)
