"""`files`: how fast a worker takes a large file, against `curl -T` into a server that only writes it to disk."""

import asyncio
import hashlib
import os
import shutil
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from aiohttp import web

from bench.readings import MEGABYTE, memory_of
from bench.report import Row, Table, figure, percentile
from bench.say import say
from bench.up import corral, environment
from corral.base.errors import ChildFailed
from corral.base.processes import Command, Output, Process, start_process
from corral.testing.ports import lasting_port

HOST: Final = "127.0.0.1"
SIZE: Final = 4_000_000_000
ROUNDS: Final = 3
INTERVAL_SECONDS: Final = 0.1
SLOWEST: Final = 1 / 0.9
"""Times as long as the bare sink may take: nine tenths of its speed."""
MOST_GROWTH: Final = 50
MOST_LATE: Final = 100.0
_TOKEN: Final = "bench-token"
_BLOCK: Final = 64_000_000


@dataclass(slots=True)
class Frontend:
    """Takes heartbeats, and remembers when they came."""

    came: list[float] = field(default_factory=list)

    async def answer(self, request: web.BaseRequest) -> web.Response:
        if request.path.endswith("/heartbeat"):
            self.came.append(time.monotonic())
        if request.path.endswith("/register"):
            return web.json_response({"id": "00000000-0000-4000-8000-000000000000", "status": "healthy"}, status=201)
        return web.json_response([] if request.path.endswith("/models") else {"message": "ok"})

    def lateness(self) -> list[float]:
        """How much later than expected each heartbeat came, in milliseconds."""
        pairs = zip(self.came, self.came[1:], strict=False)
        return [max(after - before - INTERVAL_SECONDS, 0) * 1000 for before, after in pairs]


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
        """As LocalAI's frontends send a whole file."""
        return {
            "Authorization": f"Bearer {_TOKEN}",
            "Content-Range": f"bytes 0-{self.size - 1}/{self.size}",
            "X-Content-SHA256": self.digest,
        }

    async def to(self, url: str, headers: Mapping[str, str]) -> float:
        """What earlier uploads left to be written is written first."""
        await asyncio.to_thread(os.sync)
        return await self.send(self.source, url, headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    sink: list[float]
    worker: list[float]
    before: int
    peak: int
    late: list[float]


async def files(size: int | None = None, *, rounds: int = ROUNDS, send: "Send | None" = None) -> Table:
    """The rounds of the two are interleaved, so that both meet the same moods of the disk."""
    with tempfile.TemporaryDirectory(prefix="corral-bench-") as name:
        folder = Path(name)
        bounded = min(size or SIZE, shutil.disk_usage(folder).free // 5)
        say(f"files: writing {bounded / MEGABYTE:,.0f} MB to send")
        digest = await asyncio.to_thread(_make_source, folder / "source", bounded)
        upload = Upload(source=folder / "source", size=bounded, digest=digest, send=send or curl)
        measured = await _measure(folder, upload, rounds)
    return Table(
        title=f"Receiving a file of {bounded / MEGABYTE:,.0f} MB",
        rows=_rows(measured, bounded),
        notes=[f"{rounds} rounds each, interleaved, with sync before each; the sink neither hashes nor checks."],
    )


def _rows(measured: Measured, size: int) -> list[Row]:
    sink, worker = median(measured.sink), median(measured.worker)
    growth = (measured.peak - measured.before) / MEGABYTE
    return [
        figure("curl -T into a bare sink", size / sink / MEGABYTE, "MB/s"),
        figure("curl -T into a worker", size / worker / MEGABYTE, "MB/s"),
        figure("time of the worker against the sink", worker / sink, "×", at_most=SLOWEST),
        figure("memory of the worker before", measured.before / MEGABYTE, "MB"),
        figure("memory of the worker, most it grew", growth, "MB", at_most=MOST_GROWTH),
        figure("heartbeats meanwhile: late, p50", percentile(measured.late, 0.5), "ms"),
        figure("heartbeats meanwhile: late, p99", percentile(measured.late, 0.99), "ms", at_most=MOST_LATE),
    ]


def _make_source(path: Path, size: int) -> str:
    block, digest = os.urandom(min(_BLOCK, size)), hashlib.sha256()
    with path.open("wb") as file:
        while (left := size - file.tell()) > 0:
            file.write(block[:left])
            digest.update(block[:left])
    return digest.hexdigest()


async def _measure(folder: Path, upload: Upload, rounds: int) -> Measured:
    frontend, received = Frontend(), folder / "models" / "received"
    sink: list[float] = []
    worker: list[float] = []
    async with _sink(folder / "sunk") as sink_port, _worker(folder, frontend) as (process, port):
        before = memory_of(process.pid).resident
        for number in range(rounds):
            say(f"files: round {number + 1} of {rounds}")
            sink.append(await upload.to(f"http://{HOST}:{sink_port}/", {}))
            (folder / "sunk").unlink()
            worker.append(await upload.to(f"http://{HOST}:{port}/v1/files/models/received", upload.headers))
            received.unlink()
        peak = memory_of(process.pid).peak
    return Measured(sink=sink, worker=worker, before=before, peak=peak, late=frontend.lateness())


async def curl(source: Path, url: str, headers: Mapping[str, str]) -> float:
    options = [word for name, value in headers.items() for word in ("-H", f"{name}: {value}")]
    command = ["curl", "-sS", "--fail", "-o", os.devnull, "-w", "%{time_total}", *options, "-T", str(source), url]
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    output, errors = await process.communicate()
    if process.returncode != 0:
        raise ChildFailed(f"curl failed: {errors.decode().strip()}")
    return float(output)


@asynccontextmanager
async def _sink(file: Path) -> AsyncIterator[int]:
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "bench.file_sink", str(file), stdout=PIPE)
    try:
        if process.stdout is None:
            raise ChildFailed("the sink says nothing")
        yield int(await process.stdout.readline())
    finally:
        process.kill()
        await process.communicate()


@asynccontextmanager
async def _worker(folder: Path, frontend: Frontend) -> AsyncIterator[tuple[Process, int]]:
    """A whole worker with a frontend that only listens, and without NATS."""
    runner = web.ServerRunner(web.Server(frontend.answer, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, HOST, 0).start()
    base = lasting_port()
    settings = {
        "CORRAL_REGISTER_TO": f"http://{HOST}:{runner.addresses[0][1]}",
        "CORRAL_REGISTRATION_TOKEN": _TOKEN,
        "CORRAL_NATS_URL": f"nats://{HOST}:1",
        "CORRAL_DATA": str(folder / "data"),
        "CORRAL_MODELS_PATH": str(folder / "models"),
        "CORRAL_ADDRESS": f"{HOST}:{base}",
        "CORRAL_HTTP_ADDRESS": f"{HOST}:{base - 1}",
        "CORRAL_HEARTBEAT_INTERVAL": f"{INTERVAL_SECONDS * 1000:.0f}ms",
    }
    command = Command(argv=corral("worker"), env=environment(settings), output=Output.TAIL)
    try:
        async with start_process(command) as process:
            await _until_beating(frontend, process)
            yield process, base - 1
            process.terminate()
            await process.wait()
    finally:
        await runner.cleanup()


async def _until_beating(frontend: Frontend, process: Process) -> None:
    deadline = time.monotonic() + 60
    while len(frontend.came) < 3:
        if process.returncode is not None or time.monotonic() > deadline:
            raise ChildFailed("the worker does not beat:\n" + "\n".join(process.tail))
        await asyncio.sleep(INTERVAL_SECONDS)
