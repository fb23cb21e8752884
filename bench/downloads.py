"""`download`: how fast the file of a model comes over loopback from nginx, against `curl` and `aria2c -x8`.

Corral's figure is that of a whole order: a new process, a digest that is checked, and a file that is safe on disk when
it appears under its name. The others only write; how long they take with `sha256sum` and `sync` is told beside.
"""

import asyncio
import hashlib
import os
import shutil
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from bench.download_streams import beside_streams
from bench.readings import MEGABYTE
from bench.report import Row, Table, at_least, figure
from bench.say import say
from corral.base.errors import ChildFailed
from corral.hubs.downloads.downloader import Downloader
from corral.hubs.downloads.orders import DownloadLimits, DownloadOrder, FileOrder
from tests.kit.gguf import LLAMA, gguf
from tests.kit.nginx import nginx_serving

SIZE: Final = 1_000_000_000
ROUNDS: Final = 5
AGAINST_CURL: Final = 1.0
AGAINST_ARIA2: Final = 0.9
_NAME: Final = "model.gguf"
_BLOCK: Final = 64_000_000
_GIGABYTE: Final = 1000 * MEGABYTE


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What is downloaded."""

    url: str
    size: int
    sha256: str


@dataclass(slots=True, kw_only=True)
class DownloadContender:
    """One that downloads the file into a folder, and what it took each time."""

    name: str
    fetch: Callable[[Offer, Path], Awaitable[int]]
    """Returns its peak memory in bytes; 0: unknown."""
    seconds: list[float] = field(default_factory=list)
    proven: list[float] = field(default_factory=list)
    """Seconds until the file is hashed and on disk."""
    processor: list[float] = field(default_factory=list)
    peak: int = 0

    async def take(self, offer: Offer, folder: Path) -> None:
        await asyncio.to_thread(folder.mkdir)
        try:
            await asyncio.to_thread(os.sync)
            before, began = _ended_children_seconds(), time.perf_counter()
            self.peak = max(self.peak, await self.fetch(offer, folder))
            self.seconds.append(time.perf_counter() - began)
            self.processor.append(_ended_children_seconds() - before)
            if self.name != "Corral":
                await _run("sha256sum", str(folder / _NAME))
                await _run("sync", str(folder / _NAME))
            self.proven.append(time.perf_counter() - began)
            if os.stat(folder / _NAME).st_size != offer.size:
                raise ChildFailed(f"{self.name} left another file than it was offered")
        finally:
            await asyncio.to_thread(shutil.rmtree, folder)


def _ended_children_seconds() -> float:
    used = os.times()
    return used.children_user + used.children_system


async def _run(*command: str) -> int:
    """Returns the peak memory of the command in bytes."""
    script = "import resource, subprocess, sys; code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL);"
    script += "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(code)"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-S", "-c", script, *command), stdin=DEVNULL, stdout=PIPE
    )
    output, _ = await process.communicate()
    if process.returncode != 0:
        raise ChildFailed(f"{command[0]} failed")
    return 1024 * int(output)


async def by_curl(offer: Offer, folder: Path) -> int:
    return await _run("curl", "-sS", "--fail", "-o", str(folder / _NAME), offer.url)


async def by_aria2(offer: Offer, folder: Path) -> int:
    return await _run("aria2c", "-q", "-x8", "-s8", "-d", str(folder), "-o", _NAME, offer.url)


async def by_corral(offer: Offer, folder: Path) -> int:
    """As the frontend has it done, but for the low priority: the others have none."""
    file = FileOrder(url=offer.url, destination=_NAME, size=offer.size, digest=f"sha256:{offer.sha256}")
    order = DownloadOrder(files=(file,), directory=str(folder), limits=DownloadLimits(free_bytes=0), niceness=0)
    async with Downloader(order, environment={"PATH": os.defpath}) as downloader:
        peak = 0
        async for _ in downloader.progress():
            peak = max(peak, _peak_of(downloader.pid))
        await downloader.result()
    return peak


def _peak_of(pid: int | None) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0  # it has just ended
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


PEERS: Final[Mapping[str, Callable[[Offer, Path], Awaitable[int]]]] = {"curl": by_curl, "aria2c -x8": by_aria2}


def _is_here(name: str) -> bool:
    return shutil.which(name.split()[0]) is not None


async def downloads(size: int | None = None, *, rounds: int = ROUNDS, beside: bool = True) -> list[Table]:
    """The rounds are interleaved, so that all meet the same moods of the machine. `beside`: also beside streams."""
    contenders = [DownloadContender(name="Corral", fetch=by_corral)]
    contenders += [DownloadContender(name=name, fetch=fetch) for name, fetch in PEERS.items() if _is_here(name)]
    with tempfile.TemporaryDirectory(prefix="corral-bench-") as name:
        folder = Path(name)
        (folder / "served").mkdir()
        (folder / "nginx").mkdir()
        bounded = min(size or SIZE, shutil.disk_usage(folder).free // 4)
        say(f"download: writing {bounded / MEGABYTE:,.0f} MB to serve")
        sha256 = await asyncio.to_thread(_make_served, folder / "served" / _NAME, bounded)
        async with nginx_serving(folder / "served", folder / "nginx") as port:
            offer = Offer(url=f"http://127.0.0.1:{port}/{_NAME}", size=bounded, sha256=sha256)
            for number in range(rounds):
                say(f"download: round {number + 1} of {rounds}")
                turn = number % len(contenders)
                for contender in contenders[turn:] + contenders[:turn]:
                    await contender.take(offer, folder / "fetched")
            if beside:
                say("download: beside streams")
            tables = [await beside_streams(offer.url, bounded, folder / "fleet")] if beside else []
    notes = [
        f"{rounds} rounds each, in turns, with sync before each; nginx shares the processors.",
        "Corral's time includes a new process, the hash, and a file that is safe on disk; the others only write.",
        *(f"There is no {name.split()[0]} on this machine." for name in PEERS if not _is_here(name)),
    ]
    title = f"Downloading a file of {bounded / MEGABYTE:,.0f} MB from nginx over loopback"
    return [Table(title=title, rows=_rows(contenders, bounded), notes=notes), *tables]


def _rows(contenders: list[DownloadContender], size: int) -> list[Row]:
    corral, *others = contenders
    took, goals = median(corral.seconds), {"curl": AGAINST_CURL, "aria2c -x8": AGAINST_ARIA2}
    return [
        *(figure(f"{one.name}", size / median(one.seconds) / MEGABYTE, "MB/s") for one in contenders),
        *(at_least(f"speed against {one.name}", median(one.seconds) / took, goals[one.name]) for one in others),
        *(figure(f"against {one.name}, sha256sum, sync", median(one.proven) / took, "×") for one in others),
        *(
            figure(f"processor time of {one.name}", median(one.processor) / size * _GIGABYTE, "s/GB")
            for one in contenders
        ),
        *(figure(f"memory of {one.name}", one.peak / MEGABYTE, "MB") for one in contenders),
    ]


def _make_served(path: Path, size: int) -> str:
    block, digest = os.urandom(min(_BLOCK, size)), hashlib.sha256()
    with path.open("wb") as file:
        head = gguf(**LLAMA)  # so that it can be pulled as a model
        file.write(head)
        digest.update(head)
        while (left := size - file.tell()) > 0:
            file.write(block[:left])
            digest.update(block[:left])
    return digest.hexdigest()
