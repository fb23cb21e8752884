"""Backends replaced under models in use: what keeps serving, and what is loaded again whoever dies in between."""

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from corral.bus.port import Bus
from corral.frontend.backends.planning import Ask
from corral.frontend.operations.decide.intent import IntentPolicy, Verb
from corral.frontend.operations.decide.operation import Operation, OperationState, TargetStatus
from corral.frontend.operations.decide.reasons import sentence
from corral.frontend.record.decide import EventKind
from corral.frontend.serving.decide.replica import Replica, ReplicaState
from corral.frontend.serving.store.replicas import Restorations
from corral.frontend.serving.unloading import DRAIN_WITHIN, HEARD_AFTER
from corral.frontend.store.db import Database
from corral.galleries.build_uris import BackendRef
from corral.processes.control import Control
from corral.wire.view import GatewayReport
from tests.kit.clock import ManualClock
from tests.kit.loop_time import overdue
from tests.kit.simulated_worker import SimulatedWorker
from tests.kit.world import World, open_world, view_of

HASTE = timedelta(seconds=3)
"""Shorter than any time-out of the database, which must not be over as well."""
pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


@pytest.fixture
async def hasty(database: Database, clock: ManualClock, bus: Bus, tmp_path: Path) -> AsyncIterator[World]:
    """A frontend that waits for no answer longer than a third of a second."""
    async with open_world(database, clock, bus, tmp_path, intents=IntentPolicy(upgrade=HASTE)) as world:
        yield world


async def upgrade(world: World, *, verb: Verb = Verb.UPGRADE, **fields: object) -> Operation:
    ref = BackendRef(backend="echo")
    return await world.control.context.backends.operations.start(Ask(verb=verb, ref=ref, by="me", **fields))  # type: ignore[arg-type]


async def on_all(world: World, workers: Sequence[SimulatedWorker]) -> list[Replica]:
    """The model on each of them, as only an administrator who scales could have it yet."""
    spec = world.control.context.models.catalogue.find("small")
    for worker in workers:
        await world.loads.restore(spec, worker.node_id)
        await world.loads.tick()
    return await living(world)


async def living(world: World) -> list[Replica]:
    return await world.control.context.serving.replicas.living()


async def step(world: World, control: Control, *, after: timedelta = HEARD_AFTER) -> None:
    """What all loops do in a few seconds."""
    await world.clock.advance(after)
    await world.frontend.settle()
    await control.context.operations.dispatcher.tick()
    await control.context.serving.health.sweep()
    await control.context.serving.unloading.sweep()
    await control.context.serving.restoring.sweep()
    await control.context.serving.loads.tick()


async def steps(world: World, count: int) -> None:
    for _ in range(count):
        await step(world, world.control)


async def until_over(world: World, operation: Operation, control: Control | None = None) -> Operation:
    """Until nothing is under way and nothing is left to load again."""
    control, noted = control or world.control, Restorations(world.stores.database)
    for _ in range(14):
        await step(world, control)
        stored = await control.context.operations.service.get(operation.id)
        if stored.state is not OperationState.RUNNING and not await noted.all():
            return stored
    raise AssertionError([(one.status, sentence(one.reason)) for one in stored.targets])


@pytest.mark.parametrize("is_corral", [True, False])
@pytest.mark.parametrize("tells_stopped", [True, False])
async def test_the_only_replica_is_loaded_again_on_its_node(world: World, is_corral: bool, tells_stopped: bool) -> None:
    worker = await world.worker("a", "echo", is_corral=is_corral)
    await world.worker("b", "echo")
    worker.tells_stopped = tells_stopped
    (before,) = await on_all(world, [worker])
    await world.clock.advance(timedelta(minutes=2))
    await world.frontend.settle()
    done = await until_over(world, await upgrade(world))

    assert done.state is OperationState.DONE
    (again,) = await living(world)
    assert (again.node_id, again.state, again.id == before.id) == (worker.node_id, ReplicaState.LOADED, False)
    assert [verb for verb, _ in worker.requests] == ["load", "upgrade", "load"]
    assert list(worker.processes) == ["small#0"]


@pytest.mark.parametrize("rule", [{"spread_all": True}, {"min_replicas": 2}])
async def test_scaling_leaves_what_makes_way_to_the_upgrade(world: World, rule: dict[str, object]) -> None:
    workers = [await world.worker(name, "echo") for name in "ab"]
    before = {replica.id for replica in await on_all(world, workers)}
    answer = await world.frontend.call("PUT", "/api/v1/scheduling/small", rule)
    assert answer.status == 200, answer.body
    operation = await upgrade(world)
    scaling = world.control.context.serving.scaling
    noted = Restorations(world.stores.database)

    for _ in range(14):
        await scaling.sweep()
        await step(world, world.control)
        await scaling.sweep()
        assert await world.events(EventKind.MODEL_SCALING) == []
        stored = await world.control.context.operations.service.get(operation.id)
        if stored.state is not OperationState.RUNNING and not await noted.all():
            break

    assert stored.state is OperationState.DONE
    after = await living(world)
    assert {replica.node_id for replica in after} == {worker.node_id for worker in workers}
    assert not before & {replica.id for replica in after}


async def test_a_forced_install_and_a_worker_that_knows_no_upgrades_are_no_different(world: World) -> None:
    worker = await world.worker("a", "echo")
    await on_all(world, [worker])
    done = await until_over(world, await upgrade(world, verb=Verb.INSTALL, force=True))
    assert done.state is OperationState.DONE
    assert [verb for verb, _ in worker.requests] == ["load", "install", "load"]
    assert [one.state for one in await living(world)] == [ReplicaState.LOADED]


async def test_while_all_nodes_are_upgraded_somebody_serves(world: World) -> None:
    workers = [await world.worker(name, "echo") for name in "abc"]
    assert len(await on_all(world, workers)) == 3
    operation = await upgrade(world)
    fewest, stored = 3, operation
    for _ in range(30):
        await step(world, world.control, after=timedelta(seconds=1))
        fewest = min(fewest, len((await view_of(world.control)).replicas))
        stored = await world.control.context.operations.service.get(operation.id)
        if stored.state is OperationState.DONE and len((await view_of(world.control)).replicas) == 3:
            break
    assert stored.state is OperationState.DONE
    assert fewest >= 1
    assert sorted(one.node_id for one in await living(world)) == sorted(one.node_id for one in workers)
    assert [one.written["echo"] for one in workers] == [1, 1, 1]


async def test_one_that_waits_for_another_says_so(world: World) -> None:
    workers = [await world.worker(name, "echo") for name in "ab"]
    await on_all(world, workers)
    operation = await upgrade(world)
    await step(world, world.control, after=timedelta(0))
    stored = await world.control.context.operations.service.get(operation.id)
    assert sorted((one.status, sentence(one.reason)) for one in stored.targets) == [
        (TargetStatus.QUEUED, "replicas are taken out of service first"),
        (TargetStatus.QUEUED, "waits until small is loaded again on another node"),
    ]
    assert [one.requests[-1][0] for one in workers] == ["load", "load"]


async def test_the_last_one_waits_also_while_the_other_node_has_nothing_at_all(hasty: World) -> None:
    slow, last = [await hasty.worker(name, "echo") for name in "ab"]
    await on_all(hasty, [slow, last])
    slow.gate.clear()
    slow.begun.clear()
    operation = await upgrade(hasty, nodes=(slow.node_id,))
    await overdue(steps(hasty, 3), slow.begun, by=HASTE)
    assert slow.processes == {}
    second = await upgrade(hasty, nodes=(last.node_id,))
    await step(hasty, hasty.control)
    (target,) = (await hasty.control.context.operations.service.get(second.id)).targets
    assert sentence(target.reason) == "waits until small is loaded again on another node"
    assert "small#0" in last.processes

    slow.gate.set()
    await slow.finished.wait()
    await hasty.clock.advance(timedelta(minutes=1))
    await until_over(hasty, operation)
    assert (await until_over(hasty, second)).state is OperationState.DONE
    assert [one.state for one in await living(hasty)] == [ReplicaState.LOADED] * 2


async def test_requests_under_way_get_their_time_before_the_upgrade_is_sent(world: World) -> None:
    first, second = [await world.worker(name, "echo") for name in "ab"]
    replicas = await on_all(world, [first, second])
    mine = next(one for one in replicas if one.node_id == first.node_id)
    operation = await upgrade(world, nodes=(first.node_id,))

    async def busy_for(duration: timedelta) -> None:
        for _ in range(5):
            report = GatewayReport(gateway="g", sequence=1, in_flight={mine.id: 1})
            world.control.context.serving.gateways.take(report)
            await step(world, world.control, after=duration / 5)

    await busy_for(DRAIN_WITHIN / 2)
    assert mine.id not in (await view_of(world.control)).replicas
    assert ("upgrade" in dict(first.requests), "small#0" in first.processes) == (False, True)
    await busy_for(DRAIN_WITHIN)
    done = await until_over(world, operation)
    assert done.state is OperationState.DONE
    assert len(await living(world)) == 2


async def test_a_frontend_that_dies_between_any_two_steps_forgets_no_replica(world: World) -> None:
    """Each look is made by another frontend: what one knew, only the database tells the next."""
    workers = [await world.worker(name, "echo") for name in "ab"]
    await on_all(world, workers)
    operation = await upgrade(world)
    for number in range(40):
        control = await world.again()
        steps = [
            control.context.operations.dispatcher.tick,
            control.context.serving.unloading.sweep,
            control.context.serving.health.sweep,
            control.context.serving.restoring.sweep,
            control.context.serving.loads.tick,
        ]
        await world.clock.advance(timedelta(minutes=1))  # leases of the dead have ended
        await control.context.nodes.hearing.tick()
        await steps[number % len(steps)]()
    stored = await world.control.context.operations.service.get(operation.id)
    assert stored.state is OperationState.DONE
    assert [one.state for one in await living(world)] == [ReplicaState.LOADED] * 2
    assert [one.written["echo"] for one in workers] == [1, 1]


async def test_a_reply_that_nobody_heard_still_brings_the_replica_back(world: World) -> None:
    worker = await world.worker("a", "echo")
    await on_all(world, [worker])
    operation = await upgrade(world)
    # Everything up to the request is stored; then this frontend is gone, and the node carries the request out.
    (held,) = await world.control.context.operations.dispatcher.claim()
    assert held[1] is not None
    kind = world.control.context.operations.dispatcher._kinds[held[0].kind]
    assert await kind.hold(held[0], held[1], replaces=True) is None
    worker.put("echo")
    worker.processes.clear()

    another = await world.again()
    done = await until_over(world, operation, another)
    assert done.state is OperationState.DONE
    assert [one.node_id for one in await living(world)] == [worker.node_id]


async def test_a_node_that_refuses_serves_the_old_one_until_the_next_attempt(world: World) -> None:
    worker = await world.worker("a", "echo")
    await on_all(world, [worker])
    operation = await upgrade(world)
    worker.faults.refusal = "disk full"
    await step(world, world.control)
    worker.faults.refusal = ""
    for _ in range(3):
        await step(world, world.control)
    stored = await world.control.context.operations.service.get(operation.id)
    assert stored.targets[0].status is TargetStatus.ERROR
    assert [one.state for one in await living(world)] == [ReplicaState.LOADED]
    await world.clock.advance(timedelta(minutes=1))
    done = await until_over(world, operation)
    assert done.state is OperationState.DONE
    assert [one.state for one in await living(world)] == [ReplicaState.LOADED]


@pytest.mark.parametrize("verb", [Verb.UPGRADE, Verb.DELETE])
async def test_what_a_node_ended_before_it_failed_is_out_of_service_at_once(world: World, verb: Verb) -> None:
    worker = await world.worker("a", "echo")
    await on_all(world, [worker])
    worker.faults.refusal = "disk full"
    operation = await upgrade(world, verb=verb)
    await world.control.context.operations.dispatcher.tick()

    assert ([asked for asked, _ in worker.requests], worker.processes) == (["load", verb], {})
    assert (await living(world), (await view_of(world.control)).replicas) == ([], {})
    (target,) = (await world.control.context.operations.service.get(operation.id)).targets
    assert (target.status, sentence(target.reason)) == (TargetStatus.ERROR, "disk full")


async def test_a_backend_that_is_deleted_meanwhile_brings_nothing_back(world: World) -> None:
    worker = await world.worker("a", "echo")
    await on_all(world, [worker])
    await upgrade(world)
    await world.control.context.operations.dispatcher.tick()
    await upgrade(world, verb=Verb.DELETE)
    for _ in range(5):
        await step(world, world.control)
    assert (await living(world), worker.processes, worker.disk) == ([], {}, {})


async def test_a_model_that_is_gone_meanwhile_is_not_loaded_again(world: World) -> None:
    worker = await world.worker("a", "echo")
    await on_all(world, [worker])
    await upgrade(world)
    await world.control.context.operations.dispatcher.tick()
    await world.delete()
    for _ in range(5):
        await step(world, world.control)
    assert (await living(world), worker.processes) == ([], {})


async def test_a_node_that_was_away_for_hours_gets_its_replica_back(world: World) -> None:
    worker = await world.worker("a", "echo")
    await on_all(world, [worker])
    await upgrade(world)
    await world.control.context.operations.dispatcher.tick()
    await world.frontend.call("POST", f"/api/nodes/{worker.node_id}/drain")
    for _ in range(3):
        await step(world, world.control)
    assert await living(world) == []
    await world.frontend.call("POST", f"/api/nodes/{worker.node_id}/resume")
    for _ in range(3):
        await step(world, world.control)
    assert [one.node_id for one in await living(world)] == [worker.node_id]
