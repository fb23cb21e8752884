"""Loads whose node goes away, comes back, or is not ready yet: none waits for an answer that cannot come."""

import asyncio
from datetime import timedelta

import msgspec
import pytest

from corral.base.errors import NoResponders
from corral.base.ids import NodeId
from corral.bus.port import Message
from corral.frontend.nodes.decide.node import LISTENS_WITHIN, NodeStatus
from corral.frontend.serving.decide.load_job import LoadState
from corral.frontend.serving.decide.replica import ReplicaState
from corral.wire import subjects
from corral.wire.models import LoadReason
from corral.wire.registration import FEATURES, CorralHello
from tests.kit.frontend import TRUSTED_TOKEN
from tests.kit.simulated_worker import SimulatedWorker
from tests.kit.waiting import within_timeout
from tests.kit.world import SECRET, FakeNode, World

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


async def start_anew(world: World, incarnation: str = "2") -> None:
    """The worker of the node is another process now."""
    hello = CorralHello(version="1", features=list(FEATURES), secret=SECRET + "w1", incarnation=incarnation)
    body = {"name": "w1", "address": "127.0.0.1:50051", "corral": msgspec.to_builtins(hello)}
    await world.frontend.register(body, token=TRUSTED_TOKEN)


async def installing(world: World, node: FakeNode) -> "asyncio.Task[None]":
    """A load whose install the node does not answer."""
    node.held = asyncio.Event()
    await world.loads.ensure("small")
    loading = asyncio.create_task(world.loads.tick())
    await within_timeout(node.asked.wait(), lambda: "the node to be asked")
    node.held = None
    return loading


async def test_a_worker_that_restarts_is_asked_again_for_the_install_that_it_forgot(world: World) -> None:
    node = await world.node("w1")
    loading = await installing(world, node)

    await start_anew(world)
    await within_timeout(loading, lambda: "the load")

    assert len(node.installs) == 2
    assert (await world.loads.ensure("small")).state == "loaded"


async def test_a_worker_that_ends_with_each_install_is_given_up(world: World) -> None:
    node = await world.node("w1")
    node.held = asyncio.Event()
    await world.loads.ensure("small")
    loading = asyncio.create_task(world.loads.tick())
    for number in range(3):
        await within_timeout(node.asked.wait(), lambda: "the node to be asked")
        node.asked.clear()
        await start_anew(world, f"next {number}")
        await world.clock.advance(timedelta(seconds=1))
    await within_timeout(loading, lambda: "the load")

    failed = await world.loads.ensure("small")
    assert (failed.state, failed.message) == ("failed", "w1: the worker of w1 was restarted meanwhile")
    assert len(node.installs) == 3


async def test_a_load_whose_node_is_removed_looks_for_another_place_at_once(world: World) -> None:
    node = await world.node("w1")
    loading = await installing(world, node)

    await world.control.context.nodes.registry.remove(node.id, by="test")
    await within_timeout(loading, lambda: "the load")
    (job,) = await world.loads.jobs()
    other = await world.node("w2")
    await world.clock.advance(timedelta(seconds=2))
    await world.loads.tick()

    assert (job.state, job.failures, job.replica_id) == (LoadState.PENDING, 0, None)
    assert len(other.installs) == 1
    assert (await world.loads.ensure("small")).node == "w2"


async def test_a_load_whose_node_goes_offline_looks_for_another_place(world: World) -> None:
    node = await world.node("w1")
    loading = await installing(world, node)

    await world.control.context.nodes.registry.deregister(node.id)
    await world.control.context.serving.health.sweep()
    await world.clock.advance(timedelta(seconds=1))
    await within_timeout(loading, lambda: "the load")

    (job,) = await world.loads.jobs()
    assert (job.state, job.failures) == (LoadState.PENDING, 0)
    assert "w1 has left" in job.message


async def finish(world: World, loading: "asyncio.Task[None]") -> None:
    """Let time pass until the load has ended."""
    while not loading.done():
        await world.clock.advance(timedelta(seconds=0.25))
    await loading


async def deaf_node(world: World) -> NodeId:
    """A node that has registered and listens to nothing."""
    return await world.register("w1", FEATURES, "127.0.0.1:50051", "", None)


async def test_a_worker_that_registered_before_it_listens_is_asked_until_it_does(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, request, unheard = FakeNode(await deaf_node(world)), world.bus.request, asyncio.Event()

    async def note(subject: str, data: bytes, *, timeout: timedelta) -> bytes:
        try:
            return await request(subject, data, timeout=timeout)
        except NoResponders:
            unheard.set()
            raise

    monkeypatch.setattr(world.bus, "request", note)
    await world.loads.ensure("small")
    loading = asyncio.create_task(world.loads.tick())
    await within_timeout(unheard.wait(), lambda: "a request that nobody hears")
    for subject, handler in (
        (subjects.backend_install(node.id), node.on_install),
        (subjects.models_running(node.id), node.on_running),
    ):
        subscription = await world.bus.subscribe(subject, handler)
        world.stack.push_async_callback(subscription.close)
    await finish(world, loading)

    assert (await world.loads.ensure("small")).state == "loaded"
    assert (await world.control.context.nodes.fleet.get(node.id)).status is NodeStatus.HEALTHY


async def test_a_worker_that_never_listens_is_given_up_when_its_time_is_over(world: World) -> None:
    node_id = await deaf_node(world)
    await world.clock.advance(LISTENS_WITHIN)
    await world.frontend.call("POST", f"/api/node/{node_id}/heartbeat", {}, key=SECRET + "w1")
    await world.clock.advance(timedelta(seconds=1))
    await world.loads.ensure("small")
    await within_timeout(world.loads.tick(), lambda: "the load")

    failed = await world.loads.ensure("small")
    assert (failed.state, failed.message) == ("failed", "w1: the node does not respond on NATS")
    assert (await world.control.context.nodes.fleet.get(node_id)).status is NodeStatus.UNHEALTHY


async def a_localai_worker(world: World) -> SimulatedWorker:
    return await world.worker("w1", "echo", is_corral=False)


async def is_loaded(world: World) -> bool:
    """Whether a replica serves, whatever the adapter of this frontend does."""
    living = await world.control.context.serving.replicas.living()
    return [replica.state for replica in living] == [ReplicaState.LOADED]


async def test_a_localai_worker_that_still_ends_a_process_is_asked_again_until_it_has(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await a_localai_worker(world)
    node.faults.refusal = "backend small#0 is stopping"
    answer, refused = node._answer, asyncio.Event()

    async def answer_and_end(message: Message, reply: msgspec.Struct) -> None:
        node.faults.refusal = ""
        await answer(message, reply)
        refused.set()

    monkeypatch.setattr(node, "_answer", answer_and_end)
    await world.loads.ensure("small")
    loading = asyncio.create_task(world.loads.tick())
    await within_timeout(refused.wait(), lambda: "a refusal")
    await finish(world, loading)

    assert [name for name, _ in node.requests] == ["load", "load"]
    assert await is_loaded(world)


async def test_a_process_that_was_ending_when_it_was_to_load_is_asked_for_again(world: World) -> None:
    """A LocalAI worker answers an install with the process that it is just ending."""
    node = await a_localai_worker(world)
    before = await world.loaded()
    await world.control.context.serving.replicas.unload(before.id, reason="idle", at=world.clock.now(), events=[])
    await world.control.context.serving.replicas.end(before.id, at=world.clock.now(), events=[])
    world.loader.gone = 1
    await world.loads.ensure("small")
    loading = asyncio.create_task(world.loads.tick())
    await within_timeout(world.loader.missed.wait(), lambda: "a load that nobody hears")
    await world.clock.until_sleeping(3)  # the lease, the watch, and the pause
    await finish(world, loading)

    assert [name for name, _ in node.requests] == ["load"] * 3
    assert await is_loaded(world)


async def test_an_engine_that_ends_in_a_place_that_nobody_had_is_a_failure(world: World) -> None:
    await a_localai_worker(world)
    world.loader.gone = 1
    await world.loads.ensure("small")
    await within_timeout(world.loads.tick(), lambda: "the load")

    assert (await world.loads.ensure("small")).reason is LoadReason.ENGINE_ENDED
