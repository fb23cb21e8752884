"""Newer versions across a fleet: found by version and digest, told by LocalAI's routes and Corral's own, installed."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from corral.base.ids import LeaseToken
from corral.bus.port import Bus
from corral.frontend.backends.decide.upgrades import Check, UpgradePolicy
from corral.frontend.backends.store import UpgradeChecks
from corral.frontend.store.db import Database
from corral.frontend.store.leases import Leases
from corral.oci.manifests import Descriptor
from tests.kit.asgi import AsgiAnswer
from tests.kit.clock import ManualClock
from tests.kit.galleries import AMD64, LAYER, PublishedGallery
from tests.kit.registry import answering
from tests.kit.simulated_backends import SimulatedBackends
from tests.kit.world import World, open_world

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
"""The other database is for the tests of what is stored."""

BACKENDS = ("one", "two")
HOUR = timedelta(hours=1)


@pytest.fixture
async def world(
    database: Database, clock: ManualClock, bus: Bus, tmp_path: Path, gallery: PublishedGallery
) -> AsyncIterator[World]:
    async with open_world(database, clock, bus, tmp_path, lookups=gallery.lookups) as world:
        yield world


@pytest.fixture
async def eager(
    database: Database, clock: ManualClock, bus: Bus, tmp_path: Path, gallery: PublishedGallery
) -> AsyncIterator[World]:
    """A fleet that upgrades itself."""
    policy = UpgradePolicy(is_automatic=True)
    async with open_world(database, clock, bus, tmp_path, lookups=gallery.lookups, upgrades=policy) as world:
        yield world


def body(answer: AsgiAnswer, status: int = 200) -> Any:
    assert answer.status == status, answer.body
    return msgspec.json.decode(answer.body)


async def a_node(world: World, name: str, **backends: Descriptor) -> SimulatedBackends:
    """With these backends on its disk, at these digests."""
    node = await world.backends(name, platform=AMD64, free_disk=2**30)
    for backend, index in backends.items():
        node.digest = index.digest
        node.put(backend)
    return node


async def look(world: World) -> None:
    assert await world.control.context.backends.upgrades.look()


async def upgrades(world: World) -> Any:
    return body(await world.frontend.call("GET", "/api/backends/upgrades"))


async def native(world: World) -> Any:
    return body(await world.frontend.call("GET", "/api/v1/backends/upgrades"))


async def pass_time(world: World, duration: timedelta) -> None:
    await world.clock.advance(duration)
    await world.frontend.settle()


async def test_a_moved_tag_is_found_and_after_upgrading_everything_nothing_is_left(
    world: World, gallery: PublishedGallery
) -> None:
    gallery.offer(*BACKENDS, version="1")
    first = {name: gallery.publish(name) for name in BACKENDS}
    nodes = [await a_node(world, name, **first) for name in ("w1", "w2", "w3")]
    await look(world)
    assert await upgrades(world) == {}
    second = {name: gallery.publish(name, LAYER, LAYER) for name in BACKENDS}
    nodes[2].digest = second["two"].digest
    nodes[2].put("two")
    await look(world)
    assert await upgrades(world) == {
        name: {
            "backend_name": name,
            "installed_version": "",
            "available_version": "1",
            "installed_digest": first[name].digest,
            "available_digest": second[name].digest,
        }
        for name in BACKENDS
    }
    by_name = {one["name"]: one for one in (await native(world))["items"]}
    assert [(one["node_name"], one["freshness"]) for one in by_name["two"]["nodes"]] == [
        ("w1", "outdated"),
        ("w2", "outdated"),
        ("w3", "current"),
    ]
    await pass_time(world, timedelta(minutes=2))
    for name in BACKENDS:
        for node in nodes:
            node.digest = second[name].digest
        body(await world.frontend.call("POST", f"/api/backends/upgrade/{name}"))
        await world.control.context.operations.dispatcher.tick()
    await look(world)
    assert await upgrades(world) == {}
    assert not any(one["needs_upgrade"] for one in (await native(world))["items"])
    assert [len(node.requests) for node in nodes] == [2, 2, 1]


async def test_a_version_of_the_gallery_that_nodes_do_not_have(world: World, gallery: PublishedGallery) -> None:
    """A worker that tells no digests, as LocalAI's of some images."""
    gallery.publish("one")
    gallery.offer("one", version="1")
    node = await world.backends("l", is_corral=False)
    node.version = "1"
    node.put("one")
    await look(world)
    assert await upgrades(world) == {}
    gallery.offer("one", version="2")
    await look(world)
    found = (await upgrades(world))["one"]
    assert (found["installed_version"], found["available_version"]) == ("1", "2")
    node.version = "2"
    await pass_time(world, timedelta(minutes=2))
    body(await world.frontend.call("POST", "/api/backends/upgrade/one"))
    await world.control.context.operations.dispatcher.tick()
    await look(world)
    assert await upgrades(world) == {}


async def test_a_moved_tag_beside_a_localai_worker_is_known_of_one_node_and_unknown_of_the_other(
    world: World, gallery: PublishedGallery
) -> None:
    gallery.offer("one", version="1")
    first = gallery.publish("one")
    for name, is_corral in (("c", True), ("l", False)):
        node = await world.backends(name, is_corral=is_corral)
        node.version, node.digest = "1", first.digest
        node.put("one")
    gallery.publish("one", LAYER, LAYER)
    await look(world)
    (found,) = (await native(world))["items"]
    assert [(one["node_name"], one["freshness"]) for one in found["nodes"]] == [("c", "outdated"), ("l", "unknown")]
    assert "reports no digest; the version 1 is the one offered" in found["nodes"][1]["reason"]


async def test_nodes_that_differ_are_told_where_nobody_offers_the_backend(
    world: World, gallery: PublishedGallery
) -> None:
    old, new = gallery.publish("mine"), gallery.publish("mine", LAYER, LAYER)
    for name, has in (("w1", new), ("w2", new), ("w3", old)):
        await a_node(world, name, mine=has)
    await look(world)
    found = (await upgrades(world))["mine"]
    assert [(one["node_name"], one["digest"]) for one in found["node_drift"]] == [("w3", old.digest)]
    assert found["installed_digest"] == new.digest


async def test_a_look_is_asked_for_and_answers_at_once_with_what_is_known(
    world: World, gallery: PublishedGallery
) -> None:
    """As LocalAI's own, seen in its traffic: an empty map, and 200."""
    gallery.offer("one")
    await a_node(world, "w", one=gallery.publish("one"))
    gallery.publish("one", LAYER, LAYER)
    for path in ("/api/backends/upgrades/check", "/backends/upgrades/check"):
        assert body(await world.frontend.call("POST", path)) == {}
    accepted = body(await world.frontend.call("POST", "/api/v1/backends/upgrades/check"), 202)
    assert (accepted["checked_at"], gallery.registry.heard) == (None, [])
    await world.control.context.backends.upgrades.tick()
    assert list(await upgrades(world)) == ["one"]
    assert list(body(await world.frontend.call("GET", "/backends/upgrades"))) == ["one"]
    assert (await native(world))["checked_at"]


async def test_it_is_looked_once_per_period_whoever_does_it(world: World, gallery: PublishedGallery) -> None:
    gallery.offer("one")
    await a_node(world, "w", one=gallery.publish("one"))
    other = (await world.again()).context.backends.upgrades
    mine = world.control.context.backends.upgrades
    for _ in range(2):
        await mine.tick()
        await other.tick()
        assert len(gallery.registry.asked_for("manifests/latest")) == 1
    await pass_time(world, 6 * HOUR)
    await other.tick()
    await mine.tick()
    assert len(gallery.registry.asked_for("manifests/latest")) == 2


async def test_while_another_frontend_looks_this_one_waits_and_does_not_forget(
    world: World, gallery: PublishedGallery
) -> None:
    gallery.offer("one")
    await a_node(world, "w", one=gallery.publish("one"))
    leases, now = Leases(world.control.context.database), world.clock.now()
    token = LeaseToken("of another")
    assert await leases.claim("upgrade-check", token, holder="another", now=now, until=now + HOUR)
    service = world.control.context.backends.upgrades
    service.ask()
    await service.tick()
    assert gallery.registry.heard == []
    await leases.release("upgrade-check", token)
    await service.tick()
    assert gallery.registry.heard != []


async def test_a_look_that_is_asked_for_during_another_one_comes_after_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it is asked for may have happened after nodes and registries said what they have."""
    service, put, looks = world.control.context.backends.upgrades, UpgradeChecks.put, 0

    async def asked_meanwhile(self: UpgradeChecks, check: Check) -> bool:
        nonlocal looks
        looks += 1
        if looks == 1:
            service.ask()
        return await put(self, check)

    monkeypatch.setattr(UpgradeChecks, "put", asked_meanwhile)
    service.ask()
    for _ in range(3):
        await service.tick()
    assert looks == 2


async def test_what_a_registry_said_last_counts_while_it_is_away(world: World, gallery: PublishedGallery) -> None:
    gallery.offer("one")
    await a_node(world, "w", one=gallery.publish("one"))
    gallery.publish("one", LAYER, LAYER)
    await look(world)
    before = (await native(world))["items"][0]["looked_at"]
    await pass_time(world, HOUR)
    gallery.registry.faults["manifests"] += [answering(503)] * 5
    await look(world)
    assert list(await upgrades(world)) == ["one"]
    assert (await native(world))["items"][0]["looked_at"] == before


async def test_galleries_that_cannot_be_read_are_told(world: World, gallery: PublishedGallery) -> None:
    gallery.offer("one")
    await a_node(world, "w", one=gallery.publish("one"))
    gallery.publish("one", LAYER, LAYER)
    await look(world)
    gallery.index.unlink()
    await pass_time(world, HOUR)
    await look(world)
    assert (await native(world))["problem"] == "the galleries could not be read"
    assert list(await upgrades(world)) == ["one"]


async def test_what_came_from_a_uri_is_looked_for_there(world: World, gallery: PublishedGallery) -> None:
    first = gallery.publish("mine")
    node = await a_node(world, "w")
    node.digest = first.digest
    ask = {"verb": "install", "uri": gallery.uri("mine"), "name": "mine"}
    body(await world.frontend.call("POST", "/api/v1/operations", ask), 202)
    await world.control.context.operations.dispatcher.tick()
    second = gallery.publish("mine", LAYER, LAYER)
    await look(world)
    assert (await upgrades(world))["mine"]["available_digest"] == second.digest
    node.digest = second.digest
    await pass_time(world, timedelta(minutes=2))
    body(await world.frontend.call("POST", "/api/backends/upgrade/mine"))
    await world.control.context.operations.dispatcher.tick()
    assert await upgrades(world) == {}


async def test_nothing_is_asked_for_what_ships_with_corral(world: World, gallery: PublishedGallery) -> None:
    node = await a_node(world, "w", one=gallery.publish("one"))
    node.disk["one"] = msgspec.structs.replace(node.disk["one"], gallery_url="corral:builtin", uri="./one")
    await look(world)
    assert (await native(world))["items"][0]["nodes"][0]["freshness"] == "unknown"
    assert gallery.registry.heard == []


async def test_by_setting_what_is_outdated_is_upgraded_once(eager: World, gallery: PublishedGallery) -> None:
    gallery.offer("one")
    first = gallery.publish("one")
    old, current = await a_node(eager, "old", one=first), await a_node(eager, "current")
    second = gallery.publish("one", LAYER, LAYER)
    current.digest = second.digest
    current.put("one")
    old.faults.refusal = "not now"
    for _ in range(2):
        await look(eager)
        await eager.control.context.operations.dispatcher.tick()
    assert [verb for verb, _ in old.requests] == ["upgrade"]
    assert current.requests == []
    (operation,) = body(await eager.frontend.call("GET", "/api/v1/operations"))["items"]
    assert (operation["asked_by"], operation["counts"]) == ("automatic upgrade", {"error": 1})
