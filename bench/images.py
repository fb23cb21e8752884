"""`images`: how long a node needs to pull and unpack a backend, against skopeo and tar where these are installed.

The image comes from a real registry on loopback: four layers, half of it incompressible, half of it text, in large and
in small files. Skopeo fetches, tar unpacks; both take turns with us, so that a busy machine is busy for all.
"""

import asyncio
import base64
import contextlib
import io
import os
import random
import shutil
import subprocess
import tarfile
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Final

from bench.readings import MEGABYTE, memory_of
from bench.report import Row, Table, at_least, figure
from bench.say import say
from corral.images.orders import PullOrder
from corral.images.platforms import this_platform
from corral.images.puller import Puller
from corral.testing.docker_registry import DockerRegistry
from corral.testing.images import gzipped

MEGABYTES: Final = 1000
ROUNDS: Final = 3
LAYERS: Final = 4
NAME: Final = "backends/bench"
_SMALL_FILE: Final = 20_000
_LARGE_FILE: Final = 8 * MEGABYTE


async def images(megabytes: int = MEGABYTES, *, rounds: int = ROUNDS) -> list[Table]:
    """`megabytes` of compressed layers."""
    with tempfile.TemporaryDirectory(prefix="corral-bench-") as name, DockerRegistry() as registry:
        folder = Path(name)
        say(f"images: making {megabytes} MB")
        size, unpacked = _push(registry, megabytes)
        ours, safe, peaks, theirs = [], [], [], []
        for number in range(rounds):
            say(f"images: round {number + 1} of {rounds}")
            seconds, peak = await _pull(registry, _made(folder / "ours"), is_durable=False)
            ours.append(seconds)
            peaks.append(peak)
            safe.append((await _pull(registry, _made(folder / "safe"), is_durable=True))[0])
            if shutil.which("skopeo"):
                theirs.append(await _skopeo(registry, folder / "skopeo"))
    rows = [
        figure("compressed", size / MEGABYTE, "MB"),
        figure("unpacked", unpacked / MEGABYTE, "MB"),
        figure("pull and unpack", median(ours), "s"),
        figure("the same, until it is on the disk", median(safe), "s"),
        figure("unpacked per second", unpacked / MEGABYTE / median(ours), "MB/s"),
        figure("puller, most memory", max(peaks) / MEGABYTE, "MB"),
        *_against(ours, theirs),
    ]
    notes = [f"Medians of {rounds} rounds in turns, with a niceness of 0."]
    return [Table(title="Pulling and unpacking an image", rows=rows, notes=notes)]


def _against(ours: list[float], theirs: list[float]) -> list[Row]:
    if not theirs:
        return []
    ratio = median(theirs) / median(ours)
    return [figure("skopeo copy and tar", median(theirs), "s"), at_least("speed against skopeo and tar", ratio, 1.0)]


def _push(registry: DockerRegistry, megabytes: int) -> tuple[int, int]:
    layers, size, unpacked = [], 0, 0
    for number in range(LAYERS):
        plain = _layer(number, megabytes * MEGABYTE // LAYERS)
        layers.append(gzipped(plain, level=1))
        size += len(layers[-1])
        unpacked += len(plain)
    registry.push_image(NAME, layers, platform=this_platform())
    return size, unpacked


def _layer(number: int, size: int) -> bytes:
    """About so many bytes when compressed: half of it random, half of it text of which a quarter is nothing new."""
    seeded = random.Random(number)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        made = 0
        while made < size:
            is_small = made < size // 10
            content = seeded.randbytes(min(_SMALL_FILE if is_small else _LARGE_FILE, size))
            half = len(content) // 2
            text = base64.encodebytes(content[half:])
            info = tarfile.TarInfo(f"layer-{number}/{made // _LARGE_FILE}/{made}")
            info.size = half + len(text)
            archive.addfile(info, io.BytesIO(content[:half] + text))
            made += len(content)
    return buffer.getvalue()


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


async def _pull(registry: DockerRegistry, folder: Path, *, is_durable: bool) -> tuple[float, int]:
    """Seconds, and the most memory that was seen."""
    order = PullOrder(
        sources=(registry.reference(NAME),),
        target=str(folder / "target"),
        cache=str(folder / "cache"),
        platform=this_platform(),
        is_durable=is_durable,
        niceness=0,
    )
    peak = 0
    began = time.monotonic()
    async with Puller(order, environment={"PATH": os.defpath}) as puller:
        async for _ in puller.progress():
            with contextlib.suppress(OSError, KeyError):
                peak = max(peak, memory_of(puller.pid or 0).peak)
        await puller.result()
    seconds = time.monotonic() - began
    await asyncio.to_thread(shutil.rmtree, folder)
    return seconds, peak


async def _skopeo(registry: DockerRegistry, folder: Path) -> float:
    """Into a directory of files, which tar unpacks in their order."""
    (folder / "target").mkdir(parents=True)
    copied = folder / "image"
    began = time.monotonic()
    source = f"docker://{registry.reference(NAME)}"
    await _run("skopeo", "--insecure-policy", "copy", "--quiet", "--src-tls-verify=false", source, f"dir:{copied}")
    for layer in sorted(copied.iterdir(), key=lambda file: file.stat().st_size):
        if _is_gzip(layer):
            await _run("tar", "-C", str(folder / "target"), "-xzf", str(layer))
    seconds = time.monotonic() - began
    await asyncio.to_thread(shutil.rmtree, folder)
    return seconds


async def _run(*words: str) -> None:
    process = await asyncio.create_subprocess_exec(*words, stdout=subprocess.DEVNULL)
    if await process.wait() != 0:
        raise RuntimeError(f"{words[0]} failed")


def _is_gzip(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(2) == b"\x1f\x8b"
