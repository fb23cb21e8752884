"""Loads while NATS goes away and comes back: none fails for it, and none waits for an answer that was lost."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from corral.frontend.backends.planning import Ask
from corral.frontend.nodes.decide.node import NodeStatus
from corral.frontend.operations.decide.intent import Verb
from corral.frontend.operations.decide.operation import OperationState
from corral.frontend.store.db import Database
from corral.galleries.build_uris import BackendRef
from corral.wire import subjects
from tests.kit.bus import MemoryBus, MemoryServer
from tests.kit.clock import ManualClock
from tests.kit.frontend import TRUSTED_TOKEN
from tests.kit.waiting import within_timeout
from tests.kit.world import SECRET, FakeNode, World, open_world

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


@pytest.fixture
def server() -> MemoryServer:
    return MemoryServer()


@pytest.fixture
async def world(database: Database, clock: ManualClock, server: MemoryServer, tmp_path: Path) -> AsyncIterator[World]:
    async with MemoryBus(server) as bus, open_world(database, clock, bus, tmp_path) as opened:
        yield opened


async def loading(world: World) -> "asyncio.Task[None]":
    """A load that has been begun, as far as it comes by itself."""
    await world.loads.ensure("small")
    task = asyncio.create_task(world.loads.tick())
    await world.clock.until_sleeping(2)
    return task


async def finish(world: World, task: "asyncio.Task[None]") -> None:
    """Let time pass until the load has ended."""
    while not task.done():
        await world.clock.advance(timedelta(seconds=0.25))
    await task


async def test_a_load_without_nats_waits_for_it(world: World, server: MemoryServer) -> None:
    node = await world.node("w1")
    server.go_down()
    task = await loading(world)
    await world.clock.advance(timedelta(seconds=10))
    assert (task.done(), node.installs) == (False, [])

    server.come_up()
    await finish(world, task)

    assert (await world.loads.ensure("small")).state == "loaded"


async def test_a_node_whose_answer_may_be_lost_is_asked_again(world: World, server: MemoryServer) -> None:
    node = await world.node("w1")
    node.held = asyncio.Event()
    task = await loading(world)
    await within_timeout(node.asked.wait(), lambda: "the node to be asked")

    server.go_down()
    node.held = None
    server.come_up()
    await finish(world, task)

    assert len(node.installs) == 2
    assert (await world.loads.ensure("small")).state == "loaded"


async def test_a_worker_that_is_back_after_the_frontend_is_waited_for(world: World, server: MemoryServer) -> None:
    node = await world.node("w1")
    await world.clock.advance(timedelta(minutes=1))
    await heard(world, node)
    listening = [entry for entry in server.subscriptions if entry.subject == subjects.backend_install(node.id)]
    server.subscriptions.remove(*listening)
    server.go_down()
    server.come_up()

    task = await loading(world)
    await world.clock.advance(timedelta(seconds=2))
    assert not task.done()
    server.subscriptions += listening
    await finish(world, task)

    assert (await world.loads.ensure("small")).state == "loaded"
    assert (await world.control.context.nodes.fleet.get(node.id)).status is NodeStatus.HEALTHY


async def heard(world: World, node: FakeNode) -> None:
    await world.frontend.call("POST", f"/api/node/{node.id}/heartbeat", {}, key=SECRET + "w1")


async def test_a_worker_that_went_away_with_an_install_may_still_finish_it(world: World, server: MemoryServer) -> None:
    """Nobody listens for it when it is asked again, which says nothing of what it was asked before."""
    node = await world.backends("w1", is_corral=False)
    node.gate.clear()
    task = await loading(world)
    await within_timeout(node.begun.wait(), lambda: "the node to be asked")
    server.go_down()
    await node.stop()
    server.come_up()
    await finish(world, task)

    await node.listen(world.bus)
    await world.frontend.call("POST", f"/api/node/{node.node_id}/heartbeat", {}, key=TRUSTED_TOKEN)
    operations = world.control.context.operations
    delete = await world.control.context.backends.operations.start(
        Ask(verb=Verb.DELETE, ref=BackendRef(backend="echo"), by="me")
    )
    node.looked_at.clear()
    await operations.dispatcher.tick()
    assert node.looked_at.is_set()
    assert (await operations.stores.operations.get(delete.id)).state is OperationState.RUNNING
    assert [verb for verb, _ in node.requests] == ["install"]
