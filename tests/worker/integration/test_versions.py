"""Upgrades and the way back: the same digest is not fetched twice, a moved tag is, and the version before is kept."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from corral.base.clock import SystemClock
from corral.oci.manifests import this_platform
from corral.worker.installing import switching
from corral.worker.installing.backend_metadata import read_metadata
from corral.worker.installing.installer import Installer, NoPrevious
from corral.worker.installing.orders import KeepPrevious, NoRoom
from tests.kit.docker_registry import DockerRegistry
from tests.kit.gallery_node import GalleryNode, WrittenPulls, backend_layers
from tests.kit.registry import FakeRegistry

NAME = "cpu-llama"


@pytest.fixture
async def registry() -> AsyncIterator[FakeRegistry]:
    async with FakeRegistry() as registry:
        registry.add_image("mock", backend_layers("1"))
        yield registry


@pytest.fixture
async def node(tmp_path: Path, registry: FakeRegistry) -> AsyncIterator[GalleryNode]:
    async with GalleryNode(folder=tmp_path, keep=KeepPrevious(is_wanted=True)) as node:
        offer(node, f"{registry.address}/mock:latest")
        yield node


@pytest.fixture
async def quick(tmp_path: Path) -> AsyncIterator[GalleryNode]:
    async with GalleryNode(folder=tmp_path, is_pulling=False, keep=KeepPrevious(is_wanted=True)) as node:
        offer(node, "h/mock:1")
        yield node


def offer(node: GalleryNode, uri: str) -> None:
    node.offer(
        {"name": "llama", "capabilities": {"default": NAME}},
        {"name": NAME, "alias": "al", "uri": uri},
    )


async def two_versions(node: GalleryNode) -> None:
    """One installed, and one before it."""
    for tag in ("1", "2"):
        offer(node, f"h/mock:{tag}")
        assert (await node.reply("backend.install", backend=NAME, force=True))["success"]
    assert switching.has_previous(node.installed / NAME)


def version(node: GalleryNode) -> str:
    return (node.installed / NAME / "version").read_text()


def inode(node: GalleryNode) -> int:
    return (node.installed / NAME).stat().st_ino


def layers_asked_for(registry: FakeRegistry) -> int:
    return sum("/blobs/" in heard.path for heard in registry.heard)


def hidden(node: GalleryNode) -> set[str]:
    """All that Corral keeps for itself, but for directories that are always there."""
    own = node.installed / ".corral"
    return {str(path.relative_to(own)) for path in own.glob("*/*")}


async def test_a_moved_tag_is_fetched_and_the_way_back_costs_nothing(node: GalleryNode, registry: FakeRegistry) -> None:
    await node.reply("backend.install", backend="llama", model_id="m1")
    first = read_metadata(node.installed / NAME)

    same = await node.reply("backend.upgrade", backend="llama")
    assert same == {"success": True, "stopped_process_keys": ["m1#0"], "reports_stopped_processes": True}
    assert (version(node), layers_asked_for(registry)) == ("1", 2)

    pushed = registry.add_image("mock", backend_layers("2"))
    assert (await node.reply("backend.upgrade", backend="al"))["success"]
    assert (version(node), read_metadata(node.installed / NAME).digest) == ("2", pushed.digest)

    asked = len(registry.heard)
    back = await node.installer.roll_back(node.installed / NAME)
    assert (version(node), back.digest, len(registry.heard)) == ("1", first.digest, asked)
    assert (await node.listed())[NAME]["installed_at"] == back.installed_at > first.installed_at
    assert (await node.reply("backend.install", backend="llama"))["success"]

    await node.installer.roll_back(node.installed / NAME)
    assert version(node) == "2"
    assert (node.on_disk, hidden(node)) == ([NAME, "llama"], {f"previous/{NAME}"})


async def test_the_same_again_is_confirmed_and_not_replaced(quick: GalleryNode) -> None:
    await quick.reply("backend.install", backend=NAME)
    before, at = inode(quick), read_metadata(quick.installed / NAME).installed_at

    assert (await quick.reply("backend.upgrade", backend=NAME))["success"]

    assert inode(quick) == before
    assert read_metadata(quick.installed / NAME).installed_at > at, "by which others see that it was done"
    assert hidden(quick) == set()


async def test_force_replaces_also_the_same(quick: GalleryNode) -> None:
    await quick.reply("backend.install", backend=NAME)
    before, at = inode(quick), read_metadata(quick.installed / NAME).installed_at
    assert (await quick.reply("backend.install", backend=NAME, force=True))["success"]
    assert inode(quick) != before
    assert read_metadata(quick.installed / NAME).installed_at > at


async def test_what_cannot_run_is_replaced_although_its_digest_is_right(quick: GalleryNode) -> None:
    await quick.reply("backend.install", backend=NAME)
    (quick.installed / NAME / "run.sh").unlink()
    assert (await quick.reply("backend.upgrade", backend=NAME))["success"]
    assert (quick.installed / NAME / "run.sh").is_file()


async def test_another_index_with_the_same_image_is_noted_and_not_fetched(
    node: GalleryNode, registry: FakeRegistry
) -> None:
    ours = registry.add_image("mock", backend_layers("1"))
    await node.reply("backend.install", backend=NAME)
    asked, index = layers_asked_for(registry), registry.add_index("mock", [ours])
    await node.reply("backend.upgrade", backend=NAME)
    told = read_metadata(node.installed / NAME)
    assert (told.digest, told.digests) == (index.digest, (index.digest, ours.digest))
    assert layers_asked_for(registry) == asked


async def test_an_upgrade_of_what_a_gallery_does_not_know_any_more(quick: GalleryNode) -> None:
    await quick.reply("backend.install", backend=NAME)
    quick.offer({"name": "other", "uri": "h/o:1"})
    reply = await quick.reply("backend.upgrade", backend=NAME)
    assert reply.pop("error").startswith(f'upgrading backend from gallery: no backend found with name "{NAME}"')
    assert reply == {"success": False, "stopped_process_keys": [f"{NAME}#0"], "reports_stopped_processes": True}


async def test_the_version_before_the_last_goes(quick: GalleryNode) -> None:
    for tag in ("1", "2", "3"):
        offer(quick, f"h/mock:{tag}")
        assert (await quick.reply("backend.install", backend=NAME, force=True))["success"]
    assert read_metadata(switching.previous_of(quick.installed / NAME)).uri == "h/mock:2"
    assert hidden(quick) == {f"previous/{NAME}"}
    assert set(await quick.listed()) == {NAME}


async def test_the_same_once_more_does_not_push_out_the_version_before(quick: GalleryNode) -> None:
    await two_versions(quick)
    assert (await quick.reply("backend.install", backend=NAME, force=True))["success"]
    assert read_metadata(switching.previous_of(quick.installed / NAME)).uri == "h/mock:1"


async def test_without_room_nothing_is_kept(tmp_path: Path) -> None:
    keep = KeepPrevious(is_wanted=True, free_bytes=2**60)
    async with GalleryNode(folder=tmp_path, is_pulling=False, keep=keep) as node:
        offer(node, "h/mock:1")
        for _ in range(2):
            await node.reply("backend.install", backend=NAME, force=True)
        assert hidden(node) == set()
        with pytest.raises(NoPrevious, match="before the present one"):
            await node.installer.roll_back(node.installed / NAME)


async def test_the_version_before_makes_room_for_the_next(quick: GalleryNode) -> None:
    pulls, calls = quick.pulls, []
    assert isinstance(pulls, WrittenPulls)
    await two_versions(quick)
    fetch = pulls.fetch

    async def cramped(artefact: object, fetching: object) -> object:
        calls.append(switching.has_previous(quick.installed / NAME))
        if calls[-1]:
            raise NoRoom("no room")
        return await fetch(artefact, fetching)  # type: ignore[arg-type]

    pulls.fetch = cramped  # type: ignore[method-assign, assignment]
    assert (await quick.reply("backend.install", backend=NAME, force=True))["success"]
    assert calls == [True, False]


@pytest.mark.parametrize("name", [NAME, "al", f"g@{NAME}"])
async def test_a_node_is_asked_to_go_back(quick: GalleryNode, name: str) -> None:
    await two_versions(quick)
    reply = await quick.reply("corral.backend.rollback", backend=name)
    assert reply == {"success": True, "stopped_process_keys": [f"{NAME}#0"], "reports_stopped_processes": True}
    assert read_metadata(quick.installed / NAME).uri == "h/mock:1"
    assert quick.running() == []
    assert (await quick.reply("backend.install", backend="al"))["success"]


@pytest.mark.parametrize(
    ("name", "error"),
    [("nope", 'backend "nope": backend not found'), (NAME, f'there is no version of "{NAME}" before')],
)
async def test_without_a_way_back_nothing_is_stopped(quick: GalleryNode, name: str, error: str) -> None:
    await quick.reply("backend.install", backend=NAME)
    reply = await quick.reply("corral.backend.rollback", backend=name)
    assert reply.pop("error").startswith(error)
    assert reply == {"success": False, "reports_stopped_processes": True}
    assert quick.running() == [f"{NAME}#0"]


@pytest.mark.parametrize("name", [NAME, "al", "llama", f"g@{NAME}"])
async def test_a_delete_takes_the_version_before_along(quick: GalleryNode, name: str) -> None:
    await two_versions(quick)
    await quick.reply("backend.install", backend="llama")
    reply = await quick.reply("backend.delete", backend=name)
    assert sorted(reply.pop("stopped_process_keys")) == [f"{NAME}#0", "llama#0"]
    assert reply == {"success": True, "reports_stopped_processes": True}
    assert quick.on_disk == ([] if name == "llama" else ["llama"])
    assert hidden(quick) == set()


async def test_a_delete_during_a_start_ends_the_start(quick: GalleryNode) -> None:
    class Never:
        begun = asyncio.Event()

        async def health(self, *, timeout: object) -> None:
            Never.begun.set()
            await asyncio.Event().wait()

        async def free(self, *, timeout: object) -> None: ...

        async def close(self) -> None: ...

    quick.link = Never
    starting = asyncio.create_task(quick.reply("backend.install", backend=NAME))
    await Never.begun.wait()
    assert (await quick.reply("backend.delete", backend="al"))["success"]
    assert not (await starting)["success"]
    assert (quick.on_disk, quick.running()) == ([], [])


async def test_half_done_work_is_put_right_at_the_start(quick: GalleryNode, tmp_path: Path) -> None:
    await two_versions(quick)
    place = quick.installed / NAME
    previous = switching.previous_of(place)
    switching.scratch_of(place).write_text("half")
    (previous.parent / "gone").mkdir()
    (previous.parent / f"{NAME}.install-tmp").mkdir()
    place.rename(quick.installed / f"{NAME}.install-backup")  # a roll-back that came no further
    async with Installer(quick.installed, sources=[], clock=SystemClock()):
        assert (quick.on_disk, hidden(quick)) == ([NAME], {f"previous/{NAME}"})


async def test_a_tag_that_moves_in_a_real_registry(tmp_path: Path) -> None:
    with DockerRegistry() as registry:
        registry.push_image("mock", backend_layers("1"), platform=this_platform())
        async with GalleryNode(folder=tmp_path, keep=KeepPrevious(is_wanted=True)) as node:
            offer(node, registry.reference("mock"))
            assert (await node.reply("backend.install", backend="llama"))["success"]
            image = registry.push_image("mock", backend_layers("2"), platform=this_platform(), tag="two")
            index = registry.push_index("mock", [image])
            assert (await node.reply("backend.upgrade", backend="llama"))["success"]
            told = json.loads((node.installed / NAME / "metadata.json").read_text())
            assert (version(node), told["digest"], told["corral"]["platform_digest"]) == (
                "2",
                index.digest,
                image.digest,
            )
