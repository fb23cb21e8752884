"""Replicas and load jobs: who takes a place, who may work on a load, and what survives whom."""

import asyncio
from dataclasses import replace

import pytest

from corral.base.ids import LeaseToken, NodeId
from corral.frontend.nodes.decide.registration import AdmissionPolicy
from corral.frontend.nodes.decide.reports import ReportedProcess
from corral.frontend.nodes.store.nodes import Nodes
from corral.frontend.record.decide import EventKind
from corral.frontend.record.store import Events
from corral.frontend.serving.decide.load_job import LoadJob, LoadState
from corral.frontend.serving.decide.replica import Replica, ReplicaState
from corral.frontend.serving.store.load_jobs import LoadJobs
from corral.frontend.serving.store.replicas import ReplicaStore
from corral.frontend.store.db import Database
from corral.frontend.store.schema import replicas as table
from corral.frontend.store.secrets import Secrets, SecretsKey
from tests.kit.samples import a_load_job, a_node, a_replica, after, an_event

MINE, OTHER = LeaseToken("mine"), LeaseToken("other")


@pytest.fixture
async def secrets(database: Database) -> Secrets:
    return await Secrets.open(database, SecretsKey(bytes(32)), at=after(0))


@pytest.fixture
def jobs(database: Database, secrets: Secrets) -> LoadJobs:
    return LoadJobs(database, secrets)


@pytest.fixture
def replicas(database: Database, secrets: Secrets) -> ReplicaStore:
    return ReplicaStore(database, secrets)


async def claimed(jobs: LoadJobs, model: str = "small") -> LoadJob:
    job = await jobs.open(a_load_job(model=model))
    assert await jobs.claim(job, MINE, now=after(0), until=after(30))
    return job


async def reserved(jobs: LoadJobs, job: LoadJob, **fields: object) -> Replica:
    replica = a_replica(model=job.model, state=ReplicaState.RESERVED, **fields)
    assert await jobs.reserve(job, MINE, replica)
    return replica


async def loaded(jobs: LoadJobs, **fields: object) -> Replica:
    job = await claimed(jobs)
    replica = replace(await reserved(jobs, job, **fields), address="127.0.0.1:5", url="http://u:1", key="k")
    assert await jobs.begin(job, MINE, replica, at=after(1))
    assert await jobs.finish(job, MINE, replica, events=[])
    return replica


async def test_all_who_ask_for_a_model_share_one_job(jobs: LoadJobs) -> None:
    opened = await asyncio.gather(*(jobs.open(a_load_job()) for _ in range(20)))

    assert len({job.id for job in opened}) == 1
    assert len(await jobs.all()) == 1


async def test_exactly_one_of_many_claims_a_job(jobs: LoadJobs) -> None:
    job = await jobs.open(a_load_job())
    claims = [jobs.claim(job, LeaseToken(str(n)), now=after(0), until=after(30)) for n in range(10)]

    assert sum(await asyncio.gather(*claims)) == 1


async def test_a_job_is_taken_over_when_its_holder_goes_silent_and_then_only(jobs: LoadJobs) -> None:
    job = await claimed(jobs)

    assert not await jobs.claim(job, OTHER, now=after(29), until=after(60))
    assert await jobs.extend(job, MINE, until=after(40))
    assert not await jobs.claim(job, OTHER, now=after(39), until=after(60))
    assert [one.id for one in await jobs.due(after(40))] == [job.id]
    assert await jobs.claim(job, OTHER, now=after(40), until=after(70))
    assert not await jobs.extend(job, MINE, until=after(99))


async def test_whoever_lost_the_job_changes_nothing_any_more(jobs: LoadJobs, replicas: ReplicaStore) -> None:
    job = await claimed(jobs)
    replica = await reserved(jobs, job)
    assert await jobs.claim(job, OTHER, now=after(30), until=after(60))

    assert not await jobs.begin(job, MINE, replica, at=after(31))
    assert not await jobs.finish(job, MINE, replica, events=[an_event(EventKind.MODEL_LOADED)])
    assert not await jobs.give_back(replace(job, state=LoadState.FAILED), MINE, at=after(31), events=[])
    assert not await jobs.reserve(job, MINE, a_replica(model="small", index=1, state=ReplicaState.RESERVED))
    assert [one.state for one in await replicas.living()] == [ReplicaState.RESERVED]


async def test_one_place_is_reserved_once(jobs: LoadJobs, replicas: ReplicaStore) -> None:
    first, second = await claimed(jobs, "a"), await claimed(jobs, "b")
    taken = await reserved(jobs, first)
    twin = a_replica(model=taken.model, state=ReplicaState.RESERVED)

    assert not await jobs.reserve(second, MINE, twin)
    assert [one.id for one in await replicas.living()] == [taken.id]
    stored = await jobs.get("b")
    assert stored is not None
    assert stored.replica_id is None


async def test_a_replica_that_is_loaded_ends_its_job_and_keeps_its_url_and_key(
    jobs: LoadJobs, replicas: ReplicaStore, events: Events
) -> None:
    job = await claimed(jobs)
    replica = replace(await reserved(jobs, job), address="10.0.0.1:5", url="http://10.0.0.1:6", key="secret-of-it")
    assert await jobs.begin(job, MINE, replica, at=after(1))
    assert await jobs.finish(
        job, MINE, replace(replica, changed_at=after(2)), events=[an_event(EventKind.MODEL_LOADED)]
    )

    (stored,) = await replicas.living()
    assert stored == replace(replica, state=ReplicaState.LOADED, changed_at=after(2))
    assert await jobs.get("small") is None
    assert [one.event.kind for one in await events.after(0, limit=9)] == [EventKind.MODEL_LOADED]


async def test_the_key_of_a_replica_is_not_readable_in_the_database(jobs: LoadJobs, database: Database) -> None:
    await loaded(jobs)

    async with database.read() as connection:
        (row,) = (await connection.execute(table.select())).all()
    assert row.sealed_key != b"k"
    assert len(row.sealed_key) > 20


async def test_a_failed_load_frees_its_place_and_stays_until_its_cooldown_is_over(
    jobs: LoadJobs, replicas: ReplicaStore
) -> None:
    job = await claimed(jobs)
    replica = await reserved(jobs, job)
    held = replace(job, replica_id=replica.id, failures=1, message="no such file", retry_at=after(10))
    assert await jobs.give_back(replace(held, state=LoadState.FAILED), MINE, at=after(1), events=[])

    gone = await replicas.get(replica.id)
    assert gone is not None
    assert (gone.state, gone.reason) == (ReplicaState.FAILED, "no such file")
    assert await jobs.due(after(99)) == []
    early = await jobs.open(a_load_job(retry_at=after(9)))
    assert (early.state, early.message, early.failures) == (LoadState.FAILED, "no such file", 1)
    later = await jobs.open(a_load_job(retry_at=after(10)))
    assert (later.state, later.id, later.failures) == (LoadState.PENDING, job.id, 1)


async def test_a_changed_model_does_not_wait_for_the_cooldown(jobs: LoadJobs) -> None:
    job = await claimed(jobs)
    await jobs.give_back(
        replace(job, state=LoadState.FAILED, failures=3, retry_at=after(99)), MINE, at=after(1), events=[]
    )
    again = await jobs.open(a_load_job(revision="r2", retry_at=after(2)))

    assert (again.state, again.revision, again.failures) == (LoadState.PENDING, "r2", 0)


async def test_a_job_that_found_no_node_waits_for_its_next_look(jobs: LoadJobs) -> None:
    job = await claimed(jobs)
    waiting = replace(job, state=LoadState.PENDING, message="w1 is offline", retry_at=after(5))
    assert await jobs.give_back(waiting, MINE, at=after(1), events=[])

    assert await jobs.due(after(4)) == []
    assert [one.message for one in await jobs.due(after(5))] == ["w1 is offline"]


async def test_a_replica_is_lost_once_and_its_place_is_free(
    jobs: LoadJobs, replicas: ReplicaStore, events: Events
) -> None:
    replica = await loaded(jobs)
    told = [an_event(EventKind.REPLICA_LOST)]

    assert await replicas.lose([replica.id], reason="gone", at=after(3), events=told) == [replica.id]
    assert await replicas.lose([replica.id], reason="gone", at=after(4), events=told) == []
    assert await replicas.living() == []
    assert len(await events.after(0, limit=9)) == 1
    await loaded(jobs)


async def test_what_a_node_says_of_a_loaded_replica_is_learned(jobs: LoadJobs, replicas: ReplicaStore) -> None:
    replica = await loaded(jobs)

    process = ReportedProcess(model=replica.model, index=replica.index, address="", url="http://u:1", key="k")
    assert not await replicas.learn(replica, process, at=after(3))
    moved = replace(process, url="http://u:2", routes=("/v1/messages",), front_port=7)
    assert await replicas.learn(replica, moved, at=after(3))
    stored = await replicas.get(replica.id)
    assert stored is not None
    assert stored.reach == ("http://u:2", "k", ("/v1/messages",), 7)
    assert not await replicas.learn(stored, moved, at=after(4))
    await replicas.lose([replica.id], reason="gone", at=after(4), events=[])
    assert not await replicas.learn(replica, replace(process, url="http://u:3"), at=after(5))


async def test_removing_a_node_loses_its_replicas_and_no_others(
    jobs: LoadJobs, replicas: ReplicaStore, nodes: Nodes
) -> None:
    node = a_node()
    assert await nodes.admit(node, events=[], policy=AdmissionPolicy())
    there = await loaded(jobs, node_id=node.id)
    elsewhere = await loaded(jobs, node_id=NodeId("elsewhere"))
    assert await nodes.remove(node.id, events=[an_event(EventKind.NODE_REMOVED)])

    assert [one.id for one in await replicas.living()] == [elsewhere.id]
    gone = await replicas.get(there.id)
    assert gone is not None
    assert gone.reason == "the node was removed"


async def test_what_ended_long_ago_is_forgotten(jobs: LoadJobs, replicas: ReplicaStore) -> None:
    replica = await loaded(jobs)
    await replicas.lose([replica.id], reason="gone", at=after(3), events=[])

    assert await replicas.trim(after(3)) == 0
    assert await replicas.trim(after(4)) == 1
    assert await replicas.of_model("small") == []


async def test_a_job_without_a_model_is_dropped_by_its_holder_only(jobs: LoadJobs) -> None:
    job = await claimed(jobs)

    assert not await jobs.drop(job, OTHER, at=after(2))
    assert await jobs.drop(job, MINE, at=after(2))
    assert await jobs.all() == []


async def test_a_dropped_job_gives_its_place_back(jobs: LoadJobs, replicas: ReplicaStore) -> None:
    job = await claimed(jobs)
    replica = await reserved(jobs, job)
    held = replace(job, replica_id=replica.id)

    assert not await jobs.drop(held, OTHER, at=after(2))
    assert [one.id for one in await replicas.living()] == [replica.id]
    assert await jobs.drop(held, MINE, at=after(2))
    assert await replicas.living() == []


async def test_a_replica_is_unloaded_once_and_ends_once(
    jobs: LoadJobs, replicas: ReplicaStore, database: Database
) -> None:
    replica = await loaded(jobs)
    event = an_event(EventKind.REPLICA_UNLOADING)

    assert not await replicas.end(replica.id, at=after(2), events=[event])
    begun = [replicas.unload(replica.id, reason="changed", at=after(2), events=[event]) for _ in range(5)]
    assert sum(await asyncio.gather(*begun)) == 1
    (unloading,) = await replicas.living()
    assert (unloading.state, unloading.reason, unloading.changed_at) == (ReplicaState.UNLOADING, "changed", after(2))
    assert await replicas.end(replica.id, at=after(3), events=[])
    assert not await replicas.end(replica.id, at=after(3), events=[event])
    assert await replicas.living() == []
    assert len(await Events(database).after(0, limit=9)) == 1
