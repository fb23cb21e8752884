"""TLS inside the fleet as control uses it: certificates for others, and control's own calls to nodes."""

import ssl
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from corral.base.clock import Clock, Moment
from corral.base.errors import Conflict
from corral.base.setting_kinds import SWITCH, duration
from corral.base.settings import setting
from corral.base.tls import TlsIdentity, TlsPeer, client_context
from corral.wire.fleet_tls import FleetRole, IssuedCertificate, file_server_name, port_name


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetTlsPolicy:
    is_on: bool = setting(
        SWITCH,
        """Make certificates for workers and gateways, and use TLS with each worker that has it on as well. Off by
        default: certificates need clocks that agree, and a fleet on one machine or in a network of its own needs none.
        Turn it on at all frontends first, then at workers.""",
        name="fleet_tls",
        default=False,
    )
    certificates_last: timedelta = setting(
        duration("1m", "365d"),
        """How long a certificate of a worker or a gateway lasts. It is renewed after half of it, so for the other half
        serving goes on without control. 24h: a night without control changes nothing, and a stolen one is of no use the
        day after.""",
        name="fleet_certificate_lifetime",
        default="24h",
    )


class CertificateAuthority(Protocol):
    """Signs certificates for nodes and gateways, and for control itself."""

    def issue(self, csr: str, role: FleetRole, *, lifetime: timedelta, node_id: str = "") -> IssuedCertificate: ...

    def identity(self, role: FleetRole, *, lifetime: timedelta) -> tuple[TlsIdentity, IssuedCertificate]: ...


class NoAuthority:
    """Stands where TLS inside the fleet is off."""

    def issue(self, csr: str, role: FleetRole, *, lifetime: timedelta, node_id: str = "") -> IssuedCertificate:
        raise Conflict("TLS inside the fleet is off at this frontend, so it makes no certificates: set fleet_tls there")

    def identity(self, role: FleetRole, *, lifetime: timedelta) -> tuple[TlsIdentity, IssuedCertificate]:
        raise Conflict("the node speaks TLS only, and fleet_tls is off at this frontend: set it at both or at neither")


class FleetTls:
    def __init__(self, authority: CertificateAuthority, policy: FleetTlsPolicy, clock: Clock) -> None:
        self.policy = policy
        self._authority = authority
        self._clock = clock
        self._own_context: ssl.SSLContext | None = None
        self._renew_at: Moment | None = None

    def issue(self, csr: str, role: FleetRole, *, node_id: str = "") -> IssuedCertificate:
        """A certificate for the key of a request. InvalidInput says what is wrong with it; Conflict: TLS is off."""
        return self._authority.issue(csr, role, lifetime=self.policy.certificates_last, node_id=node_id)

    def file_server(self, node_id: str, door: str) -> TlsPeer:
        """How the HTTP server of a worker is dialled, whose door has this address."""
        return TlsPeer(address=door, context=self._context(), name=file_server_name(node_id))

    def replica(self, node_id: str, door: str, port: int) -> TlsPeer:
        """How a local port of a worker's machine is dialled through its door."""
        return TlsPeer(address=door, context=self._context(), name=port_name(node_id, port))

    def _context(self) -> ssl.SSLContext:
        """Control's own context, with a certificate that is renewed in time."""
        if self._own_context is None or self._renew_at is None or self._renew_at.has_come(self._clock):
            identity, issued = self._authority.identity(FleetRole.CONTROL, lifetime=self.policy.certificates_last)
            self._own_context = client_context(identity)
            self._renew_at = Moment.after(self._clock, issued.renew_after)
        return self._own_context
