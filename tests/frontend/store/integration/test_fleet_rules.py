"""Fleet rules on both databases: one set, changed whole or not at all, and never by two at once."""

import asyncio

import pytest
from msgspec.structs import replace

from corral.base.errors import Overtaken
from corral.base.ids import LeaseToken, NodeId, OperationId
from corral.frontend.backends.decide.backend import Artefact, payload_of, with_alias_kept
from corral.frontend.backends.store import write_reports
from corral.frontend.operations.decide.intent import Intent, IntentKind, IntentState, Verb
from corral.frontend.operations.decide.operation import Operation, Target, TargetStatus
from corral.frontend.operations.store.intents import IntentChange, Intents
from corral.frontend.operations.store.operations import OperationStore
from corral.frontend.record.decide import EventKind
from corral.frontend.record.store import Events
from corral.frontend.rules.decide import FleetRule, revision_of
from corral.frontend.rules.store import FleetRuleStore
from corral.frontend.store.db import ConstraintViolated, Database
from tests.kit.samples import after, an_event

MINE = LeaseToken("mine")
BACKEND = IntentKind.BACKEND


@pytest.fixture
def rules(database: Database) -> FleetRuleStore:
    return FleetRuleStore(database)


@pytest.fixture
def operations(database: Database) -> OperationStore:
    return OperationStore(database, with_alias_kept)


@pytest.fixture
def intents(database: Database) -> Intents:
    return Intents(database, write_reports)


def a_rule(name: str, **selector: str) -> FleetRule:
    artefact = Artefact(backend="mine", uri="oci://r/mine:1", name="mine", alias="m")
    return FleetRule(name=name, artefact=artefact, selector=selector, made_by="alice", made_at=after(1))


def an_operation(
    id: str, *nodes: str, verb: Verb = Verb.INSTALL, backend: str = "echo"
) -> tuple[Operation, list[Intent]]:
    artefact = Artefact(backend=backend)
    operation = Operation(
        id=OperationId(id),
        verb=verb,
        subject=backend,
        payload=payload_of(artefact),
        asked_by="alice",
        accepted_at=after(0),
        targets=tuple(
            Target(
                operation_id=OperationId(id), node_id=NodeId(one), node_name=one, subject=backend, changed_at=after(0)
            )
            for one in nodes
        ),
    )
    wishes = [
        Intent(
            node_id=NodeId(one),
            verb=verb,
            subject=backend,
            payload=payload_of(artefact),
            operation_id=operation.id,
            accepted_at=after(0),
            changed_at=after(0),
            next_try=after(0),
        )
        for one in nodes
    ]
    return operation, wishes


async def put(rules: FleetRuleStore, *wanted: FleetRule, **options: object) -> bool:
    revision = options.pop("revision", None) or revision_of(await rules.all())
    return await rules.replace(wanted, revision=revision, events=[], **options)  # type: ignore[arg-type]


async def test_rules_come_back_as_they_were_made(rules: FleetRuleStore) -> None:
    labels = {"zone": "a", "schlüssel": "wert", "node.name": "w1"}
    wanted = [a_rule("b"), a_rule("a", **labels)]
    assert await put(rules, *wanted)
    assert await rules.all() == [wanted[1], wanted[0]]
    assert await put(rules, wanted[0])
    assert await rules.all() == [wanted[0]]


async def test_a_set_that_has_changed_meanwhile_is_not_overwritten(rules: FleetRuleStore, events: Events) -> None:
    nothing = revision_of([])
    assert await put(rules, a_rule("a"))
    again = await rules.replace([a_rule("b")], revision=nothing, events=[an_event(EventKind.FLEET_RULES_CHANGED)])
    assert again is False
    assert [one.name for one in await rules.all()] == ["a"]
    assert await events.after(0, limit=10) == []


async def test_of_many_that_change_the_set_they_saw_one_wins(rules: FleetRuleStore) -> None:
    nothing = revision_of([])
    won = await asyncio.gather(*(put(rules, a_rule(f"r{number}"), revision=nothing) for number in range(8)))
    assert won.count(True) == 1
    assert len(await rules.all()) == 1


async def test_of_many_that_each_add_a_rule_none_is_lost(rules: FleetRuleStore) -> None:
    async def add(name: str) -> None:
        while True:
            known = await rules.all()
            if await rules.replace([*known, a_rule(name)], revision=revision_of(known), events=[]):
                return

    await asyncio.gather(*(add(f"r{number}") for number in range(8)))
    assert [one.name for one in await rules.all()] == [f"r{number}" for number in range(8)]


async def test_a_change_and_what_follows_from_it_are_one(
    rules: FleetRuleStore, operations: OperationStore, intents: Intents, events: Events
) -> None:
    await put(rules, a_rule("a"))
    started = [an_operation("op1", "w2", "w1", verb=Verb.DELETE), an_operation("op2", "w1", backend="other")]
    revision = revision_of(await rules.all())
    happened = [an_event(EventKind.FLEET_RULES_CHANGED)]
    assert await rules.replace([], revision=revision, started=started, events=happened)
    assert await rules.all() == []
    assert {one.subject for one in await intents.of_node(NodeId("w1"))} == {"echo", "other"}
    stored = await operations.get(OperationId("op1"))
    assert stored is not None
    assert [one.node_name for one in stored.targets] == ["w1", "w2"]
    assert [one.event.kind for one in await events.after(0, limit=10)] == [EventKind.FLEET_RULES_CHANGED]


async def test_if_what_follows_fails_nothing_has_changed(rules: FleetRuleStore, intents: Intents) -> None:
    await put(rules, a_rule("a"))
    twice = [an_operation("op1", "w1"), an_operation("op1", "w2")]
    with pytest.raises(ConstraintViolated):
        await put(rules, started=twice)
    assert [one.name for one in await rules.all()] == ["a"]
    assert await intents.of_node(NodeId("w1")) == []


async def test_what_was_decided_on_something_older_is_not_started(operations: OperationStore, intents: Intents) -> None:
    w1, w2 = (NodeId("w1"), BACKEND, "echo"), (NodeId("w2"), BACKEND, "echo")
    first, wishes = an_operation("op1", "w1", "w2")
    await operations.start(first, wishes, events=[], seen={w1: 0, w2: 0})
    for number, seen in enumerate([{w1: 0, w2: 1}, {w1: 1}, {w1: 2, w2: 1}, {}]):
        late, more = an_operation(f"late{number}", "w1", "w2")
        with pytest.raises(Overtaken):
            await operations.start(late, more, events=[an_event()], seen=seen)
        assert await operations.get(late.id) is None
    next_one, more = an_operation("op2", "w1", "w2")
    await operations.start(next_one, more, events=[], seen={w1: 1, w2: 1})
    known = await intents.get(w1)
    assert known is not None
    assert (known.operation_id, known.generation) == ("op2", 2)
    superseded = await operations.get(first.id)
    assert superseded is not None
    assert {one.status for one in superseded.targets} == {TargetStatus.SUPERSEDED}


async def test_of_two_frontends_that_decide_the_same_one_starts_it(operations: OperationStore) -> None:
    seen = {(NodeId(f"w{number}"), BACKEND, "echo"): 0 for number in range(20)}

    async def start(id: str) -> bool:
        operation, wishes = an_operation(id, *(node for node, _, _ in seen))
        try:
            await operations.start(operation, wishes, events=[], seen=seen)
        except (Overtaken, ConstraintViolated):
            return False
        return True

    won = await asyncio.gather(*(start(f"op{number}") for number in range(4)))
    assert won.count(True) == 1


async def test_only_what_is_not_just_there_is_read(operations: OperationStore, intents: Intents) -> None:
    await operations.start(*an_operation("op1", "there", "gone", "open", "elsewhere"), events=[])
    await operations.start(*an_operation("op2", "deleted", verb=Verb.DELETE), events=[])
    work = await intents.claim(MINE, now=after(1), until=after(9), limit=10)
    done = [one for one in work if one.node_id != "open"]
    settled = [replace(one, state=IntentState.SATISFIED) for one in done]
    await intents.store(MINE, [IntentChange(intent=one, keeps_lease=False, is_corral=True) for one in settled])

    nodes = [NodeId(one) for one in ("there", "gone", "open", "deleted")]
    found = await intents.unsettled(BACKEND, nodes, ["echo", "x"], whole=[NodeId("gone")])

    assert {one.node_id for one in found} == {"gone", "open", "deleted"}
    assert await intents.unsettled(BACKEND, nodes, ["x"], whole=nodes) == []
