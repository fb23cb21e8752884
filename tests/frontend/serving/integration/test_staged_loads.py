"""Loads on nodes that lack the files: they are staged first, the next node is tried when that fails, and all frontends
tell how far it is."""

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from corral.base.ids import NodeId
from corral.files.s3_bucket import open_bucket
from corral.files.storage import ObjectMissing
from corral.frontend.serving.decide.load_job import LoadStatus
from corral.frontend.serving.shapes import loading_view
from corral.frontend.serving.staging.decide.staged import StagedModel
from corral.frontend.serving.staging.store import StagedModels
from corral.frontend.store.db import Database
from corral.gateway.answers import shown_to
from corral.wire.keys import Scope
from corral.wire.models import LoadReason
from tests.kit.file_worker import FileWorker, open_file_worker
from tests.kit.object_node import object_node
from tests.kit.relay import Relay
from tests.kit.s3 import S3Server
from tests.kit.waiting import eventually, within_timeout
from tests.kit.world import SECRET, FakeNode, World

SIZE = 24 * 1024 * 1024


class Fleet:
    """Nodes with file servers and models directories of their own."""

    def __init__(self, world: World, root: Path, stack: AsyncExitStack) -> None:
        self.world = world
        self._root = root
        self._stack = stack

    async def node(self, name: str) -> tuple[FakeNode, FileWorker]:
        worker = await self._stack.enter_async_context(open_file_worker(self._root / name, secret=SECRET + name))
        return await self.world.node(name, http_address=f"127.0.0.1:{worker.port}"), worker

    async def load(self) -> LoadStatus:
        await self.world.loads.ensure("small")
        await self.world.loads.tick()
        return await self.world.loads.ensure("small")


@pytest.fixture
async def fleet(world: World, tmp_path: Path) -> AsyncIterator[Fleet]:
    (world.models / "small.gguf").write_bytes(b"weights" * 1000)
    async with AsyncExitStack() as stack:
        yield Fleet(world, tmp_path / "nodes", stack)


async def test_a_node_gets_the_files_before_it_is_told_to_load(fleet: Fleet) -> None:
    _, worker = await fleet.node("w1")

    assert (await fleet.load()).state == "loaded"

    assert fleet.world.loader.files == [str(worker.models / "small/small.gguf")]
    assert (worker.models / "small/small.gguf").read_bytes() == b"weights" * 1000


async def test_an_adapter_is_told_where_the_file_is_on_its_node(fleet: Fleet) -> None:
    node, worker = await fleet.node("w1")
    node.adapts = True

    await fleet.load()

    told = node.installs[-1].corral.model.file  # type: ignore[union-attr]
    assert told == str(worker.models / "small/small.gguf")
    assert len(node.running) == 1


@pytest.mark.parametrize("weights", ["org/name", "huggingface://org/name/weights.gguf"])
async def test_a_backend_gets_no_paths_of_files_that_are_nowhere(fleet: Fleet, weights: str) -> None:
    """As from a LocalAI frontend: the backend fetches by the name, and must not look in a directory of another
    machine."""
    await fleet.node("w1")
    await fleet.world.write(f"name: small\nbackend: echo\nmmproj: eye.gguf\nparameters:\n  model: {weights}\n")

    assert (await fleet.load()).state == "loaded"

    (told,) = fleet.world.loader.told
    assert told.Model == weights
    assert (told.ModelFile, told.ModelPath, told.MMProj) == ("", "", "")


async def test_a_downloaded_repository_is_brought_as_a_directory(fleet: Fleet) -> None:
    """The paths of LocalAI's frontends: the folder of the model, and below it all as it is here."""
    _, worker = await fleet.node("w1")
    snapshot = f".artifacts/huggingface/{'0a' * 32}/snapshot"
    (fleet.world.models / snapshot / "part").mkdir(parents=True)
    (fleet.world.models / snapshot / "part/weights.safetensors").write_bytes(b"weights")
    artifacts = f"[{{name: model, resolved: {{cache_key: {'0a' * 32}}}}}]"
    text = f"name: small\nbackend: echo\nparameters: {{model: org/name}}\nartifacts: {artifacts}\n"
    await fleet.world.write(text)

    assert (await fleet.load()).state == "loaded"

    (told,) = fleet.world.loader.told
    assert (told.ModelFile, told.ModelPath) == (str(worker.models / "small" / snapshot), str(worker.models / "small"))
    assert (worker.models / "small" / snapshot / "part/weights.safetensors").read_bytes() == b"weights"


async def test_a_node_without_file_server_gets_the_paths_as_they_are_here(fleet: Fleet) -> None:
    """It may share the models directory; nobody can ask it."""
    await fleet.world.node("w1")

    assert (await fleet.load()).state == "loaded"

    (told,) = fleet.world.loader.told
    models = fleet.world.models
    assert (told.ModelFile, told.ModelPath) == (str(models / "small.gguf"), str(models))


async def test_a_node_that_cannot_take_the_files_is_passed_over(fleet: Fleet) -> None:
    _, full = await fleet.node("w1")
    (full.models / "small").write_bytes(b"a file where a directory has to be")
    _, other = await fleet.node("w2")

    assert (await fleet.load()).state == "loaded"
    assert fleet.world.loader.files == [str(other.models / "small/small.gguf")]


async def test_when_no_node_can_take_the_files_every_reason_is_told(fleet: Fleet) -> None:
    for name in ("w1", "w2"):
        _, worker = await fleet.node(name)
        (worker.models / "small").write_bytes(b"a file where a directory has to be")

    failed = await fleet.load()

    assert (failed.state, failed.reason) == ("failed", LoadReason.FILES_NOT_SENT)
    for name in ("w1", "w2"):
        assert f"{name}: its files could not be brought there: models/small/small.gguf" in failed.message
    assert fleet.world.loader.loads == []


async def test_files_that_cannot_be_used_here_are_not_tried_on_every_node(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [(await fleet.node(name))[0] for name in ("w1", "w2")]
    monkeypatch.setattr("corral.frontend.models.local_files.MOST_FILES", 0)

    failed = await fleet.load()

    assert (failed.state, failed.reason) == ("failed", LoadReason.FILES_UNUSABLE)
    assert "small.gguf: a model may have 0 files, and this has more" in failed.message
    assert sum(len(node.installs) for node in nodes) == 1


async def test_everybody_is_told_how_far_it_is_and_administrators_where(fleet: Fleet) -> None:
    world = fleet.world
    other = await world.again()
    (world.models / "small.gguf").write_bytes(bytes(SIZE))
    async with (
        open_file_worker(world.models.parent / "node", secret=SECRET + "w1") as worker,
        Relay(worker.port) as relay,
    ):
        await world.node("w1", http_address=f"127.0.0.1:{relay.port}")
        relay.freeze_before(b"small.gguf")  # the list of its files comes through: it is waited for 30 s
        await world.loads.ensure("small")
        loading = asyncio.create_task(world.loads.tick())

        async def is_staging() -> LoadStatus | None:
            status = await world.loads.ensure("small")
            return status if status.progress.total_bytes else None

        status = await eventually(is_staging, "the staging to begin")
        shown = loading_view(status)
        assert (shown.state, shown.node, shown.total_bytes) == ("staging", "w1", SIZE)
        assert (shown.bytes_sent, shown.file_index, shown.total_files) == (0, 1, 1)
        public = shown_to(shown, [Scope.INFERENCE]).for_client()
        assert public == {
            "model": "small",
            "state": "staging",
            "progress": 0.0,
            "bytes_sent": 0,
            "total_bytes": SIZE,
            "file_index": 1,
            "total_files": 1,
            "step": "stage",
            "step_seconds": {"place": 0.0, "install": 0.0, "stage": 0.0},
        }

        async def is_heard() -> bool:
            told = await other.context.serving.loads.status_of("small")
            await other.context.operations.progress.tend()
            await world.clock.advance(timedelta(seconds=1))
            return told is not None and (told.progress.phase, told.progress.total_bytes) == ("staging", SIZE)

        await eventually(is_heard, "the other frontend to hear of it")
        relay.thaw()
        await within_timeout(loading, lambda: "the load to end")
        assert world.loader.files == [str(worker.models / "small/small.gguf")]


async def test_a_node_without_a_file_server_fetches_the_files_from_the_storage(
    fleet: Fleet, s3_server: S3Server, tmp_path: Path
) -> None:
    world = fleet.world
    async with open_bucket(s3_server.config()) as bucket:
        serving = (await world.again(storage=bucket)).context.serving
        node = await world.node("w1")
        async with object_node(world.bus, node.id, tmp_path / "w1", bucket):
            await serving.loads.ensure("small")
            await serving.loads.tick()

        assert (await serving.loads.ensure("small")).state == "loaded"
        assert world.loader.files == [str(tmp_path / "w1/models/small/small.gguf")]
        ((kept, _),) = await serving.staged.of_node(node.id)
        assert (kept.model, [file.path for file in kept.files]) == ("small", ["small.gguf"])


async def test_objects_of_requests_are_removed_from_the_storage_by_one_frontend(
    world: World, s3_server: S3Server
) -> None:
    key = "ephemeral/inputs/0a1b2c3d/left.wav"
    async with open_bucket(s3_server.config()) as bucket:
        controls = [await world.again(storage=bucket) for _ in range(2)]
        await bucket.upload(io.BytesIO(b"sound"), key, created_at="2026-01-02T03:04:05Z")
        await bucket.upload(io.BytesIO(b"weights"), "models/kept", created_at="2026-01-02T03:04:05Z")
        first, second = (control.context.serving.left_objects for control in controls)
        assert first is not None
        assert second is not None
        await first.sweep()  # by the clock of this world all objects are years old
        with pytest.raises(ObjectMissing):
            await bucket.look(key)
        await bucket.upload(io.BytesIO(b"sound"), key, created_at="2026-01-02T03:04:05Z")
        await second.sweep()
        assert (await bucket.look(key)).size == 5
        assert (await bucket.look("models/kept")).size == 7


async def test_a_staging_that_moves_no_byte_is_given_up_for_the_next_node(fleet: Fleet) -> None:
    world = fleet.world
    (world.models / "small.gguf").write_bytes(bytes(SIZE))
    async with (
        open_file_worker(world.models.parent / "node", secret=SECRET + "w1") as worker,
        Relay(worker.port) as relay,
    ):
        await world.node("w1", http_address=f"127.0.0.1:{relay.port}")
        _, other = await fleet.node("w2")
        relay.freeze()
        await world.loads.ensure("small")
        loading = asyncio.create_task(world.loads.tick())

        async def is_over() -> bool:
            await world.clock.advance(timedelta(seconds=30))
            return loading.done()

        await eventually(is_over, "the load to be tried elsewhere")
        await loading

    assert world.loader.files == [str(other.models / "small/small.gguf")]
    assert (await world.loads.ensure("small")).node == "w2"
    (failed,) = [one for one in await world.control.context.serving.replicas.of_model("small") if one.reason]
    assert "bringing its files there was given up after" in failed.reason


async def test_the_log_tells_the_bytes_of_an_attempt_that_failed_as_well(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    world = fleet.world
    (world.models / "small.gguf").write_bytes(bytes(SIZE))
    async with (
        open_file_worker(world.models.parent / "node", secret=SECRET + "w1") as worker,
        Relay(worker.port) as relay,
    ):
        await world.node("w1", http_address=f"127.0.0.1:{relay.port}")
        await fleet.node("w2")
        relay.freeze_after(SIZE // 2)
        await world.loads.ensure("small")
        caplog.set_level("INFO")
        loading = asyncio.create_task(world.loads.tick())
        await relay.until_frozen()

        async def is_over() -> bool:
            await world.clock.advance(timedelta(seconds=30))
            return loading.done()

        await eventually(is_over, "the load to be tried elsewhere")
        await loading

    lines = [vars(record) for record in caplog.records if getattr(record, "event", "") == "model.staged"]
    first, second = ((line["node"], line["bytes"]) for line in lines)
    assert first[0] == "w1"
    assert 0 < first[1] < SIZE
    assert second == ("w2", SIZE)


async def test_a_summary_tells_when_files_were_brought_and_nothing_for_those_that_were_there(
    database: Database,
) -> None:
    store, at = StagedModels(database), datetime(2030, 1, 1, tzinfo=UTC)
    for model, size in (("brought", 7), ("found", 0)):
        await store.record(
            StagedModel(node_id=NodeId("a"), model=model, revision="r", bytes=size, staged_at=at, used_at=at)
        )
    assert {each.model: each.brought_at for each in await store.summaries()} == {"brought": at, "found": None}
