"""What happens in the door's process: ends TLS, checks who calls, and passes bytes on to a local port.

Only callers with a certificate of the fleet get in: control and gateways to replicas, control and other nodes to the
file server, which asks for a token or a ticket as well. The name in the handshake says which of them is meant. Callers
without TLS reach health and readiness, and nothing else.
"""

import asyncio
import logging
import socket
import ssl
import weakref
from dataclasses import dataclass
from typing import Final, cast

from corral.base.tasks import end_tasks, start_task
from corral.base.tls import TlsIdentity, server_context, uris_of
from corral.wire.fleet_tls import FILE_SERVER, DoorState, FleetRole, role_of_uri, target_of
from corral.worker.callers import CallerLimits, UnknownCallers

log = logging.getLogger(__name__)

LOOPBACK: Final = "127.0.0.1"
_TLS_HANDSHAKE: Final = b"\x16"
"""The first byte of every TLS connection, and of no HTTP request."""
_BUFFER: Final = 256 * 1024
"""Bytes that may wait for one side before reading from the other stops."""
_ALLOWED: Final = {
    FILE_SERVER: frozenset({FleetRole.CONTROL, FleetRole.NODE}),
    "replica": frozenset({FleetRole.CONTROL, FleetRole.GATEWAY}),
}


@dataclass(slots=True, eq=False)
class _Caller:
    """A connection whose certificate is not checked yet."""

    task: asyncio.Task[None] | None = None
    is_served: bool = False
    """Whether its task has begun, and closes its connection."""


class _Side(asyncio.Protocol):
    """One of two connections whose bytes are passed to each other."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.other: _Side | None = None
        self._early: list[bytes] = []
        """What came before there was another side."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's own class does not say that it is one
        self.transport.set_write_buffer_limits(high=_BUFFER)

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self._early.append(data)
            if self.transport is not None and len(self._early) == 1:
                self.transport.pause_reading()  # not earlier: uvloop begins to read after `connection_made` in any case
        elif self.other.transport is not None:
            self.other.transport.write(data)

    def join(self, other: "_Side") -> None:
        """Pass bytes on to another side from now on, and those that came before."""
        self.other = other
        if other.transport is None:  # it has left meanwhile
            self.connection_over()
            return
        other.transport.writelines(self._early)
        if self._early and self.transport is not None:
            self.transport.resume_reading()
        self._early.clear()

    def connection_over(self) -> None:
        """Close, after what is still to be written."""
        if self.transport is not None:
            self.transport.close()

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        if self.other is not None:
            self.other.connection_over()


class DoorRelay:
    """Accepts connections and relays them. The worker sets what it may do with them, and may change that at any
    time."""

    def __init__(self, limits: CallerLimits | None = None) -> None:
        self._limits = limits or CallerLimits()
        self._state = DoorState()
        self._ports: frozenset[int] = frozenset()
        self._context: ssl.SSLContext | None = None
        self._names: weakref.WeakKeyDictionary[ssl.SSLObject, str] = weakref.WeakKeyDictionary()
        """What each caller asked for in its handshake."""
        self._unknown: UnknownCallers[_Caller] = UnknownCallers(self._limits)
        self._tasks: set[asyncio.Task[None]] = set()

    def learn(self, state: DoorState) -> None:
        """Apply new orders; open connections continue. Raise ssl.SSLError when the certificate is unusable."""
        before = self._state
        if state.certificate and (state.certificate, state.key) != (before.certificate, before.key):
            context = server_context(
                TlsIdentity(certificate=state.certificate, key=state.key, authority=state.authority)
            )
            context.sni_callback = self._note_name
            self._context = context
        self._state = state
        self._ports = frozenset(state.ports)

    def take(self, accepted: socket.socket, peer: object) -> None:
        """Serve a connection that was accepted. Where there are too many strangers already, one makes room."""
        caller = _Caller()
        superfluous = self._unknown.admit(caller, str(peer[0]) if isinstance(peer, tuple) and peer else "")
        if superfluous is not None and superfluous.task is not None:
            superfluous.task.cancel()
        task = caller.task = start_task(self._serve(accepted, caller), name="open the door")
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._done(task, caller, accepted))

    def _done(self, task: asyncio.Task[None], caller: _Caller, accepted: socket.socket) -> None:
        self._tasks.discard(task)
        self._unknown.forget(caller)
        if not caller.is_served:
            accepted.close()

    async def close(self) -> None:
        await end_tasks(*self._tasks)

    def _note_name(self, caller: ssl.SSLSocket | ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        if isinstance(caller, ssl.SSLObject):
            self._names[caller] = name or ""

    async def _serve(self, accepted: socket.socket, caller: _Caller) -> None:
        """Find out who calls and for what, connect both, and leave them to each other."""
        outer, caller.is_served = _Side(), True
        try:
            async with asyncio.timeout(self._limits.opening_seconds):
                target = await self._opened(accepted, outer, caller)
                if target is not None:
                    loop = asyncio.get_running_loop()
                    _, inner = await loop.create_connection(_Side, LOOPBACK, target)
                    inner.join(outer)
                    outer.join(inner)
                    return
        except (OSError, TimeoutError) as error:
            log.debug("a caller was not let in: %s", error, extra={"event": "door.failed"})
        finally:
            if outer.other is None:
                _leave(accepted, outer)

    async def _opened(self, accepted: socket.socket, outer: _Side, caller: _Caller) -> int | None:
        """The local port for this caller, whose connection is open then; None: it is not let in."""
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._limits.first_byte_seconds):
            first = await _first_byte(accepted)
        self._unknown.note_words(caller)
        if not first:
            return None
        if first != _TLS_HANDSHAKE:
            await loop.connect_accepted_socket(lambda: outer, accepted)
            return self._state.health or None
        if self._context is None:
            return None
        await loop.connect_accepted_socket(lambda: outer, accepted, ssl=self._context)
        tls_session = None if outer.transport is None else outer.transport.get_extra_info("ssl_object")
        return self._port_for(tls_session) if tls_session is not None else None

    def _port_for(self, caller: ssl.SSLObject) -> int | None:
        name, roles = self._names.get(caller, ""), {role_of_uri(uri) for uri in uris_of(caller)}
        target = target_of(name)
        kind = FILE_SERVER if target == FILE_SERVER else "replica"
        if target is None or not roles & _ALLOWED[kind]:
            details = {"event": "door.refused", "server_name": name[:200], "roles": sorted(map(str, roles))}
            log.warning("a caller with a certificate of the fleet asked for what it may not have", extra=details)
            return None
        if isinstance(target, int):
            return target if target in self._ports else None
        return self._state.file_server or None


def _leave(accepted: socket.socket, outer: _Side) -> None:
    if outer.transport is not None:
        outer.transport.abort()
    else:
        accepted.close()


async def _first_byte(accepted: socket.socket) -> bytes:
    """The first byte that a caller sends, left where it is. Empty when it leaves instead."""
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(accepted, readable.set)
    try:
        await readable.wait()
        return accepted.recv(1, socket.MSG_PEEK)
    finally:
        loop.remove_reader(accepted)
