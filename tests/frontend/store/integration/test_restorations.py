"""Restorations: noted and taken out of service in one transaction, in which nobody relies on what another one takes."""

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from corral.base.ids import LeaseToken, NodeId
from corral.frontend.operations.decide.reasons import ReasonCode, because
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.store import Events
from corral.frontend.serving.decide.replica import Replica, ReplicaState
from corral.frontend.serving.decide.rollout import Preparation, Restoration, Seen, note, prepare
from corral.frontend.serving.store.load_jobs import LoadJobs
from corral.frontend.serving.store.replicas import ReplicaStore, Restorations
from corral.frontend.store.db import Database
from corral.frontend.store.secrets import Secrets, SecretsKey
from tests.kit.samples import a_load_job, a_replica, after, an_event

MINE = LeaseToken("mine")
NODES = [NodeId("a"), NodeId("b"), NodeId("c")]


@pytest.fixture
async def secrets(database: Database) -> Secrets:
    return await Secrets.open(database, SecretsKey(bytes(32)), at=after(0))


@pytest.fixture
def restorations(database: Database) -> Restorations:
    return Restorations(database)


@pytest.fixture
async def loaded(database: Database, secrets: Secrets) -> list[Replica]:
    """One on each node."""
    jobs, found = LoadJobs(database, secrets), []
    for node_id in NODES:
        job = await jobs.open(a_load_job(preferred_node_id=node_id))
        assert job.preferred_node_id == node_id
        assert await jobs.claim(job, MINE, now=after(0), until=after(30))
        replica = a_replica(state=ReplicaState.RESERVED, node_id=node_id)
        assert await jobs.reserve(job, MINE, replica, fits=lambda there: True)
        placed = replace(job, replica_id=replica.id)
        assert await jobs.advance(placed, MINE, ReplicaState.LOADING, at=after(0))
        replica = replace(replica, address="127.0.0.1:5", url="http://u:1", key="k")
        assert await jobs.finish(job, MINE, replica, events=[])
        found.append(replace(replica, state=ReplicaState.LOADED))
    return found


def tell(replica: Replica, at: object) -> Event:
    return an_event(EventKind.REPLICA_UNLOADING, data={"replica": replica.id})


async def taken(restorations: Restorations, mine: Replica) -> Preparation:
    def decide(replicas: Sequence[Replica], noted: Sequence[Restoration]) -> Preparation:
        seen = Seen(replicas=replicas, restorations=noted, healthy=frozenset(NODES), busy=frozenset())
        return prepare({mine.id}, "echo", seen, after(1))

    return await restorations.prepare([mine.model], decide, reason="upgrade", at=after(1), tell=tell)


async def test_what_is_noted_is_out_of_service_by_the_same_transaction(
    restorations: Restorations, loaded: list[Replica], database: Database, secrets: Secrets
) -> None:
    prepared = await taken(restorations, loaded[0])
    assert await restorations.all() == list(prepared.notes)
    stored = await ReplicaStore(database, secrets).get(loaded[0].id)
    assert stored is not None
    assert (stored.state, stored.reason, stored.key) == (ReplicaState.UNLOADING, "upgrade", "k")
    (event,) = [one.event for one in await Events(database).after(0, limit=10)]
    assert event.data == {"replica": loaded[0].id}


async def test_of_all_that_go_at_once_one_stays(restorations: Restorations, loaded: list[Replica]) -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(taken(restorations, one)) for one in loaded]
    prepared = [task.result() for task in tasks]
    assert sorted(len(one.unload) for one in prepared) == [0, 1, 1]
    (waits,) = [one for one in prepared if not one.unload]
    assert waits.hold == because(ReasonCode.RELOADED_ELSEWHERE_FIRST, model="small")
    assert len(await restorations.all()) == 2


async def test_it_is_noted_once_and_forgotten_once(restorations: Restorations, loaded: list[Replica]) -> None:
    first, second = (note(one, "echo", loaded, after(2)) for one in loaded[:2])
    await restorations.note([first])
    await restorations.note([replace(first, noted_at=after(3)), second])
    assert sorted(await restorations.all(), key=lambda one: one.node_id) == [first, second]
    await restorations.forget([first.replica_id])
    await restorations.forget([first.replica_id])
    assert await restorations.all() == [second]
