"""What follows from a node's facts at a given time."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.base.ids import Incarnation, NodeId
from corral.frontend.nodes.decide.liveness import (
    Hearing,
    Heartbeat,
    LivenessPolicy,
    beat,
    forget_future,
    heartbeat_interval,
    next_look,
    status_of,
)
from corral.frontend.nodes.decide.node import BY_WORKER, Node, NodeFacts, NodeStatus, approve, deregister, drain, resume

T0 = datetime(2026, 1, 1, tzinfo=UTC)
POLICY = LivenessPolicy()
SECOND = timedelta(seconds=1)
ALWAYS = Hearing(since=T0 - timedelta(days=1), until=T0 + timedelta(days=1))
APPROVED = NodeFacts(approved_at=T0, approved_by="ada", last_heartbeat=T0)


def node(facts: NodeFacts = APPROVED) -> Node:
    return Node(id=NodeId("n"), name="n", facts=facts, created_at=T0, registered_at=T0, updated_at=T0)


def hearing_until(moment: datetime, since: datetime = ALWAYS.since) -> Hearing:
    return Hearing(since=since, until=moment)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, NodeStatus.HEALTHY),
        (29.9, NodeStatus.HEALTHY),
        (30, NodeStatus.UNHEALTHY),
        (59.9, NodeStatus.UNHEALTHY),
        (60, NodeStatus.OFFLINE),
    ],
)
def test_silence_turns_a_node_unhealthy_after_three_intervals_and_offline_after_six(
    seconds: float, expected: NodeStatus
) -> None:
    assert status_of(APPROVED, T0 + seconds * SECOND, POLICY, ALWAYS) is expected


def test_the_worker_s_own_interval_counts() -> None:
    facts = replace(APPROVED, stated_interval=2 * SECOND)

    assert status_of(facts, T0 + 5.9 * SECOND, POLICY, ALWAYS) is NodeStatus.HEALTHY
    assert status_of(facts, T0 + 6 * SECOND, POLICY, ALWAYS) is NodeStatus.UNHEALTHY
    assert status_of(facts, T0 + 12 * SECOND, POLICY, ALWAYS) is NodeStatus.OFFLINE


def test_a_worker_that_never_says_its_interval_gets_the_longest_of_its_last_five_gaps() -> None:
    current = node()
    at = T0
    for gap in (25, 12, 12, 12, 12):
        at += gap * SECOND
        current = beat(current, Heartbeat(at=at), POLICY, ALWAYS)
    assert heartbeat_interval(current.facts, POLICY) == 25 * SECOND

    current = beat(current, Heartbeat(at=at + 12 * SECOND), POLICY, ALWAYS)
    assert heartbeat_interval(current.facts, POLICY) == 12 * SECOND


def test_an_outage_is_not_learned_as_an_interval() -> None:
    late = beat(node(), Heartbeat(at=T0 + timedelta(hours=1)), POLICY, ALWAYS)
    assert heartbeat_interval(late.facts, POLICY) == POLICY.assumed_interval


def test_a_gap_that_control_did_not_hear_whole_is_not_learned() -> None:
    hearing = hearing_until(T0 + 100 * SECOND, since=T0 + 50 * SECOND)
    later = beat(node(), Heartbeat(at=T0 + 100 * SECOND), POLICY, hearing)
    assert heartbeat_interval(later.facts, POLICY) == POLICY.assumed_interval


def test_after_a_restart_of_control_every_node_gets_its_full_time_again() -> None:
    restarted = T0 + timedelta(hours=1)
    hearing = hearing_until(restarted + timedelta(hours=1), since=restarted)

    assert status_of(APPROVED, restarted + 29 * SECOND, POLICY, hearing) is NodeStatus.HEALTHY
    assert status_of(APPROVED, restarted + 30 * SECOND, POLICY, hearing) is NodeStatus.UNHEALTHY


def test_silence_does_not_grow_while_control_is_deaf() -> None:
    deaf_since = T0 + 10 * SECOND
    for seconds in (20, 60, 3600):
        assert status_of(APPROVED, T0 + seconds * SECOND, POLICY, hearing_until(deaf_since)) is NodeStatus.HEALTHY


def test_a_heartbeat_from_a_clock_that_is_ahead_is_no_silence() -> None:
    """Another frontend, whose clock is ahead, heard the node; ours must not call that silence."""
    facts = replace(APPROVED, last_heartbeat=T0 + timedelta(minutes=1))
    hearing = hearing_until(T0 + timedelta(days=1), since=T0 - timedelta(days=1))

    assert status_of(facts, T0, POLICY, hearing) is NodeStatus.HEALTHY
    assert status_of(facts, T0 + timedelta(minutes=1), POLICY, hearing) is NodeStatus.HEALTHY
    assert status_of(facts, T0 + timedelta(minutes=2), POLICY, hearing) is NodeStatus.OFFLINE


@pytest.mark.parametrize("back", [timedelta(minutes=1), timedelta(hours=1)])
def test_a_dead_node_gets_its_full_time_after_the_clock_was_set_back_and_no_more(back: timedelta) -> None:
    dead = forget_future(node(replace(APPROVED, last_heartbeat=T0 + back)), now=T0)
    hearing = hearing_until(T0 + timedelta(days=1), since=T0)

    assert status_of(dead.facts, T0 + 29 * SECOND, POLICY, hearing) is NodeStatus.HEALTHY
    assert status_of(dead.facts, T0 + 59 * SECOND, POLICY, hearing) is NodeStatus.UNHEALTHY
    assert status_of(dead.facts, T0 + 60 * SECOND, POLICY, hearing) is NodeStatus.OFFLINE


def test_what_was_heard_in_the_past_is_not_forgotten() -> None:
    heard = node()
    assert forget_future(heard, now=T0 + SECOND) is heard


def test_a_heartbeat_after_the_clock_was_set_back_replaces_the_future_one() -> None:
    ahead = node(replace(APPROVED, last_heartbeat=T0 + timedelta(hours=1)))
    assert beat(ahead, Heartbeat(at=T0), POLICY, ALWAYS).facts.last_heartbeat == T0


def test_a_late_heartbeat_does_not_go_back() -> None:
    assert beat(node(), Heartbeat(at=T0 - SECOND), POLICY, ALWAYS).facts.last_heartbeat == T0


def test_a_node_that_did_not_respond_is_unhealthy_until_its_next_heartbeat() -> None:
    silent = node(replace(APPROVED, no_responders_at=T0 + SECOND))
    assert status_of(silent.facts, T0 + 2 * SECOND, POLICY, ALWAYS) is NodeStatus.UNHEALTHY

    healed = beat(silent, Heartbeat(at=T0 + 3 * SECOND), POLICY, ALWAYS)
    assert status_of(healed.facts, T0 + 3 * SECOND, POLICY, ALWAYS) is NodeStatus.HEALTHY


def test_a_deregistered_node_stays_offline_whatever_it_beats() -> None:
    gone = deregister(node(), at=T0)
    beating = beat(gone, Heartbeat(at=T0 + SECOND), POLICY, ALWAYS)
    assert status_of(beating.facts, T0 + SECOND, POLICY, ALWAYS) is NodeStatus.OFFLINE


def test_a_draining_node_that_falls_silent_is_shown_as_silent() -> None:
    draining = drain(node(), by="ada", at=T0)
    assert status_of(draining.facts, T0, POLICY, ALWAYS) is NodeStatus.DRAINING
    assert status_of(draining.facts, T0 + 30 * SECOND, POLICY, ALWAYS) is NodeStatus.UNHEALTHY
    assert status_of(draining.facts, T0 + 60 * SECOND, POLICY, ALWAYS) is NodeStatus.OFFLINE


def test_the_worker_cannot_end_a_person_s_drain() -> None:
    draining = drain(node(), by="ada", at=T0)
    assert resume(draining, by=BY_WORKER, at=T0) is draining
    assert resume(draining, by="bob", at=T0).facts.draining_since is None


def test_a_person_s_drain_replaces_the_worker_s_own_and_never_the_reverse() -> None:
    own = drain(node(), by=BY_WORKER, at=T0)
    person = drain(own, by="ada", at=T0 + SECOND)
    assert person.facts.draining_by == "ada"
    assert drain(person, by=BY_WORKER, at=T0 + 2 * SECOND) is person


facts_strategy = st.builds(
    NodeFacts,
    approved_at=st.none() | st.just(T0),
    draining_since=st.none() | st.just(T0),
    deregistered_at=st.none() | st.just(T0),
    last_heartbeat=st.integers(-200, 200).map(lambda s: T0 + s * SECOND),
    stated_interval=st.none() | st.integers(1, 60).map(lambda s: s * SECOND),
    no_responders_at=st.none() | st.just(T0),
    incarnation=st.just(Incarnation("i")),
)
acts = st.lists(st.sampled_from(["drain", "resume", "self-drain", "self-resume", "deregister", "beat", "silence"]))


@given(facts=facts_strategy, plan=acts)
def test_nothing_but_approval_ends_pending(facts: NodeFacts, plan: list[str]) -> None:
    current = node(replace(facts, approved_at=None))
    at = T0
    for act in plan:
        at += 5 * SECOND
        match act:
            case "drain":
                current = drain(current, by="ada", at=at)
            case "self-drain":
                current = drain(current, by=BY_WORKER, at=at)
            case "resume":
                current = resume(current, by="ada", at=at)
            case "self-resume":
                current = resume(current, by=BY_WORKER, at=at)
            case "deregister":
                current = deregister(current, at=at)
            case "beat":
                current = beat(current, Heartbeat(at=at), POLICY, ALWAYS)
            case "silence":
                at += timedelta(hours=1)
        assert status_of(current.facts, at, POLICY, ALWAYS) is NodeStatus.PENDING
    assert status_of(approve(current, by="ada", at=at).facts, at, POLICY, ALWAYS) is not NodeStatus.PENDING


@given(facts=facts_strategy, seconds=st.integers(0, 1000))
def test_the_status_does_not_change_before_the_next_look(facts: NodeFacts, seconds: int) -> None:
    now = T0 + seconds * SECOND
    status = status_of(facts, now, POLICY, ALWAYS)
    look = next_look(facts, now, POLICY, ALWAYS)
    if facts.last_heartbeat > now + POLICY.tolerated_skew:
        return  # a future heartbeat becomes an ordinary one as time passes
    if look is None:
        assert status_of(facts, now + timedelta(hours=10), POLICY, ALWAYS) is status
    else:
        assert look > now
        assert status_of(facts, look - timedelta(microseconds=1), POLICY, ALWAYS) is status
