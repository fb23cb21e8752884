"""The downloader as a process: killed at any byte, beside another one, and with too little disk."""

import asyncio
import contextlib
import hashlib
import os
import random
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from corral.hubs.downloads.downloader import Downloader
from corral.hubs.downloads.orders import (
    DownloadCancelled,
    DownloaderDied,
    DownloadInvalid,
    DownloadLimits,
    DownloadOrder,
    DownloadProgress,
    DownloadRefused,
    DownloadResult,
    FileOrder,
    TooLittleDisk,
)
from corral.hubs.downloads.partial_files import FOLDER, PartialFile, PartialFolder
from corral.oci.limits import Network
from tests.kit.file_server import FileServer, Stall
from tests.kit.inspection import environment_text

CONTENT = random.Random(17).randbytes(6_000_011)
SHA256 = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"
PATH = "/model.gguf"
ENVIRONMENT = {"PATH": os.defpath, "HOME": "/nonexistent", "SECRET_OF_OTHERS": "x"}
KILLS = 7


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer() as server:
        yield server


def an_order(folder: Path, url: str, **changes: object) -> DownloadOrder:
    file = FileOrder(url=url, destination="model.gguf", digest=SHA256, size=len(CONTENT), authorization="secret-word")
    order = DownloadOrder(
        files=(file,),
        directory=str(folder),
        limits=DownloadLimits(piece_bytes=256 * 1024, connections=3, free_bytes=0),
        network=Network(first_pause_seconds=0.01),
    )
    return msgspec.structs.replace(order, **changes)


async def run(order: DownloadOrder) -> DownloadResult:
    async with Downloader(order, environment=ENVIRONMENT) as downloader:
        return await downloader.result()


def stored_bytes(folder: Path) -> int:
    """Bytes that the ledger of the partial file knows of, each of which must be right."""
    with PartialFolder(folder) as partial, PartialFile(partial, "model.gguf") as part:
        ledger = part.read_ledger()
        if ledger is None:
            return 0
        while (span := ledger.claim(1)) is not None:  # what is missing becomes what it should be
            os.pwrite(part.descriptor, CONTENT[span[0] : span[1]], span[0])
        done = ledger.done_bytes
        ledger.close()
        assert os.pread(part.descriptor, len(CONTENT), 0) == CONTENT
        return done


def killer(pid: int, stop_at: int) -> Callable[[FileServer], None]:
    """Kill a process in the middle of a body, as soon as so many bytes were sent."""

    def kill(server: FileServer) -> None:
        if server.sent >= stop_at:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    return kill


async def test_a_download_from_beginning_to_end(server: FileServer, tmp_path: Path) -> None:
    url = server.add(PATH, CONTENT, authorization="secret-word")
    seen: list[DownloadProgress] = []

    async with Downloader(an_order(tmp_path, url), environment=ENVIRONMENT) as downloader:
        async for progress in downloader.progress():
            seen.append(progress)
        (file,) = (await downloader.result()).files

    assert (tmp_path / "model.gguf").read_bytes() == CONTENT
    assert (file.sha256, file.fetched_bytes) == (SHA256[7:], len(CONTENT))
    assert seen[-1].files[0].current_bytes == len(CONTENT)
    assert [progress.sequence for progress in seen] == sorted({progress.sequence for progress in seen})


@pytest.mark.parametrize("has_digest", [True, False])
async def test_kills_at_any_byte_lose_nothing_that_was_written(
    server: FileServer, tmp_path: Path, has_digest: bool
) -> None:
    url = server.add(PATH, CONTENT)
    order = an_order(tmp_path, url)
    if not has_digest:
        order = msgspec.structs.replace(order, files=(FileOrder(url=url, destination="model.gguf"),))
    dice = random.Random(has_digest)
    fetched = kills = 0
    while not (tmp_path / "model.gguf").exists():
        before, stop_at = stored_bytes(tmp_path), server.sent + dice.randrange(1, len(CONTENT) // 4)
        async with Downloader(order, environment=ENVIRONMENT) as downloader:
            pid = downloader.pid
            assert pid is not None

            server.before_chunk = killer(pid, stop_at) if kills < KILLS else lambda _: None
            try:
                (file,) = (await downloader.result()).files
                fetched += file.fetched_bytes
                assert file.fetched_bytes == len(CONTENT) - before
            except DownloaderDied:
                kills += 1
                fetched += stored_bytes(tmp_path) - before

    assert (tmp_path / "model.gguf").read_bytes() == CONTENT
    assert fetched == len(CONTENT), "what was written was never fetched again"
    assert kills >= KILLS // 2
    assert list(tmp_path.joinpath(*FOLDER).iterdir()) == []


async def test_two_processes_fetch_a_file_once(server: FileServer, tmp_path: Path) -> None:
    url = server.add(PATH, CONTENT)
    stall = Stall(1000)
    server.faults[PATH].append(stall)
    async with Downloader(an_order(tmp_path, url), environment=ENVIRONMENT) as first:
        await asyncio.to_thread(stall.reached.wait, 60)
        async with Downloader(an_order(tmp_path, url), environment=ENVIRONMENT) as second:
            async for _ in second.progress():
                break
            stall.let_go()
            results = await first.result(), await second.result()

    assert server.sent == len(CONTENT)
    assert [result.files[0].fetched_bytes for result in results] == [len(CONTENT), 0]
    assert results[0].files[0].sha256 == results[1].files[0].sha256


async def test_a_killed_process_gives_its_file_to_the_one_that_waits(server: FileServer, tmp_path: Path) -> None:
    url = server.add(PATH, CONTENT)
    stalls = [Stall(100_000) for _ in range(3)]
    server.faults[PATH] += stalls
    async with Downloader(an_order(tmp_path, url), environment=ENVIRONMENT) as first:
        await asyncio.to_thread(stalls[0].reached.wait, 60)
        async with Downloader(an_order(tmp_path, url), environment=ENVIRONMENT) as second:
            async for _ in second.progress():
                break
            await first.cancel()
            for stall in stalls:
                stall.let_go()
            (file,) = (await second.result()).files
        with pytest.raises(DownloadCancelled):
            await first.result()

    assert (tmp_path / "model.gguf").read_bytes() == CONTENT
    assert file.fetched_bytes <= len(CONTENT)


async def test_a_disk_that_fills_up_is_told_and_resumed(server: FileServer, tmp_path: Path) -> None:
    url = server.add(PATH, CONTENT)
    stall = Stall(1000)
    server.faults[PATH].append(stall)
    async with Downloader(an_order(tmp_path, url), environment=ENVIRONMENT) as downloader:
        await asyncio.to_thread(stall.reached.wait, 60)
        assert downloader.pid is not None
        resource.prlimit(downloader.pid, resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))
        stall.let_go()
        with pytest.raises(TooLittleDisk, match="no room left") as caught:
            await downloader.result()
    assert caught.value.retryable
    before = stored_bytes(tmp_path)
    assert before > 0

    (file,) = (await run(an_order(tmp_path, url))).files
    assert (tmp_path / "model.gguf").read_bytes() == CONTENT
    assert file.fetched_bytes == len(CONTENT) - before


async def test_no_secret_is_in_the_process_list(server: FileServer, tmp_path: Path) -> None:
    url = server.add(PATH, CONTENT)
    stall = Stall()
    server.faults[PATH].append(stall)
    async with Downloader(an_order(tmp_path, url), environment=ENVIRONMENT) as downloader:
        await asyncio.to_thread(stall.reached.wait, 60)
        process = psutil.Process(downloader.pid)
        shown = " ".join(process.cmdline()) + environment_text(process.pid)
        assert "secret-word" not in shown
        assert "SECRET_OF_OTHERS" not in shown
        assert process.nice() == min(os.nice(0) + 10, 19)
    stall.let_go()


async def test_errors_in_the_process_are_errors_here(server: FileServer, tmp_path: Path) -> None:
    url = server.add(PATH, CONTENT, authorization="another")

    with pytest.raises(DownloadRefused, match="answered 401"):
        await run(an_order(tmp_path, url))
    with pytest.raises(DownloadInvalid, match="without files"):
        await run(an_order(tmp_path, url, files=()))


async def test_an_order_may_be_longer_than_a_pipe(server: FileServer, tmp_path: Path) -> None:
    content = b"small"
    files = tuple(
        FileOrder(url=server.add(f"/{number}", content) + f"?signature={'x' * 1000}", destination=f"{number}")
        for number in range(60)
    )

    result = await run(an_order(tmp_path, "", files=files))

    assert len(result.files) == 60
    assert {(tmp_path / file.destination).read_bytes() for file in result.files} == {content}
