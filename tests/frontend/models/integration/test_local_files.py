"""Digests of files of the models directory, where several threads need them."""

import asyncio
import hashlib
import os
import threading
from pathlib import Path

import pytest

from corral.files.file_peer import TransferStopped
from corral.frontend.models.local_files import LocalFiles
from tests.kit.held_hash import HeldHash
from tests.kit.waiting import within_timeout

CONTENT = b"weights"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def files(tmp_path: Path) -> LocalFiles:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_bytes(CONTENT)
        os.utime(tmp_path / name, (1, 1))
    return LocalFiles(tmp_path)


def digest(files: LocalFiles, path: str, stop: threading.Event | None = None) -> asyncio.Task[str]:
    def compute() -> str:
        with files.opened(path) as (descriptor, mark):
            return files.digest(path, descriptor, mark, stop=stop or threading.Event())

    return asyncio.create_task(asyncio.to_thread(compute))


class WatchedStop(threading.Event):
    """Tells when a thread looks whether it shall stop."""

    def __init__(self) -> None:
        super().__init__()
        self._was_looked_at = threading.Event()

    def is_set(self) -> bool:
        self._was_looked_at.set()
        return super().is_set()

    async def until_looked_at(self) -> None:
        await within_timeout(asyncio.to_thread(self._was_looked_at.wait), lambda: "a thread to wait")


async def test_threads_that_need_the_same_digest_compute_it_once(files: LocalFiles, held_hash: HeldHash) -> None:
    first = digest(files, "a")
    await held_hash.until_begun()
    stop = WatchedStop()
    second = digest(files, "a", stop)
    await stop.until_looked_at()
    held_hash.end()

    assert (await first, await second) == (DIGEST, DIGEST)
    assert held_hash.count == 1


async def test_a_thread_stops_that_waits_for_the_digest_of_another_one(files: LocalFiles, held_hash: HeldHash) -> None:
    first = digest(files, "a")
    await held_hash.until_begun()
    stop = threading.Event()
    stop.set()
    with pytest.raises(TransferStopped):
        await within_timeout(digest(files, "a", stop), lambda: "the end of the thread that waits")
    held_hash.end()

    assert await first == DIGEST


async def test_a_thread_stops_that_waits_for_its_turn_to_hash(files: LocalFiles, held_hash: HeldHash) -> None:
    busy = [digest(files, "a"), digest(files, "b")]
    for _ in busy:
        await held_hash.until_begun()
    stop = threading.Event()
    stop.set()
    with pytest.raises(TransferStopped):
        await within_timeout(digest(files, "c", stop), lambda: "the end of the thread that waits")
    held_hash.end()

    assert await asyncio.gather(*busy) == [DIGEST, DIGEST]


async def test_the_next_thread_computes_a_digest_that_the_first_one_did_not(
    files: LocalFiles, held_hash: HeldHash
) -> None:
    ended = threading.Event()
    first = digest(files, "a", ended)
    await held_hash.until_begun()
    stop = WatchedStop()
    second = digest(files, "a", stop)
    await stop.until_looked_at()
    ended.set()
    held_hash.end()

    with pytest.raises(TransferStopped):
        await first
    assert await second == DIGEST
    assert held_hash.count == 2
