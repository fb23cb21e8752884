"""Opens connections to replicas that a plain dial does not reach: through the TLS door of a worker, which is shown the
certificate of this gateway, and to engines that somebody else runs.

Names of engines are looked up here, and the connection is made to an address that was checked: a name that led
elsewhere when an administrator wrote it down leads nowhere it must not.
"""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, Protocol

from corral.base.clock import Clock, Moment
from corral.base.errors import CorralError
from corral.base.own_network import ForbiddenAddress, allowed_addresses
from corral.base.retry import Backoff
from corral.base.tls import TlsIdentity, client_context
from corral.gateway.upstream import Origin, UpstreamConnection
from corral.wire.fleet_tls import IssuedCertificate, port_name

log = logging.getLogger(__name__)

_MOST_CONTEXTS: Final = 256
_LONGEST_TRY: Final = 1.0
_LONGEST_TRIES: Final = 3.0
"""Seconds for one address that is not the last, and for all of those. Less than a connection may take, so that one that
never answers, such as that of a broken IPv6 network, leaves time for the next."""

_RETRY: Final = Backoff(first=timedelta(milliseconds=200), cap=timedelta(seconds=30))
_LONGEST_SLEEP: Final = 300.0
"""Seconds between two looks at the clock: a machine that slept finds its certificate old when it wakes."""


class EngineDialler:
    """Connects to engines that somebody else runs."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, is_ours: Callable[[str, int], bool]) -> None:
        """`is_ours` says whether a process of Corral's listens at an address and port."""
        self._loop = loop
        self._is_ours = is_ours
        self._contexts: dict[str, ssl.SSLContext] = {}

    async def dial(self, make: Callable[[], UpstreamConnection], origin: Origin) -> UpstreamConnection:
        """Return a connection to the first address that takes one. Raise OSError when none does, or none may."""
        addresses = await allowed_addresses(origin.host, origin.port)
        for address in addresses:
            if self._is_ours(address, origin.port):
                raise ForbiddenAddress(f"Corral itself listens at {address}, port {origin.port}")
        tls = self._context(origin.engine_ca or "") if origin.tls else None
        server = origin.host if origin.tls else None
        failure: OSError = OSError(f"{origin.host} has no address")
        share = min(_LONGEST_TRY, _LONGEST_TRIES / len(addresses)) if addresses else None
        for address in addresses:
            try:
                async with asyncio.timeout(None if address == addresses[-1] else share):
                    _, connection = await self._loop.create_connection(
                        make, address, origin.port, ssl=tls, server_hostname=server
                    )
            except OSError as error:
                failure = error
            else:
                return connection
        raise failure

    def _context(self, ca: str) -> ssl.SSLContext:
        context = self._contexts.get(ca)
        if context is None:
            context = ssl.create_default_context(cadata=ca or None)
            context.set_alpn_protocols(["http/1.1"])
            if len(self._contexts) >= _MOST_CONTEXTS:
                self._contexts.clear()
            self._contexts[ca] = context
        return context


class CertificateKey(Protocol):
    """A private key that a certificate is made for."""

    def request(self) -> str: ...

    def pem(self) -> str: ...


class FleetDialler:
    """Connects to workers with TLS, and keeps the certificate that this gateway shows them.

    The first one is asked for when the view first names such a worker; the next ones in time, so that serving goes on
    while control is away.
    """

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
