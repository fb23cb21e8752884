"""Installing from galleries and registries: what a name means, what is fetched, what is on the disk, what is told."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from corral.imaging.private_keys import new_signing_key
from corral.oci.limits import UnpackLimits
from corral.oci.manifests import ImagePlatform
from corral.worker.installing.orders import KeepPrevious
from tests.kit.backend_node import Published
from tests.kit.gallery_node import GALLERY, SLEEPS, GalleryNode, WrittenPulls, backend_layers
from tests.kit.images import a_layer
from tests.kit.registry import FakeRegistry, add_signatures, cutting

AT = "2030-01-01T00:00:00Z"


@pytest.fixture
async def registry() -> AsyncIterator[FakeRegistry]:
    async with FakeRegistry() as registry:
        yield registry


@pytest.fixture
async def node(tmp_path: Path, registry: FakeRegistry) -> AsyncIterator[GalleryNode]:
    async with GalleryNode(folder=tmp_path, keep=KeepPrevious(is_wanted=True)) as node:
        registry.add_image("mock", backend_layers("1"))
        offer(node, registry)
        yield node


@pytest.fixture
async def quick(tmp_path: Path, registry: FakeRegistry) -> AsyncIterator[GalleryNode]:
    """Fetches nothing: for tests of names."""
    async with GalleryNode(folder=tmp_path, is_pulling=False, keep=KeepPrevious(is_wanted=True)) as node:
        offer(node, registry)
        yield node


def fetches(node: GalleryNode) -> int:
    assert isinstance(node.pulls, WrittenPulls)
    return len(node.pulls.asked)


def offer(node: GalleryNode, registry: FakeRegistry, **more: object) -> None:
    uri = f"{registry.address}/mock:latest"
    node.offer(
        {"name": "llama", "capabilities": {"default": "cpu-llama", "nvidia": "cuda-llama"}},
        {"name": "cpu-llama", "alias": "al", "version": "1.0.0", "uri": uri, **more},
        {"name": "cuda-llama", "alias": "al", "uri": uri},
    )


def metadata(node: GalleryNode, name: str = "cpu-llama") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((node.installed / name / "metadata.json").read_text())
    return found


def layers_asked_for(registry: FakeRegistry) -> int:
    return sum("/blobs/" in heard.path for heard in registry.heard)


async def test_a_build_is_pulled_described_and_started(node: GalleryNode, registry: FakeRegistry) -> None:
    ours = registry.add_image("mock", backend_layers("1"), tag="ours")
    other = registry.add_image("mock", backend_layers("o"), tag="o", platform=ImagePlatform(architecture="s390x"))
    index = registry.add_index("mock", [other, ours])

    reply = await node.reply("backend.install", backend="cpu-llama")

    assert reply == {"success": True, "address": "127.0.0.3:22301"}
    assert (node.on_disk, node.running()) == (["cpu-llama"], ["cpu-llama#0"])
    uri = f"{registry.address}/mock:latest"
    told = {"alias": "al", "name": "cpu-llama", "gallery_url": node.index.as_uri(), "installed_at": AT}
    proof = {"platform_digest": ours.digest, "gallery": GALLERY}
    assert metadata(node) == {**told, "version": "1.0.0", "uri": uri, "digest": index.digest, "corral": proof}
    assert (node.installed / "cpu-llama").stat().st_mode & 0o777 == 0o750
    listed = (await node.listed())["cpu-llama"]
    assert (listed["digest"], listed["corral"]) == (index.digest, {"platform_digest": ours.digest})
    assert not list(node.layers.iterdir()), "layers go after unpacking"


@pytest.mark.parametrize("name", ["llama", "al", "g@cpu-llama", "CPU-Llama", "g@llama", "g@al", " cpu-llama "])
async def test_every_name_leads_to_the_same_build(quick: GalleryNode, name: str) -> None:
    assert (await quick.reply("backend.install", backend=name, model_id="m"))["success"]
    assert "cpu-llama" in quick.on_disk
    assert ("llama" in quick.on_disk) == (name in {"llama", "g@llama"})

    assert (await quick.reply("backend.install", backend="cpu-llama", model_id="n"))["success"]
    assert (await quick.reply("backend.install", backend=name, model_id="o"))["success"]
    assert fetches(quick) == 1


@pytest.mark.parametrize(
    ("capability", "is_with_localai", "names_galleries", "installed"),
    [
        ("nvidia", True, True, ["cuda-llama", "llama"]),
        ("default", True, True, []),
        ("nvidia", False, True, []),
        ("nvidia", True, False, []),
        ("amd", True, True, []),
    ],
    ids=["a gpu", "no gpu", "a frontend of ours", "no galleries", "no build for it"],
)
async def test_a_localai_frontend_gets_a_gallery_s_build_for_the_gpu_in_place_of_one_that_ships(
    tmp_path: Path,
    registry: FakeRegistry,
    capability: str,
    is_with_localai: bool,
    names_galleries: bool,
    installed: list[str],
) -> None:
    """Its own worker has none that ships, and what ships is for processors."""
    shipped = tmp_path / "system" / "llama"
    shipped.mkdir(parents=True)
    (shipped / "run.sh").write_bytes(SLEEPS)
    (shipped / "run.sh").chmod(0o755)
    (shipped / "corral.json").write_text('{"name": "llama"}')
    node = GalleryNode(folder=tmp_path, is_pulling=False, capability=capability, is_with_localai=is_with_localai)
    async with node:
        offer(node, registry)
        galleries = json.dumps([{"name": GALLERY, "url": node.index.as_uri()}]) if names_galleries else ""
        for model in ("a", "b"):
            reply = await node.reply("backend.install", backend="llama", model_id=model, backend_galleries=galleries)
            assert reply["success"]

        assert node.on_disk == installed
        assert fetches(node) == bool(installed)


async def test_a_meta_backend_gets_a_directory_that_points(quick: GalleryNode) -> None:
    assert (await quick.reply("backend.install", backend="llama"))["success"]
    assert (quick.on_disk, quick.running()) == (["cpu-llama", "llama"], ["llama#0"])
    assert metadata(quick, "llama") == {
        "meta_backend_for": "cpu-llama",
        "name": "llama",
        "gallery_url": quick.index.as_uri(),
        "installed_at": AT,
        "version": "1.0.0",
        "corral": {"gallery": GALLERY},
    }
    assert sorted(path.name for path in (quick.installed / "llama").iterdir()) == ["metadata.json"]
    assert (await quick.listed())["llama"]["is_meta"]


async def test_a_build_that_is_there_only_gets_its_pointer(quick: GalleryNode) -> None:
    await quick.reply("backend.install", backend="cpu-llama")
    assert (await quick.reply("backend.install", backend="llama", model_id="m"))["success"]
    assert (quick.on_disk, fetches(quick)) == (["cpu-llama", "llama"], 1)


async def test_alias_meta_and_build_at_once_are_one_pull(node: GalleryNode, registry: FakeRegistry) -> None:
    names = ["al", "llama", "cpu-llama", "g@cpu-llama", "cpu-llama"]
    async with asyncio.TaskGroup() as group:
        asked = [
            group.create_task(node.reply("backend.install", backend=name, model_id=str(number)))
            for number, name in enumerate(names)
        ]
    assert all(task.result()["success"] for task in asked)
    assert layers_asked_for(registry) == 2
    assert len(node.running()) == 5


async def test_an_install_during_an_upgrade_and_a_delete_by_another_name(
    node: GalleryNode, registry: FakeRegistry
) -> None:
    await node.reply("backend.install", backend="llama")
    registry.add_image("mock", backend_layers("2"))
    async with asyncio.TaskGroup() as group:
        upgrade = group.create_task(node.reply("backend.upgrade", backend="llama"))
        install = group.create_task(node.reply("backend.install", backend="al", model_id="m"))
        delete = group.create_task(node.reply("backend.delete", backend="g@cpu-llama"))
    assert upgrade.result()["success"]
    assert delete.result()["success"]
    # Whoever came last decides; none of them saw half of anything.
    assert install.result()["success"] or "stopp" in install.result()["error"]
    assert node.on_disk in (["cpu-llama", "llama"], ["llama"])


async def test_galleries_of_a_request_replace_the_node_s_own(
    quick: GalleryNode, registry: FakeRegistry, tmp_path: Path
) -> None:
    node = quick
    other = tmp_path / "other.yaml"
    other.write_text(json.dumps([{"name": "mine", "uri": f"{registry.address}/mock:latest"}]))
    galleries = json.dumps([{"name": "theirs", "url": other.as_uri()}])
    reply = await node.reply("backend.install", backend="cpu-llama", backend_galleries=galleries)
    assert reply["error"].startswith('installing backend from gallery: no backend found with name "cpu-llama"')
    assert (await node.reply("backend.install", backend="mine", backend_galleries=galleries))["success"]
    assert metadata(node, "mine")["gallery_url"] == other.as_uri()
    assert "echo" in (await node.reply("backend.install", backend="ecko", backend_galleries="[]"))["error"]


# What does not fit, before a byte of it comes.


@pytest.mark.parametrize("capability", ["amd"])
async def test_a_build_for_other_hardware_is_refused_with_what_would_fit(
    tmp_path: Path, registry: FakeRegistry, capability: str
) -> None:
    async with GalleryNode(folder=tmp_path, capability=capability) as node:
        offer(node, registry)
        reply = await node.reply("backend.install", backend="cuda-llama")
    assert "cuda-llama is for NVIDIA" in reply["error"]
    assert "and this machine is amd; " in reply["error"]
    assert "would fit" in reply["error"]
    assert registry.heard == []


async def test_the_look_up_of_capabilities_is_exact(tmp_path: Path, registry: FakeRegistry) -> None:
    async with GalleryNode(folder=tmp_path, capability="nvidia-cuda-12", is_pulling=False) as node:
        offer(node, registry)
        assert (await node.reply("backend.install", backend="llama"))["success"]
        assert node.on_disk == ["cpu-llama", "llama"]


async def test_an_image_for_other_platforms_is_refused_before_a_layer(
    node: GalleryNode, registry: FakeRegistry
) -> None:
    other = registry.add_image("mock", backend_layers("o"), tag="o", platform=ImagePlatform(architecture="s390x"))
    registry.add_index("mock", [other])
    reply = await node.reply("backend.install", backend="cpu-llama")
    assert "there is no image for linux/" in reply["error"]
    assert "there are images for linux/s390x" in reply["error"]
    assert layers_asked_for(registry) == 0
    assert node.on_disk == []


async def test_a_full_disk_is_noticed_before_a_layer(tmp_path: Path, registry: FakeRegistry) -> None:
    registry.add_image("mock", backend_layers("1"))
    node = GalleryNode(folder=tmp_path)
    node = GalleryNode(folder=tmp_path, images=replace(node.images, limits=UnpackLimits(free_bytes=2**60)))
    async with node:
        offer(node, registry)
        reply = await node.reply("backend.install", backend="cpu-llama")
    assert "1.0 EiB shall stay free" in reply["error"]
    assert "LOCALAI_BACKENDS_PATH" in reply["error"]
    assert layers_asked_for(registry) == 0
    assert node.on_disk == []


async def test_a_gallery_that_demands_signatures(node: GalleryNode, registry: FakeRegistry) -> None:
    image, key = registry.add_image("mock", backend_layers("1")), new_signing_key()
    gallery = {"name": "s", "url": node.index.as_uri(), "verification": {"public_key": key.public_key.pem}}
    wanted = {"backend": "cpu-llama", "backend_galleries": json.dumps([gallery])}

    refused = await node.reply("backend.install", **wanted)
    layers = layers_asked_for(registry)
    add_signatures(registry, "mock", image.digest, key)
    reply = await node.reply("backend.install", **wanted)

    assert "and there is no signature that it could be" in refused["error"]
    assert layers == 0
    assert reply["success"]
    assert metadata(node)["digest"] == image.digest


@pytest.mark.parametrize("name", ["", "s"])
@pytest.mark.parametrize("is_second_signed", [True, False])
async def test_galleries_of_one_name_keep_their_own_policies(
    node: GalleryNode, registry: FakeRegistry, tmp_path: Path, name: str, is_second_signed: bool
) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(json.dumps([{"name": "mine", "uri": f"{registry.address}/mock:latest"}]))
    policy = {"public_key": new_signing_key().public_key.pem}
    first = {"name": name, "url": node.index.as_uri(), "verification": {} if is_second_signed else policy}
    second = {"name": name, "url": other.as_uri(), "verification": policy if is_second_signed else {}}

    reply = await node.reply("backend.install", backend="mine", backend_galleries=json.dumps([first, second]))

    assert reply["success"] is not is_second_signed
    assert is_second_signed or metadata(node, "mine")["gallery_url"] == other.as_uri()


async def test_backends_without_proof_are_refused_where_it_is_demanded(tmp_path: Path, registry: FakeRegistry) -> None:
    registry.add_image("mock", backend_layers("1"))
    node = GalleryNode(folder=tmp_path)
    async with GalleryNode(folder=tmp_path, images=replace(node.images, require_integrity=True)) as node:
        offer(node, registry)
        reply = await node.reply("backend.install", backend="cpu-llama")
    assert "images.require_backend_integrity" in reply["error"]
    assert registry.heard == []


# What goes wrong.


async def test_what_no_gallery_has_is_said_with_what_is_like_it(quick: GalleryNode) -> None:
    reply = await quick.reply("backend.install", backend="cpu-lama")
    assert reply["error"].startswith(
        'installing backend from gallery: no backend found with name "cpu-lama"; did you mean cpu-llama'
    )


async def test_an_image_that_is_away_is_told_with_its_uri(node: GalleryNode, registry: FakeRegistry) -> None:
    registry.manifests.clear()
    reply = await node.reply("backend.install", backend="cpu-llama", op_id="o")
    uri = f"{registry.address}/mock:latest"
    assert reply["error"].startswith(f'installing backend from gallery: failed to download backend "{uri}": ')
    assert node.on_disk == []


async def test_an_image_without_a_run_file_is_no_backend(node: GalleryNode, registry: FakeRegistry) -> None:
    registry.add_image("mock", [a_layer({"readme": b""})])
    reply = await node.reply("backend.install", backend="cpu-llama")
    run = node.installed / "cpu-llama.install-tmp" / "run.sh"
    assert reply["error"] == f'installing backend from gallery: not a valid backend: run file not found "{run}"'
    assert node.on_disk == []


async def test_a_mirror_delivers_when_the_uri_does_not(node: GalleryNode, registry: FakeRegistry) -> None:
    mirror = f"{registry.address}/mirror:x"
    pushed = registry.add_image("mirror", backend_layers("m"), tag="x")
    registry.manifests.pop(("mock", "latest"))
    offer(node, registry, mirrors=[mirror])
    assert (await node.reply("backend.install", backend="cpu-llama"))["success"]
    told = metadata(node)
    assert (told["uri"], told["digest"]) == (f"{registry.address}/mock:latest", pushed.digest)
    assert told["corral"]["source"] == mirror


async def test_a_release_tag_that_is_missing_is_looked_for_on_its_branch(
    node: GalleryNode, registry: FakeRegistry
) -> None:
    registry.add_image("mock", backend_layers("b"), tag="master-cpu-mock")
    offer(node, registry, uri=f"{registry.address}/mock:latest-cpu-mock")
    assert (await node.reply("backend.install", backend="cpu-llama"))["success"]
    assert metadata(node)["corral"]["source"].endswith(":master-cpu-mock")


async def test_a_lying_registry_is_told_and_leaves_nothing(node: GalleryNode, registry: FakeRegistry) -> None:
    for digest in registry.blobs:
        registry.blobs[digest] = registry.blobs[digest][:-1] + b"x"
    reply = await node.reply("backend.install", backend="cpu-llama")
    assert "has the digest" in reply["error"]
    assert node.on_disk == []


async def test_a_gallery_that_is_away_is_the_reason_that_is_given(tmp_path: Path) -> None:
    async with GalleryNode(folder=tmp_path, gallery_url="http://127.0.0.1:1/index.yaml") as node:
        reply = await node.reply("backend.install", backend="cpu-llama")
    assert "the gallery g cannot be read" in reply["error"]


async def test_while_a_gallery_is_away_its_last_copy_is_good_enough(tmp_path: Path, registry: FakeRegistry) -> None:
    path = "/files/index.yaml"
    registry.blobs[path] = json.dumps([{"name": "a", "uri": "h/a:1"}, {"name": "b", "uri": "h/b:1"}]).encode()
    url = f"http://{registry.address}{path}"
    async with GalleryNode(folder=tmp_path, gallery_url=url, is_pulling=False) as node:
        assert (await node.reply("backend.install", backend="a"))["success"]
        del registry.blobs[path]
        await node.clock.advance(timedelta(days=2))
        assert (await node.reply("backend.install", backend="b"))["success"]
        assert (await node.reply("backend.upgrade", backend="b"))["success"]
        assert metadata(node, "b")["gallery_url"] == url
        reply = await node.reply("backend.install", backend="c")
    assert reply["error"].startswith('installing backend from gallery: no backend found with name "c"')


async def test_a_backend_that_was_just_added_to_a_gallery_is_found(tmp_path: Path, registry: FakeRegistry) -> None:
    path = "/files/index.yaml"
    registry.blobs[path] = json.dumps([{"name": "a", "uri": "h/a:1"}]).encode()
    url = f"http://{registry.address}{path}"
    async with GalleryNode(folder=tmp_path, gallery_url=url, is_pulling=False) as node:
        assert (await node.reply("backend.install", backend="a"))["success"]
        registry.blobs[path] = json.dumps([{"name": "b", "uri": "h/b:1"}]).encode()
        assert not (await node.reply("backend.install", backend="b"))["success"], "it was read just now"
        await node.clock.advance(timedelta(seconds=30))
        assert (await node.reply("backend.install", backend="b"))["success"]


async def test_a_registry_that_hangs_up_is_told_and_then_asked_for_the_rest(
    node: GalleryNode, registry: FakeRegistry
) -> None:
    large = registry.add_blob(a_layer({"weights": os.urandom(2_000_000)}))
    registry.add_image("mock", [backend_layers("1")[0], registry.blobs[large.digest]])
    registry.faults[large.digest].append(cutting(100_000))

    reply = await node.reply("backend.install", backend="cpu-llama")
    assert "failed to download backend" in reply["error"]
    assert "the answer broke off" in reply["error"]
    assert node.on_disk == []

    assert (await node.reply("backend.install", backend="cpu-llama"))["success"]
    first, second = (heard.range for heard in registry.asked_for(large.digest))
    assert (first, second.startswith("bytes=")) == ("", True), "only what was missing"
    assert not list(node.layers.iterdir())


# By uri.


async def test_an_image_is_installed_by_its_uri_under_a_name_and_an_alias(
    node: GalleryNode, registry: FakeRegistry
) -> None:
    uri = f"oci://{registry.address}/mock:latest"
    reply = await node.reply("backend.install", backend="custom", uri=uri, name="custom", alias="my-alias")
    assert reply["success"], reply
    told = metadata(node, "custom")
    assert (told["uri"], told["alias"], "gallery_url" in told, "version" in told) == (uri, "my-alias", False, False)
    assert told["digest"] == told["corral"]["platform_digest"]
    assert (await node.reply("backend.install", backend="my-alias", model_id="m"))["success"]


@pytest.mark.parametrize("uri", ["oci://{}/mock:latest", "{}/mock:latest"])
async def test_an_image_needs_a_name(node: GalleryNode, registry: FakeRegistry, uri: str) -> None:
    reply = await node.reply("backend.install", uri=uri.format(registry.address))
    assert reply["error"] == "installing backend from gallery: specifying a name is required for OCI images"


async def test_a_gallery_s_name_in_place_of_a_uri(quick: GalleryNode) -> None:
    reply = await quick.reply("backend.install", backend="cpu-llama", uri="cpu-llama", name="x")
    assert reply["error"].endswith("specifying a name or alias is not supported for this backend")
    assert (await quick.reply("backend.install", backend="cpu-llama", uri="cpu-llama"))["success"]


async def test_an_archive_is_installed_and_named_after_its_file(node: GalleryNode, tmp_path: Path) -> None:
    path = tmp_path / "mine.tar.gz"
    path.write_bytes(backend_layers("1")[0])
    assert (await node.reply("backend.install", uri=path.as_uri()))["success"]
    assert (node.on_disk, node.running()) == (["mine"], ["mine#0"])


@pytest.mark.parametrize("uri", ["docker://x/y", "UPPER/Case:x", "https://"])
async def test_a_uri_that_is_none_is_said(node: GalleryNode, uri: str) -> None:
    reply = await node.reply("backend.install", backend="x", uri=uri, name="x")
    assert reply["error"].startswith("installing backend from gallery: ")
    assert node.on_disk == []


# Progress.


async def test_progress_has_localai_s_words_and_never_goes_back(node: GalleryNode, registry: FakeRegistry) -> None:
    registry.add_image("mock", backend_layers("1", size=3_000_000))
    assert (await node.reply("backend.install", backend="cpu-llama", op_id="o"))["success"]

    assert isinstance(node.publisher, Published)
    events = [json.loads(data) for _, data in node.publisher.messages]
    first, last = events[0], events[-1]
    assert (first["phase"], last["phase"], last["percentage"]) == ("resolving", "starting", 100)
    assert last["file_name"] == "Starting cpu-llama"
    positions = [event["corral"]["current"] for event in events]
    assert positions == sorted(positions)
    shares = [event["percentage"] for event in events]
    assert shares == sorted(shares)
    assert 3_000_000 < last["corral"]["current"] == last["corral"]["total"] < 3_100_000
    assert last["current"] == last["total"] == "2.9 MiB"
    assert all(event["file_name"] for event in events)


async def test_a_gallery_far_away_is_not_asked_for_what_one_before_it_has(
    node: GalleryNode, registry: FakeRegistry
) -> None:
    registry.add_image("mock", backend_layers("1"))
    far_away = {"name": "away", "url": "http://127.0.0.1:1/index.yaml"}
    near = {"name": "near", "url": node.index.as_uri()}
    reply = await node.reply("backend.install", backend="cpu-llama", backend_galleries=json.dumps([near, far_away]))
    missing = await node.reply("backend.install", backend="nope", backend_galleries=json.dumps([near, far_away]))

    assert reply["success"]
    assert "the gallery away cannot be read" in missing["error"]
