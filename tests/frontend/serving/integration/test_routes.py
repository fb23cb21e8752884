"""Replicas in the node routes, and the requests under way that gateways report."""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from corral.base.ids import FrontendId, NodeId, ReplicaId
from corral.bus.port import Bus, Message
from corral.frontend.serving.decide.replica import Replica, ReplicaState
from corral.frontend.serving.gateways.reports import GONE_AFTER, SILENT_AFTER, GatewayShares
from corral.frontend.serving.store.replicas import change_replica, insert_replica
from corral.frontend.store.db import Database
from corral.wire.subjects import GATEWAY_SHARES
from corral.wire.view import GatewayReport
from tests.kit.clock import ManualClock
from tests.kit.frontend import REGISTRATION_TOKEN, TRUSTED_TOKEN, Frontend
from tests.kit.golden import read_recording
from tests.kit.waiting import within_timeout

SILENCE = SILENT_AFTER + timedelta(milliseconds=1)


async def add_replica(
    frontend: Frontend, database: Database, clock: ManualClock, node_id: str, *, state: ReplicaState, index: int = 0
) -> Replica:
    replica = Replica(
        id=ReplicaId(f"replica-{state}-{index}"),
        node_id=NodeId(node_id),
        model="small",
        index=index,
        revision="rev",
        backend="echo",
        state=ReplicaState.RESERVED,
        created_at=clock.now(),
        changed_at=clock.now(),
    )
    path = {
        ReplicaState.RESERVED: [],
        ReplicaState.LOADED: [ReplicaState.LOADING, ReplicaState.LOADED],
        ReplicaState.FAILED: [ReplicaState.FAILED],
    }[state]
    async with database.begin() as connection:
        assert await insert_replica(connection, replica)
        for step in path:
            values = {"address": "127.0.0.1:7000", "url": "http://127.0.0.1:7001"}
            assert await change_replica(connection, replica.id, step, at=clock.now(), values=values)
    return replace(replica, state=state)


async def add_node(frontend: Frontend, name: str = "w1") -> str:
    joined: Any = (await frontend.register({"name": name, "address": "127.0.0.1:50051"}, token=TRUSTED_TOKEN)).json()
    return str(joined["id"])


def report(frontend: Frontend, gateway: str, sequence: int = 1, **in_flight: int) -> None:
    by_id = {name.replace("_", "-"): number for name, number in in_flight.items()}
    frontend.control.context.serving.gateways.take(GatewayReport(gateway=gateway, sequence=sequence, in_flight=by_id))


async def get(frontend: Frontend, url: str, key: str | None = None) -> Any:
    answer = await frontend.call("GET", url, key=key)
    assert answer.status == 200, answer.body
    return answer.json()


async def test_a_row_has_the_fields_that_localai_s_has(
    frontend: Frontend, database: Database, clock: ManualClock, golden: Path
) -> None:
    node = await add_node(frontend)
    await add_replica(frontend, database, clock, node, state=ReplicaState.LOADED)
    [row] = await get(frontend, "/api/nodes/models")
    recorded: Any = next(
        one.message["response"][0]
        for one in read_recording(golden / "http_admin.json")
        if one.message["path"] == "/api/nodes/models"
    )

    assert set(recorded) - set(row) == {"effective_options_hash"}  # left out where there is none, in LocalAI too
    assert set(row) <= set(recorded)
    assert {name: type(value) for name, value in row.items()} == {name: type(recorded[name]) for name in row}
    assert (row["model_name"], row["state"], row["backend_type"], row["in_flight"]) == ("small", "loaded", "echo", 0)


async def test_only_loaded_replicas_of_healthy_nodes_are_among_all(
    frontend: Frontend, database: Database, clock: ManualClock
) -> None:
    node, other = await add_node(frontend), await add_node(frontend, "w2")
    await add_replica(frontend, database, clock, node, state=ReplicaState.LOADED)
    await add_replica(frontend, database, clock, node, state=ReplicaState.RESERVED, index=1)
    await add_replica(frontend, database, clock, node, state=ReplicaState.FAILED, index=2)
    await add_replica(frontend, database, clock, other, state=ReplicaState.LOADED, index=3)
    await frontend.call("POST", f"/api/nodes/{other}/drain")

    assert [row["id"] for row in await get(frontend, "/api/nodes/models")] == ["replica-loaded-0"]
    assert [row["state"] for row in await get(frontend, f"/api/nodes/{node}/models")] == ["loaded", "staging"]
    assert [row["state"] for row in await get(frontend, f"/api/v1/nodes/{node}/replicas")] == ["loaded", "reserved"]
    assert await get(frontend, "/api/nodes/unknown/models") == []
    assert (await frontend.call("GET", "/api/v1/nodes/unknown/replicas")).status == 404


async def test_requests_under_way_are_the_sum_of_the_gateways_reports(
    frontend: Frontend, database: Database, clock: ManualClock
) -> None:
    node = await add_node(frontend)
    await add_replica(frontend, database, clock, node, state=ReplicaState.LOADED)
    report(frontend, "g1", replica_loaded_0=2)
    report(frontend, "g2", replica_loaded_0=3, unknown=9)

    assert (await get(frontend, "/api/nodes/models"))[0]["in_flight"] == 5
    assert (await get(frontend, f"/api/nodes/{node}/models"))[0]["in_flight"] == 5
    assert (await get(frontend, f"/api/v1/nodes/{node}/replicas"))[0]["in_flight"] == 5
    assert (await get(frontend, f"/api/node/{node}/models", key=REGISTRATION_TOKEN))[0]["in_flight"] == 5
    for node_view in (await get(frontend, "/api/nodes"))[0], await get(frontend, f"/api/nodes/{node}"):
        assert (node_view["model_count"], node_view["in_flight_count"]) == (1, 5)
    assert (await get(frontend, f"/api/v1/nodes/{node}"))["in_flight"] == 5
    assert (await get(frontend, "/api/v1/nodes"))["items"][0]["in_flight"] == 5


async def test_a_silent_gateway_s_share_is_unknown(frontend: Frontend, database: Database, clock: ManualClock) -> None:
    node = await add_node(frontend)
    await add_replica(frontend, database, clock, node, state=ReplicaState.LOADED)
    report(frontend, "g1", replica_loaded_0=2)
    await clock.advance(SILENCE)
    report(frontend, "g2", replica_loaded_0=1)

    assert (await get(frontend, f"/api/nodes/{node}/models"))[0]["in_flight"] == 1  # what is known
    assert (await get(frontend, f"/api/v1/nodes/{node}/replicas"))[0]["in_flight"] is None
    assert (await get(frontend, f"/api/v1/nodes/{node}"))["in_flight"] is None
    report(frontend, "g2", sequence=2)
    worker_sees = await get(frontend, f"/api/node/{node}/models", key=REGISTRATION_TOKEN)
    assert worker_sees[0]["in_flight"] == 1  # a drain waits for what nobody knows

    await clock.advance(GONE_AFTER + SILENCE)
    assert (await get(frontend, f"/api/v1/nodes/{node}"))["in_flight"] == 0
    assert (await get(frontend, f"/api/node/{node}/models", key=REGISTRATION_TOKEN))[0]["in_flight"] == 0


async def test_the_last_use_of_a_replica_is_shown(frontend: Frontend, database: Database, clock: ManualClock) -> None:
    node = await add_node(frontend)
    await add_replica(frontend, database, clock, node, state=ReplicaState.LOADED)
    url = f"/api/v1/nodes/{node}/replicas"
    assert (await get(frontend, url))[0]["last_used_at"] is None
    await clock.advance(timedelta(seconds=30))
    report(frontend, "g1", replica_loaded_0=1)
    [replica_view] = await get(frontend, url)
    [row] = await get(frontend, "/api/nodes/models")

    assert replica_view["last_used_at"] == row["last_used"] > row["updated_at"]


async def test_frontends_tell_each_other_what_their_gateways_have_under_way(
    frontend: Frontend, database: Database, clock: ManualClock, bus: Bus
) -> None:
    node = await add_node(frontend)
    await add_replica(frontend, database, clock, node, state=ReplicaState.LOADED)
    context = frontend.control.context
    other = GatewayShares(bus, context.serving.gateways, FrontendId("another"), context.clock)
    heard = asyncio.Semaphore(0)

    async def hear(message: Message) -> None:
        await context.serving.shares.on_message(message)
        heard.release()

    subscription = await bus.subscribe(GATEWAY_SHARES, hear)
    try:
        await other.tell(GatewayReport(gateway="theirs", sequence=1, in_flight={"replica-loaded-0": 4}))
        report(frontend, "ours", replica_loaded_0=1)
        await context.serving.shares.tell(GatewayReport(gateway="ours", sequence=2, in_flight={"replica-loaded-0": 7}))
        await bus.publish(GATEWAY_SHARES, b"{")
        for _ in range(3):
            await within_timeout(heard.acquire(), lambda: "a share to be heard")
    finally:
        await subscription.close()

    assert (await get(frontend, "/api/nodes/models"))[0]["in_flight"] == 5
    assert [one.id for one in context.serving.gateways.seen()] == ["ours"]
    await clock.advance(SILENCE)
    assert context.serving.gateways.silent() == 2


@pytest.mark.parametrize("path", ["/api/v1/models", "/api/v1/models/small"])
async def test_models_show_their_replicas_with_what_is_under_way(
    frontend: Frontend, database: Database, clock: ManualClock, path: str, tmp_path: Path
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "small.yaml").write_text("name: small\nbackend: echo\nparameters: {model: x}\n")
    await frontend.control.context.models.watch.look()
    node = await add_node(frontend)
    await add_replica(frontend, database, clock, node, state=ReplicaState.LOADED)
    report(frontend, "g1", replica_loaded_0=2)
    body = await get(frontend, path)
    model = body["items"][0] if "items" in body else body

    assert (model["replicas"][0]["in_flight"], model["replicas"][0]["node"]) == (2, "w1")
