"""Accepts TLS clients. A connection counts from its accept, not from the end of its handshake.

asyncio's own server reports a TLS connection only after its handshake, so connections that send nothing would escape
every limit. Here the gateway accepts the sockets itself, and can close a pending handshake like any stranger.
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final, Protocol

from corral.gateway.exchange import Services
from corral.gateway.relay import ClientConnection, ClientRegistry
from corral.gateway.routes import Router

log = logging.getLogger(__name__)

_ACCEPTED_AT_ONCE: Final = 64
"""Connections accepted in one turn of the loop. Connections evicted to make room are closed in the next turn."""
_PAUSE_SECONDS: Final = 0.1
"""Pause after an accept failed for lack of descriptors: the listener stays readable, so the loop would spin."""
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class HandshakeRegistry(ClientRegistry, Protocol):
    """Counts all clients of the process, including those whose handshake is in progress."""

    def handshake_began(self, handshake: "Handshake", peer: object) -> None: ...
    def handshake_ended(self, handshake: "Handshake") -> None:
        """The handshake succeeded, failed or was aborted. Idempotent."""


class Handshake:
    """A connection between its accept and the end of its TLS handshake. Can be evicted like any stranger."""

    __slots__ = ("_task",)

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def abort(self) -> None:
        self._task.cancel()


class TlsClientConnection(ClientConnection):
    """A TLS client. Once connected it is counted as a client, and its handshake no longer."""

    __slots__ = ("_handshake", "_handshakes")

    def __init__(self, services: Services, router: Router, registry: HandshakeRegistry, handshake: Handshake) -> None:
        super().__init__(services, router, registry)
        self._handshakes = registry
        self._handshake: Handshake | None = handshake

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        handshake, self._handshake = self._handshake, None
        if handshake is not None:
            self._handshakes.handshake_ended(handshake)
        super().connection_made(transport)


class TlsListener:
    """Accepts clients on a listening socket, and owns that socket."""

    def __init__(
        self,
        listener: socket.socket,
        tls: ssl.SSLContext,
        services: Services,
        router: Router,
        registry: HandshakeRegistry,
    ) -> None:
        self._listener = listener
        self._tls = tls
        self._services = services
        self._router = router
        self._registry = registry
        self._resuming: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._listener.setblocking(False)
        self._listener.listen(self._services.config.limits.backlog)
        self._watch()

    def close(self) -> None:
        if self._resuming is not None:
            self._resuming.cancel()
        self._services.loop.remove_reader(self._listener)
        self._listener.close()

    async def wait_closed(self) -> None:
        """Return immediately: `close` leaves nothing behind. Handshakes and clients belong to the registry."""

    def _watch(self) -> None:
        self._services.loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, peer = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._pause(error)
                    return
                continue  # the client left before it was accepted
            self._shake_hands(accepted, peer)

    def _shake_hands(self, accepted: socket.socket, peer: object) -> None:
        accepted.setblocking(False)
        handshake: Handshake
        is_taken = False

        def make() -> TlsClientConnection:
            nonlocal is_taken
            is_taken = True
            return TlsClientConnection(self._services, self._router, self._registry, handshake)

        def ended(_: object) -> None:
            if not is_taken:  # cancelled before the loop took ownership of the socket
                accepted.close()
            self._registry.handshake_ended(handshake)

        task = self._services.tasks.start(self._connect(accepted, make), name="tls handshake")
        handshake = Handshake(task)
        task.add_done_callback(ended)
        self._registry.handshake_began(handshake, peer)

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

    def _pause(self, error: OSError) -> None:
        log.warning("cannot accept clients: %s", error, extra={"event": "gateway.accept_failed"})
        loop = self._services.loop
        loop.remove_reader(self._listener)
        self._resuming = loop.call_later(_PAUSE_SECONDS, self._watch)
