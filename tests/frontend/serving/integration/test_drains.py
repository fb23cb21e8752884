"""Drains that end: what moves, what is told meanwhile, and what is left when nothing can take it."""

from datetime import timedelta

import msgspec

from corral.frontend.record.decide import EventKind
from corral.frontend.serving.decide.draining import NODE_DRAINED, SETTLED_AFTER
from corral.frontend.serving.decide.eviction import RoomPolicy
from corral.frontend.serving.decide.load_job import LoadWhy
from corral.frontend.serving.decide.replica import Replica, ReplicaState
from corral.frontend.serving.unloading import DRAIN_WITHIN, HEARD_AFTER
from corral.wire.nodes import DrainView
from corral.wire.view import GatewayReport
from tests.kit.world import FakeNode, World, view_of

MIB = 1024**2


async def drain(world: World, node: FakeNode, query: str = "") -> int:
    return (await world.frontend.call("POST", f"/api/v1/nodes/{node.id}/drain{query}")).status


async def progress(world: World, node: FakeNode) -> DrainView:
    answer = await world.frontend.call("GET", f"/api/v1/nodes/{node.id}/drain")
    assert answer.status == 200
    return msgspec.json.decode(answer.body, type=DrainView)


async def go_on(world: World, after: timedelta = timedelta(0)) -> None:
    """All loops that have to do with it, once."""
    await world.clock.advance(after)
    serving = world.control.context.serving
    await serving.draining.sweep()
    await serving.loads.tick()
    await serving.unloading.sweep()


async def places(world: World) -> list[tuple[str, ReplicaState]]:
    living = await world.control.context.serving.replicas.living()
    return sorted((replica.node_id, replica.state) for replica in living)


def heard(world: World, *replicas: Replica) -> None:
    report = GatewayReport(gateway="g", sequence=0, in_flight={replica.id: 1 for replica in replicas})
    world.control.context.serving.gateways.take(report)


async def test_a_replica_is_loaded_elsewhere_first_and_then_ended_after_its_requests(world: World) -> None:
    first = await world.node("w1", stops_exactly=True)
    replica = await world.loaded()
    second = await world.node("w2")
    heard(world, replica)
    assert await drain(world, first) == 200
    before = await progress(world, first)
    await go_on(world)
    moved = await places(world)
    heard(world, replica)
    await go_on(world, SETTLED_AFTER)
    ending = await progress(world, first)
    for _ in range(20):
        await world.clock.advance(timedelta(seconds=3))
        heard(world, replica)
        await go_on(world)
    still = list(first.exact_stops)
    heard(world)
    await go_on(world, HEARD_AFTER)
    await go_on(world)

    assert (before.state, before.replicas_left, before.requests_left) == ("draining", 1, 1)
    assert [(one.model, one.step) for one in before.replicas] == [("small", "moves")]
    assert moved == sorted([(first.id, ReplicaState.LOADED), (second.id, ReplicaState.LOADED)])
    assert [(one.step, one.in_flight) for one in ending.replicas] == [("ends", 1)]
    assert still == [], "a minute is not too long for a request"
    assert await places(world) == [(second.id, ReplicaState.LOADED)]
    assert (await progress(world, first)).state == "drained"
    [unloading] = await world.events(EventKind.REPLICA_UNLOADING)
    assert unloading.data["why"] == NODE_DRAINED
    [drained] = await world.events(EventKind.NODE_DRAINED)
    assert drained.data["name"] == "w1"
    assert [entry.node_name for entry in (await view_of(world.control)).replicas.values()] == ["w2"]


async def test_requests_that_never_end_are_cut_off_at_the_bound(world: World) -> None:
    first = await world.node("w1", stops_exactly=True)
    replica = await world.loaded()
    await world.node("w2")
    await drain(world, first)
    await go_on(world)
    await go_on(world, SETTLED_AFTER)
    for _ in range(3):
        await world.clock.advance(RoomPolicy().drain / 4)
        heard(world, replica)
        await go_on(world)
        assert first.exact_stops == []
    await world.clock.advance(RoomPolicy().drain / 4)
    heard(world, replica)
    await go_on(world)

    assert len(first.exact_stops) == 1


async def test_what_fits_nowhere_stays_and_serves_until_it_is_forced(world: World) -> None:
    first = await world.node("w1", stops_exactly=True)
    await world.loaded()
    small = await world.node("w2", ram=10 * MIB)
    (world.models / "small.gguf").write_bytes(b"")
    with (world.models / "small.gguf").open("wb") as weights:
        weights.truncate(100 * MIB)
    await world.control.context.models.watch.look()
    await drain(world, first)
    await go_on(world)
    await go_on(world, DRAIN_WITHIN)

    assert await places(world) == [(first.id, ReplicaState.LOADED)]
    [left] = (await progress(world, first)).replicas
    assert (left.step, left.why) == ("stays", "no other node can take its model")
    assert left.nodes["w2"] == "has 10 MiB free and needs 0.1 GiB"
    assert small.installs == []
    assert await drain(world, first, "?force=true") == 200
    await go_on(world, HEARD_AFTER)
    assert await places(world) == []
    await go_on(world)
    assert (await progress(world, first)).state == "drained"


async def test_a_node_that_nobody_drains_is_not_forced_and_tells_what_a_drain_would_mean(world: World) -> None:
    first = await world.node("w1")
    await world.loaded()

    view = await progress(world, first)
    assert (view.state, view.stays, view.replicas[0].nodes) == ("not draining", 1, {"w1": "is draining"})
    assert await drain(world, first, "?force=yes") == 400
    assert (await world.frontend.call("GET", "/api/v1/nodes/nobody/drain")).status == 404


async def test_resuming_in_the_middle_ends_the_drain_and_takes_the_load_back(world: World) -> None:
    first = await world.node("w1")
    await world.loaded()
    await drain(world, first)
    second = await world.node("w2")
    second.error = "no"
    await world.control.context.serving.draining.sweep()
    [job] = await world.loads.jobs()
    assert job.why is LoadWhy.DRAIN
    await world.frontend.call("POST", f"/api/v1/nodes/{first.id}/resume")
    await world.control.context.serving.draining.sweep()
    await go_on(world, SETTLED_AFTER)

    assert await world.loads.jobs() == []
    assert await places(world) == [(first.id, ReplicaState.LOADED)]
    assert (await progress(world, first)).state == "not draining"


async def test_a_worker_that_leaves_has_its_models_loaded_elsewhere(world: World) -> None:
    first = await world.node("w1")
    await world.loaded()
    second = await world.node("w2")
    registry = world.control.context.nodes.registry
    await registry.drain(first.id, by="worker")
    await go_on(world)

    assert (second.id, ReplicaState.LOADED) in await places(world)


async def test_two_frontends_move_a_replica_once(world: World) -> None:
    first = await world.node("w1")
    await world.loaded()
    second = await world.node("w2")
    other = await world.again()
    await drain(world, first)
    for control in (world.control, other, world.control):
        await control.context.serving.draining.sweep()
        await control.context.serving.loads.tick()

    assert len(second.installs) == 1


async def test_who_does_not_empty_nodes_has_nothing_under_way(world: World) -> None:
    first = await world.node("w1")
    await world.loaded()
    await world.node("w2")
    other = await world.again()
    await drain(world, first)

    assert await world.control.context.serving.draining.sweep() is True
    assert await other.context.serving.draining.sweep() is False
