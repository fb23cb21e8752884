"""Every way of files to nodes, by the same rules: over HTTP, and through an object storage to both kinds of workers."""

import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path, PurePath
from typing import Final

import pytest

from corral.base.clock import SystemClock
from corral.base.ids import NodeId
from corral.bus.port import Bus
from corral.files.file_peer import FilePeer
from corral.files.s3_bucket import open_bucket
from corral.frontend.models.local_files import LocalFiles
from corral.frontend.nodes.node_storage import NodeStorage
from corral.frontend.serving.staging.http_carrier import HttpCarrier
from corral.frontend.serving.staging.object_carrier import ObjectCarrier
from corral.frontend.serving.staging.service import (
    FileCarrier,
    Staging,
    StagingCount,
    StagingFailed,
    StagingWatch,
)
from tests.kit.file_worker import TOKEN, open_file_worker
from tests.kit.object_node import localai_object_node, object_node
from tests.kit.s3 import S3Server
from tests.kit.waiting import within_timeout

NODE: Final = NodeId("n1")
LARGE: Final = 20 * 1024 * 1024 + 7
"""More than two parts of an object."""
WAYS: Final = ("http", "storage", "storage, LocalAI")


class Site:
    """A models directory of a frontend, and one way to a node."""

    def __init__(self, models: Path, carriers: list[FileCarrier]) -> None:
        self.models = models
        self._staging = Staging(models, LocalFiles(models), carriers)

    def write(self, path: str, content: bytes) -> Path:
        file = self.models / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        return file

    async def bring(
        self, model: str, file: str, watch: StagingWatch | None = None
    ) -> tuple[PurePath | None, StagingCount]:
        watch = watch or StagingWatch(SystemClock())
        base = await self._staging.bring(model, {"ModelFile": str(self.models / file)}, NODE, watch)
        return base, watch.count


def content_of(base: PurePath | None, path: str) -> bytes:
    assert base is not None
    return Path(base, path).read_bytes()


def noise(size: int) -> bytes:
    """Other bytes each time: the storage is shared, and keeps what it has seen."""
    return random.randbytes(size)


@asynccontextmanager
async def over_http(models: Path, root: Path) -> AsyncIterator[FileCarrier]:
    async with open_file_worker(root) as worker:

        async def file_server(_: NodeId) -> FilePeer:
            return FilePeer(address=f"127.0.0.1:{worker.port}", token=TOKEN)

        yield HttpCarrier(LocalFiles(models), file_server)


@asynccontextmanager
async def through_storage(
    models: Path, root: Path, s3_server: S3Server, bus: Bus, *, is_localai: bool
) -> AsyncIterator[FileCarrier]:
    async def admitted(_: NodeId) -> None: ...

    async def fetches_by_digest(_: NodeId) -> bool:
        return not is_localai

    node = localai_object_node if is_localai else object_node
    async with open_bucket(s3_server.config()) as bucket, node(bus, NODE, root, bucket):
        asked = NodeStorage(bus, admitted)
        yield ObjectCarrier(LocalFiles(models), bucket, asked, fetches_by_digest, SystemClock())


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def site(way: str, tmp_path: Path, s3_server: S3Server, bus: Bus) -> AsyncIterator[Site]:
    models, root = tmp_path / "frontend" / "models", tmp_path / "node"
    models.mkdir(parents=True)
    is_localai = way.endswith("LocalAI")
    opened = (
        over_http(models, root)
        if way == "http"
        else through_storage(models, root, s3_server, bus, is_localai=is_localai)
    )
    async with opened as carrier:
        yield Site(models, [carrier])


async def test_a_file_is_sent_once(site: Site) -> None:
    content = noise(LARGE)
    site.write("sub/weights.gguf", content)

    base, count = await site.bring("m", "sub/weights.gguf")

    assert content_of(base, "sub/weights.gguf") == content
    assert (count.sent_bytes, count.present_bytes, count.total_bytes) == (LARGE, LARGE, LARGE)
    assert (count.present_files, count.total_files, count.file) == (1, 1, "sub/weights.gguf")
    again, count = await site.bring("m", "sub/weights.gguf")
    assert (again, count.sent_bytes, count.present_bytes) == (base, 0, LARGE)


async def test_a_changed_file_is_brought_anew(site: Site, way: str) -> None:
    site.write("weights.gguf", b"before" + (mark := noise(16)))
    await site.bring("changing", "weights.gguf")
    site.write("weights.gguf", b"after!" + mark)

    base, _ = await site.bring("changing", "weights.gguf")

    assert content_of(base, "weights.gguf") == b"after!" + mark
    site.write("weights.gguf", b"before" + mark)
    base, _ = await site.bring("changing", "weights.gguf")
    assert content_of(base, "weights.gguf") == b"before" + mark


async def test_names_of_all_kinds_arrive_and_so_do_empty_files(site: Site) -> None:
    names = ["a b.gguf", "ü€😀.gguf", "a#b?.gguf", "100%25.gguf", 'it\'s "so".gguf', "a+b&c=d;e.gguf", "<x>.gguf"]
    content = {name: name.encode() + noise(8) for name in names} | {"empty": b""}
    for name in content:
        site.write(f"dir with space/{name}", content[name])

    base, count = await site.bring("org/model 1", "dir with space")

    assert count.present_files == len(content)
    for name in content:
        assert content_of(base, f"dir with space/{name}") == content[name]


class ChangingWatch(StagingWatch):
    """Changes a file when its first bytes were sent."""

    def __init__(self, file: Path, content: bytes) -> None:
        super().__init__(SystemClock())
        self._change = iter([(file, content)])

    def sent(self, path: str, count: int, *, legs: int = 1) -> None:
        super().sent(path, count, legs=legs)
        for file, content in self._change:
            with file.open("r+b") as target:
                target.write(content)


async def test_a_file_that_changes_while_it_is_sent_arrives_as_it_is_in_the_end(site: Site) -> None:
    file, last = site.write("weights.gguf", noise(LARGE)), noise(LARGE)

    base, _ = await within_timeout(site.bring("m", "weights.gguf", ChangingWatch(file, last)), lambda: "the file")

    assert content_of(base, "weights.gguf") == last


async def test_what_is_no_file_is_left_out(site: Site) -> None:
    site.write("folder/weights.gguf", b"x")
    os.mkfifo(site.models / "folder" / "pipe")

    base, count = await site.bring("m", "folder")

    assert (content_of(base, "folder/weights.gguf"), count.total_files) == (b"x", 1)


@pytest.mark.parametrize("way", WAYS[:2])  # what LocalAI's worker says is passed on as it is
async def test_a_full_disk_is_told_as_such(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.write("weights.gguf", noise(1000))
    monkeypatch.setattr("corral.worker.files.disk.Room.free", lambda *_: 10, raising=True)

    with pytest.raises(StagingFailed, match="not enough disk space"):
        await site.bring("m", "weights.gguf")


async def test_a_thousand_small_files(site: Site) -> None:
    mark = noise(8)
    for number in range(1000):
        site.write(f"parts/{number % 7}/{number}.bin", mark + b"%d" % number)

    base, count = await site.bring("m", "parts")

    assert (count.present_files, count.total_files) == (1000, 1000)
    for number in range(1000):
        assert content_of(base, f"parts/{number % 7}/{number}.bin") == mark + b"%d" % number
    _, count = await site.bring("m", "parts")
    assert count.sent_bytes == 0
