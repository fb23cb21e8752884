"""What a frontend learns of images: from the places that a worker would try, and for a short time only."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from corral.frontend.backends.catalogue import NoImages, RegistryImages, facts_of
from corral.galleries.gallery import GalleryEntry
from corral.oci.config import ImagesConfig
from corral.oci.manifests import ImagePlatform
from tests.kit.clock import HurriedClock
from tests.kit.images import a_layer
from tests.kit.loop_time import overdue
from tests.kit.registry import FakeRegistry, answering, silent

NAME = "backends/echo"
LAYER = a_layer({"run.sh": b"#!/bin/sh\n"})


@pytest.fixture
async def registry() -> AsyncIterator[FakeRegistry]:
    async with FakeRegistry() as registry:
        yield registry


@pytest.fixture
def images() -> RegistryImages:
    return RegistryImages(ImagesConfig(), HurriedClock())


def build(uri: str, *mirrors: str) -> GalleryEntry:
    return GalleryEntry(name="echo", uri=uri, mirrors=mirrors)


async def test_the_image_of_a_build_with_its_platforms(registry: FakeRegistry, images: RegistryImages) -> None:
    arm = registry.add_image(NAME, [LAYER], platform=ImagePlatform(architecture="arm64"))
    index = registry.add_index(NAME, [arm])
    found = await images.facts(build(registry.reference(NAME)))
    assert found is not None
    assert (found.digest, found.is_index, found.uri) == (index.digest, True, registry.reference(NAME))
    (member,) = found.members
    assert (str(member.platform), member.digest, member.download_bytes) == ("linux/arm64", arm.digest, len(LAYER))


async def test_what_a_tag_has_not_is_looked_for_at_the_mirrors_as_a_worker_does(
    registry: FakeRegistry, images: RegistryImages
) -> None:
    registry.add_image("mirrored/echo", [LAYER])
    mirror = registry.reference("mirrored/echo")
    found = await images.facts(build(registry.reference(NAME), mirror))
    assert found is not None
    assert found.uri == mirror
    assert await images.facts(build(registry.reference(NAME))) is None


async def test_a_registry_that_does_not_answer_is_left_alone_for_a_while(
    registry: FakeRegistry, images: RegistryImages
) -> None:
    registry.add_image(NAME, [LAYER])
    registry.faults["manifests"] += [answering(503)] * 2
    assert await images.facts(build(registry.reference(NAME))) is None
    asked = len(registry.heard)
    assert await images.facts(build(registry.reference(NAME))) is None
    assert len(registry.heard) == asked


async def test_nobody_waits_long_for_a_registry_that_hangs(registry: FakeRegistry) -> None:
    patience = timedelta(seconds=10)
    hasty = RegistryImages(ImagesConfig(), HurriedClock(), patience=patience)
    asked, over = asyncio.Event(), asyncio.Event()
    registry.faults["manifests"].append(silent(over, reached=asked))
    assert await overdue(hasty.facts(build(registry.reference(NAME))), asked, by=patience) is None
    assert await hasty.facts(build(registry.reference(NAME))) is None
    assert len(registry.heard) == 1
    over.set()


async def test_a_missing_login_is_no_reason_to_leave_a_registry_alone(
    registry: FakeRegistry, images: RegistryImages
) -> None:
    registry.add_image(NAME, [LAYER])
    registry.faults["manifests"].append(answering(403))
    assert await images.facts(build(registry.reference(NAME))) is None
    assert await images.facts(build(registry.reference(NAME))) is not None


async def test_builds_with_one_uri_are_asked_for_once(registry: FakeRegistry, images: RegistryImages) -> None:
    registry.add_image(NAME, [LAYER])
    uri = registry.reference(NAME)
    found = await facts_of([build(uri), build(uri), build("/srv/echo"), build("not a uri")], images)
    assert list(found) == [uri]
    assert len(registry.heard) == 1


async def test_a_frontend_without_registries_knows_nothing() -> None:
    assert await facts_of([build("quay.io/x:y")], NoImages()) == {}
