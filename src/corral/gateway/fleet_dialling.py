"""Opens connections to workers with TLS, and keeps the certificate that this gateway shows them.

The first one is asked for when the view first names such a worker; the next ones in time, so that serving goes on while
control is away.
"""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, Protocol

from corral.base.clock import Clock, Moment
from corral.base.errors import CorralError
from corral.base.retry import Backoff
from corral.base.tls import TlsIdentity, client_context
from corral.gateway.upstream import Origin, UpstreamConnection
from corral.wire.fleet_tls import IssuedCertificate, port_name

log = logging.getLogger(__name__)

_RETRY: Final = Backoff(first=timedelta(milliseconds=200), cap=timedelta(seconds=30))
_LONGEST_SLEEP: Final = 300.0
"""Seconds between two looks at the clock: a machine that slept finds its certificate old when it wakes."""


class CertificateKey(Protocol):
    """A private key that a certificate is made for."""

    def request(self) -> str: ...

    def pem(self) -> str: ...


class FleetDialler:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        ask: Callable[[str], Awaitable[IssuedCertificate]],
        new_key: Callable[[], CertificateKey],
        clock: Clock,
    ) -> None:
        """`ask` has control sign a request. `new_key` is called only when a certificate is needed: its library takes
        memory."""
        self._loop = loop
        self._ask = ask
        self._new_key = new_key
        self._clock = clock
        self._is_needed = asyncio.Event()
        self._has_context = asyncio.Event()
        self._context: ssl.SSLContext | None = None
        self._renew_at: Moment | None = None
        self._failures = 0

    def need(self) -> None:
        """Have a certificate soon: some worker wants one."""
        self._is_needed.set()

    async def dial(self, make: Callable[[], UpstreamConnection], origin: Origin) -> UpstreamConnection:
        """Return a connection to a replica through the door of its worker, which proves that it is that node's. Raise
        OSError when there is none. Waits for the first certificate as long as its caller does."""
        self._is_needed.set()
        if self._context is None:
            await self._has_context.wait()
        host, _, port = origin.door.rpartition(":")
        _, connection = await self._loop.create_connection(
            make,
            host.strip("[]"),
            int(port),
            ssl=self._context,
            server_hostname=port_name(origin.node, origin.port),
        )
        return connection

    async def run(self) -> None:
        """Until cancelled: ask for the first certificate when one is needed, and for each next one in time."""
        await self._is_needed.wait()
        while True:
            pause = await self.step()
            await asyncio.sleep(pause)

    async def step(self) -> float:
        """Renew the certificate if it is time. Returns the seconds until the next step."""
        renew_at = self._renew_at
        if renew_at is None or renew_at.has_come(self._clock):
            try:
                renew_at = await self.renew()
                self._failures = 0
            except (CorralError, ssl.SSLError) as error:
                self._failures += 1
                log.warning("no certificate from control: %s", error, extra={"event": "gateway.no_certificate"})
                return _RETRY.delay(self._failures).total_seconds()
        return min(renew_at.left(self._clock), _LONGEST_SLEEP)

    async def renew(self) -> Moment:
        """Ask for a new certificate, for a new key, and return when the next is due. Open connections go on with the
        old one."""
        key = await asyncio.to_thread(self._new_key)
        issued = await self._ask(key.request())
        identity = TlsIdentity(certificate=issued.certificate, key=key.pem(), authority=issued.authority)
        self._context = client_context(identity)
        renew_at = self._renew_at = Moment.after(self._clock, issued.renew_after)
        self._has_context.set()
        log.info("has a certificate of the fleet", extra={"event": "gateway.certificate"})
        return renew_at
