"""How a worker is reached: in plain text at several ports, or through one door with TLS in front of all of them."""

import ssl
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Protocol

from corral.wire.fleet_tls import IssuedCertificate
from corral.worker.http import HttpServer
from corral.worker.membership.addresses import Addresses, HostPort
from corral.worker.membership.registration import AcceptedRegistration
from corral.worker.processes.ports import Ports

MakeServer = Callable[[HostPort], HttpServer]
"""Makes the worker's HTTP server, to listen at a place."""


class CertificateApi(Protocol):
    async def certificate(self, member: AcceptedRegistration, csr: str) -> IssuedCertificate: ...


class Entrance(Protocol):
    """What differs between a worker with TLS and one without."""

    places: Addresses
    """Where the worker itself listens, and what it tells others."""

    async def open(self, stack: AsyncExitStack, full: MakeServer, health: MakeServer) -> HttpServer:
        """Serve HTTP from now on. `health` makes a server that has health and readiness alone."""

    async def join(self, stack: AsyncExitStack, frontend: CertificateApi, ports: Ports) -> None:
        """Let callers in to these ports, as soon as the frontend takes part."""

    def problems(self) -> Sequence[str]:
        """Why nobody can talk to this worker; empty when they can."""

    def context(self) -> ssl.SSLContext | None:
        """What other workers with TLS are dialled with."""


@dataclass(slots=True)
class PlainEntrance:
    """A worker without TLS: the file server and each backend listen on their own public ports."""

    places: Addresses

    async def open(self, stack: AsyncExitStack, full: MakeServer, health: MakeServer) -> HttpServer:
        return await stack.enter_async_context(full(self.places.http_bind))

    async def join(self, stack: AsyncExitStack, frontend: CertificateApi, ports: Ports) -> None:
        """Do nothing: without TLS there is no certificate to get."""

    def problems(self) -> Sequence[str]:
        return ()

    def context(self) -> None:
        return None
