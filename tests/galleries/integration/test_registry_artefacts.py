"""Galleries that are kept in a registry: read once, verified, and asked again by digest."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from corral.base.clock import SystemClock
from corral.base.errors import CorralError, InvalidInput, PeerRefused, PeerUnavailable
from corral.galleries.config import GalleriesConfig
from corral.galleries.fetching import RegistryArtefacts
from corral.galleries.galleries import open_galleries
from corral.galleries.gallery import GallerySource
from corral.oci.config import ImagesConfig
from corral.oci.limits import Network
from corral.oci.manifests import OCI_MANIFEST, Descriptor
from tests.kit.registry import FakeRegistry, answering, lying

INDEX = json.dumps([{"name": "mock", "uri": "h/mock:1"}]).encode()
YAML = "application/yaml"


@pytest.fixture
async def registry() -> AsyncIterator[FakeRegistry]:
    async with FakeRegistry() as registry:
        yield registry


@pytest.fixture
def reader() -> RegistryArtefacts:
    return RegistryArtefacts(ImagesConfig(network=Network(attempts=1)), clock=SystemClock())


def push(registry: FakeRegistry, *files: bytes) -> Descriptor:
    layers = [registry.add_blob(file, YAML) for file in files]
    document = {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "artifactType": "application/x-index", "layers": layers}
    return registry.add_manifest("galleries/mine", document, OCI_MANIFEST, tag="latest")


async def test_the_only_file_is_read_and_not_again(registry: FakeRegistry, reader: RegistryArtefacts) -> None:
    pushed = push(registry, INDEX)
    reference = registry.reference("galleries/mine")
    found = await reader.read_artefact(reference, known_digest="", most_bytes=1000)
    assert found is not None
    assert (found.content, found.digest) == (INDEX, pushed.digest)
    assert await reader.read_artefact(reference, known_digest=found.digest, most_bytes=1000) is None
    assert len(registry.asked_for("/blobs/")) == 1


async def test_a_gallery_in_a_registry_is_a_gallery(
    registry: FakeRegistry, reader: RegistryArtefacts, tmp_path: Path
) -> None:
    push(registry, INDEX)
    source = GallerySource(name="mine", url=f"oci://{registry.reference('galleries/mine')}")
    config = GalleriesConfig(sources=(source,), cache=tmp_path)
    async with open_galleries(config, registry=reader, clock=SystemClock()) as galleries:
        readings = await galleries.read()
        assert [entry.name for entry in readings.catalogue.entries] == ["mock"]
        registry.manifests.clear()
        stale = await galleries.refresh()
    assert [entry.name for entry in stale.catalogue.entries] == ["mock"]
    assert stale.readings[0].is_stale


@pytest.mark.parametrize(
    ("files", "most", "error", "words"),
    [
        ((), 1000, InvalidInput, "has 0 files"),
        ((INDEX, b"more"), 1000, InvalidInput, "has 2 files"),
        ((INDEX,), 10, InvalidInput, "gallery.max_size"),
    ],
)
async def test_what_is_no_index_is_refused(
    registry: FakeRegistry,
    reader: RegistryArtefacts,
    files: tuple[bytes, ...],
    most: int,
    error: type[CorralError],
    words: str,
) -> None:
    push(registry, *files)
    with pytest.raises(error, match=words):
        await reader.read_artefact(registry.reference("galleries/mine"), known_digest="", most_bytes=most)


async def test_what_goes_wrong_is_told_as_galleries_know_it(registry: FakeRegistry, reader: RegistryArtefacts) -> None:
    reference = registry.reference("galleries/mine")
    with pytest.raises(PeerRefused):
        await reader.read_artefact(reference, known_digest="", most_bytes=1000)
    push(registry, INDEX)
    registry.faults["/blobs/"].append(lying(b"x" * len(INDEX)))
    with pytest.raises(PeerUnavailable, match="another file"):
        await reader.read_artefact(reference, known_digest="", most_bytes=1000)
    registry.faults["/manifests/"].append(answering(500))
    with pytest.raises(PeerUnavailable):
        await reader.read_artefact(reference, known_digest="", most_bytes=1000)
    with pytest.raises(InvalidInput):
        await reader.read_artefact("UPPER/x y", known_digest="", most_bytes=1000)
