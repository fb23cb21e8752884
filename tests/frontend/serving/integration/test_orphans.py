"""Processes that nothing explains, and those that something does."""

from datetime import timedelta

from corral.base.ids import FrontendId, new_lease_token
from corral.frontend.record.decide import EventKind
from corral.frontend.serving.unloading import ORPHANS_PERIOD
from corral.frontend.store.leases import Leases
from corral.wire.replicas import RunningModel
from tests.kit.world import FakeNode, World

STRAY = RunningModel(model_id="stray", replica_index=0, address="127.0.0.1:7777")


async def sweep(world: World) -> None:
    await world.control.context.serving.orphans.sweep()
    await world.clock.advance(ORPHANS_PERIOD)
    await world.control.context.nodes.hearing.tick()


async def with_stray(world: World) -> FakeNode:
    node = await world.node("w1")
    await world.frontend.settle()
    node.running.append(STRAY)
    return node


async def test_a_stray_process_is_stopped_after_two_reports_with_one_event(world: World) -> None:
    node = await with_stray(world)
    node.deaf = True
    await sweep(world)
    assert node.stopped == []
    await sweep(world)
    await sweep(world)

    assert node.stopped == ["stray#0", "stray#0"]
    (event,) = await world.events(EventKind.PROCESS_ORPHANED)
    assert (event.node_id, event.data["process"]) == (node.id, "stray#0")


async def test_two_reports_in_a_row_means_in_a_row(world: World) -> None:
    node = await with_stray(world)
    for running in ([STRAY], [], [STRAY], []):
        node.running = running
        await sweep(world)

    assert node.stopped == []


async def test_a_replica_in_any_living_state_explains_its_process(world: World) -> None:
    node = await world.node("w1")
    await world.loaded()
    await sweep(world)
    await sweep(world)
    await world.write("name: more\nbackend: echo\nparameters:\n  model: more.gguf\n", "more.yaml")
    await world.loads.ensure("more")
    (held,) = await world.loads.claim()
    assert await world.loads._work.place(held, {}) is not None
    node.running.append(RunningModel(model_id="more", replica_index=0, address="127.0.0.1:7999"))
    await sweep(world)
    await sweep(world)

    assert node.stopped == []


async def test_what_is_left_of_a_lost_replica_is_stopped(world: World) -> None:
    node = await world.node("w1")
    replica = await world.loaded()
    await world.control.context.serving.replicas.lose([replica.id], reason="x", at=world.clock.now(), events=[])
    await sweep(world)
    await sweep(world)

    assert node.stopped == ["small#0"]


async def test_one_frontend_at_a_time_looks(world: World) -> None:
    node = await with_stray(world)
    other = await world.again()
    await sweep(world)
    await other.context.serving.orphans.sweep()
    await sweep(world)
    await other.context.serving.orphans.sweep()

    assert node.stopped == ["stray#0"]
    assert len(await world.events(EventKind.PROCESS_ORPHANED)) == 1


async def test_a_node_that_does_not_answer_is_no_less_healthy_for_it(world: World) -> None:
    body = {"name": "silent", "address": "127.0.0.1:50051"}
    await world.frontend.register(body, token="trusted-token-of-this-test")
    await world.frontend.settle()
    await sweep(world)
    await world.frontend.settle()

    assert [seen.status for seen in await world.control.context.nodes.fleet.all()] == ["healthy"]


async def test_a_clock_that_is_set_back_gives_nobody_the_lease_for_longer(world: World) -> None:
    node = await with_stray(world)
    other = await world.again()
    await sweep(world)
    until = world.clock.now() + 6 * ORPHANS_PERIOD
    world.clock.jump(-timedelta(hours=1))
    await world.clock.advance(7 * ORPHANS_PERIOD)
    assert await Leases(world.control.context.database).claim(
        "orphans",
        new_lease_token(),
        holder=FrontendId("f2"),
        now=until + ORPHANS_PERIOD,
        until=until + 7 * ORPHANS_PERIOD,
    )
    await world.control.context.serving.orphans.sweep()
    await world.control.context.serving.orphans.sweep()
    await other.context.serving.orphans.sweep()

    assert node.stopped == []
