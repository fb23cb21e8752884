"""Private keys for certificates that somebody else signs, and public keys of certificates. Apart from `tls.py`, because
the library takes memory."""

import hashlib

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


class PrivateKey:
    """A new private key (P-256), and the request to sign a certificate for it."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())

    def request(self) -> str:
        """A certificate signing request in PEM form, without any name."""
        builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()

    def pem(self) -> str:
        return self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode()


def public_key_hash(pem: bytes) -> str:
    """Return the SHA-256 of the public key of a certificate in PEM form. ValueError when it cannot be read."""
    key = x509.load_pem_x509_certificate(pem).public_key()
    encoded = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(encoded).hexdigest()
