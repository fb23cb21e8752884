"""Part of `download`: what open streams notice of a model that is downloaded on their machine.

A whole fleet with one worker serves `echo`; a model of a gigabyte is pulled as an administrator asks for it, with the
settings that every frontend has by default.
"""

import asyncio
import math
import time
from pathlib import Path
from typing import Final

import aiohttp

from bench.gaps import Gaps, Window, open_streams
from bench.images_streams import QUIET_SECONDS, STREAMS, TOKENS_PER_SECOND, Scale, serving_fleet, streams_of
from bench.pulls import own_folder
from bench.readings import MEGABYTE
from bench.report import Row, Table, figure, percentile
from corral.base.errors import ChildFailed
from corral.processes.up_file import UpFile

GROWTH_MILLISECONDS: Final = 20
_LOOK_SECONDS: Final = 0.1


async def beside_streams(url: str, size: int, folder: Path) -> Table:
    """Pull the GGUF file behind `url`. `folder` is there meanwhile only."""
    with own_folder(folder):
        async with serving_fleet(folder) as (up, _), open_streams(streams_of(up, Scale())) as streams:
            quiet = await _listen()
            pulling = await _pull(up, url)
            gaps = await streams.end()
    title = f"{STREAMS} streams of {TOKENS_PER_SECOND} tokens/s while {size / MEGABYTE:,.0f} MB are pulled"
    return Table(title=title, rows=_rows(gaps, quiet, pulling))


async def _listen() -> Window:
    began = time.monotonic()
    await asyncio.sleep(QUIET_SECONDS)
    return Window(began=began, ended=time.monotonic())


async def _pull(up: UpFile, url: str) -> Window:
    headers = {"Authorization": f"Bearer {up.keys.admin}"}
    began = time.monotonic()
    async with aiohttp.ClientSession(up.url, headers=headers) as session:
        async with session.post("/api/v1/pulls", json={"reference": url}) as answer:
            operation = await answer.json()
            if answer.status != 202:
                raise ChildFailed(f"the pull was refused: {operation}")
        while operation["state"] == "running":
            await asyncio.sleep(_LOOK_SECONDS)
            async with session.get(f"/api/v1/operations/{operation['id']}", raise_for_status=True) as answer:
                operation = await answer.json()
    if operation["state"] != "done":
        raise ChildFailed(f"the pull ended as {operation['state']}: {operation['targets']}")
    return Window(began=began, ended=time.monotonic())


def _rows(gaps: Gaps, quiet_window: Window, pulling_window: Window) -> list[Row]:
    quiet, pulling = gaps.within([quiet_window]), gaps.within([pulling_window])
    growth = percentile(pulling, 0.99) - percentile(quiet, 0.99)
    return [
        figure("between two tokens before, p99", percentile(quiet, 0.99), "ms"),
        figure("between two tokens meanwhile, p50", percentile(pulling, 0.5), "ms"),
        figure("between two tokens meanwhile, p99", percentile(pulling, 0.99), "ms"),
        figure("growth of p99", growth, "ms", at_most=GROWTH_MILLISECONDS),
        figure("longest meanwhile", max(pulling, default=math.nan), "ms"),
        figure("streams that broke", gaps.broken, "", at_most=0),
        figure("the pull, from the question to its proof", pulling_window.ended - pulling_window.began, "s"),
    ]
