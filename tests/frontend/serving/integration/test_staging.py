"""Files of models on their way to real file servers of workers, each with directories of its own."""

import asyncio
import hashlib
import os
import random
import shutil
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePath
from typing import Final

import pytest

from corral.base.clock import SystemClock
from corral.base.ids import NodeId
from corral.base.tasks import task_group
from corral.files.file_peer import FilePeer
from corral.files.sending import FileMark, PeerDiskFull
from corral.frontend.models.local_files import LocalFile, LocalFiles
from corral.frontend.serving.decide.load_job import LoadPolicy
from corral.frontend.serving.staging.decide.sources import WantedFile
from corral.frontend.serving.staging.http_carrier import HttpCarrier, NoOtherSources
from corral.frontend.serving.staging.service import (
    ModelFilesUnusable,
    Staging,
    StagingCount,
    StagingFailed,
    StagingWatch,
)
from tests.kit.file_worker import TOKEN, FileWorker, open_file_worker
from tests.kit.held_hash import HeldHash
from tests.kit.relay import Relay
from tests.kit.waiting import eventually, within_timeout

NODE: Final = NodeId("n1")
LARGE: Final = 24 * 1024 * 1024
"""Enough for the direct path of the worker."""


def over_http(models: Path, file_server: Callable[[NodeId], Awaitable[FilePeer | None]]) -> Staging:
    files = LocalFiles(models)
    return Staging(models, files, [HttpCarrier(files, file_server)])


class PausingWatch(StagingWatch):
    """Holds a transfer once it has sent enough, until the test goes on."""

    def __init__(self, *, after: int) -> None:
        super().__init__(SystemClock())
        self._after = after
        self._reached = threading.Event()
        self._go_on = threading.Event()

    def sent(self, path: str, count: int) -> None:
        super().sent(path, count)
        if self.count.sent_bytes > self._after:
            self._reached.set()
            self._go_on.wait()

    async def until_held(self) -> None:
        await within_timeout(asyncio.to_thread(self._reached.wait), lambda: "a part to be sent")

    def go_on(self) -> None:
        self._go_on.set()


class Site:
    """A models directory of a frontend, and one way to a node's file server."""

    def __init__(self, root: Path) -> None:
        self.models = root / "frontend" / "models"
        self.models.mkdir(parents=True)
        self.address = ""
        self.stall_seconds = 10.0
        self.patience_seconds = 10.0
        self.can_fetch = False
        self.takes_late_digests = False
        self.staging = over_http(self.models, self.file_server)
        self.watch = StagingWatch(SystemClock())

    def held(self) -> PausingWatch:
        """The next transfer stops after a quarter, until it is told to go on."""
        self.watch = PausingWatch(after=LARGE // 4)
        return self.watch

    async def file_server(self, _: NodeId) -> FilePeer | None:
        if not self.address:
            return None
        return FilePeer(
            address=self.address,
            token=TOKEN,
            stall_seconds=self.stall_seconds,
            patience_seconds=self.patience_seconds,
            can_fetch=self.can_fetch,
            takes_late_digests=self.takes_late_digests,
        )

    def write(self, path: str, content: bytes) -> Path:
        file = self.models / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        return file

    async def bring(self, model: str, file: str, **options: object) -> tuple[PurePath | None, StagingCount]:
        """Where the node has the models directory then, and what it took."""
        fields = {"ModelFile": str(self.models / file), "ModelPath": str(self.models), **options}
        if self.watch.count.total_files:
            self.watch = StagingWatch(SystemClock())
        base = await self.staging.bring(model, fields, NODE, self.watch)
        return base, self.watch.count


@pytest.fixture(params=["digest first", "digest last"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    """With both kinds of workers: those that are told the digest of a file before, and those that wait for it."""
    site = Site(tmp_path)
    site.takes_late_digests = request.param == "digest last"
    return site


@pytest.fixture
async def worker(tmp_path: Path, site: Site) -> AsyncIterator[FileWorker]:
    async with open_file_worker(tmp_path / "node") as worker:
        site.address = f"127.0.0.1:{worker.port}"
        yield worker


def content_of(base: PurePath | None, path: str) -> bytes:
    assert base is not None
    return Path(base, path).read_bytes()


def noise(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


class StuckSources(NoOtherSources):
    """Never have the first file; and the node has no room for the second."""

    def __init__(self) -> None:
        self._is_asked = asyncio.Event()

    def is_shared_out(self, size: int) -> bool:
        return True

    async def deliver(
        self, wanted: WantedFile, node: FilePeer, *, send: Callable[[], Awaitable[str]], heard: Callable[[int], None]
    ) -> str:
        if wanted.path == "first":
            self._is_asked.set()
            await asyncio.get_running_loop().create_future()
        await self._is_asked.wait()
        raise PeerDiskFull("there is no room for it")


async def test_a_file_that_fails_ends_the_wait_for_the_others(site: Site, worker: FileWorker) -> None:
    for name in ("first", "second"):
        site.write(name, noise(1000))

    async def file_server(_: NodeId) -> FilePeer:
        return FilePeer(address=site.address, token=TOKEN, can_fetch=True)

    carrier = HttpCarrier(LocalFiles(site.models), file_server, StuckSources())
    async with carrier.route_to(NODE) as route:
        assert route is not None
        files = [LocalFile(path=name, size=1000) for name in ("first", "second")]
        with pytest.raises(PeerDiskFull):
            await within_timeout(route.carry("m", files, site.watch), lambda: "the failure to end all")


async def test_a_file_is_sent_once(site: Site, worker: FileWorker) -> None:
    content = noise(LARGE)
    site.write("sub/weights.gguf", content)

    base, count = await site.bring("m", "sub/weights.gguf")

    assert base == worker.models / "m"
    assert (worker.models / "m/sub/weights.gguf").read_bytes() == content
    assert (count.sent_bytes, count.present_bytes, count.total_bytes) == (LARGE, LARGE, LARGE)
    assert (count.present_files, count.total_files) == (1, 1)

    base, count = await site.bring("m", "sub/weights.gguf")
    assert (base, count.sent_bytes, count.present_bytes) == (worker.models / "m", 0, LARGE)


async def test_a_shared_directory_costs_one_question_and_no_hash(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.write("weights.gguf", noise(100_000))
    monkeypatch.setattr("corral.frontend.models.local_files._hash", None)
    async with open_file_worker(site.models.parent) as worker:
        site.address = f"127.0.0.1:{worker.port}"
        base, count = await site.bring("m", "weights.gguf")

    assert (base, count.sent_bytes) == (site.models, 0)
    assert sorted(path.name for path in site.models.rglob("*")) == [".corral", "proofs", "weights.gguf"]


async def test_a_node_with_a_copy_of_all_files_is_sent_nothing(site: Site, worker: FileWorker) -> None:
    site.write("weights.gguf", noise(100_000))
    site.write("proj.gguf", noise(1000))
    shutil.copytree(site.models, worker.models, dirs_exist_ok=True)

    base, count = await site.bring("m", "weights.gguf", MMProj=str(site.models / "proj.gguf"))

    assert (base, count.sent_bytes, count.present_files) == (worker.models, 0, 2)
    assert not (worker.models / "m").exists()


async def test_a_node_whose_own_copy_lacks_a_part_gets_all_of_it_beside(site: Site, worker: FileWorker) -> None:
    site.write("weights.gguf", b"weights")
    site.write("proj.gguf", b"proj")
    (worker.models / "weights.gguf").write_bytes(b"weights")

    base, _ = await site.bring("m", "weights.gguf", MMProj=str(site.models / "proj.gguf"))

    assert base == worker.models / "m"
    assert {path.name for path in (worker.models / "m").iterdir() if path.suffix == ".gguf"} == {
        "weights.gguf",
        "proj.gguf",
    }


async def test_names_of_all_kinds_arrive(site: Site, worker: FileWorker) -> None:
    names = ["a b.gguf", "ü€😀.gguf", "a#b?.gguf", "100%25.gguf", 'it\'s "so".gguf', "a+b&c=d;e.gguf"]
    for name in names:
        site.write(f"dir with space/{name}", name.encode())

    base, count = await site.bring("org/model 1", "dir with space")

    assert base == worker.models / "org/model 1"
    assert count.present_files == len(names)
    for name in names:
        assert (worker.models / "org/model 1/dir with space" / name).read_bytes() == name.encode()


async def test_a_thousand_small_files_and_an_empty_one(site: Site, worker: FileWorker) -> None:
    for number in range(1000):
        site.write(f"parts/{number % 7}/{number}.bin", b"%d" % number)
    site.write("parts/empty", b"")
    site.write("parts/0/0.bin.sha256", b"of the file beside it")

    base, count = await site.bring("m", "parts")

    assert (count.present_files, count.total_files) == (1001, 1001)
    assert content_of(base, "parts/3/388.bin") == b"388"
    assert content_of(base, "parts/empty") == b""
    _, count = await site.bring("m", "parts")
    assert count.sent_bytes == 0


async def test_links_inside_are_followed_and_those_outside_are_not(
    site: Site, worker: FileWorker, tmp_path: Path
) -> None:
    site.write("blobs/one", b"one")
    (tmp_path / "secret").write_bytes(b"secret")
    (site.models / "snapshot").mkdir()
    (site.models / "snapshot/model.bin").symlink_to("../blobs/one")
    (site.models / "snapshot/leak.bin").symlink_to(tmp_path / "secret")

    base, count = await site.bring("m", "snapshot")

    assert count.total_files == 1
    assert content_of(base, "snapshot/model.bin") == b"one"


async def test_an_upload_that_was_cut_is_continued(site: Site, worker: FileWorker) -> None:
    content = noise(LARGE)
    site.write("weights.gguf", content)
    async with Relay(worker.port) as relay:
        site.address = f"127.0.0.1:{relay.port}"
        held = site.held()
        bringing = asyncio.create_task(site.bring("m", "weights.gguf"))
        await held.until_held()
        await relay.cut()
        await relay.mend()
        held.go_on()
        base, count = await within_timeout(bringing, lambda: "the file to arrive")

    assert content_of(base, "weights.gguf") == content
    # What was sent twice was in the buffers of the sockets and of the relay when it was cut.
    assert count.sent_bytes - len(content) < 16 * 1024 * 1024


async def test_what_is_cancelled_stays_for_the_next_time(site: Site, worker: FileWorker) -> None:
    content = noise(LARGE)
    site.write("weights.gguf", content)
    async with Relay(worker.port) as relay:
        site.address = f"127.0.0.1:{relay.port}"
        held = site.held()
        bringing = asyncio.create_task(site.bring("m", "weights.gguf"))
        await held.until_held()
        relay.freeze()
        bringing.cancel()
        held.go_on()
        with pytest.raises(asyncio.CancelledError):
            await within_timeout(bringing, lambda: "the end")

    async def is_partial() -> bool:
        head = await worker.ask("HEAD", "/v1/files/models/m/weights.gguf")
        return head.status == 200 and "X-Target-SHA256" in head.headers

    await eventually(is_partial, "the worker to keep the part")
    site.address = f"127.0.0.1:{worker.port}"
    _, count = await site.bring("m", "weights.gguf")
    assert count.present_bytes == len(content)
    assert count.sent_bytes < len(content)


DIGEST_LAST = pytest.mark.parametrize("site", ["digest last"], indirect=True)


@DIGEST_LAST
async def test_a_file_is_hashed_while_it_is_sent(site: Site, worker: FileWorker, held_hash: HeldHash) -> None:
    content = noise(LARGE)
    site.write("weights.gguf", content)
    bringing = asyncio.create_task(site.bring("m", "weights.gguf"))
    path = "/v1/files/models/m/weights.gguf"

    async def is_nearly_there() -> bool:
        return (await worker.ask("HEAD", path)).headers.get("X-File-Size") == str(LARGE - 1024 * 1024)

    await eventually(is_nearly_there, "all of the file but its last bytes")
    before = await worker.ask("HEAD", path)
    assert before.headers["X-Target-SHA256"].startswith("pending:")
    assert not (worker.models / "m/weights.gguf").exists()
    held_hash.end()
    base, count = await within_timeout(bringing, lambda: "the file to arrive")

    assert content_of(base, "weights.gguf") == content
    assert count.sent_bytes == LARGE
    after = await worker.ask("HEAD", path)
    assert after.headers["X-Content-SHA256"] == hashlib.sha256(content).hexdigest()


@DIGEST_LAST
async def test_what_was_sent_without_a_digest_is_kept_for_another_frontend(
    site: Site, worker: FileWorker, held_hash: HeldHash
) -> None:
    """As for this one after a restart: it knows the file by its size, time and inode."""
    content = noise(LARGE)
    os.utime(site.write("weights.gguf", content), (1, 1))
    held = site.held()
    bringing = asyncio.create_task(site.bring("m", "weights.gguf"))
    await held.until_held()
    bringing.cancel()
    held_hash.end()
    held.go_on()
    with pytest.raises(asyncio.CancelledError):
        await within_timeout(bringing, lambda: "the end")

    async def is_free() -> bool:
        answer = await worker.ask(
            "PUT", "/v1/files/models/m/weights.gguf", headers={"Content-Range": f"bytes 9-9/{LARGE}"}, body=b"x"
        )
        return b"under way" not in answer.body

    await eventually(is_free, "the end of the first upload")
    site.staging = over_http(site.models, site.file_server)
    base, count = await site.bring("m", "weights.gguf")

    assert content_of(base, "weights.gguf") == content
    assert count.sent_bytes < LARGE


@DIGEST_LAST
async def test_a_digest_that_comes_too_late_for_the_file_is_noticed(
    site: Site, worker: FileWorker, held_hash: HeldHash
) -> None:
    """The file changes after it was sent and before it is hashed, and its time is set back."""
    first, last = noise(LARGE), noise(LARGE, seed=2)
    file = site.write("weights.gguf", first)
    os.utime(file, (1, 1))
    bringing = asyncio.create_task(site.bring("m", "weights.gguf"))

    async def is_nearly_there() -> bool:
        head = await worker.ask("HEAD", "/v1/files/models/m/weights.gguf")
        return head.headers.get("X-File-Size") == str(LARGE - 1024 * 1024)

    await eventually(is_nearly_there, "all of the file but its last bytes")
    with file.open("r+b") as target:
        target.write(last)
    os.utime(file, (1, 1))
    held_hash.end()
    base, count = await within_timeout(bringing, lambda: "the file to arrive")

    assert content_of(base, "weights.gguf") == last
    assert count.sent_bytes == 2 * LARGE


class NotedSources(NoOtherSources):
    """Remembers for which nodes it was asked, and of which it was told."""

    def __init__(self) -> None:
        self.asked: list[tuple[NodeId, str]] = []
        self.told: list[tuple[NodeId, str]] = []

    def is_shared_out(self, size: int) -> bool:
        return True

    async def deliver(
        self, wanted: WantedFile, node: FilePeer, *, send: Callable[[], Awaitable[str]], heard: Callable[[int], None]
    ) -> str:
        self.asked.append((wanted.node_id, wanted.digest))
        return await send()

    def has_now(self, wanted: WantedFile) -> None:
        self.told.append((wanted.node_id, wanted.digest))


@DIGEST_LAST
async def test_only_one_node_is_sent_a_file_that_nobody_has_hashed(
    site: Site, tmp_path: Path, held_hash: HeldHash, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others wait for the digest, by which they find the nodes that have it."""
    content = noise(LARGE)
    os.utime(site.write("weights.gguf", content), (1, 1))
    second_waits = threading.Event()
    is_hashing = LocalFiles.is_hashing

    def watched(files: LocalFiles, path: str, mark: FileMark) -> bool:
        if answer := is_hashing(files, path, mark):
            second_waits.set()
        return answer

    monkeypatch.setattr(LocalFiles, "is_hashing", watched)
    sources, file = NotedSources(), LocalFile(path="weights.gguf", size=LARGE)
    async with open_file_worker(tmp_path / "a") as one, open_file_worker(tmp_path / "b") as two:
        nodes = {NodeId("a"): one, NodeId("b"): two}

        async def file_server(node: NodeId) -> FilePeer:
            address = f"127.0.0.1:{nodes[node].port}"
            return FilePeer(address=address, token=TOKEN, can_fetch=True, takes_late_digests=True)

        carrier = HttpCarrier(LocalFiles(site.models), file_server, sources)

        async def carry(node: NodeId) -> PurePath:
            async with carrier.route_to(node) as route:
                assert route is not None
                return await route.carry("m", [file], StagingWatch(SystemClock()))

        first = asyncio.create_task(carry(NodeId("a")))
        await eventually(one.is_receiving, "the first node to be sent the file")
        second = asyncio.create_task(carry(NodeId("b")))
        await within_timeout(asyncio.to_thread(second_waits.wait), lambda: "the second node to wait")
        held_hash.end()
        bases = await within_timeout(asyncio.gather(first, second), lambda: "both nodes to have the file")

    digest = hashlib.sha256(content).hexdigest()
    assert bases == [one.models / "m", two.models / "m"]
    assert (sources.told, sources.asked) == ([("a", digest)], [("b", digest)])
    assert held_hash.count == 1


@DIGEST_LAST
async def test_of_nodes_that_are_looked_at_together_one_is_sent_a_file_that_nobody_has_hashed(
    site: Site, tmp_path: Path, held_hash: HeldHash, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them see that nobody hashes it yet."""
    content = noise(LARGE)
    os.utime(site.write("weights.gguf", content), (1, 1))
    is_hashing, together = LocalFiles.is_hashing, threading.Barrier(2)

    def watched(files: LocalFiles, path: str, mark: FileMark) -> bool:
        answer = is_hashing(files, path, mark)
        together.wait()
        return answer

    monkeypatch.setattr(LocalFiles, "is_hashing", watched)
    sources, file = NotedSources(), LocalFile(path="weights.gguf", size=LARGE)
    async with open_file_worker(tmp_path / "a") as one, open_file_worker(tmp_path / "b") as two:
        nodes = {NodeId("a"): one, NodeId("b"): two}

        async def file_server(node: NodeId) -> FilePeer:
            address = f"127.0.0.1:{nodes[node].port}"
            return FilePeer(address=address, token=TOKEN, can_fetch=True, takes_late_digests=True)

        carrier = HttpCarrier(LocalFiles(site.models), file_server, sources)

        async def carry(node: NodeId) -> None:
            async with carrier.route_to(node) as route:
                assert route is not None
                await route.carry("m", [file], StagingWatch(SystemClock()))

        async with task_group() as group:
            for node in nodes:
                group.create_task(carry(node))
            await held_hash.until_begun()
            held_hash.end()

    digest = hashlib.sha256(content).hexdigest()
    assert len(sources.told) == len(sources.asked) == 1
    assert {*sources.told, *sources.asked} == {("a", digest), ("b", digest)}


async def test_a_silent_peer_is_given_up(site: Site, worker: FileWorker) -> None:
    site.write("weights.gguf", noise(LARGE))
    site.stall_seconds = site.patience_seconds = 0.5
    async with Relay(worker.port) as relay:
        relay.freeze()
        site.address = f"127.0.0.1:{relay.port}"
        with pytest.raises(StagingFailed, match="is silent for"):
            await within_timeout(site.bring("m", "weights.gguf"), lambda: "the end")


async def test_a_peer_that_is_gone_is_given_up(site: Site, worker: FileWorker) -> None:
    site.write("weights.gguf", b"x")
    site.patience_seconds = 0.3
    async with Relay(worker.port) as relay:
        site.address = f"127.0.0.1:{relay.port}"
        await relay.cut()
        with pytest.raises(StagingFailed, match="connection refused"):
            await site.bring("m", "weights.gguf")


async def test_a_wrong_token_is_told_at_once(site: Site, worker: FileWorker) -> None:
    site.write("weights.gguf", b"x")

    async def file_server(_: NodeId) -> FilePeer:
        return FilePeer(address=site.address, token="wrong")

    site.staging = over_http(site.models, file_server)
    with pytest.raises(StagingFailed, match="401") as failed:
        await site.bring("m", "weights.gguf")
    assert "wrong" not in str(failed.value)


async def test_a_full_disk_is_told_as_such(site: Site, worker: FileWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    site.write("weights.gguf", noise(1000))
    monkeypatch.setattr("corral.worker.files.disk.Room.free", lambda *_: 10, raising=True)

    with pytest.raises(StagingFailed, match="not enough disk space"):
        await site.bring("m", "weights.gguf")


async def test_a_file_that_changes_meanwhile_arrives_as_it_is_in_the_end(site: Site, worker: FileWorker) -> None:
    file = site.write("weights.gguf", noise(LARGE))
    last = noise(LARGE, seed=2)
    async with Relay(worker.port) as relay:
        site.address = f"127.0.0.1:{relay.port}"
        held = site.held()
        bringing = asyncio.create_task(site.bring("m", "weights.gguf"))
        await held.until_held()
        relay.freeze()
        with file.open("r+b") as target:
            target.write(last)
        relay.thaw()
        held.go_on()
        base, _ = await within_timeout(bringing, lambda: "the file to arrive")

    assert content_of(base, "weights.gguf") == last


async def test_a_file_that_is_taken_away_meanwhile_is_no_fault_of_the_node(site: Site, worker: FileWorker) -> None:
    file = site.write("weights.gguf", noise(LARGE))
    async with Relay(worker.port) as relay:
        site.address = f"127.0.0.1:{relay.port}"
        held = site.held()
        bringing = asyncio.create_task(site.bring("m", "weights.gguf"))
        await held.until_held()
        relay.freeze()
        os.truncate(file, LARGE // 8)
        file.unlink()
        relay.thaw()
        held.go_on()
        with pytest.raises(ModelFilesUnusable):
            await within_timeout(bringing, lambda: "the end")


async def test_a_digest_that_was_remembered_wrongly_is_computed_again(site: Site, worker: FileWorker) -> None:
    file = site.write("weights.gguf", b"before")
    os.utime(file, (1, 1))
    await site.bring("m", "weights.gguf")
    file.write_bytes(b"after!")
    os.utime(file, (1, 1))

    base, _ = await site.bring("other", "weights.gguf")

    assert content_of(base, "weights.gguf") == b"after!"


async def test_a_model_whose_file_is_only_on_the_node_is_loaded_from_there(site: Site, worker: FileWorker) -> None:
    (worker.models / "weights.gguf").write_bytes(b"weights")

    assert (await site.bring("m", "weights.gguf"))[0] == worker.models
    assert (await site.bring("m", "nowhere.gguf"))[0] is None


class NotingPeer(FilePeer, frozen=True, kw_only=True):
    """Notes how long it is waited for."""

    noted: list[float]

    def answer_seconds(self, size: int) -> float:
        self.noted.append(super().answer_seconds(size))
        return self.noted[-1]


async def test_a_node_may_hash_a_large_file_before_it_says_that_only_it_has_it(tmp_path: Path) -> None:
    """LocalAI's worker hashes a file when it is first asked for it, which takes a minute for some."""
    noted: list[float] = []
    async with open_file_worker(tmp_path / "node") as worker:
        (worker.models / "weights.gguf").write_bytes(b"weights")

        async def file_server(_: NodeId) -> FilePeer:
            return NotingPeer(address=f"127.0.0.1:{worker.port}", token=TOKEN, noted=noted)

        staging = over_http(tmp_path / "frontend", file_server)
        fields = {"ModelFile": str(staging.models / "weights.gguf")}
        base = await staging.bring("m", fields, NODE, StagingWatch(SystemClock()))

    assert base == worker.models
    assert 240 < max(noted) < LoadPolicy().stall.total_seconds()


async def test_a_node_without_a_file_server_is_told_our_paths(site: Site) -> None:
    site.write("weights.gguf", b"x")

    assert (await site.bring("m", "weights.gguf"))[0] is None


UNREACHABLE: Final = ("127.0.0.1:1", "127.0.0.1:port", "http://127.0.0.1:1", "[::1", "127.0.0.1:99999")


@pytest.mark.parametrize("address", UNREACHABLE)
async def test_a_model_without_files_needs_no_file_server_of_localai(site: Site, address: str) -> None:
    """Its backend fetches it by its name, as on LocalAI's workers whose file server nobody reaches."""
    site.address, site.takes_late_digests = address, False

    assert (await site.bring("m", "owner/repository"))[0] is None


async def test_a_model_whose_files_only_an_unreachable_node_of_ours_may_have_is_not_loaded(site: Site) -> None:
    """Its backend would be told our path, where that node has nothing."""
    site.address, site.can_fetch = UNREACHABLE[0], True

    with pytest.raises(StagingFailed, match="cannot be asked"):
        await site.bring("m", "weights.gguf")


@pytest.mark.parametrize("address", UNREACHABLE)
async def test_a_file_server_that_cannot_be_reached_is_told(site: Site, address: str) -> None:
    site.write("weights.gguf", b"x")
    site.address, site.patience_seconds = address, 0

    with pytest.raises(StagingFailed, match=r"could not be brought there: .*cannot be asked"):
        await site.bring("m", "weights.gguf")


async def test_several_nodes_are_served_at_once(site: Site, tmp_path: Path) -> None:
    content = noise(LARGE)
    site.write("weights.gguf", content)
    async with open_file_worker(tmp_path / "a") as one, open_file_worker(tmp_path / "b") as two:
        nodes = {NodeId("a"): one, NodeId("b"): two}

        async def file_server(node: NodeId) -> FilePeer:
            return FilePeer(address=f"127.0.0.1:{nodes[node].port}", token=TOKEN)

        staging = over_http(site.models, file_server)
        fields = {"ModelFile": str(site.models / "weights.gguf")}
        bases = await asyncio.gather(*(staging.bring("m", fields, node, StagingWatch(SystemClock())) for node in nodes))

    assert bases == [one.models / "m", two.models / "m"]


@asynccontextmanager
async def scripted(answer: Callable[[BaseHTTPRequestHandler], None]) -> AsyncIterator[str]:
    """A file server that answers as a test says; its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            answer(self)

        def do_PUT(self) -> None:
            answer(self)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        thread.join()


async def test_a_localai_worker_that_never_finished_a_whole_upload_gets_it_again(site: Site) -> None:
    """It refuses every range then, as recorded; LocalAI's own frontends try the same for an hour."""
    content = noise(500_000)
    site.write("weights.gguf", content)
    asked: list[tuple[str, str | None]] = []

    def answer(request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        span = request.headers.get("Content-Range")
        asked.append((request.command, span))
        is_own = "/models/m/" in request.path
        status, headers, text = 404, {}, b""
        if request.command == "HEAD" and is_own:
            status = 200
            headers = {
                "X-File-Size": str(len(content)),
                "X-Local-Path": "/models/m/weights.gguf",
                "X-Target-SHA256": hashlib.sha256(content).hexdigest(),
            }
        elif request.command == "PUT" and span:
            status, text = 416, b"range start 0 does not match current size\n"
            headers = {"Content-Range": f"bytes */{len(content)}", "X-File-Size": str(len(content))}
        elif request.command == "PUT":
            assert body == content
            status, text = 200, b'{"local_path":"/models/m/weights.gguf"}\n'
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(text)))
        request.end_headers()
        request.wfile.write(text)

    async with scripted(answer) as address:
        site.address = address
        base, _ = await site.bring("m", "weights.gguf")

    assert base == PurePath("/models/m")
    assert [method for method, _ in asked] == ["HEAD", "HEAD", "HEAD", "PUT", "HEAD", "PUT"]


async def test_an_answer_before_the_end_of_the_body_is_heard_and_no_more_is_sent(site: Site) -> None:
    site.write("weights.gguf", noise(LARGE))

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(404 if request.command == "HEAD" else 507)
        request.send_header("Content-Length", "0")
        request.end_headers()
        request.close_connection = request.command == "PUT"

    async with scripted(answer) as address:
        site.address = address
        with pytest.raises(StagingFailed):
            await within_timeout(site.bring("m", "weights.gguf"), lambda: "the end")
    assert site.watch.count.sent_bytes < LARGE


async def test_a_peer_that_lies_about_where_a_file_is_is_not_believed(site: Site) -> None:
    site.write("weights.gguf", b"x")

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.rfile.read(int(request.headers.get("Content-Length", 0)))
        body = b"" if request.command == "HEAD" else b'{"local_path":"/etc/passwd"}'
        request.send_response(404 if request.command == "HEAD" else 200)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    async with scripted(answer) as address:
        site.address = address
        with pytest.raises(StagingFailed, match="/etc/passwd"):
            await site.bring("m", "weights.gguf")
