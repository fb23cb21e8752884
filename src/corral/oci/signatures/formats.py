"""Formats of signatures, which are not verified here, and the interface of those who verify them.

Cosign's first format, "simple signing", is published as SIGNATURE_SPEC.md in sigstore/cosign: one manifest per
signed image, under a tag made from the image's digest; each layer is a payload, and its signature is an annotation
of the layer. The other format is Sigstore's bundle, which is parsed without Sigstore's library: what is signed, and
about which image.
"""

import base64
import binascii
import hashlib
from collections.abc import Mapping, Sequence
from typing import Final, Protocol, TypeAlias

import msgspec

from corral.base.unreadable_json import UNREADABLE_JSON


class SimpleSignature(msgspec.Struct, frozen=True, kw_only=True):
    """Cosign's first format: a payload that names an image, and its signature."""

    place: str
    """Where it was found, for error messages."""
    payload: bytes
    signature: str
    """The signature in Base64."""


class SigstoreBundle(msgspec.Struct, frozen=True, kw_only=True):
    """A Sigstore bundle, which can be verified offline."""

    place: str
    document: bytes


SignatureCandidate: TypeAlias = SimpleSignature | SigstoreBundle


class SignatureChecker(Protocol):
    """Verifies signatures by one policy. Does no I/O."""

    @property
    def expected(self) -> str:
        """Description of what the policy accepts, for error messages."""

    @property
    def takes_simple(self) -> bool:
        """Whether cosign's first format can satisfy the policy."""

    def problem(self, digest: str, candidate: SignatureCandidate) -> str:
        """Return why this signature does not satisfy the policy for the image; empty if it does."""


class NothingAccepted:
    """Refuses everything. For pulls without a policy, as a safeguard."""

    expected = "a signature that something here can check"
    takes_simple = False

    def problem(self, digest: str, candidate: SignatureCandidate) -> str:
        return f"nothing here checks {candidate.place} of {digest}"


MEDIA_TYPE: Final = "application/vnd.dev.cosign.simplesigning.v1+json"
SIGNATURE_ANNOTATION: Final = "dev.cosignproject.cosign/signature"
TYPE: Final = "cosign container image signature"


class _Identity(msgspec.Struct, frozen=True, kw_only=True):
    reference: str = msgspec.field(default="", name="docker-reference")


class _Image(msgspec.Struct, frozen=True, kw_only=True):
    digest: str = msgspec.field(name="docker-manifest-digest")


class _Critical(msgspec.Struct, frozen=True, kw_only=True):
    identity: _Identity
    image: _Image
    type: str


class _Payload(msgspec.Struct, frozen=True, kw_only=True):
    critical: _Critical
    optional: Mapping[str, object] | None = None


def signature_tag(digest: str) -> str:
    """Return the tag that stores an image's signatures in its repository."""
    return f"{digest.replace(':', '-')}.sig"


def make_payload(*, reference: str, digest: str, annotations: Mapping[str, str]) -> bytes:
    """Return the payload to sign. Deterministic."""
    payload = _Payload(
        critical=_Critical(identity=_Identity(reference=reference), image=_Image(digest=digest), type=TYPE),
        optional=dict(sorted(annotations.items())) or None,
    )
    return msgspec.json.encode(payload)


def payload_problem(payload: bytes, digest: str) -> str:
    """Return why this payload is not about the image; empty if it is. Call it only after the signature is verified."""
    try:
        critical = msgspec.json.decode(payload, type=_Payload).critical
    except UNREADABLE_JSON as error:
        return f"its payload cannot be read: {error}"
    if critical.type != TYPE:
        return f"its payload is a {critical.type[:200]!r}, and no signature of an image"
    # The reference is not compared, as in cosign: mirrors hold the same image under other names.
    return "" if critical.image.digest == digest else f"it signs another image, {critical.image.digest[:200]}"


_TYPE_START: Final = "application/vnd.dev.sigstore.bundle."
_TYPE_END: Final = "+json"
SIGN_PREDICATE: Final = "https://sigstore.dev/cosign/sign/v1"
"""Predicate type of cosign's statement about an image that it signs."""
STATEMENT_TYPE: Final = "application/vnd.in-toto+json"
_STATEMENTS: Final = frozenset({"https://in-toto.io/Statement/v1", "https://in-toto.io/Statement/v0.1"})
_SHA256: Final = "SHA2_256"


class _Hint(msgspec.Struct, frozen=True, kw_only=True):
    hint: str = ""


class _KindVersion(msgspec.Struct, frozen=True, kw_only=True):
    kind: str = ""
    version: str = ""


class _LogEntry(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    kind_version: _KindVersion = _KindVersion()


class _Material(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    public_key: _Hint | None = None
    tlog_entries: Sequence[_LogEntry] = ()


class _Digest(msgspec.Struct, frozen=True, kw_only=True):
    algorithm: str = ""
    digest: str = ""


class MessageSignature(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A signature of content by its digest."""

    signature: str
    message_digest: _Digest = _Digest()


class _Signature(msgspec.Struct, frozen=True, kw_only=True):
    sig: str


class Envelope(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A DSSE envelope: a statement and its signatures."""

    payload: str
    payload_type: str
    signatures: Sequence[_Signature] = ()


class ReadBundle(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The parts of a bundle that we use."""

    media_type: str
    verification_material: _Material = _Material()
    message_signature: MessageSignature | None = None
    dsse_envelope: Envelope | None = None


class _Subject(msgspec.Struct, frozen=True, kw_only=True):
    digest: Mapping[str, str] = msgspec.field(default_factory=dict)


class _Statement(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    type: str = msgspec.field(name="_type")
    subject: Sequence[_Subject] = ()
    predicate_type: str = ""


def is_bundle_type(artifact_type: str) -> bool:
    """Whether the artifact type of a referring manifest is a bundle's."""
    return artifact_type.startswith(_TYPE_START) and artifact_type.endswith(_TYPE_END)


def read_bundle(document: bytes) -> ReadBundle:
    """Parse a bundle. Raise ValueError when it is invalid."""
    try:
        return msgspec.json.decode(document, type=ReadBundle)
    except UNREADABLE_JSON as error:
        raise ValueError(f"it is not a Sigstore bundle: {error}") from error


def decoded(text: str) -> bytes:
    """Decode base64. Raise ValueError when it is invalid."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("it holds something that is not base64") from error


def signed_bytes(envelope: Envelope) -> bytes:
    """Return the bytes that an envelope's signatures cover: DSSE's pre-authentication encoding."""
    kind, payload = envelope.payload_type.encode(), decoded(envelope.payload)
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def statement_problem(payload_type: str, payload: bytes, digest: str, *, predicate: str = "") -> str:
    """Return why this is not a statement about the image; empty if it is. Call it only after the signature is
    verified."""
    if payload_type != STATEMENT_TYPE:
        return f"it holds a {payload_type[:200]!r}, and no statement about an image"
    try:
        statement = msgspec.json.decode(payload, type=_Statement)
    except UNREADABLE_JSON as error:
        return f"its statement cannot be read: {error}"
    if statement.type not in _STATEMENTS:
        return f"its statement has the unknown type {statement.type[:200]!r}"
    if predicate and statement.predicate_type != predicate:
        return f"it states something else than a signature, {statement.predicate_type[:200]!r}"
    algorithm, _, digits = digest.partition(":")
    if any(subject.digest.get(algorithm) == digits for subject in statement.subject):
        return ""
    named = [f"{name}:{value}"[:200] for subject in statement.subject for name, value in subject.digest.items()]
    return f"it signs another image, {', '.join(named[:3]) or 'which it does not name'}"


def message_digest_problem(message: MessageSignature, digest: str) -> str:
    """Return why the digest in a bundle is not the image's; empty if it is. An early check only: the signature
    decides."""
    stated = message.message_digest
    if not stated.digest:
        return ""
    signed_digest = f"sha256:{decoded(stated.digest).hex()}" if stated.algorithm == _SHA256 else stated.algorithm[:200]
    return "" if signed_digest == digest else f"it signs another image, {signed_digest}"


def as_message_signature(document: bytes) -> bytes:
    """Convert a bundle with an envelope into one with a message signature over the envelope's encoded bytes.

    Some logs record an envelope as the hash of those bytes, like a message. The check stays equally strong:
    signature, time and log entry all cover the same bytes.
    """
    whole = msgspec.json.decode(document)
    envelope = read_bundle(document).dsse_envelope
    if envelope is None or len(envelope.signatures) != 1:
        raise ValueError("it has no envelope with exactly one signature")
    del whole["dsseEnvelope"]
    hashed = hashlib.sha256(signed_bytes(envelope)).digest()
    whole["messageSignature"] = {
        "messageDigest": {"algorithm": _SHA256, "digest": base64.b64encode(hashed).decode()},
        "signature": envelope.signatures[0].sig,
    }
    return msgspec.json.encode(whole)
