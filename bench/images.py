"""`images`: how long a node needs to pull and unpack a backend, against skopeo and tar where these are installed; what
a cut connection costs; and what open streams notice of an install on their node.

The image comes from a real registry on loopback. Pulls have the settings that every worker has by default. Skopeo
fetches, tar unpacks; both take turns with us and stand as far behind other programs as we do, so that a busy machine is
busy for all.
"""

import asyncio
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

from bench.images_cut import cut_and_resumed
from bench.images_streams import Scale, beside_streams
from bench.pulls import not_durable, own_folder, pull_and_forget
from bench.readings import MEGABYTE
from bench.report import Row, Table, at_least, figure
from bench.sample_image import SampleImage, push_sample
from bench.say import say
from corral.base.errors import ChildFailed
from corral.oci.config import ImagesConfig
from corral.processes.reporting import step_back
from tests.kit.docker_registry import DockerRegistry

MEGABYTES: Final = 1000
ROUNDS: Final = 3
_ROOM: Final = 6
"""Times the size of the image: in the registry, fetched, unpacked, and some to spare."""


async def images(megabytes: int = MEGABYTES, *, rounds: int = ROUNDS, scale: Scale | None = None) -> list[Table]:
    """`megabytes` of compressed layers."""
    with tempfile.TemporaryDirectory(prefix="corral-bench-") as name, DockerRegistry() as registry:
        folder = Path(name)
        _need_room(folder, megabytes)
        say(f"images: making {megabytes} MB")
        image = await push_sample(registry, megabytes)
        return [
            await against_skopeo(image, folder, rounds),
            await cut_and_resumed(image, registry.address, folder / "cut"),
            await beside_streams(image, folder / "fleet", scale),
        ]


def _need_room(folder: Path, megabytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < _ROOM * megabytes * MEGABYTE:
        needed, there = f"{_ROOM * megabytes:,} MB", f"{free / MEGABYTE:,.0f} MB"
        raise ChildFailed(f"{folder.parent} has {there} free, and {needed} are needed: use --megabytes or TMPDIR")


@dataclass(slots=True)
class _Times:
    """Seconds of every round; those that are safe end when all is on the disk."""

    ours: list[float] = field(default_factory=list)
    ours_safe: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    theirs_safe: list[float] = field(default_factory=list)
    peaks: list[int] = field(default_factory=list)


async def against_skopeo(image: SampleImage, folder: Path, rounds: int) -> Table:
    times = _Times()
    has_skopeo = shutil.which("skopeo") is not None
    for number in range(rounds):
        say(f"images: round {number + 1} of {rounds}")
        safe = await pull_and_forget(image.reference, folder / "safe")
        times.ours_safe.append(safe.seconds)
        times.peaks.append(safe.peak)
        times.ours.append((await pull_and_forget(image.reference, folder / "ours", not_durable)).seconds)
        if has_skopeo:
            unpacked, safe_after = await _skopeo(image.reference, folder / "skopeo")
            times.theirs.append(unpacked)
            times.theirs_safe.append(safe_after)
    config = ImagesConfig()
    notes = [
        f"Medians of {rounds} rounds in turns, with a niceness of {config.niceness} for all of them and "
        f"{config.parallel} layers at a time.",
        *([] if has_skopeo else ["Without skopeo, which is not installed: nothing to compare with."]),
    ]
    return Table(title="Pulling and unpacking an image", rows=_rows(image, times), notes=notes)


def _rows(image: SampleImage, times: _Times) -> list[Row]:
    return [
        figure("compressed", image.size / MEGABYTE, "MB"),
        figure("unpacked", image.unpacked / MEGABYTE, "MB"),
        figure("pull and unpack", median(times.ours), "s"),
        figure("the same, until it is on the disk", median(times.ours_safe), "s"),
        figure("unpacked per second", image.unpacked / MEGABYTE / median(times.ours), "MB/s"),
        figure("puller, most memory", max(times.peaks) / MEGABYTE, "MB"),
        *(_against(times) if times.theirs else []),
    ]


def _against(times: _Times) -> list[Row]:
    def ratio(theirs: Sequence[float], ours: Sequence[float]) -> float:
        return median(theirs) / median(ours)

    return [
        figure("skopeo copy and tar", median(times.theirs), "s"),
        figure("the same and sync", median(times.theirs_safe), "s"),
        at_least("speed against skopeo and tar", ratio(times.theirs, times.ours), 1.0),
        at_least("speed until it is on the disk", ratio(times.theirs_safe, times.ours_safe), 1.0),
    ]


async def _skopeo(reference: str, folder: Path) -> tuple[float, float]:
    """Into a directory of files, which tar unpacks; seconds until then, and until all is on the disk."""
    with own_folder(folder), own_folder(folder / "target"):
        copied = folder / "image"
        began = time.monotonic()
        source = f"docker://{reference}"
        await _run("skopeo", "--insecure-policy", "copy", "--quiet", "--src-tls-verify=false", source, f"dir:{copied}")
        for layer in copied.iterdir():
            if _is_gzip(layer):
                await _run("tar", "-C", str(folder / "target"), "-xzf", str(layer))
        unpacked = time.monotonic() - began
        await _run("sync", "-f", str(folder / "target"))
        return unpacked, time.monotonic() - began


async def _run(*words: str) -> None:
    niceness = ImagesConfig().niceness
    back: Callable[[], None] = lambda: step_back(niceness)  # noqa: E731 - between fork and exec
    process = await asyncio.create_subprocess_exec(
        *words, stdout=subprocess.DEVNULL, preexec_fn=back, start_new_session=True
    )
    try:
        if await process.wait() != 0:
            raise ChildFailed(f"{words[0]} failed")
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise


def _is_gzip(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(2) == b"\x1f\x8b"
