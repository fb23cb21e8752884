"""What a registration makes of a node."""

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from corral.base.ids import Incarnation, NodeId, source_of
from corral.frontend.nodes.decide import node
from corral.frontend.nodes.decide.liveness import Hearing, LivenessPolicy, status_of
from corral.frontend.nodes.decide.node import BY_WORKER, Node, NodeStatus, NodeType, Suspicion
from corral.frontend.nodes.decide.registration import (
    AdmissionPolicy,
    Approval,
    Registration,
    crowd_problem,
    is_new_life,
    is_renewal,
    register_again,
    register_new,
    register_stranger,
)

T0 = datetime(2026, 1, 1, tzinfo=UTC)
T1 = T0 + timedelta(minutes=1)
BY_ADA = Approval(by="ada", is_proof=True)
AUTOMATIC = Approval(by="auto-approve", is_proof=False)
POLICY = AdmissionPolicy()
SECRET_HASH = "0" * 64
HEARING = Hearing(since=T0, until=T1 + timedelta(days=1))
FIRST = Registration(
    name="jetson",
    address="10.0.0.1:50051",
    measured={"total_vram": 8 * 1024**3, "available_vram": 4 * 1024**3, "total_ram": 100},
    gpu_vendor="nvidia",
    labels={"site": "lab"},
    max_replicas_per_model=2,
    vram_budget="50%",
    incarnation=Incarnation("one"),
)


def joined(registration: Registration = FIRST, approval: Approval | None = BY_ADA) -> Node:
    return register_new(registration, id=NodeId("n"), at=T0, approval=approval)


def status(current: Node) -> NodeStatus:
    return status_of(current.facts, T1, LivenessPolicy(), HEARING)


def test_a_new_node_is_pending_until_somebody_approves_it() -> None:
    pending = joined(approval=None)
    assert status(pending) is NodeStatus.PENDING
    assert status(register_again(pending, FIRST, at=T1, approval=None, policy=POLICY)) is NodeStatus.PENDING


def test_automatic_labels_come_from_the_facts() -> None:
    assert joined().labels.effective == {
        "gpu.vendor": "nvidia",
        "gpu.vram": "8GB",
        "node.name": "jetson",
        "node.replica-slots": "2",
        "site": "lab",
    }


def test_labels_that_do_not_fit_any_more_are_dropped_and_that_is_shown() -> None:
    crowd = {f"l{number}": "x" for number in range(256)}
    after = register_again(joined(), replace(FIRST, labels=crowd), at=T1, approval=None, policy=POLICY)

    assert len(after.labels.effective) == 256
    assert after.problems == ("labels: 5 are dropped; a node has at most 256",)


def test_what_people_decided_survives_a_re_registration() -> None:
    before = joined(replace(FIRST, secret_hash=SECRET_HASH))
    before = node.drain(before, by="ada", at=T0)
    before = node.relabel(before, before.labels.merge({"rack": "7"}), at=T0)
    before = node.relabel(before, before.labels.remove("site"), at=T0)
    before = node.set_max_replicas(before, 5, at=T0)
    before = node.set_vram_budget(before, "1GiB", at=T0)

    moved = replace(FIRST, address="10.0.0.2:50051", secret_hash=SECRET_HASH)
    after = register_again(before, moved, at=T1, approval=None, policy=POLICY)

    assert after.id == before.id
    assert after.address == "10.0.0.2:50051"
    assert after.facts.approved_by == "ada"
    assert after.facts.draining_by == "ada"
    assert after.labels.effective["rack"] == "7"
    assert "site" not in after.labels.effective
    assert after.max_replicas_per_model == 5
    assert after.vram_budget == "1GiB"


def test_the_worker_s_own_drain_and_its_farewell_end_with_its_next_registration() -> None:
    gone = node.deregister(node.drain(joined(), by=BY_WORKER, at=T0), at=T0)
    assert status(gone) is NodeStatus.OFFLINE

    back = register_again(gone, FIRST, at=T1, approval=None, policy=POLICY)
    assert status(back) is NodeStatus.HEALTHY


def test_a_worker_that_said_good_bye_is_no_longer_draining_but_a_person_s_drain_stays() -> None:
    gone = node.deregister(node.drain(joined(), by=BY_WORKER, at=T0), at=T0)
    assert gone.facts.draining_since is None
    drained = node.deregister(node.drain(joined(), by="ada", at=T0), at=T0)
    assert drained.facts.draining_by == "ada"


def test_taking_back_an_override_shows_what_the_worker_reports() -> None:
    overridden = node.set_vram_budget(node.set_max_replicas(joined(), 9, at=T0), "1GiB", at=T0)
    plain = node.set_vram_budget(node.set_max_replicas(overridden, None, at=T0), None, at=T0)
    assert (plain.max_replicas_per_model, plain.vram_budget) == (2, "50%")


def test_the_budget_bounds_what_placement_may_count_on() -> None:
    assert joined().vram_budget_bytes == 4 * 1024**3
    assert joined(replace(FIRST, vram_budget="1GiB")).usable_vram == 1024**3
    assert joined(replace(FIRST, vram_budget="")).usable_vram == 4 * 1024**3


def test_what_is_not_said_stays() -> None:
    silent = Registration(name="jetson", address="10.0.0.1:50051")
    after = register_again(joined(), silent, at=T1, approval=None, policy=POLICY)
    assert after.capacity.total_ram == 100
    assert after.gpu.vendor == "nvidia"
    assert after.labels.effective["site"] == "lab"


def test_a_removed_gpu_is_seen() -> None:
    after = register_again(
        joined(), replace(FIRST, measured={"total_vram": 0}, gpu_vendor=""), at=T1, approval=None, policy=POLICY
    )
    assert after.capacity.total_vram == 0
    assert after.gpu.vendor == ""


def test_a_refresh_by_the_same_process_is_not_a_new_life() -> None:
    known = joined()
    assert not is_new_life(known, FIRST)
    assert is_new_life(known, replace(FIRST, incarnation=Incarnation("two")))


def test_localai_s_worker_renews_its_credentials_after_three_quarters_of_their_life() -> None:
    lifetime = timedelta(hours=24)
    silent = replace(FIRST, incarnation=Incarnation(""))
    due = T0 + timedelta(hours=18)
    known = joined(silent)
    beating = replace(known, facts=replace(known.facts, last_heartbeat=due - timedelta(seconds=10)))
    assert is_renewal(beating, silent, due, lifetime)
    assert not is_renewal(beating, silent, due, None), "nobody minted any"
    assert not is_renewal(known, silent, due, lifetime), "it was silent: it was started anew"
    assert not is_renewal(beating, replace(silent, address="10.0.0.2:50051"), due, lifetime)
    labelled = node.relabel(beating, beating.labels.merge({"rack": "7"}), at=due - timedelta(hours=1))
    drained = node.drain(labelled, by="alice", at=due - timedelta(minutes=1))
    assert is_renewal(drained, silent, due, lifetime), "what people change is no registration"
    early = T0 + timedelta(hours=3)
    lively = replace(known, facts=replace(known.facts, last_heartbeat=early))
    assert not is_renewal(lively, silent, early, lifetime)


ELSEWHERE = replace(FIRST, address="10.0.0.9:50051")
OTHER_HTTP = replace(FIRST, http_address="10.0.0.9:50050")
AS_AGENT = replace(FIRST, type=NodeType.AGENT)
FROM_HOME = replace(FIRST, registered_from="10.0.0.1")
WITH_SECRET = replace(FIRST, secret_hash=SECRET_HASH)
AGENT = Registration(name="a", type=NodeType.AGENT, registered_from="10.0.0.1")


@pytest.mark.parametrize(
    ("first", "again", "suspicion"),
    [
        (FIRST, FIRST, None),
        (FIRST, replace(FIRST, registered_from="10.0.0.9"), None),
        (FIRST, ELSEWHERE, Suspicion.OTHER_ADDRESS),
        (FIRST, OTHER_HTTP, Suspicion.OTHER_ADDRESS),
        (FIRST, AS_AGENT, Suspicion.OTHER_TYPE),
        (FROM_HOME, FROM_HOME, None),
        (FROM_HOME, FIRST, None),
        (FROM_HOME, replace(FIRST, registered_from="10.0.0.9"), Suspicion.OTHER_ADDRESS),
        (replace(FIRST, registered_from="127.0.0.1"), replace(FIRST, registered_from="127.0.0.2"), None),
        (replace(FIRST, registered_from="127.0.0.1"), replace(FIRST, registered_from=source_of("::1")), None),
        (FROM_HOME, replace(FIRST, registered_from=source_of("::ffff:10.0.0.1")), None),
        (replace(FROM_HOME, secret_hash=SECRET_HASH), replace(WITH_SECRET, registered_from="10.0.0.9"), None),
        (AGENT, AGENT, None),
        (AGENT, replace(AGENT, registered_from="10.0.0.9"), Suspicion.OTHER_ADDRESS),
        (replace(AGENT, registered_from=""), AGENT, None),
        (WITH_SECRET, replace(WITH_SECRET, address="10.0.0.9:50051"), None),
        (WITH_SECRET, replace(WITH_SECRET, type=NodeType.AGENT), Suspicion.OTHER_TYPE),
    ],
)
@pytest.mark.parametrize("approval", [None, AUTOMATIC])
def test_a_node_that_comes_back_changed_is_pending_again(
    first: Registration, again: Registration, suspicion: Suspicion | None, approval: Approval | None
) -> None:
    after = register_again(joined(first), again, at=T1, approval=approval, policy=POLICY)

    assert after.facts.suspicion is suspicion
    assert (status(after) is NodeStatus.PENDING) is (suspicion is not None)
    assert (after.type, after.address) == (again.type, again.address)


def test_a_suspect_stays_pending_however_often_it_registers() -> None:
    suspect = register_again(joined(), ELSEWHERE, at=T1, approval=AUTOMATIC, policy=POLICY)
    stranger = register_stranger(FIRST, id=NodeId("n"), at=T0)
    for again in (ELSEWHERE, FIRST, ELSEWHERE):
        suspect = register_again(suspect, again, at=T1, approval=AUTOMATIC, policy=POLICY)
        stranger = register_again(stranger, again, at=T1, approval=AUTOMATIC, policy=POLICY)

        assert suspect.facts.suspicion is Suspicion.OTHER_ADDRESS
        assert stranger.facts.suspicion is Suspicion.NAMESAKE
        assert status(suspect) is status(stranger) is NodeStatus.PENDING


def test_a_person_or_a_proof_ends_a_suspicion() -> None:
    suspect = register_again(joined(), ELSEWHERE, at=T1, approval=None, policy=POLICY)
    approved = node.approve(suspect, by="ada", at=T1)
    assert status(approved) is NodeStatus.HEALTHY
    assert status(register_again(approved, ELSEWHERE, at=T1, approval=None, policy=POLICY)) is NodeStatus.HEALTHY
    assert status(register_again(suspect, ELSEWHERE, at=T1, approval=BY_ADA, policy=POLICY)) is NodeStatus.HEALTHY
    assert status(register_again(joined(), ELSEWHERE, at=T1, approval=BY_ADA, policy=POLICY)) is NodeStatus.HEALTHY


def test_addresses_that_change_are_trusted_where_somebody_says_so_but_types_are_not() -> None:
    trusting = AdmissionPolicy(trusts_changed_addresses=True)

    assert status(register_again(joined(), ELSEWHERE, at=T1, approval=None, policy=trusting)) is NodeStatus.HEALTHY
    assert status(register_again(joined(), AS_AGENT, at=T1, approval=None, policy=trusting)) is NodeStatus.PENDING
    from_elsewhere = replace(FIRST, registered_from="10.0.0.9")
    moved = register_again(joined(FROM_HOME), from_elsewhere, at=T1, approval=None, policy=trusting)
    assert status(moved) is NodeStatus.HEALTHY


@pytest.mark.parametrize(
    ("pending", "from_source", "source", "named"),
    [
        (9, 2, "10.0.0.1", ""),
        (10, 0, "10.0.0.1", "max_pending_nodes"),
        (9, 3, "10.0.0.1", "max_pending_per_source"),
        (9, 9, "", ""),
    ],
)
def test_a_crowd_is_told_which_setting_limits_it(pending: int, from_source: int, source: str, named: str) -> None:
    policy = AdmissionPolicy(max_pending=10, max_pending_per_source=3)
    problem = crowd_problem(policy, pending=pending, from_source=from_source, source=source)

    assert problem.endswith(named)
    assert bool(problem) is bool(named)
