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
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, cast

import msgspec

from corral.base.ids import source_of
from corral.base.tasks import end_tasks, start_task
from corral.base.tls import TlsIdentity, server_context, uris_of
from corral.wire.fleet_tls import FILE_SERVER, DoorState, FleetRole, role_of_uri, target_of

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


class DoorLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What callers may take before they have shown who they are."""

    opening_seconds: float = 10.0
    """From the first packet of a caller to the end of its handshake."""
    first_byte_seconds: float = 3.0
    """From the connection to the first byte, which every honest caller sends at once."""
    most_opening: int = 1024
    """Callers at once that have not shown a certificate."""
    most_from_one: int = 512
    """How many of these may come from one source address. A gateway may open some hundreds at once when it begins."""


@dataclass(slots=True, eq=False)
class _Caller:
    """A connection whose certificate is not checked yet."""

    source: str
    task: asyncio.Task[None] | None = None
    is_served: bool = False
    """Whether its task has begun, and closes its connection."""
    is_silent: bool = True
    """Whether it has not sent a byte yet."""


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

    def __init__(self, limits: DoorLimits | None = None) -> None:
        self._limits = limits or DoorLimits()
        self._state = DoorState()
        self._ports: frozenset[int] = frozenset()
        self._context: ssl.SSLContext | None = None
        self._names: weakref.WeakKeyDictionary[ssl.SSLObject, str] = weakref.WeakKeyDictionary()
        """What each caller asked for in its handshake."""
        self._opening: dict[_Caller, None] = {}
        """Connections that are being opened, the oldest first."""
        self._from: Counter[str] = Counter()
        """How many of them are from each source address."""
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
        """Serve a connection that was accepted. Where there are too many already, the one that is most likely not
        honest makes room: the oldest that said nothing, else the oldest."""
        caller = _Caller(source_of(str(peer[0])) if isinstance(peer, tuple) and peer else "")
        if self._from[caller.source] >= self._limits.most_from_one:
            self._send_away(each for each in self._opening if each.source == caller.source)
        elif len(self._opening) >= self._limits.most_opening:
            self._send_away(self._opening)
        self._opening[caller] = None
        self._from[caller.source] += 1
        task = caller.task = start_task(self._serve(accepted, caller), name="open the door")
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._done(task, caller, accepted))

    def _send_away(self, callers: Iterable[_Caller]) -> None:
        oldest = list(callers)
        caller = next((each for each in oldest if each.is_silent), oldest[0])
        self._forget(caller)
        if caller.task is not None:
            caller.task.cancel()

    def _done(self, task: asyncio.Task[None], caller: _Caller, accepted: socket.socket) -> None:
        self._tasks.discard(task)
        self._forget(caller)
        if not caller.is_served:
            accepted.close()

    def _forget(self, caller: _Caller) -> None:
        if caller not in self._opening:
            return
        del self._opening[caller]
        self._from[caller.source] -= 1
        if not self._from[caller.source]:
            del self._from[caller.source]

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
        caller.is_silent = False
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
