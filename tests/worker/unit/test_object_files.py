"""Files from object storage: fetched once, checked, and never outside their directories."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from corral.base.open_directories import PathRefused
from corral.files.storage import ObjectMissing, StorageUnavailable
from corral.worker.files.object_cache import Incoming, ObjectCache, ObjectPlaces
from corral.worker.files.object_files import ObjectFiles
from tests.kit.clock import ManualClock
from tests.kit.objects import MemoryStorage


@pytest.fixture
def storage() -> MemoryStorage:
    storage = MemoryStorage()
    storage.objects["models/qwen/q.gguf"] = b"weights"
    return storage


@pytest.fixture
def places(tmp_path: Path) -> ObjectPlaces:
    places = ObjectPlaces.beside(tmp_path / "models")
    for folder in (places.models, places.cache, places.data):
        folder.mkdir()
    return places


@pytest.fixture
async def files(storage: MemoryStorage, places: ObjectPlaces) -> AsyncIterator[ObjectFiles]:
    files = ObjectFiles(storage, places, ManualClock())
    yield files
    await files.close()


async def test_an_object_is_fetched_once_and_lies_under_its_key(
    files: ObjectFiles, storage: MemoryStorage, places: ObjectPlaces
) -> None:
    first = await files.ensure("models/qwen/q.gguf")

    assert first == places.cache / "models/qwen/q.gguf"
    assert first.read_bytes() == b"weights"
    assert await files.ensure("models/qwen/q.gguf") == first
    assert storage.downloads == ["models/qwen/q.gguf"]


async def test_an_object_that_was_replaced_is_fetched_again(files: ObjectFiles, storage: MemoryStorage) -> None:
    path = await files.ensure("models/qwen/q.gguf")
    storage.objects["models/qwen/q.gguf"] = b"WEIGHTS"

    assert (await files.ensure("models/qwen/q.gguf")).read_bytes() == b"WEIGHTS"
    assert path.read_bytes() == b"WEIGHTS"


async def test_a_file_that_localai_fetched_is_taken_over(
    files: ObjectFiles, storage: MemoryStorage, places: ObjectPlaces
) -> None:
    path = places.cache / "models/qwen/q.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"weights")

    await files.ensure("models/qwen/q.gguf")
    assert storage.downloads == []
    path.write_bytes(b"short")
    await files.ensure("models/qwen/q.gguf")
    assert path.read_bytes() == b"weights"


async def test_while_the_storage_is_away_what_is_cached_will_do(files: ObjectFiles, storage: MemoryStorage) -> None:
    path = await files.ensure("models/qwen/q.gguf")
    storage.is_away = True

    assert await files.ensure("models/qwen/q.gguf") == path
    with pytest.raises(StorageUnavailable):
        await files.ensure("models/other")


async def test_an_object_that_is_gone_is_still_served_from_the_cache(
    files: ObjectFiles, storage: MemoryStorage
) -> None:
    path = await files.ensure("models/qwen/q.gguf")
    storage.objects.clear()

    assert await files.ensure("models/qwen/q.gguf") == path
    with pytest.raises(ObjectMissing):
        await files.ensure("models/none")


async def test_all_who_ask_at_once_share_one_fetch(files: ObjectFiles, storage: MemoryStorage) -> None:
    storage.gate.clear()
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(files.ensure("models/qwen/q.gguf")) for _ in range(3)]
        await storage.inside.wait()
        asked[0].cancel()
        storage.gate.set()

    assert storage.downloads == ["models/qwen/q.gguf"]
    assert asked[1].result().read_bytes() == b"weights"


async def test_half_of_an_object_is_never_seen(
    files: ObjectFiles, storage: MemoryStorage, places: ObjectPlaces
) -> None:
    storage.gate.clear()
    asking = asyncio.ensure_future(files.ensure("models/qwen/q.gguf"))
    await storage.inside.wait()
    assert not (places.cache / "models/qwen/q.gguf").exists()

    await files.close()

    with pytest.raises(StorageUnavailable, match="ending"):
        await asking
    assert await files.listing("") == []


async def test_a_disk_without_room_is_noticed_before_the_first_byte(
    files: ObjectFiles, storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.statvfs("/")
    full = os.statvfs_result((real[0], real[1], real[2], 0, 0, *real[5:]))
    monkeypatch.setattr("os.fstatvfs", lambda _: full)

    with pytest.raises(StorageUnavailable, match="needs 7 bytes"):
        await files.ensure("models/qwen/q.gguf")
    assert storage.downloads == []


@pytest.mark.parametrize(
    "key", ["", ".", "/", "..", "../x", "a/../../x", "models/../..", "a\0b", ".corral/x", ".corral"]
)
async def test_keys_that_lead_out_of_the_cache_are_refused(files: ObjectFiles, key: str) -> None:
    with pytest.raises(PathRefused, match="escapes cache directory"):
        await files.ensure(key)


async def test_links_that_lead_out_of_the_cache_are_refused(
    files: ObjectFiles, storage: MemoryStorage, places: ObjectPlaces, tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()
    (places.cache / "link").symlink_to(tmp_path / "outside")
    storage.objects["link/x"] = b"x"

    with pytest.raises(PathRefused):
        await files.ensure("link/x")
    with pytest.raises(PathRefused):
        await files.listing("link")
    assert list((tmp_path / "outside").iterdir()) == []


async def test_files_of_cache_and_models_may_be_staged(
    files: ObjectFiles, storage: MemoryStorage, places: ObjectPlaces
) -> None:
    (places.models / "exp").mkdir()
    (places.models / "exp" / "a.bin").write_bytes(b"made")

    assert await files.stage(str(places.models / "exp/a.bin"), "models/exp/a.bin") == "models/exp/a.bin"
    assert storage.objects["models/exp/a.bin"] == b"made"
    assert storage.created["models/exp/a.bin"].endswith("Z")


async def test_a_key_with_a_slash_before_it_is_found_where_it_lies(
    files: ObjectFiles, storage: MemoryStorage, places: ObjectPlaces
) -> None:
    (places.data / "q.gguf").write_bytes(b"quantised")

    await files.stage("/data/q.gguf", "data/q.gguf")

    assert storage.objects["data/q.gguf"] == b"quantised"


@pytest.mark.parametrize("path", ["", "/etc/hostname", "/data/../../etc/hostname", "a\0b", "relative"])
async def test_other_files_may_not_be_staged(files: ObjectFiles, storage: MemoryStorage, path: str) -> None:
    before = dict(storage.objects)
    with pytest.raises((PathRefused, ObjectMissing)):
        await files.stage(path, "ephemeral/x")
    assert storage.objects == before


@pytest.mark.parametrize("key", ["", "../stolen//x", "/models/x", "users/1/x", "x", "Models/x", "ephemeral"])
async def test_files_are_staged_under_keys_that_frontends_use_only(
    files: ObjectFiles, storage: MemoryStorage, places: ObjectPlaces, key: str
) -> None:
    (places.models / "a.bin").write_bytes(b"made")
    before = dict(storage.objects)

    with pytest.raises(PathRefused, match="none under which files are staged"):
        await files.stage(str(places.models / "a.bin"), key)

    assert storage.objects == before


async def test_a_link_to_another_file_may_not_be_staged(files: ObjectFiles, places: ObjectPlaces) -> None:
    (places.cache / "link").symlink_to("/etc/hostname")

    with pytest.raises(PathRefused):
        await files.stage(str(places.cache / "link"), "ephemeral/x")


async def test_temporary_files_are_new_and_old_ones_go(files: ObjectFiles, places: ObjectPlaces) -> None:
    old = await files.temporary()
    input = places.cache / "ephemeral" / "inputs" / "0011aabb" / "in.wav"
    input.parent.mkdir(parents=True)
    input.write_bytes(b"")
    yesterday = time.time() - 25 * 3600
    for path in (old, input):
        os.utime(path, (yesterday, yesterday))

    new = await files.temporary()

    assert new.parent == places.cache / "staging-tmp"
    assert new.name.startswith("localai-staging-")
    assert new.suffix == ".tmp"
    assert (new.exists(), old.exists(), input.exists()) == (True, False, False)


async def test_a_listing_has_files_below_and_none_of_our_notes(files: ObjectFiles, places: ObjectPlaces) -> None:
    await files.ensure("models/qwen/q.gguf")
    (places.models / "exp" / "sub").mkdir(parents=True)
    (places.models / "exp" / "a.bin").touch()
    (places.models / "exp" / "sub" / "b").touch()
    (places.models / "exp" / "link").symlink_to("/etc/hostname")

    assert await files.listing("models/exp/") == ["a.bin", "sub/b"]
    assert await files.listing("") == ["models/qwen/q.gguf"]
    assert await files.listing("data/") == []
    with pytest.raises(ObjectMissing, match="no such file or directory"):
        await files.listing("models/none")
    with pytest.raises(PathRefused, match="invalid key prefix"):
        await files.listing("../")


async def test_a_link_that_appears_during_a_fetch_is_not_written_through(
    files: ObjectFiles, storage: MemoryStorage, places: ObjectPlaces, tmp_path: Path
) -> None:
    """Whoever may write into the cache, as backends may, must not be able to have files written elsewhere."""
    outside = tmp_path / "outside"
    outside.mkdir()
    storage.gate.clear()
    fetch = asyncio.ensure_future(files.ensure("models/qwen/q.gguf"))
    await storage.inside.wait()
    (places.cache / "models" / "qwen").rename(places.cache / "moved")
    (places.cache / "models" / "qwen").symlink_to(outside)
    storage.gate.set()
    await fetch

    assert list(outside.iterdir()) == []
    assert (places.cache / "moved" / "q.gguf").read_bytes() == b"weights"


@pytest.mark.parametrize("name", ["staging-tmp", ".corral"])
async def test_a_link_in_place_of_our_own_directories_leads_nowhere(
    files: ObjectFiles, places: ObjectPlaces, tmp_path: Path, name: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (places.cache / name).symlink_to(outside)

    with pytest.raises(PathRefused, match="escapes cache directory"):
        await files.temporary() if name == "staging-tmp" else await files.ensure("models/qwen/q.gguf")

    assert list(outside.iterdir()) == []


async def test_a_fetch_that_is_cancelled_while_its_file_is_opened_leaves_none(
    files: ObjectFiles, places: ObjectPlaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, is_open, may_return, begin = asyncio.get_running_loop(), asyncio.Event(), threading.Event(), ObjectCache.begin

    def held(cache: ObjectCache, path: Path, size: int) -> Incoming:
        incoming = begin(cache, path, size)
        loop.call_soon_threadsafe(is_open.set)
        may_return.wait()
        return incoming

    monkeypatch.setattr(ObjectCache, "begin", held)
    asking = asyncio.create_task(files.ensure("models/qwen/q.gguf"), name="ensure")
    await is_open.wait()
    closing = asyncio.create_task(files.close(), name="close")
    await asyncio.sleep(0)  # by then the fetch is cancelled
    may_return.set()
    await closing

    with pytest.raises(StorageUnavailable, match="the worker is ending"):
        await asking
    assert [path for path in places.cache.rglob("*") if path.is_file()] == []
