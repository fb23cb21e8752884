"""The fleet that this machine joined, known by its key, whatever certificates it shows.

A fleet proves who it is with a signature under its own key, over a nonce of ours and the certificates that it shows. So
a certificate that no authority vouches for is as good as any other once the fleet's key is known, and may be renewed.
Without TLS somebody on the way could still pass the question on: the proof keeps secrets from other fleets and from
other machines at the same address, not from the network.
"""

import asyncio
import base64
import binascii
import hashlib
import secrets
import ssl
from typing import Final
from urllib.parse import urlsplit

import aiohttp
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from corral.base.errors import InvalidInput, PeerUnavailable
from corral.base.http_client import HttpFailed, HttpFault, asked, host_of, is_passing, read_body
from corral.wire import go_json
from corral.wire.joining import FleetProof, pin_of, proof_message
from corral.worker.membership.trust import OtherFleet, TlsCheck

_MAX_PROOF: Final = 64 * 1024
_HANDSHAKE_SECONDS: Final = 10.0


class PinnedFleet:
    """Trusts one fleet: the one that is pinned, or else the first that proves anything."""

    def __init__(self, session: aiohttp.ClientSession, pin: str) -> None:
        self._session = session
        self.pin = pin
        self._checked: dict[str, TlsCheck] = {}

    async def check(self, url: str) -> TlsCheck:
        if url not in self._checked:
            _, self._checked[url] = await self.prove(url)
        return self._checked[url]

    def forget(self, url: str) -> None:
        self._checked.pop(url, None)

    async def prove(self, url: str) -> tuple[FleetProof, TlsCheck]:
        """Have the fleet prove who it is, and pin it if none is pinned."""
        nonce = secrets.token_hex(16)
        try:
            proof = await self._ask(url, nonce, tls=None)
            pin = self._verified(url, proof, nonce)
        except HttpFailed as error:
            if error.fault is not HttpFault.CERTIFICATE:
                raise
            return await self._prove_by_key(url, error)
        self._take(url, pin)
        return proof, None

    async def _prove_by_key(self, url: str, distrusted: HttpFailed) -> tuple[FleetProof, TlsCheck]:
        """No authority vouches for the certificate: the pinned fleet must."""
        if not self.pin:
            way_out = "join with the whole URL that `corral nodes invite` prints, which says how to know the fleet"
            raise OtherFleet(f"frontend {distrusted.host}: {distrusted.reason}; {way_out}") from distrusted
        nonce, certificate = secrets.token_hex(16), await _certificate_of(url)
        tls = aiohttp.Fingerprint(hashlib.sha256(certificate).digest())
        proof = await self._ask(url, nonce, tls=tls)
        self._take(url, self._verified(url, proof, nonce))
        if _key_hash(certificate) not in proof.certificates:
            raise OtherFleet(
                f"frontend {host_of(url)} shows a certificate that no authority and not the fleet vouches for: somebody"
                " may be listening in between; nothing secret was sent. Give a proxy of yours a certificate of an"
                " authority that this machine trusts"
            )
        return proof, tls

    async def _ask(self, url: str, nonce: str, *, tls: TlsCheck) -> FleetProof:
        path = f"{url}/api/v1/fleet?nonce={nonce}"
        async with asked(self._session, "GET", path, headers={}, tls=tls) as response:
            body, status = await read_body(response, _MAX_PROOF), response.status
        if is_passing(status):
            raise PeerUnavailable(f"frontend {host_of(url)} answered {status} when asked who it is")
        try:
            if status != 200:
                raise InvalidInput("", f"it answered {status}")
            return go_json.decode(body, FleetProof)
        except InvalidInput as error:
            raise OtherFleet(
                f"{host_of(url)} does not say which fleet it is, as Corral's frontends do: {error.message}; is the URL"
                " right? LocalAI's frontends, and Corral's that are older, take --register-to and a registration token"
            ) from error

    def _verified(self, url: str, proof: FleetProof, nonce: str) -> str:
        """Return the pin of the key that signed."""
        try:
            key = base64.b64decode(proof.key, validate=True)
            signature = base64.b64decode(proof.signature, validate=True)
            message = proof_message(nonce, proof.certificates)
            Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
        except (binascii.Error, ValueError, InvalidSignature):
            raise OtherFleet(f"{host_of(url)} says which fleet it is, and cannot prove it") from None
        return pin_of(key)

    def _take(self, url: str, pin: str) -> None:
        if self.pin and pin != self.pin:
            raise OtherFleet(
                f"{host_of(url)} is another fleet (#{pin}) than the one that this machine knows (#{self.pin}); nothing"
                " secret was sent"
            )
        self.pin = pin


async def _certificate_of(url: str) -> bytes:
    """What the server shows, from a connection that is used for nothing else."""
    parts = urlsplit(url)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(_HANDSHAKE_SECONDS):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port or 443, ssl=context)
    except (OSError, TimeoutError) as error:
        raise HttpFailed(url, HttpFault.UNREACHABLE, "TLS cannot be agreed upon") from error
    try:
        certificate: bytes | None = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    finally:
        writer.transport.abort()
    if certificate is None:
        raise HttpFailed(url, HttpFault.CERTIFICATE, "it shows no certificate")
    return certificate


def _key_hash(certificate: bytes) -> str:
    try:
        key = x509.load_der_x509_certificate(certificate).public_key()
    except ValueError:
        return ""
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()
