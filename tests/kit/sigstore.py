"""A Sigstore instance for tests: an authority, a log of certificates and a log of signatures, all in memory.

What it makes is as the public instance makes it, down to the bytes, and on demand as none should. It signs as cosign
does: a message, or a statement about an image in an envelope.
"""

import base64
import hashlib
import json
import struct
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

ISSUER: Final = "https://token.actions.githubusercontent.com"
IDENTITY: Final = "https://github.com/example/backends/.github/workflows/release.yml@refs/heads/main"
SIGNED_AT: Final = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
BUNDLE_TYPE: Final = "application/vnd.dev.sigstore.bundle.v0.3+json"
STATEMENT_TYPE: Final = "application/vnd.in-toto+json"
_LOG_NAME: Final = "log.example"
_ISSUER_OID: Final = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.8")
_OLD_ISSUER_OID: Final = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.1")
_SCT_OID: Final = x509.ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
_YEARS: Final = timedelta(days=3650)


def _key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _der(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def _sign(key: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
    return key.sign(data, ec.ECDSA(hashes.SHA256()))


def _canonical(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


@dataclass(frozen=True, kw_only=True)
class Signer:
    """Whom the authority vouches for, for how long, and what it leaves out."""

    identity: str = IDENTITY
    issuer: str = ISSUER
    old_issuer: str = ""
    valid_from: datetime = SIGNED_AT - timedelta(minutes=1)
    valid_for: timedelta = timedelta(minutes=10)
    is_published: bool = True
    """Whether the certificate carries proof that it was logged."""
    usage: x509.ObjectIdentifier = ExtendedKeyUsageOID.CODE_SIGNING


@dataclass(kw_only=True)
class SigstoreInstance:
    """Make one per test module: its keys take a while."""

    root_key: ec.EllipticCurvePrivateKey = field(default_factory=_key)
    certificates_key: ec.EllipticCurvePrivateKey = field(default_factory=_key)
    signatures_key: ec.EllipticCurvePrivateKey = field(default_factory=_key)

    def __post_init__(self) -> None:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests")])
        key_id = x509.SubjectKeyIdentifier.from_public_key(self.root_key.public_key())
        usage = {name: False for name in _USAGES} | {"key_cert_sign": True, "crl_sign": True}
        self.root = (
            x509.CertificateBuilder(issuer_name=name, subject_name=name, serial_number=1)
            .public_key(self.root_key.public_key())
            .not_valid_before(SIGNED_AT - _YEARS)
            .not_valid_after(SIGNED_AT + _YEARS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=1), critical=True)
            .add_extension(x509.KeyUsage(**usage), critical=True)
            .add_extension(key_id, critical=False)
            .sign(self.root_key, hashes.SHA256())
        )

    # Whom others trust.

    def trusted_root(self) -> dict[str, Any]:
        start = {"start": (SIGNED_AT - _YEARS).isoformat()}
        return {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [self._log(self.signatures_key, start)],
            "certificateAuthorities": [
                {
                    "subject": {"organization": "tests", "commonName": "tests"},
                    "uri": "https://authority.example",
                    "certChain": {"certificates": [{"rawBytes": b64(_certificate_bytes(self.root))}]},
                    "validFor": start,
                }
            ],
            "ctlogs": [self._log(self.certificates_key, start)],
            "timestampAuthorities": [],
        }

    def _log(self, key: ec.EllipticCurvePrivateKey, start: object) -> dict[str, Any]:
        return {
            "baseUrl": f"https://{_LOG_NAME}",
            "hashAlgorithm": "SHA2_256",
            "publicKey": {"rawBytes": b64(_der(key)), "keyDetails": "PKIX_ECDSA_P256_SHA_256", "validFor": start},
            "logId": {"keyId": b64(hashlib.sha256(_der(key)).digest())},
        }

    def write_trusted_root(self, folder: Path) -> Path:
        file = folder / "trusted_root.json"
        file.write_text(json.dumps(self.trusted_root()))
        return file

    # Bundles.

    def message_bundle(self, digest: str, signer: Signer | None = None, *, at: datetime = SIGNED_AT) -> dict[str, Any]:
        """A signature of an image's digest itself."""
        return self.signed(bytes.fromhex(digest.removeprefix("sha256:")), signer or Signer(), at=at)

    def statement_bundle(
        self,
        digest: str,
        signer: Signer | None = None,
        *,
        at: datetime = SIGNED_AT,
        is_logged_as_message: bool = False,
        statement: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """A signature of a statement about an image, as cosign makes it."""
        payload = _canonical(statement or a_statement(digest))
        message = pre_authentication(STATEMENT_TYPE, payload)
        bundle = self.signed(hashlib.sha256(message).digest(), signer or Signer(), at=at)
        signature = bundle.pop("messageSignature")["signature"]
        bundle["dsseEnvelope"] = {
            "payload": b64(payload),
            "payloadType": STATEMENT_TYPE,
            "signatures": [{"sig": signature}],
        }
        if not is_logged_as_message:
            material = bundle["verificationMaterial"]
            certificate = base64.b64decode(material["certificate"]["rawBytes"])
            body = _statement_entry(payload, signature, certificate, bundle["dsseEnvelope"])
            material["tlogEntries"] = [self.entry(body, "dsse", at)]
        return bundle

    def signed(self, sha256: bytes, signer: Signer, *, at: datetime) -> dict[str, Any]:
        key = _key()
        certificate = _certificate_bytes(self.certificate(signer, key))
        signature = key.sign(sha256, ec.ECDSA(_PREHASHED))
        body = _message_entry(sha256, signature, certificate)
        return {
            "mediaType": BUNDLE_TYPE,
            "verificationMaterial": {
                "certificate": {"rawBytes": b64(certificate)},
                "tlogEntries": [self.entry(body, "hashedrekord", at)],
            },
            "messageSignature": {
                "messageDigest": {"algorithm": "SHA2_256", "digest": b64(sha256)},
                "signature": b64(signature),
            },
        }

    # The authority and its log of certificates.

    def certificate(self, signer: Signer, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
        draft = self._builder(signer, key)
        if not signer.is_published:
            return draft.sign(self.root_key, hashes.SHA256())
        unproven = draft.add_extension(_sct_extension(b"", 0, b""), critical=False)
        proof = self._published(unproven.sign(self.root_key, hashes.SHA256()), signer.valid_from)
        return draft.add_extension(proof, critical=False).sign(self.root_key, hashes.SHA256())

    def _builder(self, signer: Signer, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        is_mail = "@" in signer.identity and "/" not in signer.identity
        named = x509.RFC822Name(signer.identity) if is_mail else x509.UniformResourceIdentifier(signer.identity)
        usage = {name: name == "digital_signature" for name in _USAGES}
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.root_key.public_key())
        builder = (
            x509.CertificateBuilder(issuer_name=self.root.subject, subject_name=x509.Name([]), serial_number=7)
            .public_key(key.public_key())
            .not_valid_before(signer.valid_from)
            .not_valid_after(signer.valid_from + signer.valid_for)
            .add_extension(x509.KeyUsage(**usage), critical=True)
            .add_extension(x509.ExtendedKeyUsage([signer.usage]), critical=False)
            .add_extension(x509.SubjectAlternativeName([named]), critical=True)
            .add_extension(authority, critical=False)
        )
        if signer.issuer:
            text = signer.issuer.encode()
            value = bytes([0x0C, len(text)]) + text
            builder = builder.add_extension(x509.UnrecognizedExtension(_ISSUER_OID, value), critical=False)
        if signer.old_issuer:
            old = x509.UnrecognizedExtension(_OLD_ISSUER_OID, signer.old_issuer.encode())
            builder = builder.add_extension(old, critical=False)
        return builder

    def _published(self, certificate: x509.Certificate, at: datetime) -> x509.UnrecognizedExtension:
        """A signed certificate timestamp, as RFC 6962 has it."""
        moment = int(at.timestamp() * 1000)
        issuer = hashlib.sha256(_der(self.root_key)).digest()
        content = certificate.tbs_precertificate_bytes
        length = struct.pack("!I", len(content))[1:]
        data = struct.pack("!BBQH", 0, 0, moment, 1) + issuer + length + content + b"\0\0"
        log = hashlib.sha256(_der(self.certificates_key)).digest()
        return _sct_extension(log, moment, _sign(self.certificates_key, data))

    # The log of signatures.

    def entry(self, body: bytes, kind: str, at: datetime) -> dict[str, Any]:
        """The second of two entries, with proof that it is there and the log's word for the time."""
        neighbour = hashlib.sha256(b"\0neighbour").digest()
        root = hashlib.sha256(b"\1" + neighbour + hashlib.sha256(b"\0" + body).digest()).digest()
        log = hashlib.sha256(_der(self.signatures_key)).digest()
        note = f"{_LOG_NAME}\n2\n{b64(root)}\n"
        seal = b64(log[:4] + _sign(self.signatures_key, note.encode()))
        moment = int(at.timestamp())
        promised = {"body": b64(body), "integratedTime": moment, "logID": log.hex(), "logIndex": 1}
        return {
            "logIndex": "1",
            "logId": {"keyId": b64(log)},
            "kindVersion": {"kind": kind, "version": "0.0.1"},
            "integratedTime": str(moment),
            "inclusionPromise": {"signedEntryTimestamp": b64(_sign(self.signatures_key, _canonical(promised)))},
            "inclusionProof": {
                "logIndex": "1",
                "rootHash": b64(root),
                "treeSize": "2",
                "hashes": [b64(neighbour)],
                "checkpoint": {"envelope": f"{note}\n\u2014 {_LOG_NAME} {seal}\n"},
            },
            "canonicalizedBody": b64(body),
        }


_PREHASHED: Final = Prehashed(hashes.SHA256())
_USAGES: Final = (
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


def a_statement(digest: str) -> dict[str, Any]:
    """What cosign states of an image that it signs."""
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"digest": {"sha256": digest.removeprefix("sha256:")}, "annotations": {}}],
        "predicateType": "https://sigstore.dev/cosign/sign/v1",
        "predicate": {},
    }


def pre_authentication(payload_type: str, payload: bytes) -> bytes:
    """What the signature of an envelope is of."""
    return b"DSSEv1 %d %b %d %b" % (len(payload_type), payload_type.encode(), len(payload), payload)


def key_bundle(key: ec.EllipticCurvePrivateKey, statement: dict[str, Any]) -> dict[str, Any]:
    """As cosign makes it with a key of one's own, without a log."""
    payload = _canonical(statement)
    signature = _sign(key, pre_authentication(STATEMENT_TYPE, payload))
    return {
        "mediaType": BUNDLE_TYPE,
        "verificationMaterial": {"publicKey": {"hint": b64(hashlib.sha256(_der(key)).digest())}, "tlogEntries": []},
        "dsseEnvelope": {
            "payload": b64(payload),
            "payloadType": STATEMENT_TYPE,
            "signatures": [{"sig": b64(signature)}],
        },
    }


def _certificate_bytes(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.DER)


def _pem(certificate: bytes) -> str:
    return b64(x509.load_der_x509_certificate(certificate).public_bytes(serialization.Encoding.PEM))


def _message_entry(sha256: bytes, signature: bytes, certificate: bytes) -> bytes:
    spec = {
        "data": {"hash": {"algorithm": "sha256", "value": sha256.hex()}},
        "signature": {"content": b64(signature), "publicKey": {"content": _pem(certificate)}},
    }
    return _canonical({"apiVersion": "0.0.1", "kind": "hashedrekord", "spec": spec})


def _statement_entry(payload: bytes, signature: str, certificate: bytes, envelope: object) -> bytes:
    spec = {
        "envelopeHash": {"algorithm": "sha256", "value": hashlib.sha256(_canonical(envelope)).hexdigest()},
        "payloadHash": {"algorithm": "sha256", "value": hashlib.sha256(payload).hexdigest()},
        "signatures": [{"signature": signature, "verifier": _pem(certificate)}],
    }
    return _canonical({"apiVersion": "0.0.1", "kind": "dsse", "spec": spec})


def _sct_extension(log: bytes, moment: int, signature: bytes) -> x509.UnrecognizedExtension:
    """A list of one, in an ASN.1 OCTET STRING."""
    proof = struct.pack("!B32sQH", 0, log, moment, 0) + bytes([4, 3]) + struct.pack("!H", len(signature)) + signature
    listed = struct.pack("!HH", len(proof) + 2, len(proof)) + proof
    size = bytes([len(listed)]) if len(listed) < 0x80 else bytes([0x81, len(listed)])
    return x509.UnrecognizedExtension(_SCT_OID, b"\x04" + size + listed)
