"""Signatures in the fake registry, as cosign would have put them there."""

import base64

import msgspec

from corral.imaging.private_keys import SigningKey
from corral.oci.manifests import OCI_MANIFEST, Descriptor
from corral.oci.signatures.candidates import MEDIA_TYPE, SIGNATURE_ANNOTATION, make_payload, signature_tag
from tests.kit.registry import FakeRegistry


def a_signature(registry: FakeRegistry, name: str, digest: str, key: SigningKey) -> Descriptor:
    """One that no manifest names yet."""
    payload = make_payload(reference=name, digest=digest, annotations={})
    stated = {SIGNATURE_ANNOTATION: base64.b64encode(key.sign(payload)).decode()}
    return msgspec.structs.replace(registry.add_blob(payload, MEDIA_TYPE), annotations=stated)


def add_signatures(registry: FakeRegistry, name: str, digest: str, *keys: SigningKey, of: str = "") -> None:
    """`of` is the image whose signatures they pretend to be."""
    layers = [a_signature(registry, name, digest, key) for key in keys]
    registry.add_manifest(name, {"layers": layers}, OCI_MANIFEST, tag=signature_tag(of or digest))
