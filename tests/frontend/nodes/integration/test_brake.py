"""The mass-failure brake: what is kept while it holds, who is told, and that it lifts by itself."""

from datetime import timedelta

import msgspec
import pytest

from corral.bus.port import Bus
from corral.frontend.record.decide import EventKind
from corral.frontend.serving.decide.replica import ReplicaState
from tests.kit.bus import MemoryBus
from tests.kit.world import SECRET, FakeNode, World, view_of

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)

SECOND = timedelta(seconds=1)
OFFLINE = timedelta(seconds=61)


async def passes(world: World, duration: timedelta, *beating: tuple[FakeNode, str]) -> None:
    """Time passes as in a frontend that runs; only these nodes beat."""
    for number in range(int(duration / SECOND)):
        await world.clock.advance(SECOND)
        for node, name in beating if number % 5 == 0 else ():
            await world.frontend.call("POST", f"/api/node/{node.id}/heartbeat", {}, key=SECRET + name)
        await world.frontend.settle()
        await world.control.context.nodes.brake.look()


async def told(world: World) -> str:
    answer = await world.frontend.call("GET", "/api/v1/nodes")
    alarm: str = msgspec.json.decode(answer.body)["alarm"]
    return alarm


async def test_when_all_go_silent_nothing_is_lost_until_they_must_be_gone(world: World) -> None:
    for name in ("a", "b", "c"):
        await world.node(name)
    replica = await world.loaded()
    await passes(world, OFFLINE)
    assert world.control.context.nodes.brake.reason == await told(world) == "3 of 3 nodes went silent together"
    await world.control.context.serving.health.sweep()
    view = await view_of(world.control)
    assert view.replicas[replica.id].rank == 200  # the last choice, but it may well be there
    assert len(await world.events(EventKind.BRAKE_HELD)) == 1
    metrics = await world.frontend.call("GET", "/metrics")
    assert b"corral_brake_held 1" in metrics.body
    for _ in range(15 * 20):
        await world.clock.advance(3 * SECOND)
        await world.control.context.nodes.hearing.tick()
    await passes(world, SECOND)
    assert await told(world) == ""
    await world.control.context.serving.health.sweep()
    assert [one.state for one in await world.control.context.serving.replicas.living()] == []
    assert len(await world.events(EventKind.BRAKE_RELEASED)) == 1


async def test_it_lifts_when_they_are_heard_again(world: World) -> None:
    nodes = [(await world.node(name), name) for name in ("a", "b", "c")]
    await world.loaded()
    await passes(world, OFFLINE)
    assert world.control.context.nodes.brake.holds
    await passes(world, timedelta(seconds=6), *nodes)
    assert not world.control.context.nodes.brake.holds
    await world.control.context.serving.health.sweep()
    (replica,) = await world.control.context.serving.replicas.living()
    assert replica.state is ReplicaState.LOADED


async def test_one_of_three_is_a_machine_that_failed(world: World) -> None:
    first = await world.node("a")
    await world.loaded()
    others = [(await world.node(name), name) for name in ("b", "c")]
    await passes(world, OFFLINE, *others)
    assert not world.control.context.nodes.brake.holds
    await world.control.context.serving.health.sweep()
    assert await world.control.context.serving.replicas.living() == []
    assert first.stops == []


async def test_no_process_is_stopped_while_it_holds(world: World) -> None:
    node = await world.node("a")
    for name in ("b", "c"):
        await world.node(name)
    await world.loaded()
    await passes(world, OFFLINE)
    node.running.append(msgspec.structs.replace(node.running[0], model_id="nobody", address="127.0.0.1:9"))
    for _ in range(3):
        await world.control.context.serving.orphans.sweep()
    assert node.stops == []


async def test_a_frontend_that_was_deaf_holds_back_for_some_heartbeats(world: World, bus: Bus) -> None:
    node = await world.node("a")
    brake, hearing = world.control.context.nodes.brake, world.control.context.nodes.hearing
    assert isinstance(bus, MemoryBus)
    await passes(world, timedelta(seconds=5), (node, "a"))
    assert not brake.holds
    await world.clock.advance(timedelta(seconds=20))  # the process stood still, or NATS was away
    await brake.look()
    assert "heard nothing for" in brake.reason
    await hearing.tick()
    await brake.look()
    assert "could not hear until" in brake.reason
    await passes(world, timedelta(seconds=31), (node, "a"))
    assert not brake.holds
    world.clock.jump(timedelta(hours=1))  # the same after somebody set the clock
    await hearing.tick()
    await brake.look()
    assert brake.holds
