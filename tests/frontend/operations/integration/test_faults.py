"""Operations when frontends, nodes and clocks do what they should not."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from corral.base.ids import OperationId
from corral.bus.port import Bus
from corral.frontend.operations.decide.intent import IntentPolicy
from corral.frontend.operations.decide.operation import Operation, OperationState, Target, TargetStatus
from corral.frontend.operations.decide.reasons import sentence
from corral.frontend.store.db import Database
from corral.processes.control import Control
from corral.wire.operation_views import JobStatus, OperationView
from corral.wire.registration import FEATURES, CorralHello
from tests.kit.bus import MemoryBus, MemoryServer
from tests.kit.clock import ManualClock
from tests.kit.frontend import TRUSTED_TOKEN
from tests.kit.loop_time import overdue
from tests.kit.simulated_backends import SimulatedBackends
from tests.kit.world import SECRET, World, open_world

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
"""The other database is for the tests of what is stored."""

INSTALL = {"verb": "install", "backend": "echo"}
TIMEOUT = timedelta(seconds=3)
"""Shorter than any time-out of the database, which must not be over as well."""
HASTY = IntentPolicy(install=TIMEOUT, upgrade=TIMEOUT, delete=TIMEOUT)
A_LEASE = IntentPolicy().lease + timedelta(seconds=1)


@pytest.fixture
async def hasty(database: Database, clock: ManualClock, bus: Bus, tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(database, clock, bus, tmp_path, intents=HASTY) as world:
        yield world


async def ask(world: World, asked: object = None, **headers: str) -> OperationId:
    answer = await world.frontend.call("POST", "/api/v1/operations", asked or INSTALL, **headers)
    assert answer.status == 202, answer.body
    return OperationId(msgspec.json.decode(answer.body, type=OperationView).id)


async def get(world: World, id: OperationId) -> Operation:
    return await world.control.context.operations.service.get(id)


async def target(world: World, id: OperationId) -> Target:
    (only,) = (await get(world, id)).targets
    return only


async def job(world: World, id: OperationId) -> JobStatus:
    answer = await world.frontend.call("GET", f"/api/backends/job/{id}")
    return msgspec.json.decode(answer.body, type=JobStatus)


async def pass_time(world: World, duration: timedelta) -> None:
    await world.clock.advance(duration)
    await world.frontend.settle()


async def dies_with_its_request_open(world: World, node: SimulatedBackends, control: Control) -> None:
    """A frontend that has sent its request is killed before any answer."""
    node.begun.clear()
    dying = asyncio.ensure_future(control.context.operations.dispatcher.tick())
    async with asyncio.timeout(60):
        await node.begun.wait()
    dying.cancel()
    await asyncio.gather(dying, return_exceptions=True)


# Time-outs.


async def test_an_install_four_times_as_long_as_its_time_out_is_yellow_then_green(hasty: World) -> None:
    node = await hasty.backends("w", is_corral=False)
    node.gate.clear()
    id = await ask(hasty)
    await overdue(hasty.control.context.operations.dispatcher.tick(), node.begun, by=TIMEOUT)
    for _ in range(3):
        seen, shown = await target(hasty, id), await job(hasty, id)
        assert (seen.status, seen.attempts) == (TargetStatus.RUNNING_ON_WORKER, 0)
        assert (shown.processed, shown.error) == (True, msgspec.UNSET)
        assert shown.message == "still installing in background on w; the nodes' own reports will confirm it"
        await pass_time(hasty, TIMEOUT)
        await hasty.control.context.operations.dispatcher.tick()
    node.gate.set()
    async with asyncio.timeout(60):
        await node.finished.wait()
    await hasty.control.context.backends.inventory.sweep()
    await hasty.control.context.operations.dispatcher.tick()
    seen, shown = await target(hasty, id), await job(hasty, id)
    assert (seen.status, seen.attempts, sentence(seen.reason)) == (TargetStatus.SUCCESS, 0, "present")
    assert (shown.completed, shown.progress) == (True, 100)
    assert node.written["echo"] == 1


# Frontends that die.


async def test_an_install_by_uri_is_asked_for_in_the_same_words_after_a_kill(world: World) -> None:
    node = await world.backends("w")
    node.gate.clear()
    id = await ask(
        world,
        {"verb": "install", "uri": "oci://r/custom:v1", "name": "custom", "alias": "mine", "nodes": [node.node_id]},
    )
    await dies_with_its_request_open(world, node, world.control)
    node.die()  # what the first request had begun is lost as well
    node.gate.set()
    await pass_time(world, A_LEASE)
    await (await world.again()).context.operations.dispatcher.tick()
    (_, first), (_, second) = node.requests
    assert first == second
    assert (second.uri, second.name, second.alias) == ("oci://r/custom:v1", "custom", "mine")  # type: ignore[attr-defined]
    assert (await get(world, id)).state is OperationState.DONE


@pytest.mark.parametrize("verb", ["install", "upgrade", "delete"])
@pytest.mark.parametrize("is_corral", [True, False], ids=["corral", "localai"])
async def test_what_a_dead_frontend_asked_for_is_proven_and_not_asked_for_again(
    world: World, verb: str, is_corral: bool
) -> None:
    node = await world.backends("w", is_corral=is_corral)
    if verb != "install":
        await ask(world)
        await world.control.context.operations.dispatcher.tick()
        await pass_time(world, timedelta(minutes=2))
    node.gate.clear()
    id = await ask(world, {"verb": verb, "backend": "echo"})
    await dies_with_its_request_open(world, node, world.control)
    asked = len(node.requests)
    node.finished.clear()
    node.gate.set()
    async with asyncio.timeout(60):
        await node.finished.wait()
    await pass_time(world, A_LEASE)
    await (await world.again()).context.operations.dispatcher.tick()
    assert (await get(world, id)).state is OperationState.DONE
    assert len(node.requests) == asked


async def test_a_repeated_call_finds_its_operation_whatever_has_happened_since(world: World) -> None:
    await world.backends("w")
    await ask(world)
    await world.control.context.operations.dispatcher.tick()
    upgrade = {"verb": "upgrade", "backend": "echo"}
    id = await ask(world, upgrade, idempotency_key="k")
    await ask(world, {"verb": "delete", "backend": "echo"})
    await world.control.context.operations.dispatcher.tick()
    assert await ask(world, upgrade, idempotency_key="k") == id  # although no node has it any more
    assert (await target(world, id)).status is TargetStatus.SUPERSEDED


# A bus that goes away, and answers that come twice.


@pytest.mark.parametrize("verb", ["install", "upgrade", "delete"])
async def test_answers_that_come_twice_change_nothing(world: World, verb: str) -> None:
    node = await world.backends("w")
    node.faults.twice = True
    await ask(world)
    await world.control.context.operations.dispatcher.tick()
    id = await ask(world, {"verb": verb, "backend": "echo"})
    await world.control.context.operations.dispatcher.tick()
    assert (await get(world, id)).state is OperationState.DONE
    assert [asked for asked, _ in node.requests] == (["install"] if verb == "install" else ["install", verb])


async def test_an_operation_that_meets_no_bus_goes_on_when_there_is_one(
    database: Database, clock: ManualClock, tmp_path: Path
) -> None:
    server = MemoryServer()
    async with MemoryBus(server) as bus, open_world(database, clock, bus, tmp_path) as world:
        node = await world.backends("w")
        server.go_down()
        id = await ask(world)
        await world.control.context.operations.dispatcher.tick()
        seen = await target(world, id)
        assert (seen.status, seen.attempts, node.requests) == (TargetStatus.QUEUED, 0, [])
        server.come_up()
        await pass_time(world, IntentPolicy().look_again)
        await world.control.context.operations.dispatcher.tick()
        assert (await get(world, id)).state is OperationState.DONE


# Workers that die.


async def registers(world: World, life: str, *, is_corral: bool = True, address: str = "127.0.0.1:50051") -> None:
    """A LocalAI worker tells nothing of its life."""
    body: dict[str, object] = {"name": "w", "address": address}
    if is_corral:
        hello = CorralHello(version="1", features=list(FEATURES), secret=SECRET + "w", incarnation=life)
        body["corral"] = msgspec.to_builtins(hello)
    assert (await world.frontend.register(body, token=TRUSTED_TOKEN)).status == 201


async def starts_anew(world: World, node: SimulatedBackends, *, life: str, address: str = "127.0.0.1:50051") -> None:
    """A worker is killed and comes back, with all that it tells a frontend then."""
    node.die()
    node.gate.set()
    await registers(world, life, is_corral=node.is_corral, address=address)
    key = SECRET + "w" if node.is_corral else TRUSTED_TOKEN
    beat = await world.frontend.call("POST", f"/api/node/{node.node_id}/heartbeat", {}, key=key)
    assert beat.status == 200
    await world.frontend.settle()


@pytest.mark.parametrize("address", ["127.0.0.1:50051", "127.0.0.2:50099"], ids=["there", "elsewhere"])
@pytest.mark.parametrize("is_corral", [True, False], ids=["corral", "localai"])
async def test_a_worker_that_died_in_the_middle_of_an_install_is_asked_again_soon(
    world: World, is_corral: bool, address: str
) -> None:
    node = await world.backends("w", is_corral=is_corral)
    await world.control.context.operations.dispatcher.notice_returns()
    node.gate.clear()
    id = await ask(world)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(world.control.context.operations.dispatcher.tick())
        await node.begun.wait()
        await starts_anew(world, node, life="2", address=address)
        await (
            world.control.context.operations.dispatcher.notice_returns()
        )  # ends the wait for an answer that cannot come
    await pass_time(world, IntentPolicy().look_again)
    await world.control.context.operations.dispatcher.tick()
    seen = await target(world, id)
    assert (seen.status, seen.attempts, len(node.requests)) == (TargetStatus.SUCCESS, 0, 2)
    assert node.written["echo"] == 1


@pytest.mark.parametrize("is_corral", [True, False], ids=["corral", "localai"])
async def test_a_node_that_goes_offline_in_the_middle_of_an_install_is_waited_for_and_not_its_answer(
    world: World, is_corral: bool
) -> None:
    node = await world.backends("w", is_corral=is_corral)
    await world.control.context.operations.dispatcher.notice_returns()
    node.gate.clear()
    id = await ask(world)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(world.control.context.operations.dispatcher.tick())
        await node.begun.wait()
        assert (await target(world, id)).status is TargetStatus.DOWNLOADING
        for _ in range(40):  # silence counts only while control can hear
            await pass_time(world, timedelta(seconds=2))
        await world.control.context.operations.dispatcher.notice_returns()
    seen = await target(world, id)
    assert (seen.status, seen.waits_for_node, seen.attempts) == (TargetStatus.QUEUED, True, 0)
    assert (await get(world, id)).state is OperationState.WAITING
    await starts_anew(world, node, life="2")
    await world.control.context.operations.dispatcher.notice_returns()
    await world.control.context.operations.dispatcher.tick()
    assert ((await get(world, id)).state, node.written["echo"]) == (OperationState.DONE, 1)


@pytest.mark.parametrize("is_corral", [True, False], ids=["corral", "localai"])
async def test_a_worker_that_died_after_its_time_was_over_is_asked_again_at_once(hasty: World, is_corral: bool) -> None:
    node = await hasty.backends("w", is_corral=is_corral)
    await hasty.control.context.operations.dispatcher.notice_returns()
    node.gate.clear()
    id = await ask(hasty)
    await overdue(hasty.control.context.operations.dispatcher.tick(), node.begun, by=TIMEOUT)
    assert (await target(hasty, id)).status is TargetStatus.RUNNING_ON_WORKER
    await starts_anew(hasty, node, life="2")
    await hasty.control.context.operations.dispatcher.notice_returns()
    await hasty.control.context.operations.dispatcher.tick()
    assert ((await get(hasty, id)).state, node.written["echo"]) == (OperationState.DONE, 1)


@pytest.mark.parametrize("is_corral", [True, False], ids=["corral", "localai"])
async def test_a_delete_does_not_wait_for_an_install_that_died_with_its_worker(world: World, is_corral: bool) -> None:
    node = await world.backends("w", is_corral=is_corral)
    node.gate.clear()
    await ask(world)
    await dies_with_its_request_open(world, node, world.control)
    id = await ask(world, {"verb": "delete", "backend": "echo"})
    await starts_anew(world, node, life="2")
    await pass_time(world, A_LEASE)
    await (await world.again()).context.operations.dispatcher.tick()
    assert ((await get(world, id)).state, node.written["echo"]) == (OperationState.DONE, 0)


@pytest.mark.parametrize("is_corral", [True, False], ids=["corral", "localai"])
async def test_what_a_dead_frontend_asked_of_a_dead_worker_is_asked_of_the_next_one(
    world: World, is_corral: bool
) -> None:
    node = await world.backends("w", is_corral=is_corral)
    await ask(world)
    await world.control.context.operations.dispatcher.tick()
    await pass_time(world, timedelta(minutes=2))
    node.gate.clear()
    id = await ask(world, {"verb": "upgrade", "backend": "echo"})
    await dies_with_its_request_open(world, node, world.control)
    await starts_anew(world, node, life="2")
    await pass_time(world, A_LEASE)
    await (await world.again()).context.operations.dispatcher.tick()
    assert ((await get(world, id)).state, node.written["echo"]) == (OperationState.DONE, 2)


async def test_a_worker_that_registers_again_in_the_same_life_is_still_waited_for(world: World) -> None:
    node = await world.backends("w")
    await world.control.context.operations.dispatcher.notice_returns()
    node.gate.clear()
    id = await ask(world)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        work = group.create_task(world.control.context.operations.dispatcher.tick())
        await node.begun.wait()
        await registers(world, "1")
        await world.frontend.settle()
        await world.control.context.operations.dispatcher.notice_returns()
        assert not work.done()
        node.gate.set()
    assert ((await get(world, id)).state, len(node.requests)) == (OperationState.DONE, 1)


# Nodes that are away.


async def test_a_node_that_was_away_for_a_day_gets_the_last_wish_and_only_that(world: World) -> None:
    node = await world.backends("w")
    await world.control.context.operations.dispatcher.notice_returns()
    await node.stop()
    first = await ask(world)
    for hour in range(24):
        await world.control.context.operations.dispatcher.tick()
        await pass_time(world, timedelta(hours=1))
        if hour == 12:
            last = await ask(world, {**INSTALL, "force": True})
    assert (await get(world, last)).state is OperationState.WAITING
    assert (await job(world, last)).message == "waiting for w to come back"
    await node.listen(world.bus)
    await starts_anew(world, node, life="2")
    await world.control.context.operations.dispatcher.notice_returns()
    await world.control.context.operations.dispatcher.tick()
    assert (await target(world, first)).status is TargetStatus.SUPERSEDED
    assert ((await get(world, last)).state, len(node.requests)) == (OperationState.DONE, 1)


# Clocks that are set.

JUMPS = [timedelta(hours=-10), timedelta(minutes=-2), timedelta(minutes=2), timedelta(hours=10)]


@pytest.mark.parametrize("jump", JUMPS, ids=str)
async def test_a_clock_that_was_set_does_not_keep_what_is_due_waiting(world: World, jump: timedelta) -> None:
    node = await world.backends("w")
    id = await ask(world)
    world.clock.jump(jump)
    await world.frontend.settle()
    await pass_time(world, timedelta(seconds=1))
    await world.control.context.operations.dispatcher.tick()
    assert ((await get(world, id)).state, node.written["echo"]) == (OperationState.DONE, 1)


@pytest.mark.parametrize("jump", JUMPS, ids=str)
@pytest.mark.parametrize("is_corral", [True, False], ids=["corral", "localai"])
async def test_a_clock_that_was_set_while_a_frontend_died_hides_nothing(
    world: World, is_corral: bool, jump: timedelta
) -> None:
    """Its lease is over and its request shown, whatever the clock says now."""
    node = await world.backends("w", is_corral=is_corral)
    node.gate.clear()
    id = await ask(world)
    await dies_with_its_request_open(world, node, world.control)
    node.gate.set()
    async with asyncio.timeout(60):
        await node.finished.wait()
    world.clock.jump(jump)
    await world.frontend.settle()
    await pass_time(world, A_LEASE)
    await (await world.again()).context.operations.dispatcher.tick()
    assert ((await get(world, id)).state, len(node.requests)) == (OperationState.DONE, 1)


@pytest.mark.parametrize("jump", JUMPS, ids=str)
async def test_a_failed_attempt_is_repeated_in_time_although_the_clock_was_set(world: World, jump: timedelta) -> None:
    node = await world.backends("w")
    node.faults.refusal = "no space left on device"
    id = await ask(world)
    await world.control.context.operations.dispatcher.tick()
    node.faults.refusal = ""
    world.clock.jump(jump)
    await world.frontend.settle()
    await pass_time(world, timedelta(seconds=31))
    await world.control.context.operations.dispatcher.tick()
    assert (await get(world, id)).state is OperationState.DONE


@pytest.mark.parametrize("jump", JUMPS, ids=str)
async def test_a_wish_that_waits_for_a_lost_request_is_not_kept_for_hours_by_a_clock(
    hasty: World, jump: timedelta
) -> None:
    node = await hasty.backends("w", is_corral=False)
    node.gate.clear()
    await ask(hasty)
    await dies_with_its_request_open(hasty, node, hasty.control)
    node.die()
    node.gate.set()
    id = await ask(hasty, {**INSTALL, "force": True})  # in doubt about the first one
    hasty.clock.jump(jump)
    await hasty.frontend.settle()
    successor = await hasty.again()
    for _ in range(4):
        await pass_time(hasty, A_LEASE)
        await successor.context.operations.dispatcher.tick()
    assert ((await get(hasty, id)).state, node.written["echo"]) == (OperationState.DONE, 1)
