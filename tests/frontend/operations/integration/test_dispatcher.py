"""Operations brought about on nodes that are only their messages: what is sent, what is proven, what people see."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from corral.base.errors import Conflict, DatabaseUnavailable, InvalidInput, NotFound
from corral.base.ids import LeaseToken, NodeId
from corral.base.logs import record_fields
from corral.bus.port import Bus
from corral.frontend.backends.operations import BackendKind
from corral.frontend.backends.planning import Ask
from corral.frontend.operations.decide.intent import IntentPolicy, Verb
from corral.frontend.operations.decide.operation import NO_PROGRESS, Operation, OperationState, Target, TargetStatus
from corral.frontend.operations.decide.reasons import sentence
from corral.frontend.operations.progress import ProgressBoard
from corral.frontend.operations.store.intents import IntentChange, Intents
from corral.frontend.record.decide import EventKind
from corral.frontend.store.db import Database
from corral.galleries.build_uris import BackendRef
from corral.wire import subjects
from corral.wire.backends import InstalledDetails, InstallRequest, UpgradeRequest
from corral.wire.confinement import ConfinementWish, PolicyAsk
from tests.kit.clock import ManualClock
from tests.kit.loop_time import overdue
from tests.kit.simulated_backends import SimulatedBackends
from tests.kit.waiting import eventually
from tests.kit.world import World, open_world

HASTE = timedelta(seconds=3)
"""Shorter than any time-out of the database, which must not be over as well."""
HASTY = IntentPolicy(install=HASTE, upgrade=HASTE, delete=HASTE)


@pytest.fixture
async def hasty(database: Database, clock: ManualClock, bus: Bus, tmp_path: Path) -> AsyncIterator[World]:
    """A frontend that waits for nobody longer than a moment."""
    async with open_world(database, clock, bus, tmp_path, intents=HASTY) as world:
        yield world


async def ask(world: World, verb: Verb = Verb.INSTALL, backend: str = "echo", **fields: object) -> Operation:
    names = {name: fields.pop(name) for name in ("uri", "name", "alias", "galleries") if name in fields}
    ref = BackendRef(backend=backend, **names)  # type: ignore[arg-type]
    return await world.control.context.backends.operations.start(Ask(verb=verb, ref=ref, by="me", **fields))  # type: ignore[arg-type]


async def done(world: World, verb: Verb = Verb.INSTALL, backend: str = "echo", **fields: object) -> Operation:
    """Ask, and let the dispatcher do what it can now."""
    operation = await ask(world, verb, backend, **fields)
    await world.control.context.operations.dispatcher.tick()
    return await world.control.context.operations.service.get(operation.id)


async def later(world: World, operation: Operation, duration: timedelta) -> Operation:
    await world.clock.advance(duration)
    await beat_of_everybody(world)
    await world.control.context.operations.dispatcher.tick()
    return await world.control.context.operations.service.get(operation.id)


async def beat_of_everybody(world: World) -> None:
    """Nobody is silent just because time was made to pass."""
    await world.frontend.settle()


def only(operation: Operation) -> Target:
    (target,) = operation.targets
    return target


def verbs(node: SimulatedBackends) -> list[str]:
    return [verb for verb, _ in node.requests]


async def test_install_upgrade_and_delete_on_both_kinds_of_workers(world: World) -> None:
    corral, localai = await world.backends("c"), await world.backends("l", is_corral=False)
    installed = await done(world)
    assert (installed.state, [one.status for one in installed.targets]) == (
        OperationState.DONE,
        [TargetStatus.SUCCESS, TargetStatus.SUCCESS],
    )
    await world.clock.advance(timedelta(minutes=2))
    await world.frontend.settle()
    upgraded = await done(world, Verb.UPGRADE)
    assert upgraded.state is OperationState.DONE
    deleted = await done(world, Verb.DELETE)
    assert deleted.state is OperationState.DONE
    for node in (corral, localai):
        assert verbs(node) == ["install", "upgrade", "delete"]
        assert node.disk == {}
        assert node.written["echo"] == 2


async def test_only_corral_s_workers_are_told_what_was_decided_about_a_backend(world: World) -> None:
    corral, localai = await world.backends("c"), await world.backends("l", is_corral=False)
    ask = PolicyAsk(is_confined=False, reason="it needs perf")
    await world.control.context.backends.policies.put("echo", ask, by="test")
    await done(world)

    requests = [request for node in (corral, localai) for _, request in node.requests]
    assert [getattr(request, "confinement", None) for request in requests] == [
        ConfinementWish(is_off=True),
        ConfinementWish(),
    ]


async def test_whatever_is_logged_during_the_work_on_an_intent_names_its_node_and_operation(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.backends("w")
    fields: list[dict[str, object]] = []
    send = BackendKind.send

    async def logging_send(self: BackendKind, *args: object, **named: object) -> object:
        fields.append(record_fields(logging.makeLogRecord({})))
        return await send(self, *args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(BackendKind, "send", logging_send)

    operation = await done(world)

    assert fields == [{"node": only(operation).node_id, "backend": "echo", "operation": operation.id}]
    assert record_fields(logging.makeLogRecord({})) == {}


async def test_a_request_carries_exactly_what_was_asked_for_also_when_it_is_retried(world: World) -> None:
    node = await world.backends("w")
    node.faults.refusal = "disk full"
    operation = await done(
        world, backend="", uri="oci://r/custom:v1", name="custom", alias="mine", galleries='[{"url":"u","name":"g"}]'
    )
    assert only(operation).status is TargetStatus.ERROR
    node.faults.refusal = ""
    operation = await later(world, operation, timedelta(seconds=31))
    assert operation.state is OperationState.DONE
    first, second = [request for _, request in node.requests]
    assert first == second
    assert first == InstallRequest(
        backend="custom",
        backend_galleries='[{"url":"u","name":"g"}]',
        uri="oci://r/custom:v1",
        name="custom",
        alias="mine",
        op_id=operation.id,
    )


async def test_the_alias_of_an_install_by_uri_means_the_backend_it_was_given_to(world: World) -> None:
    """No report lists it: without that, a delete by it would find nothing there, and call that done."""
    corral, localai = await world.backends("c"), await world.backends("l", is_corral=False)
    await done(world, backend="", uri="oci://r/custom:v1", name="custom", alias="mine")
    assert {*corral.disk} == {*localai.disk} == {"custom"}

    deleted = await done(world, Verb.DELETE, "mine")
    assert [one.status for one in deleted.targets] == [TargetStatus.SUCCESS, TargetStatus.SUCCESS]
    assert not corral.disk
    assert not localai.disk


@pytest.mark.parametrize("is_corral", [True, False])
async def test_an_upgrade_by_uri_carries_what_it_was_installed_with(world: World, is_corral: bool) -> None:
    """LocalAI's workers look in their galleries without the uri, and drop the alias if it is not sent again."""
    node = await world.backends("w", is_corral=is_corral)
    await done(world, backend="", uri="oci://r/custom:v1", name="custom", alias="mine")
    await world.clock.advance(timedelta(minutes=2))
    await world.frontend.settle()

    upgraded = await done(world, Verb.UPGRADE, "custom")

    assert [(one.status, sentence(one.reason)) for one in upgraded.targets] == [(TargetStatus.SUCCESS, "version")]
    _, request = node.requests[-1]
    assert isinstance(request, UpgradeRequest)
    assert (request.backend, request.name, request.uri, request.alias) == (
        "custom",
        "custom",
        "oci://r/custom:v1",
        "mine",
    )
    assert node.aliases == {"custom": "mine"}


async def test_a_frontend_that_started_anew_upgrades_an_install_by_uri_as_well(world: World) -> None:
    node = await world.backends("w", is_corral=False)
    await done(world, backend="", uri="oci://r/custom:v1", name="custom", alias="mine")
    await world.clock.advance(timedelta(minutes=2))
    await world.frontend.settle()

    restarted = await world.again()
    await restarted.context.backends.operations.start(
        Ask(verb=Verb.UPGRADE, ref=BackendRef(backend="custom"), by="test")
    )
    await restarted.context.operations.dispatcher.tick()

    assert (node.written["custom"], node.aliases) == (2, {"custom": "mine"})


async def test_what_another_frontend_installed_by_uri_is_upgraded_from_where_the_node_says(world: World) -> None:
    """Its alias no report tells: the plan says so, since a LocalAI worker forgets it."""
    node = await world.backends("w", is_corral=False)
    other = InstallRequest(backend="custom", uri="oci://r/custom:v1", name="custom", alias="theirs")
    await world.bus.request(subjects.backend_install(node.node_id), msgspec.json.encode(other), timeout=HASTE)
    await world.clock.advance(timedelta(minutes=2))
    await world.frontend.settle()
    ask = Ask(verb=Verb.UPGRADE, ref=BackendRef(backend="custom"), by="test")

    (planned,) = await world.control.context.backends.operations.plan(ask)
    assert "an alias that another frontend gave it is lost" in planned.unknown
    upgraded = await done(world, Verb.UPGRADE, "custom")

    assert [one.status for one in upgraded.targets] == [TargetStatus.SUCCESS]
    assert node.written["custom"] == 2


async def test_what_a_node_has_as_new_as_its_own_source_is_not_upgraded(world: World) -> None:
    """As of what ships with Corral: no registry tells the newest, and to ask would end the models that it serves."""
    node = await world.backends("w")
    node.put("echo")
    entry = node.disk["echo"]
    entry.digest, entry.corral = "sha256:1", InstalledDetails(source_digest="sha256:1")

    upgraded = await done(world, Verb.UPGRADE)

    assert (only(upgraded).status, sentence(only(upgraded).reason)) == (TargetStatus.SUCCESS, "already digest")
    assert verbs(node) == []
    entry.corral = InstalledDetails(source_digest="sha256:2")
    await done(world, Verb.UPGRADE)
    assert verbs(node) == ["upgrade"]


@pytest.mark.parametrize("name", ["mine", "custom"])
async def test_an_alias_outlives_upgrades(world: World, name: str) -> None:
    node = await world.backends("w")
    await done(world, backend="", uri="oci://r/custom:v1", name="custom", alias="mine")
    for _ in range(2):
        upgraded = await done(world, Verb.UPGRADE, name)
        assert [one.status for one in upgraded.targets] == [TargetStatus.SUCCESS]

    await done(world, Verb.DELETE, "mine")
    assert not node.disk


async def test_an_alias_outlives_that_its_backend_is_installed_anew(world: World) -> None:
    """Workers keep it, unless they are given another one."""
    node = await world.backends("w")
    await done(world, backend="", uri="oci://r/custom:v1", name="custom", alias="mine")
    await done(world, backend="", uri="oci://r/custom:v2", name="custom", force=True)
    await done(world, Verb.DELETE, "mine")
    assert not node.disk


async def test_an_alias_that_never_came_to_be_is_forgotten(world: World) -> None:
    node = await world.backends("w")
    node.faults.refusal = "disk full"
    await done(world, backend="", uri="oci://r/custom:v1", name="custom", alias="mistyped")
    node.faults.refusal = ""
    await done(world, backend="", uri="oci://r/custom:v1", name="custom")
    assert [request.alias for _, request in node.requests if isinstance(request, InstallRequest)] == ["mistyped", ""]


async def test_what_is_there_is_neither_sent_again_nor_downloaded_twice(world: World) -> None:
    node = await world.backends("w")
    await done(world)
    assert (await done(world)).state is OperationState.DONE
    assert node.written["echo"] == 1
    assert (await done(world, force=True)).state is OperationState.DONE
    assert node.written["echo"] == 2
    assert [request.force for _, request in node.requests if isinstance(request, InstallRequest)] == [False, True]


async def test_deleting_what_is_not_there_is_no_error(world: World) -> None:
    has, lacks = await world.backends("a"), await world.backends("b", is_corral=False)
    await done(world, nodes=(has.node_id,))
    operation = await done(world, Verb.DELETE)
    assert operation.state is OperationState.DONE
    assert verbs(lacks) == []
    assert {one.node_name: sentence(one.reason) for one in operation.targets} == {"a": "absent", "b": "already absent"}


async def test_an_error_is_told_in_the_workers_words_and_the_tenth_blocks(world: World) -> None:
    node = await world.backends("w")
    node.faults.refusal = "no space left on device"
    operation = await done(world)
    assert (operation.state, sentence(only(operation).reason)) == (OperationState.FAILED, "no space left on device")
    for _ in range(9):
        operation = await later(world, operation, timedelta(minutes=16))
    assert (only(operation).status, only(operation).attempts) == (TargetStatus.BLOCKED, 10)
    operation = await later(world, operation, timedelta(days=1))
    assert len(node.requests) == 10
    node.faults.refusal = ""
    await world.control.context.operations.service.retry(operation.id, by="me")
    await world.control.context.operations.dispatcher.tick()
    assert (await world.control.context.operations.service.get(operation.id)).state is OperationState.DONE
    assert [event.actor for event in await world.events(EventKind.OPERATION_RETRIED)] == ["me"]


async def test_a_worker_that_lies_is_found_out(world: World) -> None:
    node = await world.backends("w")
    node.faults.boasts = True
    operation = await done(world)
    assert only(operation).status is TargetStatus.ERROR
    assert sentence(only(operation).reason) == "the node says that it is done, but the node does not have echo"
    node.faults.boasts, node.faults.modest = False, True
    operation = await later(world, operation, timedelta(seconds=31))
    assert (operation.state, node.written["echo"]) == (OperationState.DONE, 1)


async def test_an_upgrade_that_nothing_can_prove_is_blocked_and_not_repeated(world: World) -> None:
    node = await world.backends("w", is_corral=False)
    await done(world)
    node.faults.undated = True
    operation = await done(world, Verb.UPGRADE)
    assert only(operation).status is TargetStatus.BLOCKED
    assert "nothing can prove" in sentence(only(operation).reason)
    assert verbs(node) == ["install", "upgrade"]


async def test_an_older_worker_is_upgraded_by_a_forced_install_and_an_error_is_not_papered_over(world: World) -> None:
    node = await world.backends("new")
    old = await world.backends("old", is_corral=False)
    await done(world)
    await old.stop()
    old.faults.knows_upgrades = False
    node.faults.refusal = "gallery is away"
    await old.listen(world.bus)
    await world.clock.advance(timedelta(minutes=2))
    await world.frontend.settle()
    operation = await done(world, Verb.UPGRADE)
    assert [(one.node_name, one.status) for one in operation.targets] == [
        ("new", TargetStatus.ERROR),
        ("old", TargetStatus.SUCCESS),
    ]
    assert verbs(node) == ["install", "upgrade"]
    last = old.requests[-1][1]
    assert isinstance(last, InstallRequest)
    assert last.force


async def test_upgrading_what_no_node_has_is_an_error(world: World) -> None:
    node = await world.backends("w")
    with pytest.raises(Conflict, match='backend "echo" is not installed on any node'):
        await ask(world, Verb.UPGRADE)
    await done(world)
    other = await world.backends("v")
    operation = await done(world, Verb.UPGRADE)
    assert [one.node_id for one in operation.targets] == [node.node_id]
    assert verbs(other) == []
    assert isinstance(node.requests[-1][1], UpgradeRequest)


async def test_a_time_out_is_shown_as_running_counts_nothing_and_turns_green_by_the_inventory(hasty: World) -> None:
    node = await hasty.backends("w", is_corral=False)
    node.gate.clear()
    operation = await overdue(done(hasty), node.begun, by=HASTE)
    target = only(operation)
    assert (target.status, target.attempts) == (TargetStatus.RUNNING_ON_WORKER, 0)
    assert "may still be working" in sentence(target.reason)
    node.gate.set()
    await node.finished.wait()
    await hasty.control.context.backends.inventory.sweep()
    await hasty.control.context.operations.dispatcher.tick()
    operation = await hasty.control.context.operations.service.get(operation.id)
    assert (operation.state, node.written["echo"], verbs(node)) == (OperationState.DONE, 1, ["install"])


async def test_a_lost_answer_costs_no_second_download(hasty: World) -> None:
    node = await hasty.backends("w")
    await done(hasty)
    node.faults.silent = True
    node.finished.clear()
    operation = await overdue(done(hasty, Verb.UPGRADE), node.finished, by=HASTE)
    assert only(operation).status is TargetStatus.RUNNING_ON_WORKER
    await hasty.control.context.backends.inventory.sweep()
    await hasty.control.context.operations.dispatcher.tick()
    assert (await hasty.control.context.operations.service.get(operation.id)).state is OperationState.DONE
    assert node.written["echo"] == 2


async def test_a_report_that_may_prove_what_is_waited_for_wakes_the_dispatcher(hasty: World) -> None:
    node = await hasty.backends("w")
    await done(hasty)
    node.faults.silent = True
    node.finished.clear()
    await overdue(done(hasty, Verb.UPGRADE), node.finished, by=HASTE)
    await hasty.control.context.operations.dispatcher.poke.wait(hasty.clock, timedelta(0))
    await hasty.control.context.backends.inventory.sweep()
    async with asyncio.timeout(5):
        await hasty.control.context.operations.dispatcher.poke.wait(hasty.clock, timedelta(hours=1))


async def test_nobody_listening_makes_the_node_unhealthy_and_keeps_the_intent(world: World) -> None:
    node = await world.backends("w")
    await world.clock.advance(timedelta(seconds=1))
    await world.beat(node.node_id, "w")
    await node.stop()
    await world.clock.advance(timedelta(seconds=1))
    operation = await done(world)
    target = only(operation)
    assert (target.status, target.waits_for_node, target.attempts) == (TargetStatus.QUEUED, True, 0)
    assert operation.state is OperationState.WAITING
    seen = await world.control.context.nodes.fleet.get(node.node_id)
    assert seen.status == "unhealthy"


async def waited_for_until_it_came_back(world: World) -> Operation:
    """Of a node that was away and is heard again; nobody has noticed that yet."""
    node = await world.backends("w")
    await world.control.context.operations.dispatcher.notice_returns()
    for _ in range(40):  # silence counts only while control can hear
        await world.clock.advance(timedelta(seconds=2))
        await world.frontend.settle()
    operation = await done(world)
    assert (operation.state, verbs(node)) == (OperationState.WAITING, [])
    await world.beat(node.node_id, "w")
    return operation


async def test_a_node_that_was_away_gets_it_with_its_first_heartbeat(world: World) -> None:
    operation = await waited_for_until_it_came_back(world)
    await world.control.context.operations.dispatcher.notice_returns()
    await world.control.context.operations.dispatcher.tick()
    assert (await world.control.context.operations.service.get(operation.id)).state is OperationState.DONE


async def test_a_return_is_noticed_though_the_database_was_away_at_first(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    operation = await waited_for_until_it_came_back(world)

    async def fail(*_: object, **__: object) -> int:
        raise DatabaseUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(Intents, "wake", fail)
        with pytest.raises(DatabaseUnavailable):
            await world.control.context.operations.dispatcher.notice_returns()
    await world.control.context.operations.dispatcher.notice_returns()
    await world.control.context.operations.dispatcher.tick()
    assert (await world.control.context.operations.service.get(operation.id)).state is OperationState.DONE


async def test_a_node_that_came_back_while_it_was_found_away_is_looked_for_again_soon(world: World) -> None:
    """Its return was told before anybody waited for it."""
    node = await world.backends("w")
    for _ in range(40):
        await world.clock.advance(timedelta(seconds=2))
        await world.frontend.settle()
    operation = await done(world)
    assert operation.state is OperationState.WAITING
    beat = await world.frontend.call("POST", f"/api/node/{node.node_id}/heartbeat", {}, key="s" * 40 + "w")
    assert beat.status == 200
    operation = await later(world, operation, timedelta(seconds=2))
    assert operation.state is OperationState.DONE


async def test_a_later_wish_wins_and_waits_until_the_earlier_request_has_ended(world: World) -> None:
    node = await world.backends("w", is_corral=False)
    node.gate.clear()
    first = await ask(world)
    async with asyncio.TaskGroup() as group:
        work = group.create_task(world.control.context.operations.dispatcher.tick())
        await node.begun.wait()
        second = await ask(world, Verb.DELETE)
        await world.control.context.operations.dispatcher.tick()
        assert verbs(node) == ["install"]
        node.gate.set()
        await work
    await world.control.context.operations.dispatcher.tick()
    assert node.disk == {}
    assert only(await world.control.context.operations.service.get(first.id)).status is TargetStatus.SUPERSEDED
    assert (await world.control.context.operations.service.get(second.id)).state is OperationState.DONE


async def test_what_could_not_be_stored_is_done_however_long_others_take(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only work that goes on holds its lease: the rest must be found again."""
    hanging, quick = await world.backends("h"), await world.backends("q")
    hanging.gate.clear()
    operation = await ask(world)
    store, failed = Intents.store, asyncio.Event()

    async def fail_once(self: Intents, token: LeaseToken, changes: Sequence[IntentChange]) -> list[bool]:
        if not failed.is_set() and any(one.intent.node_id == quick.node_id and not one.keeps_lease for one in changes):
            failed.set()
            raise DatabaseUnavailable("away")
        return await store(self, token, changes)

    monkeypatch.setattr(Intents, "store", fail_once)
    async with asyncio.TaskGroup() as group:
        work = group.create_task(world.control.context.operations.dispatcher.tick())
        await hanging.begun.wait()
        await failed.wait()
        for _ in range(5):
            await world.clock.advance(timedelta(seconds=2))
            await world.control.context.operations.dispatcher.renew()
        await world.control.context.operations.dispatcher.tick()
        targets = (await world.control.context.operations.service.get(operation.id)).targets
        states = {one.node_id: one.status for one in targets}
        hanging.gate.set()
        await work
    assert states[quick.node_id] is TargetStatus.SUCCESS
    assert [hanging.written["echo"], quick.written["echo"]] == [1, 1]


async def test_a_frontend_that_dies_with_requests_open_leaves_them_to_the_next_one(world: World) -> None:
    nodes = [await world.backends(f"w{number}", is_corral=number % 2 == 0) for number in range(4)]
    for node in nodes:
        node.gate.clear()
    operation = await ask(world)
    dying = asyncio.ensure_future(world.control.context.operations.dispatcher.tick())
    for node in nodes:
        await node.begun.wait()
    dying.cancel()
    await asyncio.gather(dying, return_exceptions=True)
    for node in nodes:
        node.gate.set()
    for node in nodes:
        await node.finished.wait()
    successor = await world.again()
    await world.clock.advance(timedelta(seconds=7))
    await successor.context.operations.dispatcher.tick()
    assert (await world.control.context.operations.service.get(operation.id)).state is OperationState.DONE
    assert [node.written["echo"] for node in nodes] == [1, 1, 1, 1]


async def test_two_frontends_that_work_at_once_send_everything_once(world: World) -> None:
    nodes = [await world.backends(f"w{number:02}") for number in range(20)]
    other = await world.again()
    operation = await ask(world)
    await asyncio.gather(world.control.context.operations.dispatcher.tick(), other.context.operations.dispatcher.tick())
    assert (await world.control.context.operations.service.get(operation.id)).state is OperationState.DONE
    assert [verbs(node) for node in nodes] == [["install"]] * 20


async def test_nodes_that_hang_hold_up_nobody(world: World) -> None:
    quick = [await world.backends(f"a{number}") for number in range(5)]
    hanging = [await world.backends(f"h{number}") for number in range(5)]
    for node in hanging:
        node.gate.clear()
    operation = await ask(world)
    async with asyncio.TaskGroup() as group:
        work = group.create_task(world.control.context.operations.dispatcher.tick())
        for node in quick:
            await node.finished.wait()
        assert not work.done()
        state = (await world.control.context.operations.service.get(operation.id)).state
        for node in hanging:
            node.gate.set()
    assert state is OperationState.RUNNING
    assert (await world.control.context.operations.service.get(operation.id)).state is OperationState.DONE


async def test_progress_is_heard_while_a_request_is_open_and_never_goes_back(world: World) -> None:
    node = await world.backends("w", is_corral=False)
    node.gate.clear()
    operation = await ask(world)
    board = world.control.context.operations.progress
    async with asyncio.TaskGroup() as group:
        group.create_task(world.control.context.operations.dispatcher.tick())
        await node.begun.wait()
        for share in (10, 88, 0):
            await node.say(operation.id, share)

        async def is_heard() -> bool:
            return _share(board, operation, node) == 88

        await eventually(is_heard, "the progress to be heard")
        node.gate.set()
    assert _share(board, operation, node) == 88


def _share(board: ProgressBoard, operation: Operation, node: SimulatedBackends) -> float:
    return board.of(operation.id).get(node.node_id, NO_PROGRESS).percentage


async def test_a_cancel_takes_back_what_was_not_sent_and_says_what_was(world: World) -> None:
    sent = await world.backends("a")
    away = await world.backends("b")
    sent.gate.clear()
    await world.clock.advance(timedelta(seconds=1))
    operation = await ask(world, nodes=(sent.node_id, away.node_id))
    async with asyncio.TaskGroup() as group:
        group.create_task(world.control.context.operations.dispatcher.tick())
        await sent.begun.wait()
        await world.control.context.operations.service.cancel(operation.id, by="me", nodes=[sent.node_id])
        sent.gate.set()
    operation = await world.control.context.operations.service.get(operation.id)
    assert [one.status for one in operation.targets] == [TargetStatus.CANCELLED, TargetStatus.SUCCESS]
    assert (
        sentence(operation.targets[0].reason) == "cancelled by me; it had been sent, and the node may still finish it"
    )


async def test_what_cannot_be_asked_for_is_refused_before_anything_is_stored(world: World) -> None:
    with pytest.raises(Conflict, match="no node"):
        await ask(world)
    await world.backends("w", zone="a")
    with pytest.raises(Conflict, match="no node has the labels zone=b"):
        await ask(world, labels={"zone": "b"})
    with pytest.raises(NotFound):
        await ask(world, nodes=(NodeId("nobody"),))
    with pytest.raises(InvalidInput, match="needs a name"):
        await ask(world, backend="", uri="oci://x")
    with pytest.raises(InvalidInput, match="required"):
        await ask(world, backend="")
    with pytest.raises(InvalidInput, match="cannot be the name"):
        await ask(world, backend="", uri="oci://x", name="../x")
    assert await world.control.context.operations.stores.operations.newest(limit=10) == []


async def test_a_node_that_does_not_tell_what_it_has_is_asked_again_and_not_believed(hasty: World) -> None:
    node = await hasty.backends("w")
    node.faults.mute = True
    operation = await ask(hasty)
    asking = hasty.control.context.backends.inventory.refresh([node.node_id], within=HASTE)
    await overdue(asking, node.looked_at, by=HASTE)
    assert (await hasty.control.context.operations.service.get(operation.id)).state is OperationState.RUNNING
    node.faults.mute = False
    await hasty.control.context.operations.dispatcher.tick()
    assert (await hasty.control.context.operations.service.get(operation.id)).state is OperationState.DONE
