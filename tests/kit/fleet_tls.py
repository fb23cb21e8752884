"""A fleet's authority in a test, and whoever has a certificate of it."""

import asyncio
import os
import ssl
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

from corral.base.clock import SystemClock
from corral.base.processes import ChildCommand
from corral.base.tasks import running
from corral.base.tls import TlsIdentity, TlsPeer, client_context
from corral.base.tls_keys import PrivateKey
from corral.frontend.access.authority import FleetAuthority, new_authority
from corral.wire.fleet_tls import FleetRole
from corral.worker.door.keeper import Door, listen
from corral.worker.membership.addresses import HostPort

NODE: Final = "8f14e45f-ceea-467f-a8e9-1b5f0ea5a2d1"
OTHER_NODE: Final = "c9f0f895-fb98-4b91-99f5-1fd0297e236d"


class TestFleet:
    """Signs what a test asks for, by the clock of the machine: that is what OpenSSL goes by."""

    __test__ = False

    def __init__(self) -> None:
        clock = SystemClock()
        self.authority = FleetAuthority.read(new_authority(clock.now()), clock)

    def identity(self, role: FleetRole, *, node_id: str = "", lifetime: timedelta = timedelta(hours=1)) -> TlsIdentity:
        key = PrivateKey()
        issued = self.authority.issue(key.request(), role, lifetime=lifetime, node_id=node_id)
        return TlsIdentity(certificate=issued.certificate, key=key.pem(), authority=issued.authority)

    def caller(self, role: FleetRole, *, node_id: str = "") -> ssl.SSLContext:
        return client_context(self.identity(role, node_id=node_id))

    def peer(self, port: int, name: str, role: FleetRole = FleetRole.CONTROL) -> TlsPeer:
        """How control, or another caller, dials what has this name behind a door on loopback."""
        node_id = OTHER_NODE if role is FleetRole.NODE else ""
        return TlsPeer(address=f"127.0.0.1:{port}", context=self.caller(role, node_id=node_id), name=name)


def door_command(orders: int, listener: int) -> ChildCommand:
    argv = [sys.executable, "-P", "-m", "corral.processes.door"]
    argv += ["--orders", str(orders), "--listener", str(listener)]
    return ChildCommand(argv=argv, env=dict(os.environ), handed_over=[orders], shared=[listener])


@asynccontextmanager
async def node_door(identity: TlsIdentity, ports: Iterable[int], *, file_server: int = 0) -> AsyncIterator[int]:
    """A door in front of local ports, as a worker has it; yields its port."""
    listener = listen(HostPort("127.0.0.1", 0))
    door = Door(listener, door_command, SystemClock())
    door.serve(file_server=file_server, health=0)
    door.open_ports(ports)
    door.show(identity)
    port = listener.getsockname()[1]
    async with running(door.run(), name="door"):
        await door.until_open()
        yield port


@asynccontextmanager
async def greeter(word: bytes) -> AsyncIterator[int]:
    """A server on loopback that answers every line with its word and the line; yields its port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(word + b": " + line)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def heard(port: int, line: bytes, *, tls: ssl.SSLContext | None = None, name: str | None = None) -> bytes:
    """What answers a line at a port; empty when the connection is refused or closed instead."""
    try:
        async with asyncio.timeout(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=name)
            try:
                writer.write(line + b"\n")
                return (await reader.readline()).rstrip()
            finally:
                writer.transport.abort()
    except (OSError, ssl.SSLError):
        return b""
