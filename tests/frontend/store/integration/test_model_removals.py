"""Removals of models: one transaction that takes the model, its loads and its replicas away, and asks the nodes."""

import pytest
from msgspec.structs import replace

from corral.base.ids import LeaseToken, NodeId, OperationId
from corral.frontend.backends.decide.backend import with_alias_kept
from corral.frontend.backends.store import write_reports
from corral.frontend.models.decide.removal import REASON, RemovedModel
from corral.frontend.models.decide.stored import ModelChangeKind, ModelRevision, ModelSource, StoredModel
from corral.frontend.models.store.models import ModelRemovals, Overwritten, StoredModels
from corral.frontend.operations.decide.intent import Intent, Verb
from corral.frontend.operations.decide.operation import Operation, OperationState, Target, TargetStatus
from corral.frontend.operations.store.intents import Intents
from corral.frontend.operations.store.operations import OperationStore
from corral.frontend.record.decide import EventKind
from corral.frontend.record.store import Events
from corral.frontend.serving.decide.replica import Replica, ReplicaState
from corral.frontend.serving.decide.rollout import note
from corral.frontend.serving.store.load_jobs import LoadJobs, stop_serving
from corral.frontend.serving.store.replicas import ReplicaStore, Restorations
from corral.frontend.store.db import Database
from corral.frontend.store.secrets import Secrets, SecretsKey
from tests.kit.samples import a_load_job, a_replica, after, an_event, an_operation

MINE = LeaseToken("mine")
A, B = NodeId("a"), NodeId("b")


@pytest.fixture
async def secrets(database: Database) -> Secrets:
    return await Secrets.open(database, SecretsKey(bytes(32)), at=after(0))


@pytest.fixture
def jobs(database: Database, secrets: Secrets) -> LoadJobs:
    return LoadJobs(database, secrets)


@pytest.fixture
def removals(database: Database) -> ModelRemovals:
    return ModelRemovals(database, OperationStore(database, with_alias_kept), on_removal=(stop_serving,))


async def loading(jobs: LoadJobs, node_id: NodeId, model: str = "small") -> Replica:
    job = await jobs.open(a_load_job(model=model))
    assert await jobs.claim(job, MINE, now=after(0), until=after(30))
    replica = a_replica(state=ReplicaState.RESERVED, node_id=node_id, model=model)
    assert await jobs.reserve(job, MINE, replica, fits=lambda there: True)
    placed = replace(job, replica_id=replica.id, node_id=node_id)
    assert await jobs.advance(placed, MINE, ReplicaState.LOADING, at=after(0))
    return replica


async def loaded(jobs: LoadJobs, node_id: NodeId, model: str = "small") -> Replica:
    replica = await loading(jobs, node_id, model)
    (job,) = [job for job in await jobs.all() if job.model == model]
    assert await jobs.finish(job, MINE, replica, events=[])
    return replica


def removal(id: str, seconds: float, *, number: int = 2) -> tuple[RemovedModel, ModelRevision, Operation, list[Intent]]:
    at, operation_id = after(seconds), OperationId(id)
    common = {"operation_id": operation_id, "changed_at": at}
    target = Target(node_id=A, node_name="a", subject="small", **common)  # type: ignore[arg-type]
    operation = Operation(
        id=operation_id,
        verb=Verb.REMOVE,
        subject="small",
        asked_by="me",
        accepted_at=at,
        targets=(target,),
    )
    intent = Intent(node_id=A, verb=Verb.REMOVE, subject="small", accepted_at=at, next_try=at, **common)  # type: ignore[arg-type]
    last = ModelRevision(
        name="small",
        number=number,
        revision="r1",
        text="name: small\n",
        change=ModelChangeKind.REMOVED,
        changed_at=at,
        changed_by="me",
    )
    return RemovedModel(name="small", removed_at=at, operation_id=operation_id), last, operation, [intent]


async def test_all_that_belongs_to_the_model_goes_at_once(
    removals: ModelRemovals, jobs: LoadJobs, database: Database, secrets: Secrets
) -> None:
    serving, other = await loaded(jobs, A), await loaded(jobs, A, "other")
    starting = await loading(jobs, B)
    (job,) = [job for job in await jobs.all() if job.model == "small"]
    restorations = Restorations(database)
    await restorations.note([note(one, "echo", [], after(1)) for one in (serving, other)])
    models, removed, last, operation, intents = StoredModels(database), *removal("first", 5)
    model = StoredModel(
        name="small",
        number=1,
        revision="r1",
        text=last.text,
        source=ModelSource.API,
        changed_at=after(0),
        changed_by="me",
    )
    assert await models.write(model, ModelChangeKind.ADDED, events=[])
    events = [an_event(EventKind.MODEL_REMOVED)]
    assert await removals.start(removed, last, operation, intents, events=events) == operation
    assert (await models.get("small"), (await models.history("small"))[0]) == (None, last)

    assert await removals.all() == [removed]
    replicas = ReplicaStore(database, secrets)
    states = {one.id: (one.state, one.reason) for one in await replicas.of_model("small")}
    assert states == {serving.id: (ReplicaState.UNLOADING, REASON), starting.id: (ReplicaState.FAILED, REASON)}
    assert [one.state for one in await replicas.of_model("other")] == [ReplicaState.LOADED]
    assert "small" not in {job.model for job in await jobs.all()}
    assert not await jobs.finish(job, MINE, starting, events=[])
    assert [one.model for one in await restorations.all()] == ["other"]
    stored = await OperationStore(database, with_alias_kept).get(operation.id)
    assert stored is not None
    assert stored.state is OperationState.RUNNING
    (intent,) = await Intents(database, write_reports).of_node(A)
    assert intent == intents[0]
    assert [one.event.kind for one in await Events(database).after(0, limit=9)] == [EventKind.MODEL_REMOVED]


async def test_a_later_removal_takes_the_place_of_an_earlier_one(removals: ModelRemovals, database: Database) -> None:
    first, second = removal("first", 5), removal("second", 9, number=3)
    await removals.start(*first, events=[])
    await removals.start(*second, events=[])
    assert await removals.all() == [second[0]]
    (intent,) = await Intents(database, write_reports).of_node(A)
    assert (intent.operation_id, intent.generation) == (OperationId("second"), 2)
    assert not await removals.forget(first[0], events=[])
    assert await removals.forget(second[0], events=[])
    assert not await removals.forget(second[0], events=[])
    assert await removals.all() == []


async def test_a_removal_of_what_was_changed_meanwhile_writes_nothing(
    removals: ModelRemovals, database: Database
) -> None:
    await removals.start(*removal("first", 5), events=[])
    with pytest.raises(Overwritten):
        await removals.start(*removal("second", 9), events=[])
    assert [one.operation_id for one in await removals.all()] == [OperationId("first")]
    assert await OperationStore(database, with_alias_kept).get(OperationId("second")) is None


async def test_stores_are_cleared_one_by_one_unless_the_removal_is_another_one(removals: ModelRemovals) -> None:
    removed, *others = removal("first", 5)
    await removals.start(removed, *others, events=[])
    assert await removals.clear(removed, "s1", [])
    assert await removals.clear(removed, "s2", ["w.gguf stays: other needs it"])
    (known,) = await removals.all()
    assert known.cleared == {"s1": [], "s2": ["w.gguf stays: other needs it"]}
    assert not await removals.clear(replace(removed, operation_id=OperationId("other")), "s3", [])


async def test_a_call_that_is_repeated_removes_nothing_that_was_added_since(
    removals: ModelRemovals, database: Database
) -> None:
    removed, last, operation, intents = removal("first", 5)
    keyed = replace(operation, idempotency_key="k")
    await removals.start(removed, last, keyed, intents, events=[])
    await removals.forget(removed, events=[])
    again = replace(removed, removed_at=after(9), operation_id=OperationId("second"))
    same = await removals.start(again, last, replace(keyed, id=OperationId("second")), intents, events=[])
    assert (same.id, await removals.all()) == (operation.id, [])
    assert (await OperationStore(database, with_alias_kept).with_key("k")) == same


async def test_a_backend_of_the_same_name_is_another_subject(removals: ModelRemovals, database: Database) -> None:
    operations = OperationStore(database, with_alias_kept)
    install, wanted = an_operation("install", A)
    await operations.start(install, [replace(one, subject="small") for one in wanted], events=[])
    await removals.start(*removal("removal", 5), events=[])
    intents = await Intents(database, write_reports).of_node(A)
    assert [(one.kind, one.subject, one.generation) for one in intents] == [
        ("backend", "small", 1),
        ("model", "small", 1),
    ]
    stored = await operations.get(install.id)
    assert stored is not None
    assert stored.targets[0].status is TargetStatus.QUEUED
