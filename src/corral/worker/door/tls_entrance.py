"""The entrance of a worker with TLS. Imported only where that is on: the library of certificates takes memory.

`NodeCertificate` gets the certificate from the frontend, and the next one in time. The private key never leaves the
machine.
"""

import logging
import ssl
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec
from msgspec.structs import replace

from corral.base.clock import Clock, Moment
from corral.base.errors import PeerRefused, PeerUnavailable
from corral.base.ids import NodeId
from corral.base.retry import Backoff
from corral.base.tasks import Poke, running
from corral.base.tls import TlsIdentity, client_context
from corral.base.tls_keys import PrivateKey
from corral.wire.fleet_tls import IssuedCertificate
from corral.wire.go_json import format_time
from corral.wire.registration import Feature
from corral.worker.door.entrance import CertificateApi, MakeServer
from corral.worker.door.keeper import Door, DoorCommand, listen
from corral.worker.http import HttpServer
from corral.worker.membership.addresses import Addresses, HostPort
from corral.worker.membership.registration import AcceptedRegistration, Presence
from corral.worker.processes.ports import Ports

log = logging.getLogger(__name__)

RETRY: Final = Backoff(first=timedelta(milliseconds=200), cap=timedelta(seconds=10))
LONGEST_SLEEP: Final = timedelta(minutes=5)
"""Between two looks at the clock: a machine that slept finds its certificate old when it wakes."""
_LOOPBACK: Final = "127.0.0.1"
_ANY_LOCAL: Final = HostPort(_LOOPBACK, 0)


class _Term(msgspec.Struct, frozen=True):
    """When the present certificate is to be followed by another one."""

    renew_at: Moment
    late_at: Moment
    """Halfway from `renew_at` to the end. From then on the missing renewal is reported as a problem of the node."""
    end: Moment
    ends: str
    """The end in words, by the frontend's clock."""


class NodeCertificate:
    """The certificate of this node: for its door, and for its own calls to other workers."""

    def __init__(self, frontend: CertificateApi, presence: Presence, door: Door, clock: Clock) -> None:
        self._frontend = frontend
        self._presence = presence
        self._door = door
        self._clock = clock
        self._poke = Poke()
        self._node: NodeId | None = None
        """Whom the present certificate is for."""
        self._term: _Term | None = None
        self._failures = 0
        self._problem = "there is none yet"
        self._last_complaint = ""
        self.context: ssl.SSLContext | None = None
        """For calls to other workers; None before the first certificate."""
        presence.on_change.append(self._poke.ring)

    def problems(self) -> list[str]:
        """Why nobody can talk to this worker, or soon cannot; empty when they can."""
        if problem := self._complaint():
            return [problem]
        return [] if self._door.has_certificate else ["the door with TLS is being started"]

    def _complaint(self) -> str:
        """Say what is wrong with the certificate if that affects calls; empty when nothing is."""
        member, term, why = self._presence.member, self._term, self._problem
        if term is None or (member is not None and (member.node_id != self._node or not _makes_them(member))):
            return f"no certificate of the fleet: {why}" if why else ""
        if not term.late_at.has_come(self._clock):
            return ""
        verb = "ended" if term.end.has_come(self._clock) else "ends"
        why = why or "this worker is not registered"
        return f"the certificate of the fleet {verb} at {term.ends}, and there is no other one: {why}"

    async def run(self) -> None:
        """Get and renew the certificate until cancelled."""
        while True:
            await self._poke.wait(self._clock, await self.step())

    async def step(self) -> timedelta:
        """Ask for a certificate if one is needed. Returns when to look again, unless the membership changes."""
        member = self._presence.member
        if member is None:
            return LONGEST_SLEEP
        if not _makes_them(member):
            self._note("fleet_tls is on here, and the frontend makes no certificates: turn it on there, or off here")
            return LONGEST_SLEEP
        term = self._term
        if term is None or member.node_id != self._node or term.renew_at.has_come(self._clock):
            try:
                term = await self._renew(member)
            except (PeerRefused, PeerUnavailable) as error:
                self._failures += 1
                self._note(error.message)
                return RETRY.delay(self._failures)
        return min(timedelta(seconds=term.renew_at.left(self._clock)), LONGEST_SLEEP)

    async def _renew(self, member: AcceptedRegistration) -> _Term:
        key = PrivateKey()
        issued = await self._frontend.certificate(member, key.request())
        identity = TlsIdentity(certificate=issued.certificate, key=key.pem(), authority=issued.authority)
        try:
            self.context = client_context(identity)
        except ssl.SSLError as error:
            raise PeerUnavailable(f"the frontend's certificate cannot be used: {error}") from error
        self._door.show(identity)
        self._node, self._failures, self._problem, self._last_complaint = member.node_id, 0, "", ""
        term = self._term = self._term_of(issued)
        log.info("has a certificate of the fleet", extra={"event": "node.certificate", "node": member.node_id})
        return term

    def _term_of(self, issued: IssuedCertificate) -> _Term:
        after, ends = issued.renew_after, datetime.fromtimestamp(issued.expires_at, UTC)
        end = Moment(ends, self._clock.monotonic() + 2 * after)
        renew_at, late_at = Moment.after(self._clock, after), Moment.after(self._clock, 1.5 * after)
        return _Term(renew_at=renew_at, late_at=late_at, end=end, ends=format_time(ends))

    def _note(self, problem: str) -> None:
        """Keep why there is no certificate or no other one, and say so whenever that changes."""
        self._problem = problem
        complaint = self._complaint() or f"the certificate of the fleet is not renewed yet: {problem}"
        if complaint != self._last_complaint:
            log.warning("%s", complaint, extra={"event": "node.no_certificate"})
        self._last_complaint = complaint


def _makes_them(member: AcceptedRegistration) -> bool:
    return Feature.FLEET_TLS in member.features


class TlsEntrance:
    """A worker with TLS: all its servers listen on loopback, and only the door listens on the public address."""

    def __init__(self, public: Addresses, command: DoorCommand, presence: Presence, clock: Clock) -> None:
        self.places = replace(public, backend_bind=_LOOPBACK, http_bind=_ANY_LOCAL)
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
