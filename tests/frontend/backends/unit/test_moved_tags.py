"""The kind of intents about backends: what a tag that was moved means for an intent."""

import pytest

from corral.base.ids import NodeId, OperationId
from corral.frontend.backends.decide.backend import (
    Artefact,
    BackendEntry,
    Inventory,
    artefact_of,
    evidence_of,
    payload_of,
)
from corral.frontend.backends.operations import moved_tag
from corral.frontend.operations.decide.intent import Before, Intent, Verb
from corral.galleries.gallery import GalleryEntry
from corral.oci.manifests import ImageFacts
from tests.kit.clock import START


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
        verb=Verb.UPGRADE,
        subject="echo",
        payload=payload_of(artefact),
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
    registry, intent = Tag(tag), an_intent()
    moved = await moved_tag(intent, evidence_of(intent, seen(has, at)), registry)
    assert registry.asked == (["r/echo:v1"] if asked else [])
    assert artefact_of(moved or intent.payload).digests == {wanted}
