"""`files`: how fast a worker takes a large file, against `curl -T` into a server that only writes it to disk, and
whether the worker is itself meanwhile.

A third one in the rounds writes and hashes and does nothing else. And it is computed what a worker, which must not
believe a file before it has its hash, can reach at best on this machine: the bare sink's work, the sender's and the
hash, spread over all processors without a gap.

The machine is one that has been in use for a while: its memory is full of other files, which the kernel gives up for
the new one. The state of memory decides much of the ratio. Where pages are at hand, writing is cheaper, and the hash,
which only a worker computes, counts for more. Where a virtual machine has to get them from its host, writing takes so
long that the hash hardly counts. How long it takes until the file is safe on disk is told beside, without a goal: that
is the disk's figure more than the server's.
"""

import asyncio
import hashlib
import os
import shutil
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final

import psutil

from bench.lone_worker import HOST, NODE, TOKEN, LoneWorker, lone_worker
from bench.readings import MEGABYTE, memory_of, processor_seconds
from bench.report import Row, Table, figure, percentile
from bench.say import say
from bench.up import READY_WITHIN_SECONDS
from corral.base.errors import ChildFailed
from corral.base.tasks import running
from corral.wire import subjects

SIZE: Final = 4_000_000_000
ROUNDS: Final = 3
CONTENDERS: Final = 3
BEAT_SECONDS: Final = 0.2
ASK_SECONDS: Final = 0.1
SLOWEST: Final = 1 / 0.9
"""Times as long as the bare sink may take: nine tenths of its speed."""
MOST_GROWTH: Final = 50
MOST_LATE: Final = 100.0
_BLOCK: Final = 64_000_000
_LOOK_SECONDS: Final = 0.01
_GIGABYTE: Final = 1000 * MEGABYTE


Send = Callable[[Path, str, Mapping[str, str]], Awaitable[float]]
"""Sends a file to a URL with these headers; how many seconds it took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """What is sent, and how."""

    source: Path
    size: int
    digest: str
    send: Send

    @property
    def headers(self) -> dict[str, str]:
        """As LocalAI's frontends send a whole file. The sinks do not look at them."""
        return {
            "Authorization": f"Bearer {TOKEN}",
            "Content-Range": f"bytes 0-{self.size - 1}/{self.size}",
            "X-Content-SHA256": self.digest,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One that takes the file, and what it took each time."""

    name: str
    url: str
    pid: int
    received: Path
    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    sender: list[float] = field(default_factory=list)
    """Processor time of the sender."""
    answered: list[float] = field(default_factory=list)
    """When."""
    to_disk: list[float] = field(default_factory=list)
    """Seconds until the disk has all of it, from the beginning. The answer comes earlier."""

    async def take(self, upload: Upload) -> None:
        """What earlier ones left to be written is written first."""
        await asyncio.to_thread(os.sync)
        before, sender = processor_seconds(self.pid), ended_children_seconds()
        self.seconds.append(await upload.send(upload.source, self.url, upload.headers))
        self.answered.append(time.perf_counter())
        self.processor.append(processor_seconds(self.pid) - before)
        self.sender.append(ended_children_seconds() - sender)

    async def keep(self, name: Path) -> None:
        """Bring what was taken to the disk. It stays until the end, under another name: see `fill_memory`."""
        await asyncio.to_thread(_bring_to_disk, self.received)
        self.to_disk.append(self.seconds[-1] + time.perf_counter() - self.answered[-1])
        await asyncio.to_thread(self.received.rename, name)

    def speed(self, size: int) -> Row:
        return figure(f"curl -T into {self.name}", size / median(self.seconds) / MEGABYTE, "MB/s")

    def cost(self, size: int) -> Row:
        return figure(f"processor time of {self.name}", median(self.processor) / size * _GIGABYTE, "s/GB")


@dataclass(slots=True)
class Watch:
    """How the worker does while it receives: only these moments count."""

    late: list[float] = field(default_factory=list)
    asked: list[float] = field(default_factory=list)
    own: list[float] = field(default_factory=list)
    """How late this process itself is, which hears the heartbeats and asks: no figure can be better than this."""

    @asynccontextmanager
    async def over(self, worker: LoneWorker) -> AsyncIterator[None]:
        """From the heartbeat before to the one after, however short it is in between."""
        came, asked = worker.frontend.came, len(self.asked)
        await _until(lambda: bool(came))
        first = len(came) - 1
        async with running(self._ask(worker), name="models.running"), running(self._tick(), name="own lateness"):
            yield
            ended = len(came)
            await _until(lambda: len(came) > ended and len(self.asked) > asked)
        self.late += [max(after - before - BEAT_SECONDS, 0) * 1000 for before, after in pairwise(came[first:])]

    async def _ask(self, worker: LoneWorker) -> None:
        while True:
            began = time.perf_counter()
            await worker.bus.request(subjects.models_running(NODE), b"", timeout=timedelta(minutes=1))
            self.asked.append(1000 * (time.perf_counter() - began))
            await asyncio.sleep(ASK_SECONDS)

    async def _tick(self) -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(_LOOK_SECONDS)
            self.own.append(1000 * (time.perf_counter() - began - _LOOK_SECONDS))


def _bring_to_disk(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def ended_children_seconds() -> float:
    """Processor time of all children that have ended."""
    used = os.times()
    return used.children_user + used.children_system


async def _until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + READY_WITHIN_SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            raise ChildFailed("the worker neither beats nor answers")
        await asyncio.sleep(_LOOK_SECONDS)


async def files(size: int | None = None, *, rounds: int = ROUNDS, send: "Send | None" = None) -> Table:
    """The rounds are interleaved, so that all meet the same moods of the disk."""
    with tempfile.TemporaryDirectory(prefix="corral-bench-") as name:
        folder = Path(name)
        bounded = min(size or SIZE, shutil.disk_usage(folder).free // (CONTENDERS * rounds + 2))
        say(f"files: writing {bounded / MEGABYTE:,.0f} MB to send")
        digest = await asyncio.to_thread(make_source, folder / "source", bounded)
        await asyncio.to_thread(fill_memory, folder / "filler", CONTENDERS * rounds * bounded)
        upload = Upload(source=folder / "source", size=bounded, digest=digest, send=send or curl)
        rows = await _measure(folder, upload, rounds)
    return Table(
        title=f"Receiving a file of {bounded / MEGABYTE:,.0f} MB",
        rows=rows,
        notes=[
            f"{rounds} rounds each, interleaved, with sync before each; curl shares the processors.",
            "The bare sink neither hashes nor checks; the hashing one does nothing else than that.",
            "The least time: all processors busy with sender, bare sink and hash, and never waiting for each other.",
            "All memory is in use before, and nothing is removed meanwhile: virtual machines get memory back slowly.",
        ],
    )


def fill_memory(path: Path, size: int) -> None:
    """Have so much memory in use, or all that there is, for a file without content that nobody needs.

    Memory that is free goes back to the host of a virtual machine, which stops all of it for a tenth of a second at a
    time, and to get it again takes several times as long as to write a file. So nothing is free here: what is received
    takes the place of this file, as on a machine that has been in use for a while.
    """
    with path.open("wb") as file:
        file.truncate(min(size, psutil.virtual_memory().available))
    with path.open("rb", buffering=0) as file:
        buffer = bytearray(_BLOCK)
        while file.readinto(buffer):
            pass


def make_source(path: Path, size: int) -> str:
    block, digest = os.urandom(min(_BLOCK, size)), hashlib.sha256()
    with path.open("wb") as file:
        while (left := size - file.tell()) > 0:
            file.write(block[:left])
            digest.update(block[:left])
    return digest.hexdigest()


async def _measure(folder: Path, upload: Upload, rounds: int) -> list[Row]:
    watch = Watch()
    interval = {"CORRAL_HEARTBEAT_INTERVAL": f"{BEAT_SECONDS * 1000:.0f}ms"}
    async with AsyncExitStack() as stack:
        bare = await stack.enter_async_context(_sink("a bare sink", folder / "sunk"))
        hashing = await stack.enter_async_context(_sink("a sink that hashes", folder / "hashed", "--hash"))
        worker = await stack.enter_async_context(lone_worker(folder, interval))
        contender = _as_contender(worker, folder / "models" / "received")
        before = memory_of(worker.process.pid).resident
        for number in range(rounds):
            say(f"files: round {number + 1} of {rounds}")
            await bare.take(upload)
            await bare.keep(folder / f"bare {number}")
            await hashing.take(upload)
            await hashing.keep(folder / f"hashed {number}")
            async with watch.over(worker):
                await contender.take(upload)
            await contender.keep(folder / f"worker {number}")
        growth = memory_of(worker.process.pid).peak - before
    return [
        *(one.speed(upload.size) for one in (bare, hashing, contender)),
        *_compared(bare, hashing, contender),
        figure("least time with a hash against the bare sink", _least_with_hash(bare, upload.size), "×"),
        *(one.cost(upload.size) for one in (bare, hashing, contender)),
        figure("memory of the worker before", before / MEGABYTE, "MB"),
        figure("memory of the worker, most it grew", growth / MEGABYTE, "MB", at_most=MOST_GROWTH),
        *_meanwhile(watch),
    ]


def _as_contender(worker: LoneWorker, received: Path) -> Contender:
    url = f"http://{HOST}:{worker.http_port}/v1/files/models/{received.name}"
    return Contender(name="a worker", url=url, pid=worker.process.pid, received=received)


def _compared(bare: Contender, hashing: Contender, worker: Contender) -> list[Row]:
    took, to_disk = median(worker.seconds), median(worker.to_disk)
    return [
        figure("time of the worker against the bare sink", took / median(bare.seconds), "×", at_most=SLOWEST),
        figure("time of the worker against the hashing one", took / median(hashing.seconds), "×", at_most=SLOWEST),
        figure("time until all is on disk, against the bare sink", to_disk / median(bare.to_disk), "×"),
    ]


def _least_with_hash(bare: Contender, size: int) -> float:
    """Return the shortest possible time, from what the bare sink took. Hashing cannot be spread over processors."""
    hashing = size * _hash_seconds_per_byte()
    work = median(bare.sender) + median(bare.processor) + hashing
    return max(hashing, work / len(os.sched_getaffinity(0))) / median(bare.seconds)


def _hash_seconds_per_byte() -> float:
    block = bytes(_BLOCK)
    began = time.thread_time()
    hashlib.sha256(block)
    return (time.thread_time() - began) / _BLOCK


def _meanwhile(watch: Watch) -> list[Row]:
    return [
        figure("heartbeats meanwhile: late, p50", percentile(watch.late, 0.5), "ms"),
        figure("heartbeats meanwhile: late, p99", percentile(watch.late, 0.99), "ms", at_most=MOST_LATE),
        figure("models.running meanwhile: p50", percentile(watch.asked, 0.5), "ms"),
        figure("models.running meanwhile: p99", percentile(watch.asked, 0.99), "ms", at_most=MOST_LATE),
        figure("this bench meanwhile, which hears and asks: late, p99", percentile(watch.own, 0.99), "ms"),
    ]


async def curl(source: Path, url: str, headers: Mapping[str, str]) -> float:
    options = [word for name, value in headers.items() for word in ("-H", f"{name}: {value}")]
    command = ["curl", "-sS", "--fail", "-o", os.devnull, "-w", "%{time_total}", *options, "-T", str(source), url]
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    output, errors = await process.communicate()
    if process.returncode != 0:
        raise ChildFailed(f"curl failed: {errors.decode().strip()}")
    return float(output)


@asynccontextmanager
async def _sink(name: str, file: Path, *options: str) -> AsyncIterator[Contender]:
    command = [sys.executable, "-m", "bench.file_sink", *options, str(file)]
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE)
    try:
        if process.stdout is None:
            raise ChildFailed("the sink says nothing")
        port = int(await process.stdout.readline())
        yield Contender(name=name, url=f"http://{HOST}:{port}/", pid=process.pid, received=file)
    finally:
        process.kill()
        await process.communicate()
