"""What a frontend learns of images: from the places that a worker would try, and for a short time only."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from corral.base.ids import NodeId, OperationId
from corral.control.artefacts import MovedTags, NoImages, RegistryImages, facts_of
from corral.domain.backend import Artefact, BackendEntry, Before, Inventory, Verb, Wish
from corral.domain.fit import ImageFacts
from corral.domain.gallery import GalleryEntry
from corral.domain.intent import Intent
from corral.oci.config import ImagesConfig
from corral.oci.manifests import ImagePlatform
from tests.kit.clock import START, HurriedClock
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
    (member,) = found.manifests
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


class Tag:
    """A registry with one tag."""

    def __init__(self, digest: str) -> None:
        self.digest = digest
        self.asked: list[str] = []

    async def facts(self, build: GalleryEntry) -> ImageFacts | None:
        self.asked.append(build.uri)
        return ImageFacts(is_index=False, digest=self.digest) if self.digest else None


def an_intent() -> Intent:
    artefact = Artefact(backend="echo", digests=frozenset({"old"}), image="r/echo:v1")
    return Intent(
        node_id=NodeId("n"),
        wish=Wish(verb=Verb.UPGRADE, key="echo", artefact=artefact),
        operation_id=OperationId("o"),
        accepted_at=START,
        changed_at=START,
        next_try=START,
        before=Before(present=True, installed_at="before"),
    )


def seen(digest: str, at: str) -> Inventory:
    return Inventory(entries=(BackendEntry(name="echo", installed_at=at, digest=digest),), seen_at=START)


@pytest.mark.parametrize(
    ("tag", "has", "at", "asked", "wanted"),
    [
        ("new", "new", "after", True, "new"),
        ("new", "other", "after", True, "new"),
        ("", "new", "after", True, "old"),
        ("new", "old", "after", False, "old"),
        ("new", "older", "before", False, "old"),
    ],
)
async def test_a_tag_is_asked_again_only_when_a_node_installed_something_else(
    tag: str, has: str, at: str, asked: bool, wanted: str
) -> None:
    registry = Tag(tag)
    followed = await MovedTags(registry).followed(an_intent(), seen(has, at))
    assert registry.asked == (["r/echo:v1"] if asked else [])
    assert followed.wish.artefact.digests == {wanted}
