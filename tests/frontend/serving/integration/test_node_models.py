"""What a person has ended on one node, by LocalAI's routes: replicas after their requests, and idle processes."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from corral.base.tasks import running
from corral.bus.port import Bus
from corral.frontend.record.decide import EventKind
from corral.frontend.serving.decide.replica import LIVE
from corral.frontend.serving.unloading import WITHIN
from corral.frontend.store.db import Database
from corral.wire.replicas import RunningModel
from tests.kit.asgi import AsgiAnswer
from tests.kit.clock import ManualClock
from tests.kit.world import FakeNode, World, open_world, view_of

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


@pytest.fixture
async def world(database: Database, clock: ManualClock, bus: Bus, tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(database, clock, bus, tmp_path) as world:
        yield world


async def asked(world: World, path: str, body: object, *, rounds: int = 4) -> AsgiAnswer:
    """The answer of a route that waits for what `unloading` does meanwhile."""
    async with asyncio.TaskGroup() as group:
        answer = group.create_task(world.frontend.call("POST", path, body))
        for _ in range(rounds):
            await world.clock.until_sleeping(1)
            await world.control.context.serving.unloading.sweep()
            await world.clock.advance(timedelta(seconds=2))
    return answer.result()


async def living(world: World) -> list[str]:
    return [one.process_key for one in await world.control.context.serving.replicas.living() if one.state in LIVE]


@pytest.mark.parametrize(("act", "message"), [("unload", "model unloaded"), ("delete", "model deleted from node")])
async def test_a_replica_is_ended_on_its_node(world: World, act: str, message: str) -> None:
    node = await world.node("w1")
    await world.loaded()

    answer = await asked(world, f"/api/nodes/{node.id}/models/{act}", {"model_name": "small"}, rounds=2)

    assert (answer.status, answer.json()) == (200, {"message": message})
    assert (node.stopped, await living(world)) == (["small#0"], [])
    assert (await view_of(world.control)).replicas == {}
    (begun,) = await world.events(EventKind.REPLICA_UNLOADING)
    assert (begun.actor, begun.data["why"]) == ("admin", "unloaded by admin")


async def test_a_process_that_no_replica_stands_for_is_stopped_by_its_key(world: World) -> None:
    """As an administrator's install leaves one on LocalAI's workers."""
    node = await world.node("w1")
    node.running = [RunningModel(model_id=name, replica_index=0, address="127.0.0.1:1") for name in ("echo", "other")]
    answer = await asked(world, f"/api/nodes/{node.id}/models/unload", {"model_name": "echo"}, rounds=1)
    assert (answer.status, node.stopped) == (200, ["echo#0"])


async def test_what_does_not_run_is_unloaded_already(world: World) -> None:
    node = await world.node("w1")
    answer = await world.frontend.call("POST", f"/api/nodes/{node.id}/models/unload", {"model_name": "nobody"})
    assert (answer.status, node.stops) == (200, [])


async def test_a_process_that_does_not_end_is_told(world: World) -> None:
    node = await world.node("w1")
    await world.loaded()
    node.deaf = True
    path = f"/api/nodes/{node.id}/models/unload"
    answer = await asked(world, path, {"model_name": "small"}, rounds=int(WITHIN.total_seconds() / 2) + 1)
    assert answer.status == 500
    assert answer.json()["error"]["message"].startswith("failed to unload model on node: small#0 did not end")


async def test_what_cannot_be_asked_for(world: World) -> None:
    node = await world.node("w1")
    away = await world.backends("w2")
    await away.stop()
    wrong = [
        (f"/api/nodes/{node.id}/models/unload", {}, 400, "model_name required"),
        (f"/api/nodes/{node.id}/models/delete", {"model_name": 5}, 400, "invalid request body: model_name: expected"),
        ("/api/nodes/nobody/models/unload", {"model_name": "m"}, 500, "failed to unload model on node: no node"),
        (f"/api/nodes/{away.node_id}/models/unload", {"model_name": "m"}, 500, "failed to unload model on node: the"),
        (f"/api/nodes/{away.node_id}/models/delete", {"model_name": "m"}, 500, "failed to delete model on node: the"),
    ]
    for path, body, status, message in wrong:
        answer = await world.frontend.call("POST", path, body)
        error = answer.json()["error"]
        assert (answer.status, error["code"], error["type"]) == (status, status, "node_error")
        assert error["message"].startswith(message)


async def test_a_model_that_is_being_loaded_is_left_alone(world: World) -> None:
    node = await world.node("w1")
    replica = await world.loaded()
    await world.control.context.serving.replicas.lose([replica.id], reason="gone", at=world.clock.now(), events=[])
    node.running.clear()
    await loading(world, node)

    answer = await world.frontend.call("POST", f"/api/nodes/{node.id}/models/unload", {"model_name": "small"})

    assert answer.status == 500
    assert "being loaded" in answer.json()["error"]["message"]
    assert node.stops == []


async def loading(world: World, node: FakeNode) -> None:
    """A load whose backend does not come up, so that its replica stays where it is."""
    asks = asyncio.Event()

    async def never(*_: object, **__: object) -> None:
        asks.set()
        await asyncio.Event().wait()

    world.loader.load = never  # type: ignore[method-assign]
    await world.loads.ensure("small")
    await world.stack.enter_async_context(running(world.loads.tick(), name="load"))
    await asks.wait()


async def test_a_model_is_stopped_everywhere(world: World) -> None:
    node = await world.node("w1")
    await world.loaded()
    answer = await asked(world, "/backend/shutdown", {"model": "small"}, rounds=2)
    assert (answer.status, answer.json()) == (200, {"message": "model stopped"})
    assert (node.stopped, await living(world)) == (["small#0"], [])
    assert (await world.frontend.call("POST", "/backend/shutdown", {"model": "small"})).status == 200
    assert (await world.frontend.call("POST", "/backend/shutdown", {"model": "nobody"})).status == 404
