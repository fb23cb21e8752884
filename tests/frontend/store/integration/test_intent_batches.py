"""Many intents at once: each is judged by itself, and all together cost a few statements."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from msgspec.structs import replace

from corral.base.ids import LeaseToken, NodeId, OperationId
from corral.frontend.backends.decide.backend import BackendEntry, Inventory, evidence_of, with_alias_kept
from corral.frontend.backends.store import Inventories, write_reports
from corral.frontend.operations.decide import intent as intents_
from corral.frontend.operations.decide import intent_steps
from corral.frontend.operations.decide.intent import Before, Intent, IntentKind, IntentPolicy, IntentState, Verb
from corral.frontend.operations.decide.intent_steps import Send
from corral.frontend.operations.decide.operation import TargetStatus
from corral.frontend.operations.decide.reasons import ReasonCode, because
from corral.frontend.operations.store.intents import IntentChange, Intents, WaitingIntents
from corral.frontend.operations.store.operations import OperationStore
from corral.frontend.store.db import Database
from tests.kit.samples import after, an_operation

MINE, OTHER = LeaseToken("mine"), LeaseToken("other")
POLICY = IntentPolicy()
NASTY = "a\x00b\ud800 'quoted' \"twice\" {1,2} \\N ü 漢 \n%s $1 :x"
CONTRADICTED = because(ReasonCode.CONTRADICTED, proof=because(ReasonCode.BACKEND_MISSING, backend=NASTY))
PRESENT = because(ReasonCode.PROVEN, rung="present")


@pytest.fixture
def operations(database: Database) -> OperationStore:
    return OperationStore(database, with_alias_kept)


@pytest.fixture
def intents(database: Database) -> Intents:
    return Intents(database, write_reports)


async def started(operations: OperationStore, id: str, *nodes: str, verb: Verb = Verb.INSTALL) -> None:
    operation, wishes = an_operation(id, *nodes, verb=verb)
    await operations.start(operation, wishes, events=[])


async def claimed(intents: Intents, token: LeaseToken = MINE, at: float = 1) -> dict[str, Intent]:
    found = await intents.claim(token, now=after(at), until=after(at + 6), limit=1000)
    return {one.node_id: one for one in found}


def asked(intent: Intent) -> IntentChange:
    """About to be sent."""
    step = intent_steps.look(
        intent, evidence_of(intent, Inventory(seen_at=after(2))), after(2), POLICY, is_corral=False
    )
    assert isinstance(step, Send)
    return IntentChange(intent=step.intent, keeps_lease=True, is_corral=False)


def satisfied(intent: Intent) -> IntentChange:
    done = replace(intent_steps.heard(intent, is_corral=False), state=IntentState.SATISFIED, reason=PRESENT)
    return IntentChange(intent=done, keeps_lease=False, is_corral=False)


async def test_it_is_known_what_is_due_and_when_the_next_one_will_be(
    operations: OperationStore, intents: Intents
) -> None:
    assert await intents.waiting(now=after(1), until=after(7)) == WaitingIntents(is_due=False, next=None)
    await started(operations, "op1", "n1", "n2")
    assert (await intents.waiting(now=after(1), until=after(7))).is_due

    work = await claimed(intents)
    assert await intents.waiting(now=after(1), until=after(7)) == WaitingIntents(is_due=False, next=after(7))

    later = replace(work["n1"], next_try=after(4), lease_token=None, lease_until=None)
    await intents.store(MINE, [IntentChange(intent=later, keeps_lease=False, is_corral=False), satisfied(work["n2"])])
    assert await intents.waiting(now=after(2), until=after(8)) == WaitingIntents(is_due=False, next=after(4))
    assert (await intents.waiting(now=after(4), until=after(10))).is_due


async def test_a_batch_stores_what_is_wanted_and_learns_from_the_rest(
    operations: OperationStore, intents: Intents
) -> None:
    names = ("ours", "superseded", "unsent", "cancelled")
    await started(operations, "op1", *names)
    work = await claimed(intents)
    sent = {name: asked(work[name]) for name in names if name != "unsent"}
    assert await intents.store(MINE, list(sent.values())) == [True] * 3
    await started(operations, "op2", "superseded", "unsent", verb=Verb.DELETE)
    await operations.change(
        OperationId("op1"),
        [NodeId("cancelled")],
        lambda known: intents_.cancel(known, because(ReasonCode.CANCELLED, by="me"), after(3)),
        events=[],
    )

    changes = [satisfied(sent[name].intent) for name in sent]
    assert await intents.store(MINE, [asked(work["unsent"]), *changes]) == [False, True, False, False]

    known = {name: await found(intents, name) for name in names}
    assert {name: one.state for name, one in known.items()} == {
        "ours": IntentState.SATISFIED,
        "superseded": IntentState.OPEN,
        "unsent": IntentState.OPEN,
        "cancelled": IntentState.CANCELLED,
    }
    assert {one.lease_token for one in known.values()} == {None}
    assert {(one.outstanding, one.doubt) for one in known.values()} == {(None, None)}
    first = await operations.get(OperationId("op1"))
    assert first is not None
    assert {one.node_id: one.status for one in first.targets} == {
        "ours": TargetStatus.SUCCESS,
        "superseded": TargetStatus.SUPERSEDED,
        "unsent": TargetStatus.SUPERSEDED,
        "cancelled": TargetStatus.CANCELLED,
    }


async def found(intents: Intents, name: str) -> Intent:
    known = await intents.get((NodeId(name), IntentKind.BACKEND, "echo"))
    assert known is not None
    return known


async def test_a_lost_lease_loses_its_row_and_no_other(operations: OperationStore, intents: Intents) -> None:
    await started(operations, "op1", "kept", "lost")
    work = await claimed(intents)
    assert await intents.store(MINE, [replace(satisfied(work["kept"]), intent=work["kept"], keeps_lease=True)]) == [
        True
    ]
    assert (await claimed(intents, OTHER, at=10)).keys() == {"kept", "lost"}
    await intents.store(
        OTHER, [IntentChange(intent=replace(work["kept"], reason=PRESENT), keeps_lease=False, is_corral=True)]
    )
    assert (await claimed(intents, at=11)).keys() == {"kept"}

    assert await intents.store(MINE, [satisfied(work["lost"]), satisfied(work["kept"])]) == [False, True]

    lost = await found(intents, "lost")
    assert (lost.state, lost.lease_token) == (IntentState.OPEN, OTHER)


async def test_a_lease_that_was_renewed_meanwhile_stays_renewed(operations: OperationStore, intents: Intents) -> None:
    await started(operations, "op1", "w1")
    work = await claimed(intents)
    assert await intents.extend(MINE, [(NodeId("w1"), IntentKind.BACKEND, "echo")], until=after(100)) == 1
    await intents.store(MINE, [asked(work["w1"])])
    known = await found(intents, "w1")
    assert (known.lease_token, known.lease_until) == (MINE, after(100))


async def test_one_intent_cannot_be_stored_twice_at_once(operations: OperationStore, intents: Intents) -> None:
    await started(operations, "op1", "w1")
    work = await claimed(intents)
    with pytest.raises(ValueError, match="two changes of one intent"):
        await intents.store(MINE, [asked(work["w1"]), satisfied(work["w1"])])


async def test_whatever_workers_say_survives_in_a_batch(
    operations: OperationStore, intents: Intents, database: Database
) -> None:
    await started(operations, "op1", "w1", "w2")
    work = await claimed(intents)
    entry = BackendEntry(name=NASTY, installed_at=NASTY)
    reports = [Inventory(entries=(entry,), seen_at=after(5)), Inventory(seen_at=after(4))]
    changes = [
        IntentChange(
            intent=replace(one, reason=CONTRADICTED, before=Before(present=True, installed_at=NASTY)),
            keeps_lease=False,
            is_corral=True,
            report=report,
        )
        for one, report in zip(work.values(), reports, strict=True)
    ]
    assert await intents.store(MINE, changes) == [True, True]

    for name in work:
        known = await found(intents, name)
        assert (known.reason, known.before) == (CONTRADICTED, Before(present=True, installed_at=NASTY))
    known_reports = await Inventories(database).of([NodeId(name) for name in work])
    assert [known_reports[NodeId(name)] for name in work] == reports


async def test_of_two_reports_of_one_node_the_newer_stays(
    operations: OperationStore, intents: Intents, database: Database
) -> None:
    for number, backend in enumerate(("a", "b")):
        operation, wishes = an_operation(f"op{number}", "w1")
        other = [replace(one, subject=backend) for one in wishes]
        await operations.start(operation, other, events=[])
    work = await intents.claim(MINE, now=after(1), until=after(9), limit=10)
    seen = {"a": Inventory(seen_at=after(6)), "b": Inventory(seen_at=after(5))}
    changes = [replace(satisfied(one), report=seen[one.subject]) for one in work]
    assert await intents.store(MINE, changes) == [True, True]
    assert await Inventories(database).of([NodeId("w1")]) == {NodeId("w1"): seen["a"]}


async def test_a_hundred_cost_as_many_statements_as_one(
    operations: OperationStore, intents: Intents, statements: Callable[[], AbstractContextManager[list[str]]]
) -> None:
    counts = []
    for id, number in (("op1", 1), ("op2", 100)):
        with statements() as seen:
            await started(operations, id, *(f"{id}-{one}" for one in range(number)))
            work = await claimed(intents)
            report = Inventory(seen_at=after(2))
            changes = [replace(satisfied(one), report=report) for one in work.values()]
            assert await intents.store(MINE, changes) == [True] * number
        counts.append(len(seen))
    assert counts[0] == counts[1]


async def test_batches_and_renewals_meet_in_any_order(operations: OperationStore, intents: Intents) -> None:
    """The rows lie in the database against the order in which they are locked."""
    names = [f"w{number:02}" for number in range(40)]
    for name in reversed(names):
        await started(operations, f"op-{name}", name)
    work = await claimed(intents)
    places = [one.key for one in work.values()]
    held = [
        replace(satisfied(one), intent=replace(one, waits_for_node=True), keeps_lease=True) for one in work.values()
    ]
    for _ in range(5):
        await asyncio.gather(
            intents.store(MINE, held),
            intents.extend(MINE, places, until=after(50)),
            intents.wake([NodeId(name) for name in names], at=after(3)),
            intents.store(MINE, held),
            intents.extend(MINE, places, until=after(50)),
        )
    assert await intents.store(MINE, [satisfied(one) for one in work.values()]) == [True] * 40


async def test_what_belongs_to_a_store_of_another_frontend_is_left_to_it(
    operations: OperationStore, intents: Intents
) -> None:
    await started(operations, "op1", "n1")
    await started(operations, "op2", "store:there", "store:away", verb=Verb.PULL)
    there = {NodeId("store:there")}

    found = await intents.claim(MINE, now=after(1), until=after(7), limit=1000, elsewhere=there)

    assert {one.node_id for one in found} == {"n1", "store:away"}
    assert not (await intents.waiting(now=after(1), until=after(7), elsewhere=there)).is_due
    assert (await intents.waiting(now=after(1), until=after(7))).is_due


async def test_a_pull_of_an_absent_store_waits_and_nothing_of_it_is_under_way(
    operations: OperationStore, intents: Intents
) -> None:
    await started(operations, "op1", "store:s", verb=Verb.PULL)
    work = (await claimed(intents))["store:s"]
    begun = asked(work).intent
    assert begun.outstanding is not None

    waiting = intent_steps.absent(begun, after(2), POLICY)

    assert (waiting.outstanding, waiting.waits_for_node) == (None, True)
    assert waiting.reason == because(ReasonCode.STORE_AWAY)
    assert intents_.cancel(begun, PRESENT, after(2)).reason == PRESENT
