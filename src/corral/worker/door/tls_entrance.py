"""The entrance of a worker with TLS. Imported only where that is on: the library of certificates takes memory."""

import ssl
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final

from msgspec.structs import replace

from corral.base.clock import Clock
from corral.base.tasks import running
from corral.worker.door.certificates import NodeCertificate
from corral.worker.door.entrance import CertificateApi, MakeServer
from corral.worker.door.keeper import Door, DoorCommand, listen
from corral.worker.http import HttpServer
from corral.worker.membership.addresses import Addresses, HostPort
from corral.worker.membership.registration import Presence
from corral.worker.processes.ports import Ports

LOOPBACK: Final = "127.0.0.1"
_ANY_LOCAL: Final = HostPort(LOOPBACK, 0)


class TlsEntrance:
    """A worker with TLS: all its servers listen on loopback, and only the door listens on the public address."""

    def __init__(self, public: Addresses, command: DoorCommand, presence: Presence, clock: Clock) -> None:
        self.places = replace(public, backend_bind=LOOPBACK, http_bind=_ANY_LOCAL)
        self._public = public.http_bind
        self._command = command
        self._presence = presence
        self._clock = clock
        self._door: Door | None = None
        self._certificate: NodeCertificate | None = None

    async def open(self, stack: AsyncExitStack, full: MakeServer, health: MakeServer) -> HttpServer:
        listener = stack.enter_context(listen(self._public))
        server = await stack.enter_async_context(full(_ANY_LOCAL))
        plain = await stack.enter_async_context(health(_ANY_LOCAL))
        self._door = Door(listener, self._command, self._clock)
        self._door.serve(file_server=server.port, health=plain.port)
        await stack.enter_async_context(running(self._door.run(), name="door"))
        await self._door.until_open()
        return server

    async def join(self, stack: AsyncExitStack, frontend: CertificateApi, ports: Ports) -> None:
        if (door := self._door) is None:
            raise RuntimeError("the door is not open")
        ports.on_change = lambda: door.open_ports(ports.used)
        certificate = self._certificate = NodeCertificate(frontend, self._presence, door, self._clock)
        await stack.enter_async_context(running(certificate.run(), name="certificate"))

    def problems(self) -> Sequence[str]:
        return () if self._certificate is None else self._certificate.problems()

    def context(self) -> ssl.SSLContext | None:
        return None if self._certificate is None else self._certificate.context
