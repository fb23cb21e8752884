"""Signatures as they were found, of which nothing is believed yet, and the port of those who check them.

Cosign's first format, "simple signing", is published as SIGNATURE_SPEC.md in sigstore/cosign: one manifest per signed
image, under a tag that is made of the image's digest; each layer is a payload, and its signature is an annotation of
the layer. The other format are Sigstore's bundles, see `bundles.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import msgspec

from corral.base.unreadable_json import UNREADABLE_JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleSignature:
    """Cosign's first format: a payload that names an image, and a signature of it."""

    place: str
    """Where it was found."""
    payload: bytes
    signature: str
    """In base64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SigstoreBundle:
    """All that is needed to check a signature without asking anybody."""

    place: str
    document: bytes


SignatureCandidate: TypeAlias = SimpleSignature | SigstoreBundle


class SignatureChecker(Protocol):
    """Decides by one policy. Asks nobody."""

    @property
    def expected(self) -> str:
        """What it takes, for people."""

    @property
    def takes_simple(self) -> bool:
        """Whether signatures of cosign's first format can satisfy the policy at all."""

    def problem(self, digest: str, candidate: SignatureCandidate) -> str:
        """Why this does not sign the image with this digest as the policy asks for; empty when it does."""


class NothingAccepted:
    """For pulls without a policy: should one be there after all, nothing satisfies it."""

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
    """Under which the signatures of an image are kept, beside it."""
    return f"{digest.replace(':', '-')}.sig"


def make_payload(*, reference: str, digest: str, annotations: Mapping[str, str]) -> bytes:
    """What is signed. The same bytes for the same input."""
    payload = _Payload(
        critical=_Critical(identity=_Identity(reference=reference), image=_Image(digest=digest), type=TYPE),
        optional=dict(sorted(annotations.items())) or None,
    )
    return msgspec.json.encode(payload)


def payload_problem(payload: bytes, digest: str) -> str:
    """Why this is no statement about that image; empty when it is. For payloads whose signature was found right."""
    try:
        critical = msgspec.json.decode(payload, type=_Payload).critical
    except UNREADABLE_JSON as error:
        return f"its payload cannot be read: {error}"
    if critical.type != TYPE:
        return f"its payload is a {critical.type[:200]!r}, and no signature of an image"
    # The reference is not compared, as in cosign: mirrors hold the same image under other names.
    return "" if critical.image.digest == digest else f"it signs another image, {critical.image.digest[:200]}"
