"""Whatever goes wrong while a file is sent: afterwards it is there as it was sent, or not at all, and can be sent."""

import asyncio
import ctypes
import errno
import os
import random
import subprocess
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from corral.base.tasks import end_tasks
from corral.worker.config import FilesConfig
from corral.worker.files import disk
from corral.worker.files.uploads import BATCH
from corral.worker.processes.backend_logs import BackendLogs
from tests.kit.clock import ManualClock
from tests.kit.file_worker import FileAnswer, FileWorker, open_file_worker, stage
from tests.kit.waiting import eventually

SIZE = 3 * BATCH + 12_345
DATA = random.Random(8).randbytes(SIZE)
OTHER = random.Random(9).randbytes(SIZE)
KEY = "models/m/f.bin"
PATH = f"/v1/files/{KEY}"
SCRIPT = Path(__file__).with_name("upload_process.py")

CUTS = sorted(
    {0, 1, 2, 100, 4095, 4096, 4097, SIZE - 4096, SIZE - 2, SIZE - 1, SIZE}
    | {border + step for border in (65_536, 262_144, 524_288, BATCH, 2 * BATCH, 3 * BATCH) for step in (-1, 0, 1)}
    | {random.Random(seed).randrange(SIZE) for seed in range(10)}
)


@pytest.fixture(params=["ordinary", "direct"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Large bodies go past the event loop. Everything must be the same on both ways, so all bodies count as large."""
    shortest = 1 if request.param == "direct" else SIZE * 100
    monkeypatch.setattr("corral.worker.files.uploads.SHORTEST", shortest)
    return str(request.param)


def sha(data: bytes) -> str:
    return sha256(data).hexdigest()


def ranged(data: bytes, start: int = 0, end: int | None = None, *, digest: str | None = None) -> dict[str, str]:
    last = len(data) - 1 if end is None else end - 1
    return {
        "Content-Range": f"bytes {start}-{last}/{len(data)}",
        "X-Content-SHA256": sha(data) if digest is None else digest,
    }


def leftovers(worker: FileWorker) -> list[str]:
    return [path.name for path in worker.root.rglob("*") if path.name.startswith(".corral") or "target" in path.name]


def is_stored(worker: FileWorker, data: bytes = DATA) -> bool:
    return (worker.models / "m" / "f.bin").read_bytes() == data and not leftovers(worker)


async def send_and_cut(worker: FileWorker, headers: dict[str, str], body: bytes, length: int) -> None:
    """Announce `length` bytes, wait until they are welcome, send fewer, and hang up without a word."""
    reader, writer = await worker.connect()
    lines = {"Host": "a", "Authorization": "Bearer tok", "Content-Length": str(length), "Expect": "100-continue"}
    head = "".join(f"{name}: {value}\r\n" for name, value in {**lines, **headers}.items())
    writer.write(f"PUT {PATH} HTTP/1.1\r\n{head}\r\n".encode())
    await reader.readuntil(b"Continue\r\n\r\n")
    writer.write(body)
    await writer.drain()
    if len(body) == length:
        await reader.readline()  # all of it came: only the answer is lost
    writer.transport.abort()


async def nobody_writes(worker: FileWorker) -> bool:
    """Nothing is held by an upload: another one can hold it."""
    for path in worker.root.rglob(".corral-*"):
        try:
            file = os.open(path, os.O_RDWR)
        except FileNotFoundError:  # the upload ends while we look
            continue
        try:
            if not disk.hold(file):
                return False
        finally:
            os.close(file)
    answer = await worker.ask("PUT", PATH, headers={"Content-Range": f"bytes 9-9/{10**15}"}, body=b"x")
    return b"under way" not in answer.body


@pytest.mark.parametrize("cut", CUTS)
async def test_an_upload_that_is_cut_anywhere_is_resumed(worker: FileWorker, cut: int) -> None:
    await send_and_cut(worker, ranged(DATA), DATA[:cut], SIZE)
    await eventually(lambda: nobody_writes(worker), "the end of the upload that was cut")

    await stage(worker, KEY, DATA)

    assert is_stored(worker)
    head = await worker.ask("HEAD", PATH)
    assert head.headers["X-Content-SHA256"] == sha(DATA)


@pytest.mark.parametrize("cut", [0, 1, BATCH, SIZE - 1])
async def test_an_upload_in_one_piece_that_is_cut_leaves_what_was_there(worker: FileWorker, cut: int) -> None:
    await stage(worker, KEY, OTHER)

    await send_and_cut(worker, {}, DATA[:cut], SIZE)
    await eventually(lambda: nobody_writes(worker), "the end of the upload that was cut")

    assert is_stored(worker, OTHER)


async def test_an_upload_that_is_cut_again_and_again_arrives(worker: FileWorker) -> None:
    start = 0
    for step in (10, BATCH, 70_000, BATCH + 1):
        await send_and_cut(worker, ranged(DATA, start), DATA[start : start + step], SIZE - start)
        await eventually(lambda: nobody_writes(worker), "the end of the upload that was cut")
        start = int((await worker.ask("HEAD", PATH)).headers["X-File-Size"])

    await stage(worker, KEY, DATA)

    assert is_stored(worker)


@pytest.mark.parametrize("step", [1000, 65_536, BATCH, BATCH + 1])
async def test_a_file_may_come_in_many_ranges(worker: FileWorker, step: int) -> None:
    data = DATA[: 20 * step]
    for start in range(0, len(data), step):
        end = min(start + step, len(data))
        answer = await worker.ask("PUT", PATH, headers=ranged(data, start, end), body=data[start:end])
        assert answer.status == (200 if end == len(data) else 308)

    assert is_stored(worker, data)


async def test_a_resumed_upload_was_changed_meanwhile(worker: FileWorker) -> None:
    """Whoever resumes with another file is told to begin anew, and then can."""
    half = SIZE // 2
    await worker.ask("PUT", PATH, headers=ranged(DATA, 0, half), body=DATA[:half])

    answer = await worker.ask("PUT", PATH, headers=ranged(OTHER, half), body=OTHER[half:])
    assert answer.status == 409
    assert leftovers(worker) == []
    await stage(worker, KEY, OTHER)

    assert is_stored(worker, OTHER)


async def test_bytes_that_were_damaged_on_disk_are_noticed(worker: FileWorker) -> None:
    """After a restart nothing is known of the first half but what is on disk."""
    half = SIZE // 2
    async with open_file_worker(worker.root) as earlier:
        await earlier.ask("PUT", PATH, headers=ranged(DATA, 0, half), body=DATA[:half])
    (part,) = (worker.models / "m").glob(".corral-part-*")
    part.write_bytes(b"?" + DATA[1:half])

    answer = await worker.ask("PUT", PATH, headers=ranged(DATA, half), body=DATA[half:])

    assert answer.status == 400
    assert list((worker.models / "m").iterdir()) == []


# Everything came, but nobody heard.


async def test_a_complete_upload_without_its_name_is_verified_and_committed(worker: FileWorker) -> None:
    """As a crash, or LocalAI's worker, leaves it. LocalAI's frontends would else begin at 0 and be refused for ever."""
    folder = worker.models / "m"
    folder.mkdir()
    (folder / "f.bin").write_bytes(DATA)
    (folder / "f.bin.sha256.target").write_text(sha(DATA))

    assert await stage(worker, KEY, DATA) == SIZE

    assert is_stored(worker)


async def test_a_complete_upload_with_wrong_bytes_is_received_anew(worker: FileWorker) -> None:
    folder = worker.models / "m"
    folder.mkdir()
    (folder / "f.bin").write_bytes(OTHER)
    (folder / "f.bin.sha256.target").write_text(sha(DATA))

    assert await stage(worker, KEY, DATA) == SIZE

    assert is_stored(worker)


async def test_more_than_the_whole_file_is_received_anew(worker: FileWorker) -> None:
    folder = worker.models / "m"
    folder.mkdir()
    (folder / "f.bin").write_bytes(DATA + b"?")
    (folder / "f.bin.sha256.target").write_text(sha(DATA))

    await stage(worker, KEY, DATA)

    assert is_stored(worker)


async def test_a_sender_that_missed_its_answer_is_told_again(worker: FileWorker) -> None:
    await stage(worker, KEY, DATA)
    before = (worker.models / "m" / "f.bin").stat()

    answer = await worker.ask("PUT", PATH, headers=ranged(DATA), body=DATA)

    assert (answer.status, b"local_path" in answer.body) == (200, True)
    assert (worker.models / "m" / "f.bin").stat().st_ino == before.st_ino


async def test_what_is_there_is_not_sent_again(worker: FileWorker) -> None:
    await stage(worker, KEY, DATA)

    assert await stage(worker, KEY, DATA) == 0


async def test_a_file_that_localai_left_unfinished_is_resumed(worker: FileWorker) -> None:
    folder = worker.models / "m"
    folder.mkdir()
    (folder / "f.bin").write_bytes(DATA[:BATCH])
    (folder / "f.bin.sha256.target").write_text(sha(DATA))

    assert await stage(worker, KEY, DATA) == SIZE - BATCH

    assert is_stored(worker)


# Not what was announced.


@pytest.mark.parametrize("is_ranged", [False, True])
async def test_a_wrong_hash_leaves_nothing(worker: FileWorker, is_ranged: bool) -> None:
    headers = ranged(DATA, digest=sha(OTHER)) if is_ranged else {"X-Content-SHA256": sha(OTHER)}

    answer = await worker.ask("PUT", PATH, headers=headers, body=DATA)

    assert answer.status == 400
    assert answer.body.decode() == f"sha256 mismatch: expected {sha(OTHER)} got {sha(DATA)}\n"
    assert list((worker.models / "m").iterdir()) == []


async def test_a_later_range_without_a_hash_is_held_to_the_first_one(worker: FileWorker) -> None:
    wrong = ranged(DATA, 0, 1000, digest=sha(OTHER))
    await worker.ask("PUT", PATH, headers=wrong, body=DATA[:1000])

    answer = await worker.ask("PUT", PATH, headers=ranged(DATA, 1000, digest=""), body=DATA[1000:])

    assert answer.status == 400
    assert list((worker.models / "m").iterdir()) == []


PENDING = "pending:" + "5" * 64


def all_but_the_last(digest: str = PENDING) -> tuple[dict[str, str], bytes]:
    """The head and the body of a first range, which leaves a hundred bytes for the last one."""
    return ranged(DATA, 0, SIZE - 100, digest=digest), DATA[:-100]


async def test_the_hash_may_come_with_the_last_range(worker: FileWorker) -> None:
    await stage(worker, KEY, OTHER)
    headers, body = all_but_the_last()
    first = await worker.ask("PUT", PATH, headers=headers, body=body)
    head = await worker.ask("HEAD", PATH)
    assert (worker.models / "m" / "f.bin").read_bytes() == OTHER
    last = await worker.ask("PUT", PATH, headers=ranged(DATA, SIZE - 100), body=DATA[-100:])

    assert (first.status, last.status) == (308, 200)
    assert (head.headers["X-Target-SHA256"], head.headers["X-File-Size"]) == (PENDING, str(SIZE - 100))
    assert is_stored(worker)


async def test_an_upload_whose_hash_comes_last_is_resumed_before_that(worker: FileWorker) -> None:
    headers, body = all_but_the_last()
    await send_and_cut(worker, headers, body[: 2 * BATCH], len(body))
    await eventually(lambda: nobody_writes(worker), "the end of the upload that was cut")
    present = int((await worker.ask("HEAD", PATH)).headers["X-File-Size"])

    again = await worker.ask(
        "PUT", PATH, headers=ranged(DATA, present, SIZE - 100, digest=PENDING), body=body[present:]
    )
    last = await worker.ask("PUT", PATH, headers=ranged(DATA, SIZE - 100), body=DATA[-100:])

    assert present > 0
    assert (again.status, last.status) == (308, 200)
    assert is_stored(worker)


async def test_a_wrong_hash_that_comes_last_leaves_nothing(worker: FileWorker) -> None:
    headers, body = all_but_the_last()
    await worker.ask("PUT", PATH, headers=headers, body=body)
    wrong = await worker.ask("PUT", PATH, headers=ranged(DATA, SIZE - 100, digest=sha(OTHER)), body=DATA[-100:])

    assert (wrong.status, b"sha256 mismatch" in wrong.body) == (400, True)
    assert not list((worker.models / "m").iterdir())


@pytest.mark.parametrize("is_ranged", [True, False])
async def test_a_file_does_not_become_whole_before_its_hash_is_told(worker: FileWorker, is_ranged: bool) -> None:
    headers = ranged(DATA, digest=PENDING) if is_ranged else {"X-Content-SHA256": PENDING}
    answer = await worker.ask("PUT", PATH, headers=headers, body=DATA)

    assert (answer.status, b"must state its hash" in answer.body) == (400, True)
    assert not (worker.models / "m").exists()


@pytest.mark.parametrize("sent", [1, 999, 1001, 5000])
@pytest.mark.parametrize("is_chunked", [False, True])
async def test_a_body_of_another_length_than_its_range(worker: FileWorker, sent: int, is_chunked: bool) -> None:
    """Less is kept and told; more is not taken."""

    async def chunks() -> AsyncIterator[bytes]:
        yield DATA[:sent]

    body = chunks() if is_chunked else DATA[:sent]
    answer = await worker.ask("PUT", PATH, headers=ranged(DATA, 0, 1000), body=body)

    assert answer.status == (400 if sent < 1000 else 308)
    assert (await worker.ask("HEAD", PATH)).headers["X-File-Size"] == str(min(sent, 1000))
    await stage(worker, KEY, DATA)
    assert is_stored(worker)


async def test_more_than_the_whole_file_is_not_taken(worker: FileWorker) -> None:
    answer = await worker.ask("PUT", PATH, headers=ranged(DATA[:1000]), body=DATA)

    assert answer.status == 200
    assert is_stored(worker, DATA[:1000])


async def test_whoever_finds_no_direct_way_goes_the_ordinary_one(
    worker: FileWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corral.worker.files.threads.MOST_LANES", 2)

    sent = await asyncio.gather(*(stage(worker, f"models/{number}", DATA) for number in range(6)))

    assert sent == [SIZE] * 6


async def test_a_connection_is_used_again_after_a_small_body_and_closed_after_a_large_one(
    worker: FileWorker, way: str
) -> None:
    answer = await worker.ask("PUT", PATH, body=DATA)

    assert (answer.headers.get("Connection") == "close") == (way == "direct")
    assert is_stored(worker)


async def test_a_compressed_body_is_stored_as_it_came(worker: FileWorker) -> None:
    """Its hash and its range speak of these bytes; unpacking them would be an invitation, too."""
    answer = await worker.ask("PUT", PATH, headers={"Content-Encoding": "gzip"}, body=DATA)

    assert answer.status == 200
    assert is_stored(worker)


# Several senders.


class Sender:
    """Sends the first half, and the second when it is told to."""

    def __init__(self, worker: FileWorker, data: bytes, headers: dict[str, str]) -> None:
        self._worker = worker
        self._data = data
        self._headers = {"Content-Length": str(len(data)), **headers}
        self._may_go_on = asyncio.Event()
        self._task: asyncio.Task[FileAnswer] | None = None

    async def begin(self) -> None:
        self._task = asyncio.create_task(self._worker.ask("PUT", PATH, headers=self._headers, body=self._body()))
        await eventually(self._worker.is_receiving, "the first half on disk")

    async def finish(self) -> FileAnswer:
        assert self._task is not None
        self._may_go_on.set()
        return await self._task

    async def give_up(self) -> None:
        assert self._task is not None
        await end_tasks(self._task)

    async def _body(self) -> AsyncIterator[bytes]:
        yield self._data[: 2 * BATCH]
        await self._may_go_on.wait()
        yield self._data[2 * BATCH :]


@pytest.mark.parametrize("first", ["ranged", "whole"])
@pytest.mark.parametrize("second", ["ranged", "ranged, other", "whole", "resumed"])
async def test_one_file_has_one_sender_at_a_time(worker: FileWorker, first: str, second: str) -> None:
    sender = Sender(worker, DATA, ranged(DATA) if first == "ranged" else {})
    await sender.begin()

    attempts = {
        "ranged": (ranged(DATA), DATA),
        "ranged, other": (ranged(OTHER), OTHER),
        "whole": ({}, OTHER),
        "resumed": (ranged(DATA, 2 * BATCH), DATA[2 * BATCH :]),
    }
    headers, body = attempts[second]
    refused = await worker.ask("PUT", PATH, headers=headers, body=body)

    assert refused.status == (409 if second == "whole" else 416)
    assert b"another upload of this file is under way" in refused.body
    assert (await sender.finish()).status == 200
    assert is_stored(worker)


async def test_a_sender_that_was_second_finds_the_file_of_the_first(worker: FileWorker) -> None:
    sender = Sender(worker, DATA, ranged(DATA))
    await sender.begin()
    assert (await worker.ask("PUT", PATH, headers=ranged(DATA), body=DATA)).status == 416
    await sender.finish()

    await stage(worker, KEY, DATA)

    assert is_stored(worker)


async def test_other_files_are_sent_meanwhile(worker: FileWorker) -> None:
    sender = Sender(worker, DATA, ranged(DATA))
    await sender.begin()

    await asyncio.gather(*(stage(worker, f"models/m/{number}", DATA[:1000]) for number in range(10)))

    assert (await sender.finish()).status == 200


async def test_two_names_of_one_file_are_one_file(worker: FileWorker) -> None:
    (worker.models / "m").mkdir()
    (worker.models / "alias").symlink_to("m")
    sender = Sender(worker, DATA, ranged(DATA))
    await sender.begin()

    answer = await worker.ask("PUT", "/v1/files/models/alias/f.bin", headers=ranged(OTHER), body=OTHER)

    assert answer.status == 416
    assert (await sender.finish()).status == 200
    assert is_stored(worker)


@pytest.mark.parametrize("start", [0, 2 * BATCH])
async def test_two_workers_that_share_a_directory_do_not_mix(worker: FileWorker, start: int) -> None:
    sender = Sender(worker, DATA, ranged(DATA))
    await sender.begin()

    async with open_file_worker(worker.root) as neighbour:
        refused = await neighbour.ask("PUT", PATH, headers=ranged(DATA, start), body=DATA[start:])
        assert refused.status == 416
        assert (await sender.finish()).status == 200
        await stage(neighbour, KEY, DATA)

    assert is_stored(worker)


async def test_many_senders_of_one_file(worker: FileWorker) -> None:
    """Whoever wins: the file is one of those that were sent."""
    bodies = [DATA, OTHER] * 4

    answers = await asyncio.gather(
        *(worker.ask("PUT", PATH, headers=ranged(body), body=body) for body in bodies),
        *(worker.ask("PUT", PATH, body=body) for body in bodies),
    )

    assert {answer.status for answer in answers} <= {200, 409, 416}
    await stage(worker, KEY, DATA)
    assert is_stored(worker)


async def test_a_sender_that_falls_silent_makes_way(tmp_path: Path) -> None:
    config = FilesConfig(stall_timeout=timedelta(seconds=1))
    async with (
        open_file_worker(tmp_path / "node", config=config) as worker,
        open_file_worker(tmp_path / "node") as patient,  # the other sender may be as slow as the machine is
    ):
        sender = Sender(worker, DATA, ranged(DATA))
        await sender.begin()

        await eventually(lambda: nobody_writes(worker), "the end of the silent upload")
        await stage(patient, KEY, DATA)
        silent = await asyncio.gather(sender.finish(), return_exceptions=True)

        assert isinstance(silent[0], aiohttp.ClientError | FileAnswer | OSError)
        assert is_stored(worker)


# Disks.


@pytest.fixture
def full_after(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The disk takes so many bytes, and no more."""
    write_all = disk.write_all

    def fill(limit: int, number: int = errno.ENOSPC) -> None:
        left = [limit]

        def write(descriptor: int, data: bytes) -> None:
            if len(data) > left[0]:
                write_all(descriptor, data[: left[0]])
                raise OSError(number, os.strerror(number))
            left[0] -= len(data)
            write_all(descriptor, data)

        monkeypatch.setattr(disk, "write_all", write)

    return fill


@pytest.mark.parametrize("limit", [0, 64, 100_000, BATCH, SIZE - 1])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("is_ranged", [False, True])
async def test_a_disk_that_fills_up_is_left_as_it_was(
    worker: FileWorker, full_after: Any, limit: int, number: int, is_ranged: bool
) -> None:
    (worker.models / "m").mkdir()
    full_after(limit, number)

    answer = await worker.ask("PUT", PATH, headers=ranged(DATA) if is_ranged else {}, body=DATA)

    assert answer.status == 507
    assert os.strerror(number).encode() in answer.body
    assert list((worker.models / "m").iterdir()) == []
    full_after(10**9)
    await stage(worker, KEY, DATA)
    assert is_stored(worker)


async def test_a_disk_that_fails_keeps_what_it_has(worker: FileWorker, full_after: Any) -> None:
    full_after(BATCH + 100, errno.EIO)
    answer = await worker.ask("PUT", PATH, headers=ranged(DATA), body=DATA)
    assert (answer.status, b"Input/output error" in answer.body) == (500, True)

    full_after(10**9)
    assert await stage(worker, KEY, DATA) < SIZE

    assert is_stored(worker)


@pytest.mark.parametrize("is_ranged", [False, True])
async def test_a_file_that_does_not_fit_is_refused_before_its_first_byte(
    worker: FileWorker, is_ranged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.fstatvfs", lambda _: os.statvfs_result((4096, 4096, 100, 100, 100, 9, 9, 9, 0, 255)))

    answer = await worker.ask("PUT", PATH, headers=ranged(DATA) if is_ranged else {}, body=DATA)

    assert answer.status == 507
    assert answer.body.decode() == f"not enough disk space: {SIZE} bytes are needed and {100 * 4096} are free\n"
    assert leftovers(worker) == []


async def test_two_files_are_not_promised_the_same_room(worker: FileWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = SIZE // 4096 + 100

    def with_what_is_taken(_: int) -> os.statvfs_result:
        free = blocks - blocks_taken(worker)
        return os.statvfs_result((4096, 4096, blocks, free, free, 9, 9, 9, 0, 255))

    monkeypatch.setattr("os.fstatvfs", with_what_is_taken)
    sender = Sender(worker, DATA, ranged(DATA))
    await sender.begin()
    assert (await worker.ask("PUT", "/v1/files/models/other", headers=ranged(DATA), body=DATA)).status == 507

    await sender.finish()
    (worker.models / "m" / "f.bin").unlink()

    assert (await worker.ask("PUT", "/v1/files/models/other", headers=ranged(DATA), body=DATA)).status == 200


# Room that is reserved for large bodies.


def blocks_taken(worker: FileWorker) -> int:
    """Of 4 KiB each, by all files."""
    return sum(path.stat().st_blocks for path in worker.models.rglob("*") if path.is_file()) // 8


on_the_direct_way = pytest.mark.parametrize("way", ["direct"], indirect=True)


@on_the_direct_way
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("is_ranged", [False, True])
async def test_a_disk_without_room_for_all_of_it_says_so_at_once(
    worker: FileWorker, number: int, is_ranged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> int:
        ctypes.set_errno(number)
        return -1

    (worker.models / "m").mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(disk, "_fallocate", refuse)
        answer = await worker.ask("PUT", PATH, headers=ranged(DATA) if is_ranged else {}, body=DATA)

    assert answer.status == 507
    assert os.strerror(number).encode() in answer.body
    assert list((worker.models / "m").iterdir()) == []
    await stage(worker, KEY, DATA)
    assert is_stored(worker)


@on_the_direct_way
@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL])
async def test_a_disk_that_cannot_reserve_room_is_written_all_the_same(
    worker: FileWorker, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> int:
        ctypes.set_errno(number)
        return -1

    monkeypatch.setattr(disk, "_fallocate", refuse)
    await stage(worker, KEY, DATA)
    assert is_stored(worker)


@on_the_direct_way
async def test_what_was_reserved_for_an_upload_that_is_cut_is_given_back(worker: FileWorker) -> None:
    sender = Sender(worker, DATA, ranged(DATA))
    await sender.begin()
    assert blocks_taken(worker) * 4096 >= SIZE
    await sender.give_up()
    await eventually(lambda: nobody_writes(worker), "the end of the upload that was cut")
    assert blocks_taken(worker) * 4096 < SIZE


@on_the_direct_way
async def test_what_a_killed_worker_had_reserved_counts_as_room_for_its_upload(
    worker: FileWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send_and_cut(worker, ranged(DATA), DATA[:BATCH], SIZE)
    await eventually(lambda: nobody_writes(worker), "the end of the upload that was cut")
    [part] = worker.root.rglob(".corral-*")
    with part.open("rb+") as file:
        assert disk.reserve(file.fileno(), BATCH, SIZE - BATCH)
    free = SIZE // 4096 + 100

    def with_what_is_taken(_: int) -> os.statvfs_result:
        left = free - blocks_taken(worker)
        return os.statvfs_result((4096, 4096, free, left, left, 9, 9, 9, 0, 255))

    monkeypatch.setattr("os.fstatvfs", with_what_is_taken)
    await stage(worker, KEY, DATA)
    assert is_stored(worker)


async def test_a_file_that_is_replaced_makes_room_if_it_must(
    worker: FileWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage(worker, KEY, OTHER)
    monkeypatch.setattr("os.fstatvfs", lambda _: os.statvfs_result((4096, 4096, 100, 100, 100, 9, 9, 9, 0, 255)))

    await stage(worker, KEY, DATA)

    assert is_stored(worker)


@pytest.fixture
def small_disk(worker: FileWorker) -> Iterator[int | None]:
    """A real disk of 2 MiB where we may have one."""
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(worker.models)], check=False, capture_output=True
    )
    yield 2 * 1024 * 1024 if done.returncode == 0 else None
    if done.returncode == 0:
        subprocess.run(["umount", "-l", str(worker.models)], check=True)


@pytest.mark.parametrize("kind", ["ranged", "whole", "chunked"])
async def test_a_small_disk(worker: FileWorker, small_disk: int | None, full_after: Any, kind: str) -> None:
    """In chunks nobody says how much will come, so it is found out when the disk is full."""
    if small_disk is None:
        full_after(2 * 1024 * 1024)

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, SIZE, 65_536):
            yield DATA[start : start + 65_536]

    body = chunks() if kind == "chunked" else DATA
    answer = await worker.ask("PUT", PATH, headers=ranged(DATA) if kind == "ranged" else {}, body=body)

    assert answer.status == 507
    assert leftovers(worker) == []
    if small_disk is not None:
        await stage(worker, KEY, DATA[: BATCH // 2])
        assert is_stored(worker, DATA[: BATCH // 2])


# Processes that die.


@asynccontextmanager
async def worker_process(root: Path, session: aiohttp.ClientSession) -> AsyncIterator[tuple[FileWorker, Any]]:
    process = await asyncio.create_subprocess_exec(sys.executable, str(SCRIPT), str(root), stdout=PIPE)
    try:
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        yield FileWorker(root, session, port, BackendLogs(ManualClock())), process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.parametrize("is_ranged", [True, False])
async def test_a_worker_that_is_killed_during_an_upload(tmp_path: Path, is_ranged: bool) -> None:
    async with aiohttp.ClientSession() as session:
        async with worker_process(tmp_path, session) as (worker, process):
            sender = Sender(worker, DATA, ranged(DATA) if is_ranged else {})
            await sender.begin()
            process.kill()
            await process.wait()
            with pytest.raises(aiohttp.ClientError):
                await sender.finish()
        assert not (tmp_path / "models" / "m" / "f.bin").exists()

        async with worker_process(tmp_path, session) as (worker, _):
            sent = await stage(worker, KEY, DATA)

            assert sent < SIZE if is_ranged else sent == SIZE
            await eventually(lambda: is_tidy(worker), "the end of the clean-up")
            assert is_stored(worker)


async def is_tidy(worker: FileWorker) -> bool:
    return not leftovers(worker)


async def test_a_worker_that_ends_during_an_upload_keeps_what_it_has(tmp_path: Path) -> None:
    async with open_file_worker(tmp_path) as worker:
        await send_and_cut(worker, ranged(DATA), DATA[: 2 * BATCH], SIZE)

    async with open_file_worker(tmp_path) as worker:
        await stage(worker, KEY, DATA)
        assert is_stored(worker)
