"""What a registration makes of a node."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from corral.base.ids import Incarnation, NodeId
from corral.domain import labels, node
from corral.domain.node import BY_WORKER, Hearing, LivenessPolicy, Node, NodeStatus, status_of
from corral.domain.registration import Registration, is_new_life, is_renewal, register_again, register_new

T0 = datetime(2026, 1, 1, tzinfo=UTC)
T1 = T0 + timedelta(minutes=1)
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


def joined(registration: Registration = FIRST, approved_by: str | None = "ada") -> Node:
    return register_new(registration, id=NodeId("n"), at=T0, approved_by=approved_by)


def status(current: Node) -> NodeStatus:
    return status_of(current.facts, T1, LivenessPolicy(), HEARING)


def test_a_new_node_is_pending_until_somebody_approves_it() -> None:
    pending = joined(approved_by=None)
    assert status(pending) is NodeStatus.PENDING
    assert status(register_again(pending, FIRST, at=T1, approved_by=None)) is NodeStatus.PENDING


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
    after = register_again(joined(), replace(FIRST, labels=crowd), at=T1, approved_by=None)

    assert len(after.labels.effective) == 256
    assert after.problems == ("labels: 5 are dropped; a node has at most 256",)


def test_what_people_decided_survives_a_re_registration() -> None:
    before = joined()
    before = node.drain(before, by="ada", at=T0)
    before = node.relabel(before, labels.merge(before.labels, {"rack": "7"}), at=T0)
    before = node.relabel(before, labels.remove(before.labels, "site"), at=T0)
    before = node.set_max_replicas(before, 5, at=T0)
    before = node.set_vram_budget(before, "1GiB", at=T0)

    after = register_again(before, replace(FIRST, address="10.0.0.2:50051"), at=T1, approved_by=None)

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

    back = register_again(gone, FIRST, at=T1, approved_by=None)
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
    after = register_again(joined(), silent, at=T1, approved_by=None)
    assert after.capacity.total_ram == 100
    assert after.gpu.vendor == "nvidia"
    assert after.labels.effective["site"] == "lab"


def test_a_removed_gpu_is_seen() -> None:
    after = register_again(joined(), replace(FIRST, measured={"total_vram": 0}, gpu_vendor=""), at=T1, approved_by=None)
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
    labelled = node.relabel(beating, labels.merge(beating.labels, {"rack": "7"}), at=due - timedelta(hours=1))
    drained = node.drain(labelled, by="alice", at=due - timedelta(minutes=1))
    assert is_renewal(drained, silent, due, lifetime), "what people change is no registration"
    early = T0 + timedelta(hours=3)
    lively = replace(known, facts=replace(known.facts, last_heartbeat=early))
    assert not is_renewal(lively, silent, early, lifetime)
