"""Public keys of policies, and the check of a signature by one of them."""

import hashlib
from dataclasses import dataclass
from typing import Final, TypeAlias

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed

from corral.base.errors import InvalidInput
from corral.oci.signatures.policy import SECTION, key_documents

_FIELD: Final = f"{SECTION}.public_key"
_LEAST_RSA_BITS: Final = 2048
_CURVES: Final = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)
_HASHED: Final = Prehashed(hashes.SHA256())
_PublicKey: TypeAlias = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | rsa.RSAPublicKey


@dataclass(frozen=True, slots=True)
class PublicKey:
    """One that cosign can use too: ECDSA, Ed25519 or RSA; the first and the last sign SHA-256 hashes."""

    key: _PublicKey

    @property
    def fingerprint(self) -> str:
        """To tell keys apart: of the key's DER bytes."""
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
        """Of content of which only the hash is at hand. Ed25519 signs content itself, so there it never holds."""
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
    """The keys of a policy; InvalidInput says what is wrong with one."""
    return tuple(_read(document) for document in key_documents(text))


def _read(document: bytes) -> PublicKey:
    try:
        key = serialization.load_der_public_key(document)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidInput(_FIELD, "holds something that is no public key") from error
    return PublicKey(checked_key(key))


def checked_key(key: object, *, field: str = _FIELD) -> _PublicKey:
    """InvalidInput when signatures by this key are worth nothing, or cosign would not know it."""
    if isinstance(key, ed25519.Ed25519PublicKey):
        return key
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, _CURVES):
        return key
    if isinstance(key, rsa.RSAPublicKey):
        if key.key_size < _LEAST_RSA_BITS:
            raise InvalidInput(field, f"is an RSA key of {key.key_size} bits; at least {_LEAST_RSA_BITS} are needed")
        return key
    raise InvalidInput(field, "must be an ECDSA key (P-256, P-384 or P-521), an Ed25519 key or an RSA key")
