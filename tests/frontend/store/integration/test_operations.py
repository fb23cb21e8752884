"""Operations, intents and inventories: one transaction, one holder, nothing lost when wishes overtake each other."""

import asyncio
from datetime import timedelta

import pytest
from msgspec.structs import replace

from corral.base.ids import LeaseToken, NodeId, OperationId
from corral.frontend.backends.decide.backend import BackendEntry, Inventory, evidence_of, with_alias_kept
from corral.frontend.backends.store import Inventories, write_reports
from corral.frontend.nodes.decide.registration import AdmissionPolicy
from corral.frontend.nodes.store.nodes import Nodes
from corral.frontend.operations.decide import intent as intents_
from corral.frontend.operations.decide import intent_steps
from corral.frontend.operations.decide.intent import (
    Before,
    Intent,
    IntentKind,
    IntentPolicy,
    IntentState,
    Outstanding,
    Verb,
)
from corral.frontend.operations.decide.operation import Operation, OperationState, TargetStatus
from corral.frontend.operations.decide.reasons import ReasonCode, because, sentence
from corral.frontend.operations.store.intents import IntentChange, Intents
from corral.frontend.operations.store.operations import OperationStore
from corral.frontend.record.decide import EventKind
from corral.frontend.record.store import Events
from corral.frontend.store.db import ConstraintViolated, Database
from tests.kit.samples import a_node, after, an_event, an_operation

MINE, OTHER = LeaseToken("mine"), LeaseToken("other")
CANCELLED = because(ReasonCode.CANCELLED, by="me")
POLICY = IntentPolicy()


@pytest.fixture
def operations(database: Database) -> OperationStore:
    return OperationStore(database, with_alias_kept)


@pytest.fixture
def intents(database: Database) -> Intents:
    return Intents(database, write_reports)


async def started(operations: OperationStore, id: str, *nodes: str, verb: Verb = Verb.INSTALL) -> Operation:
    operation, wishes = an_operation(id, *nodes, verb=verb)
    return await operations.start(operation, wishes, events=[])


async def claimed(intents: Intents, token: LeaseToken = MINE, at: float = 1) -> list[Intent]:
    return await intents.claim(token, now=after(at), until=after(at + 6), limit=100)


def settled(intent: Intent, **changes: object) -> IntentChange:
    return IntentChange(intent=replace(intent, **changes), keeps_lease=False, is_corral=True)  # type: ignore[arg-type]


async def test_an_operation_comes_back_as_it_was_asked_for(operations: OperationStore, intents: Intents) -> None:
    asked, wishes = an_operation("op1", "w2", "w1")
    await operations.start(asked, wishes, events=[])
    stored = await operations.get(OperationId("op1"))

    assert stored is not None
    assert replace(stored, targets=()) == replace(asked, targets=())
    assert [one.node_name for one in stored.targets] == ["w1", "w2"]
    assert stored.state is OperationState.RUNNING
    assert await intents.get((NodeId("w1"), IntentKind.BACKEND, "echo")) == wishes[1]


async def test_everything_or_nothing(operations: OperationStore, intents: Intents, events: Events) -> None:
    await started(operations, "op1", "w1")
    twice, wishes = an_operation("op1", "w2")
    with pytest.raises(ConstraintViolated):
        await operations.start(twice, wishes, events=[an_event()])
    assert await intents.get((NodeId("w2"), IntentKind.BACKEND, "echo")) is None
    assert await events.after(0, limit=10) == []


async def test_a_call_that_is_repeated_with_its_key_starts_nothing(
    operations: OperationStore, intents: Intents
) -> None:
    first, wishes = an_operation("op1", "w1", key="k")
    again, more = an_operation("op2", "w1", key="k")
    await operations.start(first, wishes, events=[])
    assert (await operations.start(again, more, events=[])).id == "op1"
    known = await intents.get((NodeId("w1"), IntentKind.BACKEND, "echo"))
    assert known is not None
    assert known.generation == 1


async def test_what_is_due_is_claimed_once(operations: OperationStore, intents: Intents) -> None:
    await started(operations, "op1", *(f"w{number}" for number in range(20)))
    found = await asyncio.gather(*(claimed(intents, LeaseToken(f"t{number}")) for number in range(4)))
    places = [one.node_id for batch in found for one in batch]
    assert sorted(places) == sorted({f"w{number}" for number in range(20)})


async def test_a_lease_that_is_not_renewed_ends_and_one_that_is_does_not(
    operations: OperationStore, intents: Intents
) -> None:
    await started(operations, "op1", "w1")
    assert await claimed(intents)
    assert await claimed(intents, OTHER, at=5) == []
    assert await intents.extend(MINE, [(NodeId("w2"), IntentKind.BACKEND, "echo")], until=after(12)) == 0
    assert await intents.extend(OTHER, [(NodeId("w1"), IntentKind.BACKEND, "echo")], until=after(12)) == 0
    assert await intents.extend(MINE, [(NodeId("w1"), IntentKind.BACKEND, "echo")], until=after(12)) == 1
    assert await claimed(intents, OTHER, at=10) == []
    (lost,) = await claimed(intents, OTHER, at=13)
    assert await intents.store(MINE, [settled(lost, reason=because(ReasonCode.NODE_SAID, text="too late"))]) == [False]
    assert await intents.store(OTHER, [settled(lost, reason=because(ReasonCode.NODE_SAID, text="mine"))]) == [True]
    known = await intents.get((NodeId("w1"), IntentKind.BACKEND, "echo"))
    assert known is not None
    assert (sentence(known.reason), known.lease_token) == ("mine", None)


@pytest.mark.parametrize("hours", [-10, -0.05, 0, 10])
async def test_claims_follow_the_rule_of_the_domain_also_after_a_clock_was_set(
    operations: OperationStore, intents: Intents, hours: float
) -> None:
    """Free and due, free and not due, and held."""
    await started(operations, "op1", "due", "held", "later")
    for one in await claimed(intents):
        if one.node_id == "held":
            continue
        pause = 600 if one.node_id == "later" else 0
        await intents.store(MINE, [settled(one, next_try=after(1 + pause), changed_at=after(1))])
    known = await intents.open()
    now = after(2 + hours * 3600)
    expected = {one.node_id for one in known if intents_.is_due(one, now, POLICY)}
    found = await intents.claim(OTHER, now=now, until=now + POLICY.lease, limit=100)
    assert {one.node_id for one in found} == expected
    assert expected == ({"due"} if hours == 0 else {"due", "held", "later"})


async def test_all_that_is_known_of_an_intent_survives(operations: OperationStore, intents: Intents) -> None:
    await started(operations, "op1", "w1")
    (work,) = await claimed(intents)
    sent = Outstanding(
        generation=1,
        verb=Verb.INSTALL,
        sent_at=after(1),
        until=after(900),
        before=Before(present=True, installed_at="2030-01-01T00:00:00Z"),
        is_late=True,
    )
    full = replace(
        work,
        before=sent.before,
        outstanding=sent,
        doubt=replace(sent, is_several=True),
        attempts=3,
        misses=2,
        waits_for_node=True,
        reason=because(ReasonCode.NODE_SAID, text="why"),
        next_try=after(60.5),
        changed_at=after(2),
    )
    await intents.store(MINE, [IntentChange(intent=full, keeps_lease=False, is_corral=True)])
    assert await intents.get((NodeId("w1"), IntentKind.BACKEND, "echo")) == full
    stored = await operations.get(OperationId("op1"))
    assert stored is not None
    (target,) = stored.targets
    assert (target.status, target.waits_for_node, sentence(target.reason), target.attempts) == (
        TargetStatus.RUNNING_ON_WORKER,
        True,
        "why",
        3,
    )


async def test_a_newer_wish_takes_over_lease_and_doubt_and_what_was_done_for_the_older_one_is_not_stored(
    operations: OperationStore, intents: Intents
) -> None:
    await started(operations, "op1", "w1")
    (work,) = await claimed(intents)
    step = intent_steps.look(work, evidence_of(work, Inventory(seen_at=after(1))), after(1), POLICY, is_corral=False)
    assert isinstance(step, intent_steps.Send)
    assert await intents.store(MINE, [IntentChange(intent=step.intent, keeps_lease=True, is_corral=False)]) == [True]
    await started(operations, "op2", "w1", verb=Verb.DELETE)

    newer = await intents.get((NodeId("w1"), IntentKind.BACKEND, "echo"))
    assert newer is not None
    assert (newer.generation, newer.doubt, newer.lease_token) == (2, step.intent.outstanding, MINE)
    assert await claimed(intents, OTHER, at=2) == []
    done = IntentChange(intent=intent_steps.heard(step.intent, is_corral=False), keeps_lease=False, is_corral=False)
    assert await intents.store(MINE, [done]) == [False]
    freed = await intents.get((NodeId("w1"), IntentKind.BACKEND, "echo"))
    assert freed is not None
    assert (freed.state, freed.doubt, freed.lease_token) == (IntentState.OPEN, None, None)
    older = await operations.get(OperationId("op1"))
    assert older is not None
    assert older.targets[0].status is TargetStatus.SUPERSEDED


async def test_a_final_target_is_never_overwritten(operations: OperationStore, intents: Intents) -> None:
    await started(operations, "op1", "w1")
    (work,) = await claimed(intents)
    await intents.store(
        MINE, [settled(work, state=IntentState.SATISFIED, reason=because(ReasonCode.PROVEN, rung="present"))]
    )
    await started(operations, "op2", "w1", verb=Verb.DELETE)
    done = await operations.get(OperationId("op1"))
    assert done is not None
    assert (done.state, done.targets[0].status) == (OperationState.DONE, TargetStatus.SUCCESS)
    assert [one.id for one in await operations.current()] == ["op2"]
    assert [one.id for one in await operations.newest(limit=10)] == ["op2", "op1"]


async def test_people_cancel_and_retry_only_what_allows_it(
    operations: OperationStore, intents: Intents, events: Events
) -> None:
    await started(operations, "op1", "w1", "w2")
    for work in await claimed(intents):
        if work.node_id == "w1":
            await intents.store(MINE, [settled(work, state=IntentState.SATISFIED)])
        else:
            await intents.store(MINE, [settled(work, state=IntentState.BLOCKED, attempts=10)])

    def again(known: Intent) -> Intent | None:
        return intents_.retry(known, after(3)) if intents_.may_retry(known) else None

    def taken_back(known: Intent) -> Intent | None:
        return intents_.cancel(known, CANCELLED, after(4)) if intents_.may_cancel(known) else None

    id = OperationId("op1")
    retried = await operations.change(id, None, again, events=[an_event(kind=EventKind.OPERATION_RETRIED)])
    assert [(one.node_id, one.attempts) for one in retried] == [("w2", 0)]
    assert await operations.change(id, [NodeId("w1")], taken_back, events=[an_event()]) == []
    assert [one.node_id for one in await operations.change(id, None, taken_back, events=[])] == ["w2"]
    stored = await operations.get(id)
    assert stored is not None
    assert [one.status for one in stored.targets] == [TargetStatus.SUCCESS, TargetStatus.CANCELLED]
    assert len(await events.after(0, limit=10)) == 1


async def test_removing_a_node_cancels_what_was_wanted_of_it(
    operations: OperationStore, intents: Intents, nodes: Nodes
) -> None:
    node = a_node()
    await nodes.admit(node, events=[], policy=AdmissionPolicy())
    await started(operations, "op1", node.id)
    await nodes.remove(node.id, events=[an_event()])
    stored = await operations.get(OperationId("op1"))
    assert stored is not None
    assert (stored.targets[0].status, sentence(stored.targets[0].reason)) == (
        TargetStatus.CANCELLED,
        "the node was removed",
    )


async def test_a_node_that_is_back_makes_due_what_waited_for_it(operations: OperationStore, intents: Intents) -> None:
    await started(operations, "op1", "w1", "w2")
    for work in await claimed(intents):
        await intents.store(MINE, [settled(work, waits_for_node=True, next_try=after(1000))])
    assert await claimed(intents, at=10) == []
    assert await intents.wake([NodeId("w2")], at=after(20)) == 1
    assert [one.node_id for one in await claimed(intents, at=20)] == ["w2"]


async def test_an_older_report_never_replaces_a_newer_one(database: Database) -> None:
    inventories = Inventories(database)
    entry = BackendEntry(name="echo", installed_at="2030-01-01T00:00:00Z", uri="oci://a", digest="d")
    new = Inventory(entries=(entry,), seen_at=after(10))
    await inventories.put({NodeId("w1"): new})
    await inventories.put({NodeId("w1"): Inventory(seen_at=after(5)), NodeId("w2"): Inventory(seen_at=after(5))})
    assert await inventories.of([NodeId("w1")]) == {NodeId("w1"): new}
    assert set(await inventories.of([NodeId("w1"), NodeId("w2"), NodeId("w3")])) == {"w1", "w2"}


async def test_old_operations_go_and_open_ones_stay(operations: OperationStore, intents: Intents) -> None:
    await started(operations, "op1", "w1")
    await started(operations, "op2", "w2")
    work = next(one for one in await claimed(intents) if one.node_id == "w1")
    await intents.store(MINE, [settled(work, state=IntentState.SATISFIED)])
    assert await operations.trim(after(0) + timedelta(days=1)) == 1
    assert await operations.get(OperationId("op1")) is None
    assert await operations.get(OperationId("op2")) is not None


async def test_old_operations_go_unless_they_are_still_wanted(operations: OperationStore, intents: Intents) -> None:
    await started(operations, "op1", "w1")
    await started(operations, "op2", "w1", verb=Verb.DELETE)  # overtakes the first one, and waits

    assert await operations.trim(after(0)) == 0
    assert await operations.trim(after(1)) == 1
    assert await operations.get(OperationId("op1")) is None
    assert await operations.get(OperationId("op2")) is not None
    assert [one.operation_id for one in await intents.of_node(NodeId("w1"))] == ["op2"]


async def test_the_history_has_what_is_over_or_dismissed_page_by_page(
    operations: OperationStore, intents: Intents
) -> None:
    for number in range(1, 5):
        await started(operations, f"op{number}", f"w{number}")
    work = {str(one.node_id): one for one in await claimed(intents)}
    await intents.store(MINE, [settled(work["w1"], state=IntentState.SATISFIED), settled(work["w2"], attempts=1)])
    await operations.dismiss(OperationId("op3"), at=after(2))

    first = await operations.left(limit=2)
    assert [one.id for one in first] == ["op3", "op2"]
    rest = await operations.left(limit=2, before=(first[-1].accepted_at, first[-1].id))
    assert [one.id for one in rest] == ["op1"]


async def test_clearing_keeps_what_is_wanted_and_says_who_did_it(
    operations: OperationStore, intents: Intents, events: Events
) -> None:
    await started(operations, "op1", "w1")
    await started(operations, "op2", "w2")
    work = {str(one.node_id): one for one in await claimed(intents)}
    await intents.store(MINE, [settled(work["w1"], state=IntentState.SATISFIED), settled(work["w2"], attempts=1)])
    cleared = replace(an_event(), kind=EventKind.OPERATIONS_CLEARED)

    assert await operations.clear(event=cleared) == 1
    assert await operations.clear(event=cleared) == 0
    assert [one.id for one in await operations.newest(limit=10)] == ["op2"]
    assert [one.event.kind for one in await events.after(0, limit=10)] == [EventKind.OPERATIONS_CLEARED]


async def test_postponed_installs_may_be_hurried_unless_they_changed(
    operations: OperationStore, intents: Intents
) -> None:
    for number, verb in enumerate((Verb.INSTALL, Verb.DELETE, Verb.INSTALL), start=1):
        await started(operations, f"op{number}", f"w{number}", verb=verb)
    work = await claimed(intents)
    await intents.store(MINE, [settled(one, attempts=1, next_try=after(1000)) for one in work])
    nodes = [NodeId(f"w{number}") for number in range(1, 5)]
    assert await intents.postponed(Verb.INSTALL, nodes, now=after(1000)) == []
    postponed = await intents.postponed(Verb.INSTALL, nodes, now=after(2))
    assert {one.node_id for one in postponed} == {"w1", "w3"}

    outdated = [replace(one, generation=one.generation + (one.node_id == "w3")) for one in postponed]
    await intents.hurry(outdated, at=after(2))
    assert [one.node_id for one in await claimed(intents, at=2)] == ["w1"]
