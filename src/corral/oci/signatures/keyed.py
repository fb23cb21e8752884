"""Verifies signatures by the public keys of a policy, in cosign's first format and in Sigstore bundles.

A key proves who signed, not when, so no log and no clock is used. A lost key must be removed from the policy.
"""

import hashlib
from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed

from corral.base.errors import InvalidInput
from corral.oci.signatures.formats import (
    SIGN_PREDICATE,
    Envelope,
    MessageSignature,
    SignatureCandidate,
    SigstoreBundle,
    SimpleSignature,
    decoded,
    message_digest_problem,
    payload_problem,
    read_bundle,
    signed_bytes,
    statement_problem,
)
from corral.oci.signatures.policy import SECTION, Verification, key_documents

_FIELD: Final = f"{SECTION}.public_key"
_LEAST_RSA_BITS: Final = 2048
_CURVES: Final = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)
_HASHED: Final = Prehashed(hashes.SHA256())
_PublicKey: TypeAlias = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | rsa.RSAPublicKey


class PublicKey(msgspec.Struct, frozen=True):
    """A key type that cosign supports: ECDSA, Ed25519 or RSA. ECDSA and RSA sign SHA-256 hashes."""

    key: _PublicKey

    @property
    def fingerprint(self) -> str:
        """Hash of the key's DER bytes, to tell keys apart."""
        der = self.key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        return f"sha256:{hashlib.sha256(der).hexdigest()}"

    @property
    def pem(self) -> str:
        return self.key.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        ).decode()

    def verifies(self, signature: bytes, message: bytes) -> bool:
        if not isinstance(self.key, ed25519.Ed25519PublicKey):
            return self.verifies_hash(signature, hashlib.sha256(message).digest())
        try:
            self.key.verify(signature, message)
        except InvalidSignature:
            return False
        return True

    def verifies_hash(self, signature: bytes, sha256: bytes) -> bool:
        """Verify a signature by the content's hash alone. Always false for Ed25519, which signs the content itself."""
        try:
            match self.key:
                case ec.EllipticCurvePublicKey():
                    self.key.verify(signature, sha256, ec.ECDSA(_HASHED))
                case rsa.RSAPublicKey():
                    self.key.verify(signature, sha256, padding.PKCS1v15(), _HASHED)
                case _:
                    return False
        except InvalidSignature:
            return False
        return True


def read_public_keys(text: str) -> tuple[PublicKey, ...]:
    """Parse the keys of a policy. InvalidInput says what is wrong with one."""
    keys: list[PublicKey] = []
    for document in key_documents(text):
        try:
            key = serialization.load_der_public_key(document)
        except (ValueError, UnsupportedAlgorithm) as error:
            raise InvalidInput(_FIELD, "holds something that is no public key") from error
        keys.append(PublicKey(checked_key(key)))
    return tuple(keys)


def checked_key(key: object, *, field: str = _FIELD) -> _PublicKey:
    """Return the key. Raise InvalidInput when it is too weak, or cosign does not support it."""
    if isinstance(key, ed25519.Ed25519PublicKey):
        return key
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, _CURVES):
        return key
    if isinstance(key, rsa.RSAPublicKey):
        if key.key_size < _LEAST_RSA_BITS:
            raise InvalidInput(field, f"is an RSA key of {key.key_size} bits; at least {_LEAST_RSA_BITS} are needed")
        return key
    raise InvalidInput(field, "must be an ECDSA key (P-256, P-384 or P-521), an Ed25519 key or an RSA key")


_ANOTHER_KEY: Final = "it was made with another key, or for another content"
_MOST_SIGNATURES: Final = 16
_SHOWN_DIGITS: Final = len("sha256:") + 16


class KeyChecker:
    """Accepts signatures by any key of the policy."""

    takes_simple = True

    def __init__(self, policy: Verification) -> None:
        """Raise InvalidInput when one of the keys cannot be used."""
        self._keys = read_public_keys(policy.public_key)

    @property
    def expected(self) -> str:
        fingerprints = " or ".join(key.fingerprint[:_SHOWN_DIGITS] for key in self._keys)
        return f"a signature by the key {fingerprints}"

    def problem(self, digest: str, candidate: SignatureCandidate) -> str:
        try:
            match candidate:
                case SimpleSignature(payload=payload, signature=signature):
                    if not self._is_ours(payload, [decoded(signature)]):
                        return _ANOTHER_KEY
                    return payload_problem(payload, digest)
                case SigstoreBundle(document=document):
                    bundle = read_bundle(document)
                    if bundle.verification_material.public_key is None:
                        return "it was made with a certificate, and not with a key"
                    if bundle.dsse_envelope is not None:
                        return self._envelope(bundle.dsse_envelope, digest)
                    if bundle.message_signature is not None:
                        return self._message(bundle.message_signature, digest)
                    return "it holds no signature"
        except ValueError as error:
            return str(error)

    def _envelope(self, envelope: Envelope, digest: str) -> str:
        signatures = [decoded(signature.sig) for signature in envelope.signatures[:_MOST_SIGNATURES]]
        if not self._is_ours(signed_bytes(envelope), signatures):
            return _ANOTHER_KEY
        # A key may also sign other statements about an image, for example that it is broken.
        payload = decoded(envelope.payload)
        return statement_problem(envelope.payload_type, payload, digest, predicate=SIGN_PREDICATE)

    def _message(self, message: MessageSignature, digest: str) -> str:
        algorithm, _, digits = digest.partition(":")
        if algorithm != "sha256":
            return f"it signs a SHA-256 hash, and the image is known by {algorithm}"
        if problem := message_digest_problem(message, digest):
            return problem
        signature, hashed = decoded(message.signature), bytes.fromhex(digits)
        return "" if any(key.verifies_hash(signature, hashed) for key in self._keys) else _ANOTHER_KEY

    def _is_ours(self, message: bytes, signatures: Sequence[bytes]) -> bool:
        return any(key.verifies(signature, message) for key in self._keys for signature in signatures)
