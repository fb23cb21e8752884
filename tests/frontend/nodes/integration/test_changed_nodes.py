"""Nodes that prove who they are and come back with another address, other hardware, or as another type."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from corral.base.ids import NodeId
from corral.frontend.store.db import Database
from corral.wire.registration import FEATURES
from tests.kit.frontend import TRUSTED_TOKEN, Frontend
from tests.kit.world import SECRET, World, view_of

GIB = 1024**3
CARDS = [{"id": id, "total": 24 * GIB, "free": GIB} for id in ("GPU-a", "GPU-b")]
HERE, THERE = "127.0.0.1", "192.0.2.77"


async def moved(world: World, host: str) -> NodeId:
    return await world.register("w1", FEATURES, f"{host}:50051", "", None)


async def changes(frontend: Frontend, node_id: str) -> list[Any]:
    detail: Any = (await frontend.call("GET", f"/api/v1/nodes/{node_id}")).json()
    return [(change["kind"], change["before"], change["after"]) for change in detail["changes"]]


async def test_a_moved_node_stays_in_service_and_its_replicas_follow(world: World) -> None:
    await world.write("name: small\nbackend: echo\nparameters: {model: none}\n")
    node = await world.node("w1", address=f"{HERE}:50051")
    replica = await world.loaded()
    assert (replica.address, replica.url) == (f"{HERE}:7000", f"http://{HERE}:7001")

    assert await moved(world, THERE) == node.id

    detail: Any = (await world.frontend.call("GET", f"/api/v1/nodes/{node.id}")).json()
    assert (detail["status"], detail["address"]) == ("healthy", f"{THERE}:50051")
    (after,) = await world.control.context.serving.replicas.living()
    assert (after.id, after.address, after.url) == (replica.id, f"{THERE}:7000", f"http://{THERE}:7001")
    (entry,) = (await view_of(world.control)).replicas.values()
    assert entry.url == f"http://{THERE}:7001"
    assert (await changes(world.frontend, node.id))[0] == (
        "node.moved",
        {"address": f"{HERE}:50051"},
        {"address": f"{THERE}:50051"},
    )

    await moved(world, HERE)
    (back,) = await world.control.context.serving.replicas.living()
    assert (back.address, back.url, back.state) == (f"{HERE}:7000", f"http://{HERE}:7001", replica.state)


async def test_lost_hardware_is_an_event_and_no_way_out_of_service(world: World) -> None:
    node = await world.node("w1", cards=CARDS)

    await world.register("w1", FEATURES, f"{HERE}:50051", "", None, CARDS[:1])

    detail: Any = (await world.frontend.call("GET", f"/api/v1/nodes/{node.id}")).json()
    assert detail["status"] == "healthy"
    assert (await changes(world.frontend, node.id))[0] == (
        "node.changed",
        {"gpus": {"GPU-a": 24 * GIB, "GPU-b": 24 * GIB}},
        {"gpus": {"GPU-a": 24 * GIB}},
    )


async def beat(frontend: Frontend, node_id: str, name: str, cards: object) -> None:
    body = {"corral": {"cards": cards}}
    answer = await frontend.call("POST", f"/api/node/{node_id}/heartbeat", body, key=SECRET + name)
    assert answer.status == 200


async def test_a_gpu_that_fails_between_two_heartbeats_is_told(world: World) -> None:
    one, other = await world.node("w1", cards=CARDS), await world.node("w2", cards=CARDS)

    await asyncio.gather(
        beat(world.frontend, one.id, "w1", CARDS[:1]),
        beat(world.frontend, other.id, "w2", CARDS),
    )

    lost = ("node.changed", {"gpus": {"GPU-a": 24 * GIB, "GPU-b": 24 * GIB}}, {"gpus": {"GPU-a": 24 * GIB}})
    assert await changes(world.frontend, one.id) == [lost]
    assert await changes(world.frontend, other.id) == []
    for cards in (CARDS, CARDS[:1], CARDS[:1]):
        await world.clock.advance(timedelta(seconds=2))
        await beat(world.frontend, one.id, "w1", cards)
    assert await changes(world.frontend, one.id) == [lost]


HELLO = {"version": "1", "features": ["node-secret"], "secret": "s" * 43, "incarnation": "1"}
WORKER = {"name": "w", "address": "10.0.0.9:50051", "corral": HELLO}


async def test_another_type_is_pending_again_whatever_it_presents(frontend: Frontend) -> None:
    node_id = (await frontend.register(WORKER, token=TRUSTED_TOKEN)).json()["id"]  # type: ignore[index]

    for body in ({**WORKER, "node_type": "agent"}, {**WORKER, "node_type": "agent"}, WORKER):
        again: Any = (await frontend.register(body, token=TRUSTED_TOKEN)).json()
        assert (again["id"], again["status"]) == (node_id, "pending")
        assert not again.get("api_token")
        assert not again.get("nats_jwt")

    ((kind, before, after),) = await changes(frontend, node_id)
    assert kind == "node.suspected"
    assert (before["type"], after["type"]) == ("backend", "agent")
    report: Any = (await frontend.call("GET", "/api/v1/doctor")).json()
    (strangers,) = [finding for finding in report["findings"] if finding["check"] == "strangers"]
    assert "came back as another type of node" in strangers["summary"]
    assert "`corral nodes show` tells what is different" in strangers["remedy"]


async def test_a_key_that_is_made_while_its_agent_becomes_a_suspect_is_not_stored(
    frontend: Frontend, database: Database
) -> None:
    agent = {"name": "a", "node_type": "agent", "corral": HELLO}
    first: Any = (await frontend.register(agent, token=TRUSTED_TOKEN)).json()
    assert first["api_token"]
    await frontend.register({**agent, "node_type": "backend", "address": "10.0.0.9:1"})

    issued = await frontend.control.context.access.key_ring.issue_to_agent(NodeId(first["id"]), "a")

    assert issued == ""
    keys: Any = (await frontend.call("GET", "/api/v1/keys")).json()
    assert all(key["revoked_at"] for key in keys if key["name"] == "agent a")
    asked = await frontend.call("GET", "/v1/models", key=first["api_token"])
    assert asked.status in (401, 404)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_a_pending_node_changes_without_ado(frontend: Frontend) -> None:
    node_id = (await frontend.register(WORKER)).json()["id"]  # type: ignore[index]
    await frontend.register({**WORKER, "address": "10.0.0.10:50051"})

    assert await changes(frontend, node_id) == []
