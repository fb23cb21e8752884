"""Replacing backends under models in use: who goes first, who waits, and what is loaded again."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.base.ids import NodeId, OperationId, ReplicaId
from corral.frontend.backends.decide.backend import Artefact, payload_of
from corral.frontend.operations.decide.intent import Before, Intent, IntentState, Outstanding, Verb
from corral.frontend.operations.decide.reasons import ReasonCode, because, sentence
from corral.frontend.serving.decide.load_job import LoadState
from corral.frontend.serving.decide.replica import Replica, ReplicaState
from corral.frontend.serving.decide.rollout import (
    KEPT_FOR,
    LOADED_WITHIN,
    MOST_FAILURES,
    REQUESTS_WITHIN,
    ROLLING_PATIENCE,
    SPARED_AFTER,
    UNLOADED_WITHIN,
    Aftermath,
    Preparation,
    Restoration,
    Restore,
    Seen,
    note,
    prepare,
    restore,
)
from tests.kit.clock import START
from tests.kit.samples import a_load_job, a_replica, after

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")


def on(node: NodeId, **fields: Any) -> Replica:
    return a_replica(node_id=node, url="http://u", **fields)


def of(replica: Replica, **fields: Any) -> Restoration:
    return replace(note(replica, "echo", [replica], START), **fields)


def decided(
    mine: Sequence[Replica],
    *others: Replica,
    restorations: Sequence[Restoration] = (),
    unhealthy: Sequence[NodeId] = (),
    busy: Sequence[ReplicaId] = (),
    seconds: float = 0,
) -> Preparation:
    seen = Seen(
        replicas=[*mine, *others], restorations=restorations, healthy={A, B, C} - set(unhealthy), busy=frozenset(busy)
    )
    return prepare({one.id for one in mine}, "echo", seen, after(seconds))


def test_without_replicas_nothing_is_in_the_way() -> None:
    assert decided([], on(B)) == Preparation()


def test_a_replica_that_another_one_can_stand_in_for_is_taken_out_of_service_first() -> None:
    mine, other = on(A), on(B)
    prepared = decided([mine], other)
    assert prepared.hold
    assert prepared.unload == {mine.id}
    (noted,) = prepared.notes
    assert (noted.replica_id, noted.node_id, noted.model, noted.backend, noted.replicas) == (
        mine.id,
        A,
        "small",
        "echo",
        2,
    )


@pytest.mark.parametrize(
    "other",
    [
        on(A, index=1),
        on(B, model="other"),
        on(B, revision="r2"),
        on(B, state=ReplicaState.LOADING),
        on(B, state=ReplicaState.UNLOADING),
        replace(on(B), url=""),
    ],
)
def test_what_cannot_stand_in_for_it_leaves_the_only_one_in_service(other: Replica) -> None:
    mine = on(A)
    prepared = decided([mine], other)
    assert (prepared.unload, [one.replica_id for one in prepared.notes]) == (frozenset(), [mine.id])
    assert not prepared.hold


def test_one_that_requests_reach_through_the_adapter_stands_in_as_well() -> None:
    mine, other = on(A), a_replica(node_id=B, address="10.0.0.2:50051")
    assert decided([mine], other).unload == {mine.id}


def test_one_on_a_node_that_is_not_healthy_stands_in_for_nobody() -> None:
    assert decided([on(A)], on(B), unhealthy=[B]).unload == frozenset()


def test_the_last_one_waits_until_another_one_is_back() -> None:
    mine, gone = on(A), on(B)
    coming = [of(gone)]
    assert decided([mine], restorations=coming) == Preparation(
        hold=because(ReasonCode.RELOADED_ELSEWHERE_FIRST, model="small")
    )
    back = on(B)
    assert decided([mine], back, restorations=[]).unload == {mine.id}


def test_one_that_is_about_to_be_ended_too_is_not_relied_upon() -> None:
    mine, other = on(A), on(B)
    assert decided([mine], other, restorations=[of(other)]).hold == because(
        ReasonCode.RELOADED_ELSEWHERE_FIRST, model="small"
    )


def test_nobody_waits_for_ever_nor_for_a_node_that_is_away() -> None:
    mine, gone = on(A), on(B)
    late = ROLLING_PATIENCE.total_seconds()
    assert not decided([mine], restorations=[of(gone)], seconds=late).hold
    assert not decided([mine], restorations=[of(gone)], unhealthy=[B]).hold


def test_a_node_that_must_wait_for_one_model_keeps_serving_the_others() -> None:
    waits, could_go = on(A, model="x"), on(A, model="y")
    prepared = decided([waits, could_go], on(B, model="y"), restorations=[of(on(C, model="x"))])
    assert prepared.hold == because(ReasonCode.RELOADED_ELSEWHERE_FIRST, model="x")
    assert (prepared.notes, prepared.unload) == ((), frozenset())


@pytest.mark.parametrize(
    ("state", "patience"),
    [
        (ReplicaState.UNLOADING, UNLOADED_WITHIN),
        (ReplicaState.RESERVED, LOADED_WITHIN),
        (ReplicaState.LOADING, LOADED_WITHIN),
    ],
)
def test_what_is_on_its_way_out_or_in_gets_its_time_and_no_more(state: ReplicaState, patience: timedelta) -> None:
    mine = on(A, state=state)
    assert decided([mine], seconds=patience.total_seconds() - 1).hold
    assert decided([mine], seconds=patience.total_seconds()) == Preparation()


def test_requests_at_the_only_replica_get_a_moment() -> None:
    mine = on(A)
    first = decided([mine], busy=[mine.id])
    assert (sentence(first.hold), len(first.notes)) == ("requests for small end first", 1)
    assert decided([mine], busy=[mine.id], restorations=first.notes, seconds=5).hold
    assert decided([mine], restorations=first.notes, seconds=5) == Preparation()
    late = REQUESTS_WITHIN.total_seconds()
    assert decided([mine], busy=[mine.id], restorations=first.notes, seconds=late) == Preparation()


def test_as_many_come_back_as_there_were() -> None:
    first, second, third = on(A), on(B), on(C)
    assert note(second, "echo", [second, third], START, [of(first)]).replicas == 3
    assert note(second, "echo", [first, second, third], START, [of(first)]).replicas == 3


@given(st.integers(2, 6), st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["look", "end", "load"])), max_size=80))
def test_in_whatever_order_nodes_come_up_somebody_serves_and_all_get_their_turn(
    count: int, chosen: list[tuple[int, str]]
) -> None:
    nodes = [NodeId(f"n{number}") for number in range(count)]
    there = {node: on(node) for node in nodes}
    noted: dict[NodeId, Restoration] = {}
    upgraded: set[NodeId] = set()

    def look(node: NodeId) -> None:
        mine = {there[node].id} if node in there else set()
        seen = Seen(
            replicas=list(there.values()), restorations=list(noted.values()), healthy=frozenset(nodes), busy=frozenset()
        )
        prepared = prepare(mine, "echo", seen, START)
        noted.update((one.node_id, one) for one in prepared.notes)
        if prepared.unload:
            there[node] = replace(there[node], state=ReplicaState.UNLOADING)
        if not prepared.hold:
            there.pop(node, None)
            upgraded.add(node)

    def end(node: NodeId) -> None:
        if node in there and there[node].state is ReplicaState.UNLOADING:
            del there[node]

    def load(node: NodeId) -> None:
        if node in upgraded and node not in there:
            there[node] = on(node)
            noted.pop(node, None)

    steps = {"look": look, "end": end, "load": load}
    in_turn = [
        (number, step) for _ in range(count) for number in range(count) for step in ("look", "end", "look", "load")
    ]
    for number, step in [*chosen, *in_turn]:
        node = nodes[number % count]
        if step != "look" or node not in upgraded:
            steps[step](node)
        assert any(one.state is ReplicaState.LOADED for one in there.values())
    assert upgraded == set(nodes)
    assert noted == {}


# Afterwards.

GONE = on(A)
NOTED = of(GONE)


def an_intent(**fields: Any) -> Intent:
    wish = {"verb": Verb.UPGRADE, "subject": "echo", "payload": payload_of(Artefact(backend="echo"))}
    common = {"accepted_at": START, "changed_at": START, "next_try": START, "operation_id": OperationId("o")}
    return Intent(**{"node_id": A, **wish, "state": IntentState.SATISFIED, **common, **fields})


def sent() -> Outstanding:
    return Outstanding(generation=1, verb=Verb.UPGRADE, sent_at=START, until=after(1800), before=Before(present=True))


def verdict(restoration: Restoration = NOTED, *, seconds: float = 0, **fields: Any) -> Restore:
    seen = Aftermath(
        **{
            "intent": an_intent(),
            "replicas": [],
            "noted": {restoration.replica_id},
            "job": None,
            "has_model": True,
            "node_is_there": True,
            "node_is_healthy": True,
            **fields,
        }
    )
    return restore(restoration, seen, after(seconds))


def test_it_is_loaded_again_when_the_node_is_done() -> None:
    assert verdict() is Restore.LOAD
    assert verdict(intent=None) is Restore.LOAD
    assert verdict(intent=an_intent(state=IntentState.BLOCKED)) is Restore.LOAD
    assert verdict(intent=an_intent(state=IntentState.CANCELLED)) is Restore.LOAD


@pytest.mark.parametrize(
    "intent",
    [
        an_intent(state=IntentState.OPEN),
        an_intent(state=IntentState.OPEN, outstanding=sent()),
        an_intent(state=IntentState.OPEN, outstanding=sent(), attempts=1),
        an_intent(state=IntentState.OPEN, attempts=1, next_try=after(5)),
    ],
)
def test_while_the_node_is_at_it_nothing_is_loaded(intent: Intent) -> None:
    assert verdict(intent=intent) is Restore.WAIT


def test_between_two_attempts_the_old_backend_serves() -> None:
    assert verdict(intent=an_intent(state=IntentState.OPEN, attempts=1, next_try=after(30))) is Restore.LOAD


@pytest.mark.parametrize("state", [IntentState.OPEN, IntentState.SATISFIED, IntentState.BLOCKED])
def test_what_was_deleted_meanwhile_does_not_come_back(state: IntentState) -> None:
    assert verdict(intent=an_intent(verb=Verb.DELETE, state=state)) is Restore.FORGET
    assert verdict(has_model=False) is Restore.FORGET
    assert verdict(node_is_there=False) is Restore.FORGET


def test_a_node_that_is_away_is_waited_for_a_day() -> None:
    assert verdict(node_is_healthy=False) is Restore.WAIT
    assert verdict(node_is_healthy=False, seconds=KEPT_FOR.total_seconds()) is Restore.FORGET


def test_one_that_is_still_ending_is_waited_for_and_one_that_was_spared_is_let_alone() -> None:
    late = SPARED_AFTER.total_seconds()
    assert verdict(replicas=[replace(GONE, state=ReplicaState.UNLOADING)], seconds=late) is Restore.WAIT
    assert verdict(replicas=[GONE], seconds=late - 1) is Restore.WAIT
    assert verdict(replicas=[GONE], seconds=late) is Restore.FORGET


def test_it_is_done_when_its_place_is_taken() -> None:
    noted = replace(NOTED, replicas=2)
    assert verdict(noted, replicas=[on(A)]) is Restore.FORGET
    assert verdict(noted, replicas=[on(A, index=1)]) is Restore.LOAD
    assert verdict(noted, replicas=[on(A, state=ReplicaState.LOADING)], job=a_load_job()) is Restore.WAIT


def test_it_is_not_needed_when_as_many_serve_as_before() -> None:
    assert verdict(replicas=[on(B)]) is Restore.FORGET
    assert verdict(replace(NOTED, replicas=2), replicas=[on(B)]) is Restore.LOAD
    ending = on(B)
    assert verdict(replicas=[ending], noted={NOTED.replica_id, ending.id}) is Restore.LOAD


def test_a_load_that_keeps_failing_is_given_up() -> None:
    failed = a_load_job(state=LoadState.FAILED, failures=1, retry_at=after(5))
    assert verdict(job=failed) is Restore.WAIT
    assert verdict(job=failed, seconds=5) is Restore.LOAD
    assert verdict(job=replace(failed, failures=MOST_FAILURES), seconds=5) is Restore.FORGET
