"""Keeps the door's process alive, and tells it what it may do: see `relay.py`.

The worker listens on the public address itself and only lends the socket. So a taken port is noticed at the start, and
callers that come while a door is started again wait.
"""

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Final

import msgspec

from corral.base.clock import Clock
from corral.base.errors import AddressInUse, ChildFailed, SettingInvalid
from corral.base.processes import ChildCommand, describe_exit, start_process
from corral.base.retry import Backoff
from corral.base.tasks import first_done
from corral.base.tls import TlsIdentity
from corral.wire.fleet_tls import DoorState
from corral.worker.membership.addresses import HostPort

log = logging.getLogger(__name__)

_BACKLOG: Final = 1024
_OBEY_WITHIN: Final = timedelta(seconds=30)
"""For one order, which takes a door milliseconds; its start is part of the first."""
_STOP_GRACE: Final = timedelta(seconds=2)
_BACKOFF: Final = Backoff(first=timedelta(milliseconds=100), cap=timedelta(seconds=10))
_STABLE_SECONDS: Final = 60.0
_LONGEST_ANSWER: Final = 4096

DoorCommand = Callable[[int, int], ChildCommand]
"""Makes the command from two descriptors: that of the orders, which only the child gets, and that of the listener."""


def listen(place: HostPort) -> socket.socket:
    """Bind the worker's public address. `::` means all addresses, those of IPv4 too."""
    is_everywhere = place.host in ("", "::")
    family = socket.AF_INET6 if is_everywhere or ":" in place.host else socket.AF_INET
    try:
        return socket.create_server(
            (place.host, place.port),
            family=family,
            backlog=_BACKLOG,
            dualstack_ipv6=is_everywhere and socket.has_dualstack_ipv6(),
        )
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise AddressInUse(
                f"the worker's address {place} is taken by another program; set http_address (LOCALAI_HTTP_ADDR), or "
                "another base port with address (LOCALAI_ADDR)"
            ) from error
        raise SettingInvalid("http_address", f"cannot listen on {place}: {error.strerror or error}") from error


class Door:
    """Runs one door process after the other, until cancelled. Owns the listener."""

    def __init__(self, listener: socket.socket, command: DoorCommand, clock: Clock) -> None:
        self._listener = listener
        self._command = command
        self._clock = clock
        self._state = DoorState()
        self._changed = asyncio.Event()
        self._obeyed = asyncio.Event()
        self.has_certificate = False
        """Whether a door runs that was given a certificate."""

    async def until_open(self) -> None:
        """Return when a door runs that passes callers on."""
        await self._obeyed.wait()

    def serve(self, *, file_server: int, health: int) -> None:
        """Pass callers on to these local ports: those with a certificate, and those without TLS."""
        self._change(msgspec.structs.replace(self._state, file_server=file_server, health=health))

    def open_ports(self, ports: Iterable[int]) -> None:
        """Pass callers on to these ports of replicas, and to no others."""
        self._change(msgspec.structs.replace(self._state, ports=tuple(sorted(ports))))

    def show(self, identity: TlsIdentity) -> None:
        """Prove with this who it is."""
        self._change(
            msgspec.structs.replace(
                self._state, certificate=identity.certificate, key=identity.key, authority=identity.authority
            )
        )

    def _change(self, state: DoorState) -> None:
        if state != self._state:
            self._state = state
            self._changed.set()

    async def run(self) -> None:
        """Keep a door process running until cancelled. One that ends, or does not obey in time, is replaced."""
        failures = 0
        with self._listener:
            while True:
                began = self._clock.monotonic()
                try:
                    await self._life()
                except ChildFailed as error:
                    log.warning("%s", error, extra={"event": "door.ended"})
                finally:
                    self.has_certificate = False
                is_stable = self._clock.monotonic() - began >= _STABLE_SECONDS
                failures = 1 if is_stable else failures + 1
                await self._clock.sleep(_BACKOFF.delay(failures).total_seconds())

    async def _life(self) -> None:
        worker_end, door_end = socket.socketpair()
        with worker_end:
            process = start_process(self._command(door_end.detach(), self._listener.fileno()))
            try:
                reader, writer = await asyncio.open_connection(sock=worker_end, limit=_LONGEST_ANSWER)
                with contextlib.closing(writer):
                    if await first_done(process.wait(), self._tell(reader, writer)) == 0:
                        raise ChildFailed(f"the door ended ({describe_exit(process.returncode or 0)})", child="door")
            finally:
                await process.stop(_STOP_GRACE)

    async def _tell(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send the state, and again whenever it changed. Each time the door says that it obeys."""
        while True:
            self._changed.clear()
            state = self._state
            writer.write(msgspec.json.encode(state) + b"\n")
            try:
                async with asyncio.timeout(_OBEY_WITHIN.total_seconds()):
                    answer = await reader.readline()
            except (TimeoutError, ConnectionError) as error:
                raise ChildFailed("the door does not obey", child="door") from error
            if not answer:
                await asyncio.Event().wait()  # it has ended; the task that waits for its process reports how
            self.has_certificate = bool(state.certificate)
            self._obeyed.set()
            await self._changed.wait()
