"""The fleet's certificate authority: one key for all frontends, sealed in the database, and what is signed with it.

Certificates name a role, and nodes their id. They are short-lived, so nothing is ever revoked: a node that is removed
is not dialled any more, and its certificate ends by itself. Imported only where `fleet_tls` is on: the library takes
memory and time.
"""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Final, Self

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from corral.base.clock import Clock
from corral.base.errors import InvalidInput
from corral.base.tls import TlsIdentity
from corral.base.tls_keys import PrivateKey
from corral.frontend.store.secrets import Secrets
from corral.wire.fleet_tls import FleetRole, IssuedCertificate, can_be_named, node_domain, role_uri

SECRET_NAME: Final = "fleet authority"  # noqa: S105 - a name
_AUTHORITY_LASTS: Final = timedelta(days=20 * 365)
_SKEW: Final = timedelta(hours=1)
"""Certificates begin in the past, for machines whose clock is late."""
_KEY_USAGES: Final = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


class FleetAuthority:
    """Signs certificates. Everything but `load` is without I/O."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate, clock: Clock) -> None:
        self._key = key
        self._certificate = certificate
        self._clock = clock
        self.pem = certificate.public_bytes(serialization.Encoding.PEM).decode()

    @classmethod
    async def load(cls, secrets: Secrets, clock: Clock) -> Self:
        """The authority of this fleet. Of several frontends that find none, one makes it and all get the same."""
        stored = await secrets.get(SECRET_NAME)
        if stored is None:
            new = await asyncio.to_thread(new_authority, clock.now())
            stored = await secrets.put_if_absent(SECRET_NAME, new, at=clock.now())
        return cls.read(stored, clock)

    @classmethod
    def read(cls, stored: str, clock: Clock) -> Self:
        """Read an authority back from what `new_authority` returned."""
        key = serialization.load_pem_private_key(stored.encode(), password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise TypeError("the stored authority has a key of another kind")
        return cls(key, x509.load_pem_x509_certificate(stored.encode()), clock)

    def identity(self, role: FleetRole, *, lifetime: timedelta) -> tuple[TlsIdentity, IssuedCertificate]:
        """A certificate with a key of its own, for this process."""
        key = PrivateKey()
        issued = self.issue(key.request(), role, lifetime=lifetime)
        return TlsIdentity(certificate=issued.certificate, key=key.pem(), authority=issued.authority), issued

    def issue(self, csr: str, role: FleetRole, *, lifetime: timedelta, node_id: str = "") -> IssuedCertificate:
        """A certificate for the key of a request. InvalidInput says what is wrong with the request."""
        if role is FleetRole.NODE and not can_be_named(node_id):
            raise InvalidInput("id", f"{node_id!r} cannot be part of a host name, so it gets no certificate")
        now = self._clock.now().astimezone(UTC).replace(microsecond=0)
        ends = min(now + lifetime, self._certificate.not_valid_after_utc)
        uri: x509.GeneralName = x509.UniformResourceIdentifier(role_uri(role, node_id))
        names = [x509.DNSName(f"*.{node_domain(node_id)}")] if role is FleetRole.NODE else []
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if names else [])]
        key = _key_of(csr)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(f"{role.value} {node_id}".strip()))
            .issuer_name(self._certificate.subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _SKEW)
            .not_valid_after(ends)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage("digital_signature"), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName([uri, *names]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        certificate = builder.sign(self._key, hashes.SHA256())
        return IssuedCertificate(
            certificate=certificate.public_bytes(serialization.Encoding.PEM).decode(),
            authority=self.pem,
            expires_at=ends.timestamp(),
            renew_after=((ends - now) / 2).total_seconds(),
        )


def _key_of(csr: str) -> ec.EllipticCurvePublicKey:
    try:
        request = x509.load_pem_x509_csr(csr.encode())
        key, is_signed = request.public_key(), request.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InvalidInput("csr", "it is no certificate signing request in PEM form") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InvalidInput("csr", "its key is not one of the curve P-256")
    if not is_signed:
        raise InvalidInput("csr", "it is not signed with the key that it names")
    return key


def new_authority(now: datetime) -> str:
    """A new authority: its key and its certificate in PEM form."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key()
    identifier = x509.SubjectKeyIdentifier.from_public_key(public)
    name = _name(f"Corral fleet {identifier.digest.hex()[:16]}")
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + _AUTHORITY_LASTS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return (pem + certificate.public_bytes(serialization.Encoding.PEM)).decode()


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(*usages: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{name: name in usages for name in _KEY_USAGES})
