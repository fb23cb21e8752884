"""Images looked at in their registry, without fetching them."""

from collections.abc import AsyncIterator

import pytest

from corral.oci.config import ImagesConfig
from corral.oci.errors import ImageNotFound, RegistryUnavailable
from corral.oci.limits import Network
from corral.oci.manifests import ImageFacts, ImagePlatform
from corral.oci.registry import ImageLooks
from tests.kit.clock import HurriedClock
from tests.kit.images import a_layer
from tests.kit.registry import FakeRegistry, answering

NAME = "backends/echo"
LAYERS = [a_layer({"run.sh": b"#!/bin/sh\n"}), a_layer({"weights": bytes(5000)})]
ARM64 = ImagePlatform(architecture="arm64")
AMD64 = ImagePlatform(architecture="amd64")


@pytest.fixture
async def registry() -> AsyncIterator[FakeRegistry]:
    async with FakeRegistry() as registry:
        yield registry


@pytest.fixture
def looks() -> ImageLooks:
    return ImageLooks(ImagesConfig(network=Network(attempts=2)), HurriedClock())


async def at(looks: ImageLooks, uri: str) -> ImageFacts:
    found = await looks.at(uri)
    assert found is not None
    return found


async def test_an_index_tells_its_platforms_with_digests_and_sizes(registry: FakeRegistry, looks: ImageLooks) -> None:
    arm = registry.add_image(NAME, LAYERS, platform=ARM64)
    amd = registry.add_image(NAME, LAYERS[:1], platform=AMD64)
    note = registry.add_image(NAME, [b"signed"], platform=ImagePlatform(os="unknown", architecture="unknown"))
    index = registry.add_index(NAME, [arm, amd, note])
    found = await at(looks, registry.reference(NAME))
    assert (found.digest, found.is_index) == (index.digest, True)
    assert [(one.digest, one.platform, one.download_bytes) for one in found.members] == [
        (arm.digest, ARM64, sum(map(len, LAYERS))),
        (amd.digest, AMD64, len(LAYERS[0])),
    ]
    assert registry.asked_for("blobs") == []


async def test_a_single_image_is_its_own_and_only_member(registry: FakeRegistry, looks: ImageLooks) -> None:
    image = registry.add_image(NAME, LAYERS)
    found = await at(looks, f"oci://{registry.reference(NAME)}")
    assert (found.digest, found.is_index) == (image.digest, False)
    assert [(one.digest, one.download_bytes) for one in found.members] == [(image.digest, sum(map(len, LAYERS)))]


async def test_a_moved_tag_is_seen_at_once_and_members_are_asked_for_only_once(
    registry: FakeRegistry, looks: ImageLooks
) -> None:
    amd = registry.add_image(NAME, LAYERS, platform=AMD64)
    first = registry.add_index(NAME, [amd])
    assert (await at(looks, registry.reference(NAME))).digest == first.digest
    arm = registry.add_image(NAME, LAYERS[:1], platform=ARM64)
    second = registry.add_index(NAME, [amd, arm])
    assert (await at(looks, registry.reference(NAME))).digest == second.digest
    assert len(registry.asked_for(amd.digest)) == 1


async def test_a_member_that_cannot_be_read_has_no_size_and_hurts_no_other(
    registry: FakeRegistry, looks: ImageLooks
) -> None:
    good, bad = (registry.add_image(NAME, LAYERS[:number], platform=AMD64) for number in (1, 2))
    registry.add_index(NAME, [good, bad])
    registry.faults[bad.digest].append(answering(404))
    found = await at(looks, registry.reference(NAME))
    assert [one.download_bytes for one in found.members] == [len(LAYERS[0]), None]


@pytest.mark.parametrize("uri", ["/srv/echo", "https://example.org/x.tar", "ocifile:///srv/x.tar", "no way"])
async def test_what_lies_in_no_registry_has_nothing_to_look_at(looks: ImageLooks, uri: str) -> None:
    assert await looks.at(uri) is None


async def test_what_is_not_there_and_who_does_not_answer_are_two_things(
    registry: FakeRegistry, looks: ImageLooks
) -> None:
    with pytest.raises(ImageNotFound):
        await looks.at(registry.reference(NAME))
    registry.faults["manifests"] += [answering(503), answering(503)]
    with pytest.raises(RegistryUnavailable):
        await looks.at(registry.reference(NAME))
