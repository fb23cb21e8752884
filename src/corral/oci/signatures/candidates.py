"""Unverified signatures, and the interface of signature checkers.

Cosign's first format, "simple signing", is published as SIGNATURE_SPEC.md in sigstore/cosign: one manifest per
signed image, under a tag made from the image's digest; each layer is a payload, and its signature is an annotation
of the layer. The other format is Sigstore's bundle, see `bundles.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import msgspec

from corral.base.unreadable_json import UNREADABLE_JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleSignature:
    """Cosign's first format: a payload that names an image, and its signature."""

    place: str
    """Where it was found, for error messages."""
    payload: bytes
    signature: str
    """Base64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SigstoreBundle:
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
