"""Creates and reads signing keys. Passwords exist only as bytes in memory.

Files have cosign's format: the key in PKCS #8 form, encrypted with a key that scrypt derives from the password, in
a JSON envelope between PEM lines. Cosign can read ours, and we can read cosign's.
"""

import base64
import binascii
import hashlib
import os
import re
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from nacl.exceptions import CryptoError
from nacl.secret import SecretBox

from corral.base.errors import InvalidInput
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.oci.signatures.keyed import PublicKey, checked_key

_TITLE: Final = "ENCRYPTED SIGSTORE PRIVATE KEY"
_SEALED: Final = re.compile(
    r"-----BEGIN ENCRYPTED (?:SIGSTORE|COSIGN) PRIVATE KEY-----\s+(.+?)\s*-----END ENCRYPTED", re.DOTALL
)
_KDF: Final = "scrypt"
_CIPHER: Final = "nacl/secretbox"
_COST: Final = 65536
_COSTS: Final = frozenset({32768, 65536, 131072})
"""Costs that versions of cosign have written. Others are refused, because they could exhaust memory."""
_BLOCKS: Final = 8
_SCRYPT_BYTES: Final = 256 * 1024 * 1024
_LINE: Final = 64
_FIELD: Final = "--key"
_PrivateKey: TypeAlias = ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey


class _Cost(msgspec.Struct, frozen=True, kw_only=True):
    N: int
    r: int
    p: int


class _Derivation(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    params: _Cost
    salt: bytes


class _Cipher(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    nonce: bytes


class _Envelope(msgspec.Struct, frozen=True, kw_only=True):
    kdf: _Derivation
    cipher: _Cipher
    ciphertext: bytes


@dataclass(frozen=True, slots=True, repr=False)
class SigningKey:
    """Signs as cosign does: SHA-256 with ECDSA or RSA, or Ed25519."""

    key: _PrivateKey

    @property
    def public_key(self) -> PublicKey:
        return PublicKey(checked_key(self.key.public_key(), field=_FIELD))

    def sign(self, message: bytes) -> bytes:
        match self.key:
            case ec.EllipticCurvePrivateKey():
                return self.key.sign(message, ec.ECDSA(hashes.SHA256()))
            case rsa.RSAPrivateKey():
                return self.key.sign(message, padding.PKCS1v15(), hashes.SHA256())
            case _:
                return self.key.sign(message)

    def sealed(self, password: bytes) -> bytes:
        """Return the key as a file for cosign. An empty password protects nothing, as in cosign."""
        plain = self.key.private_bytes(
            serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        derivation = _Derivation(name=_KDF, params=_Cost(N=_COST, r=_BLOCKS, p=1), salt=os.urandom(32))
        nonce = os.urandom(SecretBox.NONCE_SIZE)
        ciphertext = SecretBox(_derived(derivation, password)).encrypt(plain, nonce).ciphertext
        envelope = _Envelope(kdf=derivation, cipher=_Cipher(name=_CIPHER, nonce=nonce), ciphertext=ciphertext)
        text = base64.b64encode(msgspec.json.encode(envelope)).decode()
        lines = [text[start : start + _LINE] for start in range(0, len(text), _LINE)]
        return "\n".join([f"-----BEGIN {_TITLE}-----", *lines, f"-----END {_TITLE}-----", ""]).encode()


def new_signing_key() -> SigningKey:
    """Create an ECDSA P-256 key: the only kind that all verifiers of cosign's signatures support."""
    return SigningKey(ec.generate_private_key(ec.SECP256R1()))


def is_locked(document: bytes) -> bool:
    """Whether a password is needed to read the key."""
    return b"ENCRYPTED" in document


def read_signing_key(document: bytes, password: bytes) -> SigningKey:
    """Read a key of cosign's or of any PEM file. InvalidInput says why it cannot be used."""
    sealed = _SEALED.search(document.decode("ascii", "replace"))
    try:
        if sealed is not None:
            key = serialization.load_der_private_key(_opened(sealed[1], password), None)
        else:
            key = serialization.load_pem_private_key(document, password if is_locked(document) else None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        advice = "the password is wrong, or the file is damaged" if is_locked(document) else "it is not a PEM file"
        raise InvalidInput(_FIELD, f"the private key cannot be read: {advice}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | rsa.RSAPrivateKey):
        raise InvalidInput(_FIELD, "must be an ECDSA, Ed25519 or RSA key")
    signing_key = SigningKey(key)
    _ = signing_key.public_key  # raises unless verifiers will accept its kind and size
    return signing_key


def _opened(text: str, password: bytes) -> bytes:
    try:
        envelope = msgspec.json.decode(base64.b64decode("".join(text.split()), validate=True), type=_Envelope)
        if envelope.kdf.name != _KDF or envelope.cipher.name != _CIPHER:
            raise ValueError("it is sealed in an unknown way")
        return SecretBox(_derived(envelope.kdf, password)).decrypt(envelope.ciphertext, envelope.cipher.nonce)
    except (binascii.Error, CryptoError, *UNREADABLE_JSON) as error:
        raise ValueError("it cannot be opened") from error


def _derived(derivation: _Derivation, password: bytes) -> bytes:
    cost = derivation.params
    if cost.N not in _COSTS or cost.r != _BLOCKS or cost.p != 1:
        raise ValueError("it is sealed at an unknown cost")
    return hashlib.scrypt(
        password, salt=derivation.salt, n=cost.N, r=cost.r, p=cost.p, maxmem=_SCRYPT_BYTES, dklen=SecretBox.KEY_SIZE
    )
