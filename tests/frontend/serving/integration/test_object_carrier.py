"""What becomes of files that go through an object storage when the storage, the node or an object is not as it should
be."""

import asyncio
import logging
import os
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path, PurePath
from typing import BinaryIO, Final

import pytest

from corral.base.clock import SystemClock
from corral.base.ids import NodeId
from corral.bus.port import Bus, Message
from corral.files.file_peer import FilePeer
from corral.files.s3_bucket import S3Bucket, open_bucket
from corral.files.storage import StorageConfig
from corral.frontend.models.local_files import LocalFiles
from corral.frontend.nodes.node_storage import NodeStorage
from corral.frontend.serving.staging import object_carrier
from corral.frontend.serving.staging.decide.paths import content_key
from corral.frontend.serving.staging.http_carrier import HttpCarrier
from corral.frontend.serving.staging.object_carrier import ObjectCarrier
from corral.frontend.serving.staging.service import FileCarrier, Staging, StagingCount, StagingFailed, StagingWatch
from corral.wire import subjects
from tests.kit.file_worker import TOKEN, open_file_worker
from tests.kit.object_node import localai_object_node, object_node
from tests.kit.ports import lasting_port
from tests.kit.s3 import S3Server
from tests.kit.waiting import eventually, within_timeout

NODE: Final = NodeId("n1")


class Fleet:
    """A models directory, and nodes that are reached through a storage, over HTTP, or both."""

    def __init__(self, root: Path, bus: Bus, stack: AsyncExitStack) -> None:
        self.root = root
        self.models = root / "frontend"
        self.models.mkdir()
        self.files = LocalFiles(self.models)
        self.bus = bus
        self.stack = stack
        self.carriers: list[FileCarrier] = []
        self.localai: set[NodeId] = set()

    async def storage(self, config: StorageConfig) -> S3Bucket:
        """From now on files go through it."""

        async def admitted(_: NodeId) -> None: ...

        async def fetches_by_digest(node_id: NodeId) -> bool:
            return node_id not in self.localai

        bucket = await self.stack.enter_async_context(open_bucket(config))
        asked = NodeStorage(self.bus, admitted)
        self.carriers.append(ObjectCarrier(self.files, bucket, asked, fetches_by_digest, SystemClock()))
        return bucket

    async def http(self) -> None:
        worker = await self.stack.enter_async_context(open_file_worker(self.root / "http"))

        async def file_server(_: NodeId) -> FilePeer:
            return FilePeer(address=f"127.0.0.1:{worker.port}", token=TOKEN)

        self.carriers.append(HttpCarrier(self.files, file_server))

    async def node(self, config: StorageConfig, name: NodeId = NODE, *, is_localai: bool = False) -> None:
        storage = await self.stack.enter_async_context(open_bucket(config))
        kind = localai_object_node if is_localai else object_node
        if is_localai:
            self.localai.add(name)
        await self.stack.enter_async_context(kind(self.bus, name, self.root / name, storage))

    def write(self, path: str, size: int = 1000) -> bytes:
        content = random.randbytes(size)
        (self.models / path).parent.mkdir(parents=True, exist_ok=True)
        (self.models / path).write_bytes(content)
        return content

    async def bring(
        self, path: str, name: NodeId = NODE, watch: StagingWatch | None = None
    ) -> tuple[PurePath | None, StagingCount]:
        watch = watch or StagingWatch(SystemClock())
        staging = Staging(self.models, self.files, self.carriers)
        base = await within_timeout(
            staging.bring("m", {"ModelFile": str(self.models / path)}, name, watch), lambda: "files to be there"
        )
        return base, watch.count


def content_of(base: PurePath | None, path: str) -> bytes:
    assert base is not None
    return Path(base, path).read_bytes()


@pytest.fixture
async def fleet(tmp_path: Path, bus: Bus) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        yield Fleet(tmp_path, bus, stack)


@pytest.fixture
def nobody(s3_server: S3Server) -> StorageConfig:
    """A storage that is away."""
    return replace(s3_server.config(), url=f"http://127.0.0.1:{lasting_port()}", patience=timedelta(seconds=0.2))


async def test_a_storage_that_is_away_is_gone_around(
    fleet: Fleet, s3_server: S3Server, nobody: StorageConfig, caplog: pytest.LogCaptureFixture
) -> None:
    content = fleet.write("weights.gguf")
    await fleet.storage(nobody)
    await fleet.http()
    await fleet.node(s3_server.config())

    with caplog.at_level(logging.WARNING):
        base, _ = await fleet.bring("weights.gguf")
        again, count = await fleet.bring("weights.gguf")

    assert content_of(base, "weights.gguf") == content
    assert (again, count.sent_bytes) == (base, 0)
    assert len([record for record in caplog.records if "another way is tried" in record.message]) == 1


async def test_without_another_way_the_reason_is_told(fleet: Fleet, s3_server: S3Server, nobody: StorageConfig) -> None:
    fleet.write("weights.gguf")
    await fleet.storage(nobody)
    await fleet.node(s3_server.config())

    with pytest.raises(StagingFailed, match="could not be brought there"):
        await fleet.bring("weights.gguf")


async def test_wrong_keys_are_named_by_their_settings(fleet: Fleet, s3_server: S3Server) -> None:
    fleet.write("weights.gguf")
    await fleet.storage(replace(s3_server.config(), secret_key="this-is-wrong"))
    await fleet.node(s3_server.config())

    with pytest.raises(StagingFailed, match=r"refuses the keys.*storage_secret_key") as failed:
        await fleet.bring("weights.gguf")
    assert "this-is-wrong" not in str(failed.value)


async def test_a_worker_without_a_storage_is_reached_over_http(fleet: Fleet, s3_server: S3Server) -> None:
    content = fleet.write("weights.gguf")
    await fleet.storage(s3_server.config())
    await fleet.http()

    base, _ = await fleet.bring("weights.gguf")

    assert content_of(base, "weights.gguf") == content


async def test_a_worker_without_any_way_is_told_our_paths(fleet: Fleet, s3_server: S3Server) -> None:
    fleet.write("weights.gguf")
    await fleet.storage(s3_server.config())

    assert (await fleet.bring("weights.gguf"))[0] is None


async def test_a_worker_that_looks_into_another_bucket_is_found_out(fleet: Fleet, s3_server: S3Server) -> None:
    fleet.write("weights.gguf")
    await fleet.storage(s3_server.config())
    await fleet.node(replace(s3_server.config(), bucket="another"))

    with pytest.raises(StagingFailed, match="the same bucket"):
        await fleet.bring("weights.gguf")


async def test_a_worker_with_wrong_keys_is_gone_around_at_once(fleet: Fleet, s3_server: S3Server) -> None:
    content = fleet.write("weights.gguf")
    await fleet.storage(s3_server.config())
    await fleet.node(replace(s3_server.config(), secret_key="this-is-wrong"))
    with pytest.raises(StagingFailed, match="refuses the keys"):
        await fleet.bring("weights.gguf")

    await fleet.http()
    assert content_of((await fleet.bring("weights.gguf"))[0], "weights.gguf") == content


async def test_a_place_that_is_taken_is_told_at_once(fleet: Fleet, s3_server: S3Server) -> None:
    fleet.write("weights.gguf")
    await fleet.storage(s3_server.config())
    await fleet.node(s3_server.config())
    (fleet.root / NODE / "models" / "m").write_bytes(b"a file where a directory has to be")

    with pytest.raises(StagingFailed, match=r"weights\.gguf: the worker answers"):
        await fleet.bring("weights.gguf")


async def test_a_worker_that_answers_nonsense_is_found_out(fleet: Fleet, s3_server: S3Server) -> None:
    fleet.write("weights.gguf")
    await fleet.storage(s3_server.config())

    async def answer(message: Message) -> None:
        await message.respond(b'{"local_path":"/etc/passwd"}')

    for subject in (subjects.files_ensure, subjects.files_list):
        await fleet.bus.subscribe(subject(NODE), answer)
    with pytest.raises(StagingFailed, match="/etc/passwd"):
        await fleet.bring("weights.gguf")


async def test_a_damaged_object_is_replaced(fleet: Fleet, s3_server: S3Server) -> None:
    content = fleet.write("weights.gguf")
    bucket = await fleet.storage(s3_server.config())
    await fleet.node(s3_server.config(), NodeId("first"))
    await fleet.node(s3_server.config(), NodeId("second"))
    await fleet.bring("weights.gguf", NodeId("first"))
    digest = (await asyncio.to_thread(fleet.root.joinpath("first/models/m/weights.gguf.sha256").read_text)).strip()
    damaged = fleet.root / "damaged"
    damaged.write_bytes(os.urandom(1000))
    with damaged.open("rb") as source:
        await bucket.upload(source, content_key(digest), created_at="2026-01-02T03:04:05Z")

    base, _ = await fleet.bring("weights.gguf", NodeId("second"))

    assert content_of(base, "weights.gguf") == content


async def test_eight_nodes_at_once_cost_one_upload(fleet: Fleet, s3_server: S3Server) -> None:
    content = fleet.write("weights.gguf", 9_000_000)
    await fleet.storage(s3_server.config())
    nodes = [NodeId(f"node-{number}") for number in range(8)]
    for node in nodes:
        await fleet.node(s3_server.config(), node)

    brought = await asyncio.gather(*(fleet.bring("weights.gguf", node) for node in nodes))

    assert sum(count.sent_bytes for _, count in brought) == len(content)
    for base, count in brought:
        assert content_of(base, "weights.gguf") == content
        assert count.present_bytes == count.total_bytes == len(content)


async def test_localais_worker_never_gets_a_stale_file_from_its_cache(fleet: Fleet, s3_server: S3Server) -> None:
    await fleet.storage(s3_server.config())
    await fleet.node(s3_server.config(), is_localai=True)
    name = f"weights-{random.randrange(10**9)}.gguf"
    fleet.write(name)
    fleet.write("beside.bin")
    first, _ = await fleet.bring(name)
    content = fleet.write(name)

    second, _ = await fleet.bring(name)

    assert first is not None
    assert second is not None
    assert first == fleet.root / NODE / "cache/models/m"
    assert second.name.startswith("m@")
    assert content_of(second, name) == content
    third, count = await fleet.bring(name)
    assert (third, count.sent_bytes) == (second, 0)


class SlowStorage(S3Bucket):
    """Gives nothing before the gate is open."""

    gate: asyncio.Event

    async def download(self, key: str, target: BinaryIO, *, most: int | None = None) -> None:
        await self.gate.wait()
        await super().download(key, target, most=most)


async def test_localais_worker_that_fetches_in_silence_counts_as_moving(
    fleet: Fleet, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_carrier, "_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(object_carrier, "_ANSWER_WITHIN", timedelta(seconds=0.1))
    name = f"slow-{random.randrange(10**9)}.gguf"
    content = fleet.write(name)
    bucket = await fleet.storage(s3_server.config())
    storage = SlowStorage(s3_server.config(), bucket._requests)
    storage.gate = asyncio.Event()
    fleet.localai.add(NODE)
    node = AsyncExitStack()
    await node.enter_async_context(localai_object_node(fleet.bus, NODE, fleet.root / NODE, storage))
    watch = StagingWatch(SystemClock())
    bringing = asyncio.create_task(fleet.bring(name, watch=watch))

    async def movement_after(known: int) -> int:
        return watch.movement if watch.movement > known else 0

    stored = await eventually(lambda: movement_after(len(content) - 1), "the file to be stored")
    await eventually(lambda: movement_after(stored), "the node to be waited for")
    await eventually(lambda: movement_after(stored + 1), "the node to be waited for longer")
    assert watch.count.sent_bytes == len(content)
    storage.gate.set()
    assert content_of((await bringing)[0], name) == content
    await node.aclose()


async def test_a_worker_that_ends_half_way_goes_on_when_it_is_back(
    fleet: Fleet, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_carrier, "_PAUSE_SECONDS", 0.05)
    content = fleet.write("weights.gguf", 30_000_000)
    bucket = await fleet.storage(s3_server.config())
    offsets: list[int] = []
    half = asyncio.Event()

    class Halting(S3Bucket):
        """Stands still after a third, the first time."""

        async def read(self, key: str, offset: int) -> AsyncIterator[bytes]:
            offsets.append(offset)
            count = 0
            async for piece in super().read(key, offset):
                yield piece
                count += len(piece)
                if len(offsets) == 1 and count > 10_000_000:
                    half.set()
                    await asyncio.get_running_loop().create_future()

    storage = Halting(s3_server.config(), bucket._requests)
    worker = AsyncExitStack()
    await worker.enter_async_context(object_node(fleet.bus, NODE, fleet.root / NODE, storage))
    bringing = asyncio.create_task(fleet.bring("weights.gguf"))
    await within_timeout(half.wait(), lambda: "a part to be fetched")
    await worker.aclose()
    await fleet.stack.enter_async_context(object_node(fleet.bus, NODE, fleet.root / NODE, storage))
    base, _ = await bringing

    assert content_of(base, "weights.gguf") == content
    assert offsets[0] == 0
    assert offsets[1] >= 8_000_000
