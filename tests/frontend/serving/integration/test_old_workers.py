"""LocalAI's workers of before `models.running` and `model.stop`: nobody listens there on these subjects."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from corral.bus.port import Bus
from corral.frontend.nodes.decide.node import NodeStatus
from corral.frontend.serving.decide.replica import ReplicaState
from corral.frontend.serving.unloading import HEARD_AFTER, SETTLED_AFTER
from corral.frontend.store.db import Database
from tests.kit.clock import ManualClock
from tests.kit.ports import lasting_port
from tests.kit.world import FakeNode, World, open_world

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


@pytest.fixture
async def world(database: Database, clock: ManualClock, bus: Bus, tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(database, clock, bus, tmp_path) as world:
        yield world


async def status_of(world: World, node: FakeNode) -> NodeStatus:
    return (await world.control.context.nodes.fleet.get(node.id)).status


async def test_a_worker_that_cannot_say_what_runs_is_not_taken_for_gone(world: World) -> None:
    node = await world.node("w1", is_old=True)
    replica = await world.loaded()

    await world.clock.advance(timedelta(seconds=1))
    for _ in range(3):
        await world.control.context.serving.health.sweep()

    assert await status_of(world, node) is NodeStatus.HEALTHY
    stored = await world.control.context.serving.replicas.get(replica.id)
    assert stored is not None
    assert stored.state is ReplicaState.LOADED


async def test_a_worker_where_nobody_listens_at_all_is_gone(world: World) -> None:
    node = await world.backends("w1")
    await world.clock.advance(timedelta(seconds=1))
    await world.beat(node.node_id, "w1")
    await world.clock.advance(timedelta(seconds=1))
    await node.stop()

    answer = await world.frontend.call("POST", f"/api/nodes/{node.node_id}/models/unload", {"model_name": "small"})

    assert answer.status == 500
    assert (await world.control.context.nodes.fleet.get(node.node_id)).status is NodeStatus.UNHEALTHY


async def test_a_replica_there_has_ended_when_nobody_listens_at_its_address(world: World) -> None:
    node = await world.node("w1", is_old=True)
    port = lasting_port()
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", port)
    node.start("small", 0).address = f"127.0.0.1:{port}"
    replica = await world.loaded()

    async def state_after_a_sweep() -> ReplicaState:
        await world.control.context.serving.scaling.sweep()
        await world.control.context.serving.unloading.sweep()
        await world.clock.advance(max(SETTLED_AFTER, HEARD_AFTER))
        stored = await world.control.context.serving.replicas.get(replica.id)
        assert stored is not None
        return stored.state

    await world.delete()
    states = [await state_after_a_sweep() for _ in range(4)]
    assert (states[-1], node.stopped[:1]) == (ReplicaState.UNLOADING, ["small#0"]), "its process still listens"

    server.close()
    await server.wait_closed()
    assert await state_after_a_sweep() is ReplicaState.IDLE


async def test_a_model_is_unloaded_there_by_its_replicas(world: World) -> None:
    node = await world.node("w1", is_old=True)
    node.start("small", 0).address = f"127.0.0.1:{lasting_port()}"
    await world.loaded()

    async with asyncio.TaskGroup() as group:
        asked = world.frontend.call("POST", f"/api/nodes/{node.id}/models/unload", {"model_name": "small"})
        answer = group.create_task(asked)
        for _ in range(2):
            await world.clock.until_sleeping(1)
            await world.control.context.serving.unloading.sweep()
            await world.clock.advance(timedelta(seconds=2))

    assert (answer.result().status, node.stopped) == (200, ["small#0"])
