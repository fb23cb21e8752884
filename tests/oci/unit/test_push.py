"""Pushes to a registry that does what it is told: what is sent, what is spared, and what a failure leaves behind."""

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from corral.base.tasks import start_task
from corral.imaging.layouts import LayoutWriter
from corral.imaging.push import PushedBlob, PushResult, push_layout
from corral.oci.auth import Credential
from corral.oci.config import ImagesConfig
from corral.oci.errors import (
    ContentMismatch,
    ImageNotFound,
    ManifestUnusable,
    RegistryRefused,
    RegistryUnavailable,
    SourceInvalid,
)
from corral.oci.limits import Network
from corral.oci.manifests import ImagePlatform
from corral.oci.references import digest_of, parse_reference
from tests.kit.clock import ManualClock
from tests.kit.images import a_layer
from tests.kit.registry import FakeRegistry, answering

NAME = "team/echo"
SMALL = a_layer({"run.sh": b"#!/bin/sh\n"})
BIG = a_layer({"weights": os.urandom(3_000_000)})
IMPATIENT = ImagesConfig(network=Network(attempts=1))


@pytest.fixture
async def registry() -> AsyncIterator[FakeRegistry]:
    async with FakeRegistry() as registry:
        yield registry


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    """For two platforms that share a layer."""
    writer = LayoutWriter(tmp_path / "layout")
    shared, other = writer.add_blob(SMALL), writer.add_blob(BIG)
    images = [
        writer.add_image([other, shared], platform=ImagePlatform(architecture="amd64"), diff_ids=["a", "b"]),
        writer.add_image([shared], platform=ImagePlatform(architecture="arm64"), diff_ids=["b"]),
    ]
    writer.finish([writer.add_index(images)])
    return tmp_path / "layout"


async def push(layout: Path, registry: FakeRegistry, config: ImagesConfig = IMPATIENT, **more: object) -> PushResult:
    reference = parse_reference(registry.reference(NAME, "1.0"))
    return await push_layout(layout, reference, config=config, clock=ManualClock(), **more)  # type: ignore[arg-type]


def top_of(layout: Path) -> str:
    return str(json.loads((layout / "index.json").read_text())["manifests"][0]["digest"])


async def test_everything_is_sent_and_the_tag_last(registry: FakeRegistry, layout: Path) -> None:
    told: list[PushedBlob] = []

    result = await push(layout, registry, on_blob=told.append)

    assert result.digest == top_of(layout)
    assert digest_of(registry.manifests[NAME, "1.0"][1]) == result.digest
    assert registry.blobs[digest_of(BIG)] == BIG
    assert result.sent_bytes == sum(map(len, registry.blobs.values()))
    assert sorted(blob.digest for blob in told) == sorted(registry.blobs)
    changes = [one.path for one in registry.heard if one.method == "PUT"]
    assert changes[-1] == f"/v2/{NAME}/manifests/1.0"
    assert not registry.uploads


async def test_what_is_there_is_not_sent_again(registry: FakeRegistry, layout: Path) -> None:
    first = await push(layout, registry)
    registry.heard.clear()

    second = await push(layout, registry)

    assert (second.sent_bytes, second.spared_bytes) == (0, first.sent_bytes)
    assert {one.method for one in registry.heard} == {"HEAD", "PUT"}


async def test_a_registry_that_fails_now_and_then_is_asked_again(registry: FakeRegistry, layout: Path) -> None:
    for request in ("HEAD", "POST", "PATCH", f"PUT /v2/{NAME}/blobs", f"PUT /v2/{NAME}/manifests/1.0"):
        registry.faults[request].append(answering(503))
    patient = ImagesConfig(network=Network(attempts=3, first_pause_seconds=0.0, longest_pause_seconds=0.0))

    result = await push(layout, registry, patient)

    assert digest_of(registry.manifests[NAME, "1.0"][1]) == result.digest


@pytest.mark.parametrize("where", ["POST", "PATCH", f"PUT /v2/{NAME}/blobs", f"PUT /v2/{NAME}/manifests/sha256"])
@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        (500, RegistryUnavailable, "answered 500"),
        (429, RegistryUnavailable, "answered 429"),
        (403, RegistryRefused, "a login is needed that may write it"),
        (404, ImageNotFound, "answered 404"),
        (413, RegistryRefused, "answered 413"),
    ],
)
async def test_a_push_that_fails_leaves_the_tag_alone(
    registry: FakeRegistry, layout: Path, where: str, status: int, error: type[Exception], words: str
) -> None:
    before = registry.add_image(NAME, [SMALL], tag="1.0")
    registry.blobs.clear()
    registry.faults[where].append(answering(status))

    with pytest.raises(error, match=words):
        await push(layout, registry)

    assert digest_of(registry.manifests[NAME, "1.0"][1]) == before.digest


async def test_a_push_that_is_interrupted_leaves_no_manifest(registry: FakeRegistry, layout: Path) -> None:
    reached, never = asyncio.Event(), asyncio.Event()

    async def hang(*_: object) -> object:
        reached.set()
        await never.wait()
        raise AssertionError

    registry.faults["PATCH"].append(hang)  # type: ignore[arg-type]
    pushing = start_task(push(layout, registry), name="push")
    await reached.wait()
    pushing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pushing

    assert not registry.manifests
    assert (await push(layout, registry)).digest == top_of(layout)


async def test_a_registry_that_took_something_else_is_found_out(registry: FakeRegistry, layout: Path) -> None:
    other = {"Docker-Content-Digest": digest_of(b"something else")}
    registry.faults["manifests/1.0"].append(answering(201, other))

    with pytest.raises(ContentMismatch, match="took the manifest"):
        await push(layout, registry)


async def test_a_login_is_shown_when_it_is_asked_for(registry: FakeRegistry, layout: Path) -> None:
    registry.username, registry.password = "me", "secret"
    config = ImagesConfig(
        credentials=(Credential(place=registry.address, username="me", password="secret"),),
        network=IMPATIENT.network,
    )

    await push(layout, registry, config)

    assert (NAME, "1.0") in registry.manifests


async def test_a_login_of_a_docker_configuration_gives_a_token(
    registry: FakeRegistry, layout: Path, tmp_path: Path
) -> None:
    registry.username, registry.password, registry.uses_tokens = "me", "secret", True
    auth = base64.b64encode(b"me:secret").decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {registry.address: {"auth": auth}}}))
    config = ImagesConfig(auth_files=(tmp_path / "config.json",), network=IMPATIENT.network)

    await push(layout, registry, config)

    assert (NAME, "1.0") in registry.manifests


async def test_without_a_login_it_is_said_where_one_belongs(registry: FakeRegistry, layout: Path) -> None:
    registry.username = "me"

    with pytest.raises(RegistryRefused, match=r"wants a login.*images\.registry_auth_file"):
        await push(layout, registry)


async def test_a_wrong_login_is_not_tried_for_ever(registry: FakeRegistry, layout: Path) -> None:
    registry.username, registry.password = "me", "secret"
    wrong = Credential(place=registry.address, username="me", password="wrong")

    with pytest.raises(RegistryRefused) as caught:
        await push(layout, registry, ImagesConfig(credentials=(wrong,), network=IMPATIENT.network))

    assert "wrong" not in str(caught.value)


async def test_a_layout_that_was_cut_short_is_not_pushed(registry: FakeRegistry, layout: Path) -> None:
    os.truncate(layout / "blobs" / "sha256" / digest_of(BIG).removeprefix("sha256:"), 1000)

    with pytest.raises(ContentMismatch, match=f"has 1000 bytes where {len(BIG)} belong"):
        await push(layout, registry)

    assert not registry.heard


async def test_what_cannot_be_pushed_is_told(registry: FakeRegistry, tmp_path: Path) -> None:
    with pytest.raises(ImageNotFound, match="there is no"):
        await push(tmp_path / "none", registry)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ManifestUnusable, match="no OCI layout"):
        await push(tmp_path / "empty", registry)
    pinned = parse_reference(f"{registry.address}/{NAME}@{digest_of(b'')}")
    with pytest.raises(SourceInvalid, match="a push needs a tag"):
        await push_layout(tmp_path, pinned, config=IMPATIENT, clock=ManualClock())
