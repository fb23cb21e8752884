"""Measures Corral on this machine and prints tables; ends with 1 when a goal of the design is missed.

Without a name it runs what `make bench` is for: `heartbeats` and `start`. The others run only when they are named:
`frameworks` installs things of its own under `.build`; `files`, `staging`, `images` and `download` write gigabytes.
With `--tree` this tree is compared with another one: `gateway` and `engines` serve both at once, the other benches run
whole, five times in each tree by turns.
"""

import argparse
import asyncio
import functools
import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from bench import (
    against,
    downloads,
    engines,
    estimates,
    fanout,
    files,
    fleet,
    frameworks,
    gateway,
    idle,
    images,
    images_streams,
    joins,
    live,
    page,
    peers,
    placement,
    questions,
    readings,
    staging,
    turns,
    warm,
)
from bench import run as running
from bench import start as starting
from bench import worker as one_worker
from bench.report import Table, as_document, as_text

Bench = Callable[[float | None], Awaitable[list[Table]]]

FRAMEWORK_SECONDS: Final = 3.0


async def _heartbeats(seconds: float | None) -> list[Table]:
    return await fleet.heartbeats(fleet.Scale() if seconds is None else fleet.Scale(seconds=seconds))


async def _start(_: float | None) -> list[Table]:
    return [await starting.start()]


async def _joins(_: float | None) -> list[Table]:
    return [await joins.joins()]


async def _fanout(_: float | None) -> list[Table]:
    return await fanout.fanout(fanout.Scale())


async def _placement(_: float | None) -> list[Table]:
    return await placement.placement(placement.Scale())


async def _idle(seconds: float | None) -> list[Table]:
    return await idle.idle(idle.Scale() if seconds is None else idle.Scale(seconds=seconds))


async def _live(seconds: float | None) -> list[Table]:
    return await live.live(live.Scale() if seconds is None else live.Scale(seconds=seconds))


async def _page(seconds: float | None) -> list[Table]:
    """`seconds` are those of frames with 1,000 nodes: 600 show what a page holds that is never closed."""
    usual = page.Scale()
    if seconds is None:
        return await page.page(usual)
    idle, most = min(seconds, usual.idle_seconds), min(seconds, usual.most_seconds)
    return await page.page(page.Scale(seconds=seconds, most_seconds=most, idle_seconds=idle))


async def _frameworks(seconds: float | None) -> list[Table]:
    each = seconds or FRAMEWORK_SECONDS
    return [await frameworks.frameworks(each), await frameworks.whole_control(each)]


async def _files(_: float | None, *, megabytes: int | None = None) -> list[Table]:
    return [await files.files(None if megabytes is None else megabytes * readings.MEGABYTE)]


async def _staging(_: float | None, *, megabytes: int | None = None) -> list[Table]:
    return [await staging.staging(None if megabytes is None else megabytes * readings.MEGABYTE)]


async def _peers(_: float | None, *, megabytes: int | None = None) -> list[Table]:
    return [await peers.peers(None if megabytes is None else megabytes * readings.MEGABYTE)]


async def _download(_: float | None, *, megabytes: int | None = None) -> list[Table]:
    return await downloads.downloads(None if megabytes is None else megabytes * readings.MEGABYTE)


async def _images(seconds: float | None, *, megabytes: int | None = None) -> list[Table]:
    scale = images_streams.Scale() if seconds is None else images_streams.Scale(quiet_seconds=seconds)
    return await images.images(images.MEGABYTES if megabytes is None else megabytes, scale=scale)


BENCHES: Final[Mapping[str, Bench]] = {
    "heartbeats": _heartbeats,
    "start": _start,
    "fanout": _fanout,
    "joins": _joins,
    "idle": _idle,
    "live": _live,
    "page": _page,
    "placement": _placement,
    "frameworks": _frameworks,
    "gateway": gateway.gateway,
    "files": _files,
    "staging": _staging,
    "peers": _peers,
    "images": _images,
    "download": _download,
    "engines": engines.engines,
    "estimates": estimates.estimates,
    "warm": warm.warm,
    "worker": one_worker.worker,
    "questions": questions.questions,
    "run": running.run,
}
SIZED: Final = {"files": _files, "staging": _staging, "peers": _peers, "images": _images, "download": _download}
COMPARED: Final = {"gateway": against.gateways, "engines": against.adapters}
"""With another tree, both serving at the same time."""
UNNAMED: Final = ("heartbeats", "start")


def main(words: Sequence[str]) -> int:
    options = _parser().parse_args(words)
    unknown = [name for name in options.names if name not in BENCHES]
    if unknown:
        _parser().error(f"there is no bench {unknown[0]!r}; there are {', '.join(BENCHES)}")
    before = readings.machine()
    tables = asyncio.run(_run(options))
    machine = {**before, "load afterwards": readings.machine()["load"]}
    if options.json:
        print(json.dumps({"machine": machine, "tables": [as_document(table) for table in tables]}, indent=2))
    else:
        print(*(as_text(table) for table in tables), sep="\n\n")
        print("\n" + "; ".join(f"{name} {value}" for name, value in machine.items()))
    return 1 if any(table.missed for table in tables) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one or more of {', '.join(BENCHES)}")
    parser.add_argument("--seconds", type=float, metavar="N", help="how long to measure instead of the usual time")
    parser.add_argument(
        "--megabytes",
        type=int,
        metavar="N",
        help="size of what `files`, `staging` and `peers` send, `images` pulls and `download` fetches, instead of "
        "4000, 1074, 67, 1000 and 1000",
    )
    parser.add_argument("--tree", type=_folder, metavar="PATH", help="another checkout, with its `.venv`")
    parser.add_argument("--json", action="store_true", help="print figures for machines")
    return parser


def _folder(text: str) -> Path:
    return Path(text).resolve()


async def _run(options: argparse.Namespace) -> list[Table]:
    if options.tree is not None:
        return [table for name in options.names for table in await _compared(name, options.tree, options.seconds)]
    sized = {name: functools.partial(bench, megabytes=options.megabytes) for name, bench in SIZED.items()}
    benches: dict[str, Bench] = {**BENCHES, **sized}
    names = options.names or UNNAMED
    return [table for name in names for table in await benches[name](options.seconds)]


async def _compared(name: str, tree: Path, seconds: float | None) -> list[Table]:
    if name not in COMPARED:
        return await turns.by_turns(name, tree)
    return [await COMPARED[name](tree, against.Turns() if seconds is None else against.Turns(seconds=seconds))]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
