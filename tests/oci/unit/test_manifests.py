"""Manifests that registries made up."""

import pytest

from corral.oci.errors import ManifestUnusable
from corral.oci.manifests import read_manifest


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"layers": 3}',
        b'{"stranger": ' + b"[" * 100_000,
        b'{"layers": [{"stranger": ' + b"[" * 100_000,
        b'{"manifests": [{"digest": ' + b'{"a":' * 100_000,
    ],
    ids=["nothing", "no text", "a list", "empty", "a number", "a mile deep", "deep in a layer", "deep in a list"],
)
def test_what_is_no_manifest_is_refused_by_name(body: bytes) -> None:
    with pytest.raises(ManifestUnusable, match="image-of-somebody"):
        read_manifest(body, name="image-of-somebody")
