"""Plans against real galleries and a registry: what would be done where, and that an operation does only that."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from corral.bus.port import Bus
from corral.frontend.backends.catalogue import GalleryCatalogue, Lookups
from corral.frontend.store.db import Database
from corral.galleries.config import GalleriesConfig
from corral.galleries.galleries import open_galleries
from corral.galleries.gallery import GallerySource
from corral.oci.manifests import Descriptor
from corral.wire.backends import InstallRequest
from tests.kit.asgi import AsgiAnswer
from tests.kit.clock import HurriedClock, ManualClock
from tests.kit.galleries import AMD64, LAYER, NoRegistry, PublishedGallery
from tests.kit.registry import answering
from tests.kit.simulated_backends import SimulatedBackends
from tests.kit.world import World, open_world

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
"""The other database is for the tests of what is stored."""

MUCH = 2**30


@pytest.fixture
async def world(
    database: Database, clock: ManualClock, bus: Bus, tmp_path: Path, gallery: PublishedGallery
) -> AsyncIterator[World]:
    gallery.offer("cpu-mock")
    async with open_world(database, clock, bus, tmp_path, lookups=gallery.lookups) as world:
        yield world


def body(answer: AsgiAnswer, status: int = 200) -> Any:
    assert answer.status == status, answer.body
    return msgspec.json.decode(answer.body)


async def planned(world: World, verb: str = "install", **fields: object) -> dict[str, Any]:
    ask = {"verb": verb, "backend": "cpu-mock", **fields}
    plan = body(await world.frontend.call("POST", "/api/v1/operations/plan", ask))
    return {one["node_name"]: one for one in plan["items"]}


async def done(world: World, verb: str = "install", **fields: object) -> dict[str, tuple[str, str]]:
    """Start it, let the dispatcher do what it can, and tell how each node stands."""
    ask = {"verb": verb, "backend": "cpu-mock", **fields}
    id = body(await world.frontend.call("POST", "/api/v1/operations", ask), 202)["id"]
    await world.control.context.operations.dispatcher.tick()
    shown = body(await world.frontend.call("GET", f"/api/v1/operations/{id}"))
    return {one["node_name"]: (one["status"], one["message"]) for one in shown["targets"]}


async def test_an_operation_touches_only_what_its_plan_said(world: World, gallery: PublishedGallery) -> None:
    index = gallery.publish("cpu-mock", platforms=[AMD64, "linux/riscv64"])
    good = await world.backends("good", platform=AMD64, free_disk=MUCH)
    arm = await world.backends("arm", platform="linux/arm64", free_disk=MUCH)
    full = await world.backends("full", platform=AMD64, free_disk=1)
    old = await world.backends("old")
    localai = await world.backends("localai", is_corral=False, free_disk=1)
    for node in (good, old):
        node.digest = index.digest
    plan = await planned(world)
    assert {name: (one["blocked"], one["unknown"], one["download_bytes"]) for name, one in plan.items()} == {
        "good": ("", "", len(LAYER)),
        "arm": ("the image of cpu-mock is for linux/amd64, linux/riscv64, and this machine is linux/arm64", "", None),
        "full": (f"cpu-mock needs {2 * len(LAYER)} B of disk, and 1 B are free", "", None),
        "old": ("", "the node did not say which platform it is", None),
        "localai": ("", "the node did not say which platform it is", None),
    }
    assert await done(world) == {
        "good": ("success", "digest"),
        "arm": ("blocked", plan["arm"]["blocked"]),
        "full": ("blocked", plan["full"]["blocked"]),
        "old": ("success", "digest"),
        "localai": ("success", "present"),
    }
    assert [len(node.requests) for node in (good, arm, full, old, localai)] == [1, 0, 0, 1, 1]


async def test_what_is_there_is_not_fetched_for_an_install_and_only_if_it_is_old_for_an_upgrade(
    world: World, gallery: PublishedGallery
) -> None:
    first = gallery.publish("cpu-mock")
    nodes = [await world.backends(name, platform=AMD64, free_disk=MUCH) for name in ("a", "b")]
    await has(world, nodes, first)
    full = await world.backends("full", platform=AMD64, free_disk=1)
    await has(world, [full], first)
    assert all(one["reached"] and one["download_bytes"] == 0 for one in (await planned(world)).values())
    assert all(one["reached"] for one in (await planned(world, "upgrade")).values())
    second = gallery.publish("cpu-mock", LAYER, LAYER)
    nodes[0].digest = second.digest
    await has(world, nodes[:1], second)
    assert all(one["reached"] for one in (await planned(world)).values())
    upgrade = await planned(world, "upgrade")
    assert {name: (one["reached"], one["download_bytes"]) for name, one in upgrade.items()} == {
        "a": (True, 0),
        "b": (False, 2 * len(LAYER)),
        "full": (False, None),
    }
    nodes[1].digest = second.digest
    stands = await done(world, "upgrade")
    assert (stands["a"], stands["b"]) == (("success", "already digest"), ("success", "digest"))
    assert stands["full"][0] == "blocked"
    assert [len(node.requests) for node in (*nodes, full)] == [0, 1, 0]


async def has(world: World, nodes: Sequence[SimulatedBackends], index: Descriptor) -> None:
    """These nodes have this version, and have said so."""
    for node in nodes:
        node.digest = index.digest
        node.put("cpu-mock")
    await world.control.context.backends.inventory.refresh([node.node_id for node in nodes])


async def test_the_plan_for_a_localai_worker_knows_the_disk_that_its_node_shows(
    world: World, gallery: PublishedGallery
) -> None:
    gallery.registry.add_image("backends/cpu-mock", [LAYER])
    await world.backends("roomy", is_corral=False, free_disk=MUCH)
    await world.backends("tight", is_corral=False, free_disk=1)
    await world.backends("silent", is_corral=False)
    plan = await planned(world)
    assert {name: (one["blocked"], one["unknown"]) for name, one in plan.items()} == {
        "roomy": ("", ""),
        "tight": (
            "",
            f"cpu-mock needs {2 * len(LAYER)} B of disk, and 1 B are free on the disk of its models; whether backends "
            "are on another one it does not say",
        ),
        "silent": ("", "nobody knows how much room the node's disk has"),
    }


async def test_a_gallery_that_names_an_image_without_a_scheme_blocks_localai_workers(
    world: World, gallery: PublishedGallery
) -> None:
    """They would take the reference for a download, and fail each time."""
    bare = gallery.uri("cpu-mock").removeprefix("oci://")
    gallery.index.write_text(f"- name: cpu-mock\n  uri: {bare}\n", encoding="utf-8")
    gallery.publish("cpu-mock")
    corral = await world.backends("c", platform=AMD64, free_disk=MUCH)
    localai = await world.backends("l", is_corral=False, free_disk=MUCH)
    plan = await planned(world)
    assert plan["c"]["blocked"] == ""
    assert f"has to say oci://{bare}" in plan["l"]["blocked"]
    stands = await done(world)
    assert (stands["l"][0], len(corral.requests), len(localai.requests)) == ("blocked", 1, 0)


async def test_an_install_by_a_bare_reference_is_sent_with_its_scheme(world: World, gallery: PublishedGallery) -> None:
    gallery.publish("cpu-mock")
    await world.backends("c", platform=AMD64, free_disk=MUCH)
    await world.backends("l", is_corral=False)
    bare = gallery.uri("cpu-mock").removeprefix("oci://")
    stands = await done(world, backend="", uri=bare, name="mine")
    assert stands["l"] == ("success", "present")


async def test_a_registry_that_is_away_makes_it_unknown_and_delays_nothing(
    world: World, gallery: PublishedGallery
) -> None:
    node = await world.backends("n", platform=AMD64, free_disk=1)
    gallery.registry.faults["manifests"] += [answering(503)] * 10
    plan = (await planned(world))["n"]
    assert (plan["blocked"], plan["unknown"], plan["digests"]) == ("", "its image could not be looked at", [])
    assert await done(world) == {"n": ("success", "present")}
    assert len(node.requests) == 1


async def test_a_worker_that_fetched_something_else_than_the_tag_names_is_found_out(
    world: World, gallery: PublishedGallery
) -> None:
    gallery.publish("cpu-mock")
    node = await world.backends("n", platform=AMD64, free_disk=MUCH)
    node.digest = "sha256:another"
    (told,) = (await done(world)).values()
    assert told[0] == "error"
    assert "cpu-mock has the digest sha256:another, not sha256:" in told[1]


async def test_a_tag_that_moves_after_the_operation_was_accepted_is_followed(
    world: World, gallery: PublishedGallery
) -> None:
    gallery.publish("cpu-mock")
    node = await world.backends("n", platform=AMD64, free_disk=MUCH)
    ask = {"verb": "install", "backend": "cpu-mock"}
    id = body(await world.frontend.call("POST", "/api/v1/operations", ask), 202)["id"]
    node.digest = gallery.publish("cpu-mock", LAYER, LAYER).digest
    await world.control.context.operations.dispatcher.tick()
    (told,) = body(await world.frontend.call("GET", f"/api/v1/operations/{id}"))["targets"]
    assert (told["status"], told["message"]) == ("success", "digest")


async def test_a_backend_from_a_uri_is_judged_and_proven_in_the_same_way(
    world: World, gallery: PublishedGallery
) -> None:
    index = gallery.publish("cpu-mock")
    good = await world.backends("good", platform=AMD64, free_disk=MUCH)
    arm = await world.backends("arm", platform="linux/arm64", free_disk=MUCH)
    good.digest = index.digest
    source = {"backend": "", "uri": gallery.uri("cpu-mock"), "name": "mine"}
    stands = await done(world, **source)
    assert (stands["good"], stands["arm"][0]) == (("success", "digest"), "blocked")
    assert arm.requests == []


async def test_what_came_from_a_uri_is_upgraded_from_there(world: World, gallery: PublishedGallery) -> None:
    index = gallery.publish("cpu-mock")
    node = await world.backends("n", platform=AMD64, free_disk=MUCH)
    node.digest = index.digest
    uri = gallery.uri("cpu-mock")
    await done(world, backend="", uri=uri, name="mine")
    node.digest = gallery.publish("cpu-mock", LAYER, LAYER).digest
    await world.clock.advance(timedelta(minutes=2))
    await world.frontend.settle()
    assert await done(world, "upgrade", backend="mine") == {"n": ("success", "digest")}
    verb, request = node.requests[-1]
    assert (verb, request.uri, request.name) == ("upgrade", uri, "mine")  # type: ignore[attr-defined]


@asynccontextmanager
async def with_a_far_gallery(
    database: Database, clock: ManualClock, bus: Bus, folder: Path, gallery: PublishedGallery
) -> AsyncIterator[tuple[World, str]]:
    """A fleet whose frontend reads its gallery over HTTP, as every node can; and where the gallery is."""
    gallery.offer("cpu-mock", version="3")
    gallery.registry.blobs["/files/index.yaml"] = gallery.index.read_bytes()
    source = GallerySource(name="far", url=f"http://{gallery.registry.address}/files/index.yaml")
    config = GalleriesConfig(sources=(source,), cache=folder / "cache")
    async with open_galleries(config, registry=NoRegistry(), clock=HurriedClock()) as galleries:
        lookups = Lookups(galleries=GalleryCatalogue(galleries))
        async with open_world(database, clock, bus, folder, lookups=lookups) as world:
            yield world, source.url


async def test_what_comes_from_a_gallery_that_all_can_read_is_looked_for_there_by_the_nodes_too(
    database: Database, clock: ManualClock, bus: Bus, tmp_path: Path, gallery: PublishedGallery
) -> None:
    async with with_a_far_gallery(database, clock, bus, tmp_path, gallery) as (world, url):
        node = await world.backends("n")
        assert await done(world) == {"n": ("success", "present")}
    ((_, request),) = node.requests
    assert isinstance(request, InstallRequest)
    assert msgspec.json.decode(request.backend_galleries) == [{"name": "far", "url": url}]


@pytest.mark.parametrize("is_corral", [True, False])
async def test_a_load_tells_the_node_which_galleries_have_the_backend(
    database: Database, clock: ManualClock, bus: Bus, tmp_path: Path, gallery: PublishedGallery, is_corral: bool
) -> None:
    """A worker that lacks the backend fetches it for the load, and may have no gallery, or another one."""
    async with with_a_far_gallery(database, clock, bus, tmp_path, gallery) as (world, url):
        node = await world.backends("n", is_corral=is_corral)
        await world.write("name: small\nbackend: cpu-mock\nparameters:\n  model: small.gguf\n")
        await world.loads.ensure("small")
        await world.loads.tick()
    requests = [request for _, request in node.requests if isinstance(request, InstallRequest)]
    assert {request.model_id for request in requests} == {"small"}
    for request in requests:
        assert msgspec.json.decode(request.backend_galleries) == [{"name": "far", "url": url}]


@pytest.mark.parametrize(
    ("is_corral", "backend", "named"),
    [
        (False, "cpu-mock", "cpu-mock"),
        (False, "far@cpu-mock", "cpu-mock"),
        (False, "CPU-Mock", "cpu-mock"),
        (False, "far@own", "own"),
        (False, "Own", "Own"),
        (True, "far@cpu-mock", "far@cpu-mock"),
    ],
)
async def test_a_load_names_the_backend_as_the_node_has_it(
    database: Database,
    clock: ManualClock,
    bus: Bus,
    tmp_path: Path,
    gallery: PublishedGallery,
    is_corral: bool,
    backend: str,
    named: str,
) -> None:
    """LocalAI's workers download what they are told with a gallery, or in another letter case, and do not find it."""
    async with with_a_far_gallery(database, clock, bus, tmp_path, gallery) as (world, _):
        node = await world.backends("n", is_corral=is_corral)
        await world.write(f"name: small\nbackend: {backend}\nparameters:\n  model: small.gguf\n")
        await world.loads.ensure("small")
        await world.loads.tick()
    assert {request.backend for _, request in node.requests if isinstance(request, InstallRequest)} == {named}


async def test_a_load_names_no_gallery_for_a_backend_that_none_has(
    database: Database, clock: ManualClock, bus: Bus, tmp_path: Path, gallery: PublishedGallery
) -> None:
    """The node may have it on its disk, or find it in a gallery of its own."""
    async with with_a_far_gallery(database, clock, bus, tmp_path, gallery) as (world, _):
        node = await world.backends("n")
        await world.loads.ensure("small")
        await world.loads.tick()
    requests = [request for _, request in node.requests if isinstance(request, InstallRequest)]
    assert {request.backend_galleries for request in requests} == {""}
