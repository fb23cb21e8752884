"""Cosign's first format, "simple signing": its payload, and how it is kept in a registry.

Published as SIGNATURE_SPEC.md in sigstore/cosign: one manifest per signed image, under a tag that is made of the
image's digest; each layer is a payload, and its signature is an annotation of the layer.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from corral.base.unreadable_json import UNREADABLE_JSON

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
