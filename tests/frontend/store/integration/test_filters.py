"""Looking for operations and events on both databases: who finds what, page by page, and by which indexes."""

import itertools
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import Select, select, text
from sqlalchemy.dialects import postgresql, sqlite

from corral.base.ids import NodeId, OperationId
from corral.frontend.backends.decide.backend import with_alias_kept
from corral.frontend.operations.decide.intent import Verb
from corral.frontend.operations.decide.operation import (
    Operation,
    OperationFilter,
    OperationState,
    Target,
    TargetStatus,
    state_of,
)
from corral.frontend.operations.store.operations import OperationStore, conditions
from corral.frontend.record.decide import EventFilter, EventKind, subjects_of
from corral.frontend.record.store import Events, event_conditions
from corral.frontend.store.db import Database
from corral.frontend.store.dialect import POSTGRES
from corral.frontend.store.schema import event_subjects
from corral.frontend.store.schema import events as events_table
from corral.frontend.store.schema import operations as operations_table
from tests.kit.samples import after, an_event

ANN = "aaaaaaaa-0000-4000-8000-00000000000"


@pytest.fixture
def operations(database: Database) -> OperationStore:
    return OperationStore(database, with_alias_kept)


def an_operation(number: int, *targets: tuple[str, TargetStatus, bool], **fields: Any) -> Operation:
    id = OperationId(f"op{number:04}")
    values = {
        "id": id,
        "verb": Verb.INSTALL,
        "subject": "echo",
        "asked_by": "admin",
        "accepted_at": after(number),
        "targets": tuple(
            Target(
                operation_id=id,
                node_id=NodeId(node),
                node_name=node,
                subject="echo",
                status=status,
                waits_for_node=waits,
                changed_at=after(number),
            )
            for node, status, waits in targets
        ),
        **fields,
    }
    return Operation(**values)


async def store(operations: OperationStore, *made: Operation) -> None:
    for operation in made:
        await operations.start(operation, [], events=[])


async def found(operations: OperationStore, **which: Any) -> list[str]:
    return [one.id for one in await operations.newest(limit=1000, operation_filter=OperationFilter(**which))]


# Operations.


async def test_states_in_sql_are_those_that_are_computed(operations: OperationStore) -> None:
    """All combinations of up to two targets."""
    kinds = [(status, waits) for status in TargetStatus for waits in (False, True)]
    several = [(), *((kind,) for kind in kinds), *itertools.combinations_with_replacement(kinds, 2)]
    made = [
        an_operation(number, *((f"n{place}", *kind) for place, kind in enumerate(targets)))
        for number, targets in enumerate(several)
    ]
    await store(operations, *made)
    for state in OperationState:
        wanted = [one.id for one in made if state_of(one.targets) is state]
        assert wanted, state
        assert sorted(await found(operations, states=frozenset({state}))) == wanted, state
    both = frozenset({OperationState.RUNNING, OperationState.CANCELLED})
    assert sorted(await found(operations, states=both)) == [one.id for one in made if state_of(one.targets) in both]
    assert len(await found(operations, states=frozenset(OperationState))) == len(made)


async def test_operations_are_found_by_each_of_their_facts_and_by_several(operations: OperationStore) -> None:
    done = ("n1", TargetStatus.SUCCESS, False)
    await store(
        operations,
        an_operation(1, done),
        an_operation(2, ("n2", TargetStatus.ERROR, False), subject="vllm", asked_by="ann (laptop)"),
        an_operation(3, done, ("n22", TargetStatus.QUEUED, True), verb=Verb.DELETE, asked_by="ann"),
        an_operation(4, done, subject="100%_echo", payload={"uri": "oci://Registry/x"}, asked_by="anna (x)"),
        an_operation(5, done, verb=Verb.PULL, subject="small", asked_by="fleet rule all"),
    )
    assert await found(operations) == ["op0005", "op0004", "op0003", "op0002", "op0001"]
    assert await found(operations, subject="echo") == ["op0003", "op0001"]
    assert await found(operations, verbs=frozenset({Verb.DELETE, Verb.PULL})) == ["op0005", "op0003"]
    assert await found(operations, asked_by="ann") == ["op0003", "op0002"]
    assert await found(operations, node="n2") == ["op0003", "op0002"], "the beginning of an id"
    assert await found(operations, node="n22") == ["op0003"]
    assert await found(operations, text="REGISTRY") == ["op0004"]
    assert await found(operations, text="%_") == ["op0004"], "signs of LIKE are only letters"
    assert await found(operations, text="RULE") == ["op0005"]
    assert await found(operations, text="op0002") == ["op0002"]
    assert await found(operations, asked_by="ann", subject="echo", node="n1") == ["op0003"]
    assert await found(operations, asked_by="ann", states=frozenset({OperationState.DONE})) == []
    assert await found(operations, text="nothing has this") == []


async def test_pages_of_a_filter_neither_repeat_nor_miss_while_others_are_added(operations: OperationStore) -> None:
    done = ("n1", TargetStatus.SUCCESS, False)
    for number in range(20):
        await store(operations, an_operation(number, done, subject="echo" if number % 2 else "vllm"))
    seen: list[str] = []
    before = None
    for number in itertools.count(100):
        which = OperationFilter(subject="echo")
        page = await operations.newest(limit=3, before=before, operation_filter=which)
        if not page:
            break
        seen += [one.id for one in page]
        before = (page[-1].accepted_at, page[-1].id)
        await store(operations, an_operation(number, done), an_operation(number + 500, done, subject="vllm"))
    assert seen == [f"op{number:04}" for number in range(19, 0, -2)]


async def test_operations_of_one_moment_are_all_found(operations: OperationStore) -> None:
    await store(operations, *(replace(an_operation(number), accepted_at=after(0)) for number in range(5)))
    first = await operations.newest(limit=2)
    rest = await operations.newest(limit=9, before=(first[-1].accepted_at, first[-1].id))
    assert [one.id for one in (*first, *rest)] == [f"op{number:04}" for number in (4, 3, 2, 1, 0)]


# Events.


async def sequences(events: Events, **fields: Any) -> list[int]:
    place = {name: fields.pop(name) for name in ("after", "before", "limit") if name in fields}
    stored = await events.page(EventFilter(**fields), **{"limit": 100, **place})
    return [one.sequence for one in stored]


async def test_events_are_found_by_each_of_their_facts_and_by_several(events: Events) -> None:
    await events.record(
        [
            an_event(kind=EventKind.NODE_STATUS, actor="control", node_id=NodeId(f"{ANN}1"), data={"name": "w1"}),
            an_event(kind=EventKind.NODE_DRAINING, actor="ann (laptop)", node_id=NodeId(f"{ANN}2"), data={}),
            an_event(kind=EventKind.MODEL_LOADED, actor="control", data={"model": "small", "replica": "r1"}),
            an_event(kind=EventKind.OPERATION_STARTED, actor="ann", data={"operation": "op1", "backend": "small"}),
            an_event(kind=EventKind.SCHEDULING_CHANGED, actor="anna", data={"added": ["small"], "removed": []}),
            an_event(kind=EventKind.KEY_CREATED, actor="admin", data={"name": "100%_KEY"}),
        ]
    )
    assert await sequences(events) == [1, 2, 3, 4, 5, 6]
    assert await sequences(events, node=ANN) == [1, 2]
    assert await sequences(events, node=f"{ANN}2") == [2]
    assert await sequences(events, kinds=frozenset({EventKind.NODE_STATUS, EventKind.KEY_CREATED})) == [1, 6]
    assert await sequences(events, actor="ann") == [2, 4]
    assert await sequences(events, subject="small") == [3, 4, 5]
    assert await sequences(events, subject="op1", actor="ann") == [4]
    assert await sequences(events, subject="small", actor="control") == [3]
    assert await sequences(events, text="%_key") == [6]
    assert await sequences(events, text="DRAINING") == [2]
    assert await sequences(events, text="laptop", node=ANN) == [2]
    assert await sequences(events, subject="nothing") == []


async def test_operations_on_many_nodes_are_in_the_record_of_each(events: Events, operations: OperationStore) -> None:
    one, other, third = NodeId(f"{ANN}1"), NodeId(f"{ANN}2"), NodeId(f"{ANN}3")
    done = (TargetStatus.SUCCESS, False)
    await store(operations, an_operation(1, (one, *done), (other, *done)), an_operation(2, (third, *done)))
    await events.record(
        [
            an_event(kind=EventKind.OPERATION_STARTED, data={"operation": "op0001", "backend": "echo"}),
            an_event(kind=EventKind.OPERATION_STARTED, data={"operation": "op0002", "backend": "echo"}),
            an_event(kind=EventKind.NODE_STATUS, node_id=other, data={"operation": "op0001"}),
            an_event(kind=EventKind.OPERATION_CANCELLED, data={"operation": "op0001"}),
        ]
    )
    assert await sequences(events, node=one) == [1, 4]
    assert await sequences(events, node=other) == [1, 3, 4]
    assert await sequences(events, node=third) == [2]
    assert await sequences(events, node=one, kinds=frozenset({EventKind.OPERATION_CANCELLED})) == [4]


async def test_the_record_is_read_backwards_page_by_page_while_it_grows(events: Events) -> None:
    await events.record([an_event(data={"model": "a" if number % 2 else "b"}) for number in range(20)])
    seen: list[int] = []
    before: int | None = None
    while page := await sequences(events, subject="a", before=before, limit=3):
        assert page == sorted(page), "each page is in the order of the record"
        seen = page + seen
        before = page[0]
        await events.record([an_event(data={"model": "a"})])
    assert seen == list(range(2, 21, 2))
    assert await sequences(events, subject="a", after=4, before=11) == [6, 8, 10]
    assert await sequences(events, after=4, before=11, limit=2) == [5, 6]
    assert await sequences(events, before=3) == [1, 2]


async def test_what_is_trimmed_is_not_found_any_more(events: Events, database: Database) -> None:
    await events.record([an_event(at=after(number), data={"model": "a"}) for number in range(5)])
    assert await events.trim(after(3), keep_at_least=0) == 3
    assert await sequences(events, subject="a") == [4, 5]
    async with database.read() as connection:
        assert len((await connection.execute(select(event_subjects))).all()) == 2


def test_what_an_event_is_about_is_bounded_and_made_of_texts() -> None:
    data = {"model": "m", "name": "", "id": 7, "added": ["a", None, "a"], "changed": "x", "removed": ["y" * 300]}
    assert subjects_of(an_event(data=data)) == ["m", "a", "y" * 200]
    assert len(subjects_of(an_event(data={"added": [str(number) for number in range(1000)]}))) == 100


# Indexes.


async def plan_of(database: Database, statement: Select[Any]) -> str:
    """How the database would run a statement in a table that is worth an index."""
    async with database.begin() as connection:
        is_postgres = connection.dialect.name == POSTGRES
        dialect = postgresql.dialect() if is_postgres else sqlite.dialect()
        compiled = str(statement.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))
        if is_postgres:
            for rows in MANY_ROWS:
                await connection.execute(text(rows))
            await connection.execute(text("SET LOCAL enable_seqscan = off"))
        word = "EXPLAIN" if is_postgres else "EXPLAIN QUERY PLAN"
        rows = await connection.execute(text(f"{word} {compiled}".replace(":", "\\:").replace("%%", "%")))
        return "\n".join(str(row[-1]) for row in rows)


MANY_ROWS = (
    """INSERT INTO events (sequence, kind, at, actor, node_id, data)
    SELECT number, 'node.status', now(), 'somebody ' || number, 'n' || number, '{}'
    FROM generate_series(1, 20000) AS number""",
    """INSERT INTO operations (id, verb, subject, payload, asked_by, accepted_at)
    SELECT 'op' || number, 'install', 'b' || number, '{}', 'somebody ' || number, now()
    FROM generate_series(1, 20000) AS number""",
    "ANALYZE events",
    "ANALYZE operations",
)
"""PostgreSQL decides by what is in its tables."""
NEWEST_EVENTS = select(events_table.c.sequence).order_by(events_table.c.sequence.desc()).limit(10)
NEWEST_OPERATIONS = (
    select(operations_table.c.id)
    .order_by(operations_table.c.accepted_at.desc(), operations_table.c.id.desc())
    .limit(10)
)


@pytest.mark.parametrize(
    ("fields", "index"),
    [
        ({}, "events"),
        ({"node": f"{ANN}1"}, "ix_events_node_id_sequence"),
        ({"kinds": frozenset({EventKind.KEY_CREATED})}, "ix_events_kind_sequence"),
        ({"actor": "ann"}, "ix_events_actor_sequence"),
        ({"subject": "small"}, "event_subjects"),
    ],
)
async def test_events_are_looked_up_by_an_index(database: Database, fields: dict[str, Any], index: str) -> None:
    plan = await plan_of(database, NEWEST_EVENTS.where(*event_conditions(EventFilter(**fields))))
    assert index in plan
    assert "Seq Scan" not in plan
    assert fields or "ix_events_kind" not in plan, "everything is not looked up by its kind"
    scans = [line for line in plan.splitlines() if line.startswith("SCAN events") and "INDEX" not in line]
    assert not fields or scans == []


@pytest.mark.parametrize(
    ("fields", "index"),
    [
        ({}, "ix_operations_accepted_at_id"),
        ({"subject": "echo"}, "ix_operations_subject_accepted_at"),
        ({"asked_by": "ann"}, "ix_operations_asked_by_accepted_at"),
        ({"node": f"{ANN}1"}, "ix_operation_targets_node_id"),
        ({"states": frozenset({OperationState.RUNNING})}, "ix_operation_targets_status"),
        ({"states": frozenset({OperationState.FAILED})}, "ix_operation_targets_status"),
    ],
)
async def test_operations_are_looked_up_by_an_index(database: Database, fields: dict[str, Any], index: str) -> None:
    plan = await plan_of(database, NEWEST_OPERATIONS.where(*conditions(OperationFilter(**fields))))
    assert index in plan
    assert "Seq Scan" not in plan
