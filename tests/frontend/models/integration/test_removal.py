"""Models removed from the fleet: gone at once for those who ask, then from every disk, whoever sleeps or dies."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from corral.base.errors import Conflict, NotFound
from corral.frontend.models import removal as removal_module
from corral.frontend.models.decide.changing import ModelProvenance
from corral.frontend.models.decide.stored import ModelSource, WeightFile
from corral.frontend.models.removal import delete_files
from corral.frontend.models.store.models import ModelRemovals
from corral.frontend.models.stores import FOLDER
from corral.frontend.operations.decide.operation import Operation, OperationState, TargetStatus
from corral.frontend.operations.decide.reasons import sentence
from corral.frontend.record.decide import EventKind
from corral.frontend.serving.decide.replica import ReplicaState
from corral.frontend.serving.unloading import HEARD_AFTER
from corral.hubs.plans import ModelOrigin
from corral.processes.control import Control, build_control
from tests.kit.simulated_worker import SimulatedWorker
from tests.kit.world import MODEL, World, view_of

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


async def remove(world: World, name: str = "small") -> Operation:
    return await world.control.context.models.removal.remove(name, by="me")


async def stored(world: World, operation: Operation) -> Operation:
    return await world.control.context.operations.service.get(operation.id)


async def step(world: World, control: Control | None = None, *, after: timedelta = HEARD_AFTER) -> None:
    control = control or world.control
    await world.clock.advance(after)
    await control.context.nodes.hearing.tick()
    await control.context.serving.unloading.sweep()
    await control.context.operations.dispatcher.tick()
    await control.context.models.removal.sweep()


async def another_with(world: World, directory: Path) -> Control:
    """Another frontend, with a directory of its own."""
    config = replace(world.control.context.config, models_path=directory)
    return await build_control(config, world.clock, world.stores, world.bus, loader=world.loader)


def files(world: World) -> list[str]:
    return files_in(world.models)


def files_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name != FOLDER)


@pytest.mark.parametrize("is_corral", [True, False])
async def test_a_model_leaves_the_view_its_replica_and_every_disk(world: World, is_corral: bool) -> None:
    first, second = [await world.worker(name, "echo", is_corral=is_corral) for name in "ab"]
    (world.models / "small.gguf").write_bytes(b"weights")
    replica = await world.loaded()
    first.models, second.models = {"small", "other"}, {"small"}
    operation = await remove(world)

    view = await view_of(world.control)
    assert (view.models, view.replicas) == ({}, {})
    with pytest.raises(NotFound, match="does not exist"):
        await world.loads.ensure("small")
    for _ in range(3):
        await step(world)
    gone = await world.control.context.serving.replicas.get(replica.id)
    assert gone is not None
    assert gone.state is ReplicaState.IDLE
    assert (first.processes, second.processes, files(world)) == ({}, {}, [])
    assert (first.models, second.models) == ({"other"}, set())
    done = await stored(world, operation)
    assert (done.state, [sentence(one.reason) for one in done.targets]) == (OperationState.DONE, ["told", "told"])
    (event,) = await world.events(EventKind.MODEL_REMOVED)
    assert (event.actor, event.data["model"]) == ("me", "small")


async def test_files_are_left_until_the_processes_that_read_them_have_ended(world: World) -> None:
    worker = await world.worker("a", "echo")
    await world.loaded()
    operation = await remove(world)
    await step(world, after=timedelta(0))
    assert files(world) == ["small.yaml"]
    reason = (await stored(world, operation)).targets[0].reason
    assert (worker.requests[-1][0], sentence(reason)) == ("load", "the replica of small there ends first")


async def test_another_frontend_with_a_directory_of_its_own_hides_it_and_deletes_its_copy(
    world: World, tmp_path: Path
) -> None:
    await world.worker("a", "echo")
    copy = world.models.with_name("copy")
    copy.mkdir()
    (copy / "small.yaml").write_text(MODEL)
    another = await another_with(world, copy)
    await remove(world)
    assert "small" in another.context.models.catalogue.catalogue.models
    await another.context.models.removal.sweep()
    assert (another.context.models.catalogue.catalogue.models, files_in(copy)) == ({}, [])


@pytest.mark.parametrize("knew_it", [True, False])
async def test_a_frontend_that_was_down_meanwhile_never_shows_its_copy(world: World, knew_it: bool) -> None:
    copy = world.models.with_name("copy")
    copy.mkdir()
    (copy / "small.yaml").write_text(MODEL)
    if knew_it:
        await another_with(world, copy)
    await remove(world)
    late = await another_with(world, copy)
    await late.context.models.removal.sweep()
    assert ((await view_of(late)).models, files_in(copy)) == ({}, [])


async def test_an_absent_node_gets_it_when_it_returns_and_a_refusal_is_tried_again(world: World) -> None:
    away, refuses = [await world.worker(name, "echo") for name in "ab"]
    away.models, refuses.models = {"small"}, {"small"}
    refuses.faults.refusal = "read-only file system"
    await away.stop()
    operation = await remove(world)
    await world.control.context.operations.dispatcher.tick()
    waits, failed = (await stored(world, operation)).targets
    assert (waits.status, waits.waits_for_node) == (TargetStatus.QUEUED, True)
    assert (failed.status, sentence(failed.reason)) == (TargetStatus.ERROR, "read-only file system")

    refuses.faults.refusal = ""
    await away.listen(world.bus)
    await step(world, await world.again(), after=timedelta(hours=24))
    assert (away.models, refuses.models) == (set(), set())
    assert (await stored(world, operation)).state is OperationState.DONE


async def test_a_frontend_that_dies_right_after_it_said_yes_loses_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await world.worker("a", "echo")
    (world.models / "small.gguf").write_bytes(b"weights")
    await world.loaded()
    worker.models = {"small"}

    async def dies() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(world.control.context.models.removal, "sweep", dies)
    with pytest.raises(KeyboardInterrupt):
        await remove(world)
    assert files(world) == ["small.gguf", "small.yaml"]
    for _ in range(3):
        heir = await world.again()
        assert (await view_of(heir)).models == {}
        await step(world, heir, after=timedelta(minutes=1))
    assert (files(world), worker.models, worker.processes) == ([], set(), {})


async def test_a_death_between_weights_and_file_is_made_good(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (world.models / "small.gguf").mkdir()

    def dies(directory: Path, marks: object, weights: Sequence[str], *, store_id: str) -> bool:
        assert delete_files(directory, {}, weights)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(removal_module, "delete_files", dies)
        with pytest.raises(KeyboardInterrupt):
            await remove(world)
    assert files(world) == ["small.yaml"]
    heir = await world.again()
    assert ((await view_of(heir)).models, files(world)) == ({}, [])


async def test_a_database_that_is_away_leaves_everything_as_it_was(world: World) -> None:
    await world.stores.database.close()
    with pytest.raises(Exception, match="database"):
        await remove(world)
    assert ("small" in world.control.context.models.catalogue.catalogue.models, files(world)) == (True, ["small.yaml"])


async def test_what_other_models_need_stays(world: World) -> None:
    worker = await world.worker("a", "echo")
    for name in ("shared.gguf", "own.gguf"):
        (world.models / name).write_bytes(b"w")
    await world.write("name: small\nbackend: echo\nmmproj: own.gguf\nparameters:\n  model: shared.gguf\n")
    await world.write("name: other\nbackend: echo\nparameters:\n  model: shared.gguf\n", "other.yaml")
    await remove(world)
    await step(world)
    assert files(world) == ["other.yaml", "shared.gguf"]
    assert worker.requests == [("remove", "small")]


async def test_a_name_that_would_take_another_models_files_along_is_not_sent(world: World) -> None:
    worker = await world.worker("a", "echo")
    await world.write("name: other\nbackend: echo\nparameters:\n  model: small.gguf\n", "other.yaml")
    operation = await remove(world)
    await step(world)
    (target,) = (await stored(world, operation)).targets
    assert (target.status, worker.requests) == (TargetStatus.BLOCKED, [])
    assert "small.gguf, which other needs" in sentence(target.reason)


async def test_an_alias_goes_alone(world: World) -> None:
    worker = await world.worker("a", "echo")
    await world.write("name: short\nalias: small\n", "short.yaml")
    operation = await remove(world, "short")
    assert (operation.state, files(world), worker.requests) == (OperationState.DONE, ["small.yaml"], [])
    assert list((await view_of(world.control)).models) == ["small"]


async def test_what_cannot_be_removed_says_why(world: World) -> None:
    with pytest.raises(NotFound, match="did you mean small"):
        await remove(world, "smal")
    await world.write("name: [", "broken.yaml")
    with pytest.raises(Conflict, match=r"broken\.yaml cannot be used"):
        await remove(world, "broken")


async def test_one_of_several_in_a_file_goes_and_stays_gone_while_the_file_stays(world: World) -> None:
    both = [MODEL.replace("small", name).replace("\n", "\n  ").rstrip() for name in ("one", "two")]
    text = "".join(f"- {one}\n" for one in both)
    await world.write(text, "both.yaml")
    (world.models / "one.gguf").write_bytes(b"w")
    kept = "both.yaml stays: it also holds two; take the model out of it"
    shown = (await world.frontend.call("DELETE", "/api/v1/models/one")).json()
    assert shown["notes"] == [kept]
    assert files(world) == ["both.yaml", "small.yaml"]
    (removed,) = await ModelRemovals(
        world.stores.database, world.control.context.operations.stores.operations, on_removal=()
    ).all()
    assert list(removed.cleared.values()) == [[kept]]

    await world.write(text + "  threads: 2\n", "both.yaml")
    assert sorted((await view_of(await world.again())).models) == ["small", "two"]
    assert world.control.context.models.catalogue.find("two").config["threads"] == 2
    await world.write(text.replace("one.gguf", "other.gguf"), "both.yaml")
    assert "one" in world.control.context.models.catalogue.catalogue.models, "that is another model of this name"


async def test_weights_that_an_unread_file_may_need_stay(world: World) -> None:
    (world.models / "small.gguf").write_bytes(b"w")
    await world.write("name: [", "broken.yaml")
    await remove(world)
    assert files(world) == ["broken.yaml", "small.gguf"]


async def test_a_model_without_a_file_goes_with_all_that_it_was_pulled_with(world: World) -> None:
    for name in ("w.gguf", "licence.txt"):
        (world.models / name).write_bytes(b"w")
    pulled = [WeightFile(path=name, size=1, digest="sha256:00") for name in ("w.gguf", "licence.txt")]
    text = "name: big\nbackend: echo\nparameters: {model: w.gguf}\n"
    changes = world.control.context.models.changes
    await changes.add(
        text, by="me", provenance=ModelProvenance(ModelSource.PULL, ModelOrigin(reference="x"), tuple(pulled))
    )
    await changes.copy("big", "copy", by="me")
    operation = await remove(world, "big")
    assert operation.payload["notes"] == ["w.gguf stays: copy needs it", "licence.txt stays: copy needs it"]
    assert files(world) == ["licence.txt", "small.yaml", "w.gguf"]
    await remove(world, "copy")
    assert files(world) == ["small.yaml"]


@pytest.mark.parametrize("is_seen", [True, False])
async def test_files_on_a_disk_that_is_not_mounted_go_when_it_is_back(world: World, is_seen: bool) -> None:
    (world.models / "small.gguf").write_bytes(b"w")
    await world.control.context.models.watch.look()
    aside = world.models.with_name("aside")
    world.models.rename(aside)
    world.models.mkdir()
    if is_seen:
        await world.control.context.models.watch.look()
    await remove(world)
    assert files_in(aside) == ["small.gguf", "small.yaml"]
    shutil.rmtree(world.models)
    aside.rename(world.models)
    await world.control.context.models.watch.look()
    await world.control.context.models.removal.sweep()
    assert ((await view_of(world.control)).models, files(world)) == ({}, [])


async def test_a_removed_model_is_rolled_back(world: World) -> None:
    worker = await world.worker("a", "echo")
    await worker.stop()
    operation = await remove(world)
    back = await world.control.context.models.changes.rollback("small", 1, by="me")
    assert back.number == 3
    await step(world)
    assert list((await view_of(world.control)).models) == ["small"]
    assert (await stored(world, operation)).targets[0].status is TargetStatus.CANCELLED


async def test_a_model_that_is_added_again_comes_back_and_nodes_keep_its_files(world: World) -> None:
    away = await world.worker("a", "echo")
    await away.stop()
    operation = await remove(world)
    await world.control.context.operations.dispatcher.tick()
    assert files(world) == []
    await world.write(MODEL)
    away.models = {"small"}
    await world.control.context.models.removal.sweep()
    assert "small" in (await view_of(world.control)).models
    assert (await stored(world, operation)).targets[0].status is TargetStatus.CANCELLED

    await away.listen(world.bus)
    await step(world, after=timedelta(hours=1))
    assert (away.models, away.requests) == ({"small"}, [])
    assert [one.data["model"] for one in await world.events(EventKind.MODEL_ADDED_AGAIN)] == ["small"]
    again = await remove(world)
    await step(world)
    assert (away.models, (await stored(world, again)).state) == (set(), OperationState.DONE)


async def test_a_load_never_meets_a_removal_on_its_node(world: World) -> None:
    """The model was added again, and the node has not been told yet that its files may stay."""
    worker = await world.worker("a", "echo")
    await remove(world)
    await world.write(MODEL)
    await world.loads.ensure("small")
    await world.loads.tick()
    job = (await world.loads.furthest_jobs())["small"]
    assert job.message == "a: small is about to be deleted there"
    assert worker.requests == []


async def _settled(world: World, worker: SimulatedWorker) -> None:
    for _ in range(3):
        await step(world)
    assert worker.models == set()


async def test_the_routes_of_both_dialects(world: World) -> None:
    worker = await world.worker("a", "echo")
    for name in ("one", "two"):
        await world.write(MODEL.replace("small", name), f"{name}.yaml")
    call = world.frontend.call
    native = await call("DELETE", "/api/v1/models/small", idempotency_key="k")
    assert (native.status, native.json()["verb"], native.json()["state"]) == (202, "remove", "running")
    again = await call("DELETE", "/api/v1/models/small", idempotency_key="k")
    assert (again.status, again.json()["id"]) == (202, native.json()["id"])
    assert (await call("DELETE", "/api/v1/models/small")).status == 404
    applied = (await call("POST", "/models/delete/one")).json()
    assert applied["status"] == f"http://127.0.0.1/models/jobs/{applied['uuid']}"  # whole, as LocalAI's
    pages = (await call("POST", "/api/models/delete/two")).json()
    assert sorted(pages) == ["jobID", "message"]
    missing = await call("POST", "/api/models/delete/two")
    assert (missing.status, list(missing.json())) == (404, ["error"])

    listed = (await call("GET", "/api/operations")).json()["operations"]
    assert {(one["name"], one["isBackend"], one["isDeletion"], one["taskType"]) for one in listed} == {
        (name, False, True, "deletion") for name in ("small", "one", "two")
    }
    await _settled(world, worker)
    job = (await call("GET", f"/api/models/job/{pages['jobID']}")).json()
    assert (job["processed"], job["deletion"], job["completed"]) == (True, True, True)
    assert (await call("GET", f"/models/jobs/{applied['uuid']}")).json()["deletion"]
    assert len((await call("GET", "/models/jobs")).json()) == 3
    refused = await call("POST", "/api/v1/operations", {"verb": "remove", "backend": "echo"})
    assert refused.status == 400
