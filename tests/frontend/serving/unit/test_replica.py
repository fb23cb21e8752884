"""The states of replicas and load jobs, and which process belongs to which replica."""

from datetime import timedelta

import pytest

from corral.base.ids import LeaseToken
from corral.frontend.nodes.decide.reports import ReportedProcess
from corral.frontend.serving.decide import load_job, replica
from corral.frontend.serving.decide.load_job import LoadPolicy, LoadState, may_claim
from corral.frontend.serving.decide.replica import FINAL, LIVE, ReplicaState, barrier, before
from tests.kit.samples import a_load_job, a_replica, after


def test_every_state_has_a_line_in_its_table() -> None:
    assert set(replica.NEXT) == set(ReplicaState)
    assert set(load_job.NEXT) == set(LoadState)


def test_a_final_state_is_never_left() -> None:
    assert {ReplicaState.IDLE, ReplicaState.FAILED, ReplicaState.LOST} == FINAL
    assert not LIVE & FINAL
    for state in LIVE:
        assert ReplicaState.LOST in replica.NEXT[state]


def test_only_a_loading_replica_becomes_loaded() -> None:
    assert before(ReplicaState.LOADED) == {ReplicaState.LOADING}
    assert before(ReplicaState.RESERVED) == frozenset()


@pytest.mark.parametrize(
    ("process", "same"),
    [
        ({}, True),
        ({"address": "10.0.0.1:50052"}, True),
        ({"key": "other"}, False),
        ({"key": "", "address": "127.0.0.1:50052"}, True),
        ({"key": "", "address": "127.0.0.1:50099"}, False),
        ({"key": "", "address": ""}, True),
        ({"index": 1}, False),
        ({"model": "other"}, False),
    ],
)
def test_a_process_is_known_by_its_key_and_without_one_by_its_port(process: dict[str, object], same: bool) -> None:
    replica = a_replica(model="small", index=0, address="127.0.0.1:50052", key="k1")
    reported = {"model": "small", "index": 0, "address": "127.0.0.1:50052", "key": "k1", **process}

    assert replica.is_process(ReportedProcess(**reported)) is same  # type: ignore[arg-type]


def test_a_pending_job_waits_for_its_time() -> None:
    job = a_load_job(retry_at=after(5))

    assert not may_claim(job, after(4), LoadPolicy())
    assert may_claim(job, after(5), LoadPolicy())


def test_a_job_is_taken_over_only_when_its_lease_has_ended() -> None:
    job = a_load_job(state=LoadState.LOADING, lease_token=LeaseToken("a"), lease_until=after(30))

    assert not may_claim(job, after(29), LoadPolicy())
    assert may_claim(job, after(30), LoadPolicy())


def test_nobody_works_on_a_failed_job() -> None:
    assert not may_claim(a_load_job(state=LoadState.FAILED, retry_at=after(10)), after(99), LoadPolicy())


def test_larger_weights_get_more_time_up_to_a_bound() -> None:
    policy = LoadPolicy()

    assert policy.load_time(0) == timedelta(minutes=5)
    assert policy.load_time(3 * 1024**3) == timedelta(minutes=6)
    assert policy.load_time(10**15) == timedelta(hours=6)


def test_what_the_adapter_lacks_bars_a_model_only_where_all_replicas_need_it() -> None:
    adapted = a_replica(state=ReplicaState.LOADED, address="10.0.0.1:1", url="")
    own = a_replica(state=ReplicaState.LOADED, address="10.0.0.1:1", url="http://10.0.0.1:2")

    assert barrier([adapted], "it ended") == "it ended"
    assert barrier([adapted, own], "it ended") == ""
    assert barrier([adapted], "") == ""
