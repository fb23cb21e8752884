"""Objects that are fetched by digest to where the file server has files."""

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec import UNSET

from corral.base.clock import SystemClock
from corral.base.errors import InvalidInput
from corral.wire.files import EnsureProgress, EnsureWish, LocalPathReply
from corral.worker.config import FilesConfig
from corral.worker.files.object_files import ObjectFetches
from corral.worker.files.refusals import FileRefused
from corral.worker.files.serving import FileServing
from tests.kit.objects import MemoryStorage

CONTENT = b"weights" * 1000
KEY = "corral/sha256/x"
PLACE = "models/m/sub/weights.gguf"


class Node:
    """The fetches of a worker."""

    def __init__(self, root: Path, serving: FileServing) -> None:
        self.path = root / PLACE
        self.storage = MemoryStorage()
        self.storage.objects[KEY] = CONTENT
        self.fetches = ObjectFetches(self.storage, serving.store, serving.threads)

    async def ensure(self, content: bytes = CONTENT, *, place: str = PLACE, wait: float = 30) -> LocalPathReply:
        digest = hashlib.sha256(content).hexdigest()
        return await self.fetches.ensure(KEY, EnsureWish(digest=digest, size=len(content), place=place, wait=wait))

    async def problem(self, content: bytes = CONTENT) -> EnsureProgress:
        reply = await self.ensure(content)
        assert reply.corral is not UNSET
        assert reply.error
        assert not reply.local_path
        return reply.corral


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with FileServing(FilesConfig(), models=tmp_path / "models", clock=SystemClock()) as serving:
        made = Node(tmp_path, serving)
        yield made
        await made.fetches.close()


async def test_an_object_gets_its_name_when_its_digest_is_right(node: Node) -> None:
    assert await node.ensure() == LocalPathReply(local_path=str(node.path))
    assert node.path.read_bytes() == CONTENT
    del node.storage.objects[KEY]
    assert (await node.ensure()).local_path == str(node.path)


async def test_an_empty_file_is_one_too(node: Node) -> None:
    node.storage.objects[KEY] = b""
    assert (await node.ensure(b"")).local_path == str(node.path)
    assert node.path.read_bytes() == b""


async def test_what_is_missing_is_told(node: Node) -> None:
    node.storage.objects.clear()
    assert (await node.problem()).is_missing


@pytest.mark.parametrize("content", [CONTENT[:-1] + b"?", CONTENT[:-1]])
async def test_wrong_bytes_are_refused_and_the_old_file_stays(node: Node, content: bytes) -> None:
    await node.ensure()
    node.storage.objects[KEY] = content
    wanted = b"other!!" * 1000
    assert (await node.problem(wanted)).code == "wrong_digest"
    assert list(node.path.parent.glob(".corral-*")) == []


async def test_a_storage_that_goes_away_half_way_costs_the_second_half(node: Node) -> None:
    node.storage.gate.clear()
    reply = await node.ensure(wait=0)
    assert reply.corral == EnsureProgress()
    await node.storage.inside.wait()
    node.storage.is_away = True
    node.storage.gate.set()
    assert (await node.problem()).code == "storage_unavailable"

    node.storage.is_away = False
    asked: list[int] = []
    read = node.storage.read

    async def counting(key: str, offset: int) -> AsyncIterator[bytes]:
        asked.append(offset)
        async for piece in read(key, offset):
            yield piece

    node.storage.read = counting  # type: ignore[method-assign]
    assert (await node.ensure()).local_path
    assert node.path.read_bytes() == CONTENT
    assert asked == [len(CONTENT) // 2]


async def test_a_full_disk_is_told(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corral.worker.files.disk.Room.free", lambda *_: 10, raising=True)
    assert (await node.problem()).code == "peer_disk_full"


@pytest.mark.parametrize("place", ["", "data/x", "models", "/etc/passwd"])
async def test_places_elsewhere_are_refused(node: Node, place: str) -> None:
    with pytest.raises(InvalidInput, match="place"):
        await node.ensure(place=place)


async def test_a_place_that_leads_out_is_refused(node: Node, tmp_path: Path) -> None:
    reply = await node.ensure(place="models/../../x")
    assert reply.corral is not UNSET
    assert reply.corral.code == FileRefused.code
    assert not (tmp_path.parent / "x").exists()


@pytest.mark.parametrize(("digest", "size"), [("x", 1), ("", 1), ("A" * 64, 1), ("a" * 64, -1)])
async def test_nonsense_is_refused(node: Node, digest: str, size: int) -> None:
    with pytest.raises(InvalidInput):
        await node.fetches.ensure(KEY, EnsureWish(digest=digest, size=size, place=PLACE))
