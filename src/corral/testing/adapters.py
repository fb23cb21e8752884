"""A real adapter process for tests."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from corral.base.processes import Command, Output, Process, start_process
from corral.rpc.adapter_link import AdapterLink


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningAdapter:
    """Ready, and told of nothing yet."""

    process: Process
    link: AdapterLink
    url: str


@asynccontextmanager
async def running_adapter() -> AsyncIterator[RunningAdapter]:
    link = AdapterLink.open()
    command = Command(
        argv=[sys.executable, "-m", "corral.app.adapter", "--orders", str(link.descriptor)],
        env={"PATH": os.defpath},
        handed_over=[link.descriptor],
        output=Output.TAIL,
    )
    async with start_process(command) as process, link:
        listening = await link.listening()
        yield RunningAdapter(process=process, link=link, url=f"http://{listening.host}:{listening.port}")
