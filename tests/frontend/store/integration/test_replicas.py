"""Replicas and load jobs: who takes a place, who may work on a load, and what survives whom."""

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from corral.base.ids import LeaseToken, NodeId
from corral.frontend.nodes.decide.registration import AdmissionPolicy
from corral.frontend.nodes.decide.reports import ReportedProcess
from corral.frontend.nodes.store.nodes import Nodes
from corral.frontend.record.decide import EventKind
from corral.frontend.record.store import Events
from corral.frontend.serving.decide.load_job import (
    MAY_END_OTHERS,
    LoadJob,
    LoadPolicy,
    LoadState,
    LoadStep,
    LoadStepName,
    LoadWhy,
    is_cooling,
    may_claim,
)
from corral.frontend.serving.decide.replica import Replica, ReplicaState
from corral.frontend.serving.store.load_jobs import LoadJobs
from corral.frontend.serving.store.replicas import ReplicaStore
from corral.frontend.store.db import Database
from corral.frontend.store.schema import replicas as table
from corral.frontend.store.secrets import Secrets, SecretsKey
from tests.kit.samples import a_load_job, a_node, a_replica, after, an_event

MINE, OTHER = LeaseToken("mine"), LeaseToken("other")
POLICY = LoadPolicy()


def ROOM(there: Sequence[Replica]) -> bool:  # noqa: N802 - what a test says of a node
    return True


def with_place(job: LoadJob, replica: Replica) -> LoadJob:
    return replace(job, replica_id=replica.id, node_id=replica.node_id)


async def open_job(jobs: LoadJobs, model: str) -> LoadJob | None:
    return next((job for job in await jobs.all() if job.model == model), None)


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
    assert await jobs.reserve(job, MINE, replica, fits=ROOM)
    return replica


async def loaded(jobs: LoadJobs, **fields: object) -> Replica:
    job = await claimed(jobs)
    replica = replace(await reserved(jobs, job, **fields), address="127.0.0.1:5", url="http://u:1", key="k")
    assert await jobs.advance(with_place(job, replica), MINE, ReplicaState.LOADING, at=after(1))
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
    assert [one.id for one in await jobs.waiting() if may_claim(one, after(40), POLICY)] == [job.id]
    assert await jobs.claim(job, OTHER, now=after(40), until=after(70))
    assert not await jobs.extend(job, MINE, until=after(99))


async def test_whoever_lost_the_job_changes_nothing_any_more(jobs: LoadJobs, replicas: ReplicaStore) -> None:
    job = await claimed(jobs)
    replica = await reserved(jobs, job)
    assert await jobs.claim(job, OTHER, now=after(30), until=after(60))

    assert not await jobs.advance(with_place(job, replica), MINE, ReplicaState.LOADING, at=after(31))
    assert not await jobs.finish(job, MINE, replica, events=[an_event(EventKind.MODEL_LOADED)])
    assert not await jobs.give_back(replace(job, state=LoadState.FAILED), MINE, at=after(31), events=[])
    other = a_replica(model="small", index=1, state=ReplicaState.RESERVED)
    assert not await jobs.reserve(job, MINE, other, fits=ROOM)
    assert [one.state for one in await replicas.living()] == [ReplicaState.RESERVED]


async def test_one_place_is_reserved_once(jobs: LoadJobs, replicas: ReplicaStore) -> None:
    first, second = await claimed(jobs, "a"), await claimed(jobs, "b")
    taken = await reserved(jobs, first)
    twin = a_replica(model=taken.model, state=ReplicaState.RESERVED)

    assert not await jobs.reserve(second, MINE, twin, fits=ROOM)
    assert [one.id for one in await replicas.living()] == [taken.id]
    stored = await open_job(jobs, "b")
    assert stored is not None
    assert stored.replica_id is None


async def test_a_place_is_not_reserved_where_there_is_no_room_any_more(jobs: LoadJobs, replicas: ReplicaStore) -> None:
    first, second = await claimed(jobs, "a"), await claimed(jobs, "b")
    taken = await reserved(jobs, first, ram=5)
    seen: list[Replica] = []

    def fits(there: Sequence[Replica]) -> bool:
        seen.extend(there)
        return sum(one.ram for one in there) + 4 <= 8

    other = a_replica(model="b", state=ReplicaState.RESERVED, ram=4)
    assert not await jobs.reserve(second, MINE, other, fits=fits)
    assert [one.id for one in seen] == [taken.id]
    assert [one.id for one in await replicas.living()] == [taken.id]


async def test_what_lives_on_another_node_of_the_machine_is_seen(jobs: LoadJobs) -> None:
    first, second = await claimed(jobs, "a"), await claimed(jobs, "b")
    taken = await reserved(jobs, first, ram=5)

    def fits(there: Sequence[Replica]) -> bool:
        return sum(one.ram for one in there) + 4 <= 8

    other = a_replica(node_id=NodeId("mate"), model="b", state=ReplicaState.RESERVED, ram=4)
    assert not await jobs.reserve(second, MINE, other, fits=fits, mates=[taken.node_id])
    assert await jobs.reserve(second, MINE, other, fits=fits)


async def test_a_clock_that_is_set_back_keeps_no_load_waiting(jobs: LoadJobs) -> None:
    """An hour, between each step of the load and the next look at it."""
    hour = 3600
    waiting = await jobs.open(replace(a_load_job(), retry_at=after(hour), changed_at=after(hour)))
    assert may_claim(waiting, after(0), POLICY)
    assert await jobs.claim(waiting, MINE, now=after(0), until=after(30))

    held_by_the_dead = replace(waiting, state=LoadState.LOADING, lease_until=after(hour))
    assert await jobs.extend(waiting, MINE, until=after(hour))
    assert may_claim(held_by_the_dead, after(0), POLICY)
    assert await jobs.claim(waiting, OTHER, now=after(0), until=after(30))

    failed = replace(waiting, state=LoadState.FAILED, failures=1, retry_at=after(hour + 5))
    assert await jobs.give_back(failed, OTHER, at=after(hour), events=[])
    (stored,) = await jobs.all()
    assert [is_cooling(stored, after(at)) for at in (0, hour - 61, hour, hour + 5)] == [False, False, True, False]
    assert (await jobs.open(replace(a_load_job(), retry_at=after(hour - 61), changed_at=after(hour - 61)))).state == (
        LoadState.PENDING
    )


async def test_a_load_that_ended_after_a_plan_was_made_is_not_begun_again(jobs: LoadJobs) -> None:
    """The plan counted it as coming, and wants one more beside it: two under way."""
    before = await loaded(jobs)
    job = await claimed(jobs)
    coming = await reserved(jobs, job, index=1)
    placed = with_place(job, coming)
    assert await jobs.advance(placed, MINE, ReplicaState.LOADING, at=after(1))
    assert await jobs.finish(placed, MINE, coming, events=[])

    assert await jobs.add(a_load_job(), count=2, seen=[before.id]) == 0
    assert await jobs.all() == []
    assert await jobs.add(a_load_job(), count=1, seen=[before.id, coming.id]) == 1


async def test_what_is_reserved_and_for_whom_is_stored(jobs: LoadJobs, replicas: ReplicaStore) -> None:
    reservation = {"vram": 7, "ram": 5, "cards": ("GPU-1", "GPU-2"), "why": LoadWhy.BUSY}
    await reserved(jobs, await claimed(jobs), **reservation)

    (stored,) = await replicas.living()
    assert {name: getattr(stored, name) for name in reservation} == reservation


async def test_a_load_goes_through_its_steps_and_never_back(jobs: LoadJobs, replicas: ReplicaStore) -> None:
    job = await claimed(jobs)
    replica = await reserved(jobs, job)
    placed = with_place(job, replica)
    states = []
    for second, (name, state) in enumerate(
        [
            (LoadStepName.INSTALL, ReplicaState.RESERVED),
            (LoadStepName.STAGE, ReplicaState.STAGING),
            (LoadStepName.LOAD, ReplicaState.LOADING),
            (LoadStepName.STAGE, ReplicaState.STAGING),
        ]
    ):
        placed = replace(placed, steps=(*placed.steps, LoadStep(name, after(second))))
        assert await jobs.advance(placed, MINE, state, at=after(second))
        states.append((await replicas.living())[0].state)

    assert states == [ReplicaState.RESERVED, ReplicaState.STAGING, ReplicaState.LOADING, ReplicaState.LOADING]
    (stored,) = await jobs.all()
    assert (stored.steps, stored.step) == (placed.steps, LoadStepName.STAGE)
    await replicas.lose([replica.id], reason="gone", at=after(5), events=[])
    assert not await jobs.advance(placed, MINE, ReplicaState.LOADING, at=after(6))


async def test_a_model_has_as_many_loads_as_are_wanted_and_no_more(jobs: LoadJobs) -> None:
    begun = await asyncio.gather(*(jobs.add(a_load_job(why=LoadWhy.MINIMUM), count=3) for _ in range(5)))

    assert sum(begun) == 3
    assert sorted(one.ordinal for one in await jobs.all()) == [0, 1, 2]
    assert len({one.id for one in await jobs.all()}) == 3
    assert await jobs.add(a_load_job(), count=2) == 0
    assert (await jobs.open(a_load_job())).ordinal == 0
    assert len(await jobs.all()) == 3


async def test_a_further_load_that_failed_is_begun_again_after_its_cooldown(jobs: LoadJobs) -> None:
    await jobs.add(a_load_job(), count=2)
    second = next(one for one in await jobs.all() if one.ordinal == 1)
    assert await jobs.claim(second, MINE, now=after(0), until=after(30))
    failed = replace(second, state=LoadState.FAILED, failures=1, message="no", retry_at=after(10))
    assert await jobs.give_back(failed, MINE, at=after(1), events=[])

    assert await jobs.add(a_load_job(retry_at=after(9)), count=2) == 1
    assert sorted(one.ordinal for one in await jobs.all()) == [0, 1, 2]
    assert await jobs.add(a_load_job(retry_at=after(10)), count=3) == 1
    again = next(one for one in await jobs.all() if one.ordinal == 1)
    assert (again.state, again.id) == (LoadState.PENDING, second.id)


async def test_a_replica_that_is_loaded_ends_its_job_and_keeps_its_url_and_key(
    jobs: LoadJobs, replicas: ReplicaStore, events: Events
) -> None:
    job = await claimed(jobs)
    reached = {"address": "10.0.0.1:5", "url": "http://10.0.0.1:6", "key": "secret-of-it"}
    replica = replace(await reserved(jobs, job), models_path="/there/models/small", **reached)
    assert await jobs.advance(with_place(job, replica), MINE, ReplicaState.LOADING, at=after(1))
    assert await jobs.finish(
        job, MINE, replace(replica, changed_at=after(2)), events=[an_event(EventKind.MODEL_LOADED)]
    )

    (stored,) = await replicas.living()
    assert stored == replace(replica, state=ReplicaState.LOADED, changed_at=after(2))
    assert await open_job(jobs, "small") is None
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
    assert await jobs.waiting() == []
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


@pytest.mark.parametrize("why", sorted(set(LoadWhy) - MAY_END_OTHERS))
@pytest.mark.parametrize("needed", [LoadWhy.ASKED, LoadWhy.PERSON, LoadWhy.MINIMUM])
async def test_a_failed_load_that_was_only_nice_to_have_keeps_nobody_from_the_model(
    jobs: LoadJobs, why: LoadWhy, needed: LoadWhy
) -> None:
    job = await jobs.open(a_load_job(why=why))
    assert await jobs.claim(job, MINE, now=after(0), until=after(30))
    failed = replace(job, state=LoadState.FAILED, failures=4, message="no", retry_at=after(300))
    assert await jobs.give_back(failed, MINE, at=after(1), events=[])
    again = await jobs.open(a_load_job(why=LoadWhy.BUSY, retry_at=after(10)))
    assert (again.state, again.failures) == (LoadState.FAILED, 4)

    wanted = await jobs.open(a_load_job(why=needed, retry_at=after(10)))

    assert (wanted.id, wanted.state, wanted.why, wanted.failures) == (job.id, LoadState.PENDING, needed, 0)
    assert (wanted.message, wanted.retry_at) == ("", after(10))


async def test_a_load_that_somebody_joined_is_not_taken_back(jobs: LoadJobs) -> None:
    job = await jobs.open(a_load_job(why=LoadWhy.BUSY))
    joined = await jobs.open(a_load_job(why=LoadWhy.ASKED))
    assert joined.id == job.id

    assert not await jobs.take_back(job)
    assert await jobs.take_back(joined)


async def test_a_job_that_found_no_node_waits_for_its_next_look(jobs: LoadJobs) -> None:
    job = await claimed(jobs)
    waiting = replace(job, state=LoadState.PENDING, message="w1 is offline", retry_at=after(5))
    assert await jobs.give_back(waiting, MINE, at=after(1), events=[])

    assert not [one for one in await jobs.waiting() if may_claim(one, after(4), POLICY)]
    assert [one.message for one in await jobs.waiting() if may_claim(one, after(5), POLICY)] == ["w1 is offline"]


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
    moved = replace(process, url="http://u:2", routes=("/v1/messages",), front_port=7, token="t")
    assert await replicas.learn(replica, moved, at=after(3))
    stored = await replicas.get(replica.id)
    assert stored is not None
    assert stored.reach == ("http://u:2", "k", ("/v1/messages",), 7, "t")
    assert not await replicas.learn(stored, moved, at=after(4))
    await replicas.lose([replica.id], reason="gone", at=after(4), events=[])
    assert not await replicas.learn(replica, replace(process, url="http://u:3"), at=after(5))


async def test_a_replica_whose_key_does_not_open_keeps_nobody_from_the_others(
    jobs: LoadJobs, replicas: ReplicaStore, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody can reach it until its node tells its key again, which mends it."""
    broken, other = await loaded(jobs), await loaded(jobs, index=1)
    async with database.begin() as connection:
        await connection.execute(table.update().where(table.c.id == broken.id).values(sealed_key=b"of another key"))
    for _ in range(2):
        found = {replica.id: replica for replica in await replicas.living()}
    assert found[other.id].reach == other.reach
    seen = found[broken.id]
    assert (seen.is_unreadable, seen.url, seen.key, seen.needs_adapter) == (True, "", "", False)
    assert [record.getMessage() for record in caplog.records if "does not open" in record.getMessage()] == [
        "a replica of small cannot be reached: its key does not open"
    ]

    told = ReportedProcess(
        model=broken.model, index=broken.index, address=broken.address, url=broken.url, key=broken.key
    )
    assert seen.is_process(told)
    assert await replicas.learn(seen, told, at=after(3))
    mended = await replicas.get(broken.id)
    assert mended is not None
    assert (mended.is_unreadable, mended.reach) == (False, broken.reach)


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
