"""Checks keyless signatures with Sigstore's own library, offline.

Needed are: a certificate of a trusted authority for the identity that the policy names, with proof that it was
published; an entry in a transparency log; a proven time within the certificate's few minutes; and a signature of the
image's digest. All of it comes with the bundle and is checked against a trust root on the disk.
"""

import logging
from importlib.resources import files
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from sigstore.errors import Error, VerificationError
from sigstore.hashes import Hashed
from sigstore.models import Bundle, TrustedRoot
from sigstore.verify import Verifier
from sigstore_models.common.v1 import HashAlgorithm

from corral.base.errors import CorralError
from corral.oci.signatures.formats import (
    Envelope,
    ReadBundle,
    SignatureCandidate,
    SigstoreBundle,
    as_message_signature,
    decoded,
    read_bundle,
    signed_bytes,
    statement_problem,
)
from corral.oci.signatures.policy import Verification, expected_signer, signer_problem, time_problem

BUNDLED: Final = "https%3A%2F%2Ftuf-repo-cdn.sigstore.dev/trusted_root.json"
"""Trust root of Sigstore's public instance, as the library ships it."""
_ISSUER: Final = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.1")
_ISSUER_V2: Final = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.8")
_OTHER_NAME: Final = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.7")
_UTF8_STRING: Final = 0x0C
_LONGEST_REASON: Final = 300
_PARSERS_FAILURES: Final = (
    Error,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    ArithmeticError,
    AssertionError,
    RecursionError,
    OSError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.ExtensionNotFound,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
"""The library's parsers may raise anything for a malicious bundle."""
_LOGGED_AS_MESSAGE: Final = frozenset({("hashedrekord", "0.0.1")})
"""Kinds of log entries of a statement that was logged as the hash of its bytes."""
_KNOB: Final = "images.trusted_root_file"


class TrustRootUnusable(CorralError):
    """The trust root for signatures cannot be read."""

    code = "trust_root_unusable"
    retryable = True


class KeylessChecker:
    """Accepts signatures of the policy's identity, verified against the given trust root."""

    takes_simple = False
    """As in LocalAI: the first format has no proof of time that can be verified offline."""

    def __init__(self, policy: Verification, *, trusted_root: Path | None = None) -> None:
        self._policy = policy
        self._signer = _Signer(policy)
        self._verifier = _verifier(trusted_root)
        logging.getLogger("sigstore").setLevel(logging.ERROR)  # the result is reported in one sentence of ours instead

    @property
    def expected(self) -> str:
        return expected_signer(self._policy)

    def problem(self, digest: str, candidate: SignatureCandidate) -> str:
        if not isinstance(candidate, SigstoreBundle):
            return "it is no Sigstore bundle"
        try:
            return self._judge(digest, candidate.document)
        except VerificationError as error:
            reason = str(error)
        except _PARSERS_FAILURES as error:
            reason = f"it cannot be read: {error}"
        return " ".join(reason.split())[:_LONGEST_REASON]

    def _judge(self, digest: str, document: bytes) -> str:
        read = read_bundle(document)
        if read.verification_material.public_key is not None:
            return "it was made with a key, and not with a certificate"
        if read.dsse_envelope is not None:
            bundle, problem = self._verified_statement(read, read.dsse_envelope, document, digest)
            if problem:
                return problem
        else:
            bundle = Bundle.from_json(document)
            algorithm, _, digits = digest.partition(":")
            if algorithm != "sha256":
                return f"it signs a SHA-256 hash, and the image is known by {algorithm}"
            hashed = Hashed(algorithm=HashAlgorithm.SHA2_256, digest=bytes.fromhex(digits))
            self._verifier.verify_artifact(hashed, bundle, self._signer)
        # The library checks that there is a proven time but does not return it, so repeat its steps.
        return time_problem(self._policy, [result.time for result in self._verifier._establish_time(bundle)])

    def _verified_statement(
        self, read: ReadBundle, envelope: Envelope, document: bytes, digest: str
    ) -> tuple[Bundle, str]:
        payload_type, payload = envelope.payload_type, decoded(envelope.payload)
        entries = read.verification_material.tlog_entries
        if {(entry.kind_version.kind, entry.kind_version.version) for entry in entries} == _LOGGED_AS_MESSAGE:
            bundle = Bundle.from_json(as_message_signature(document))
            self._verifier.verify_artifact(signed_bytes(envelope), bundle, self._signer)
        else:
            bundle = Bundle.from_json(document)
            payload_type, payload = self._verifier.verify_dsse(bundle, self._signer)
        return bundle, statement_problem(payload_type, payload, digest)


class _Signer:
    """Implements the library's interface for certificate policies."""

    def __init__(self, policy: Verification) -> None:
        self._policy = policy

    def verify(self, cert: x509.Certificate) -> None:
        if problem := signer_problem(self._policy, issuer=_issuer(cert), identities=_identities(cert)):
            raise VerificationError(problem)


def _issuer(certificate: x509.Certificate) -> str:
    """Return the issuer. The newer extension takes precedence: its encoding is unambiguous."""
    raw = {extension.oid: extension.value for extension in certificate.extensions}
    newer, older = raw.get(_ISSUER_V2), raw.get(_ISSUER)
    if isinstance(newer, x509.UnrecognizedExtension):
        return _utf8(newer.value)
    return older.value.decode() if isinstance(older, x509.UnrecognizedExtension) else ""


def _utf8(der: bytes) -> str:
    """Decode a short ASN.1 UTF8String."""
    if len(der) < 2 or der[0] != _UTF8_STRING:
        raise VerificationError("its certificate has an issuer that cannot be read")
    octets = der[1] & 0x7F if der[1] & 0x80 else 0
    length = int.from_bytes(der[2 : 2 + octets], "big") if octets else der[1]
    text = der[2 + octets :]
    if octets > 2 or len(text) != length:
        raise VerificationError("its certificate has an issuer that cannot be read")
    return text.decode()


def _identities(certificate: x509.Certificate) -> list[str]:
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    identities = names.get_values_for_type(x509.RFC822Name) + names.get_values_for_type(x509.UniformResourceIdentifier)
    others = [other for other in names.get_values_for_type(x509.OtherName) if other.type_id == _OTHER_NAME]
    return identities + [_utf8(other.value) for other in others]


def _verifier(trusted_root: Path | None) -> Verifier:
    place = trusted_root or Path(str(files("sigstore._store").joinpath(BUNDLED)))
    try:
        return Verifier(trusted_root=TrustedRoot.from_file(str(place)))
    except OSError as error:
        raise TrustRootUnusable(f"{place}: {error.strerror} ({_KNOB})") from error
    except (Error, ValueError) as error:
        reason = " ".join(str(error).split())[:_LONGEST_REASON]
        raise TrustRootUnusable(f"{place} is not a trust root of Sigstore: {reason} ({_KNOB})") from error
