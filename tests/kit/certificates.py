"""Certificates for tests, made when they are needed."""

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """Issues certificates for 127.0.0.1, or for another host."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir()
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        self._certificate = self._issue("test authority", self._key, ca=True)
        self.file = self._write("ca.pem", self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *, host: str = "127.0.0.1") -> tuple[Path, Path]:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._issue(name, key, ca=False, host=host)
        key_text = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return (
            self._write(f"{name}.pem", certificate.public_bytes(serialization.Encoding.PEM)),
            self._write(f"{name}.key", key_text),
        )

    def _issue(
        self, name: str, key: ec.EllipticCurvePrivateKey, *, ca: bool, host: str = "127.0.0.1"
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        is_address = host[0].isdigit()
        address = x509.IPAddress(ipaddress.ip_address(host)) if is_address else x509.DNSName(host)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        )
        return builder.sign(self._key, hashes.SHA256())

    def _write(self, name: str, text: bytes) -> Path:
        path = self._directory / name
        path.write_bytes(text)
        return path
