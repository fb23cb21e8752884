"""Real adapter processes for tests: one alone, or the keeper of one as a worker has it."""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from corral.base.clock import Clock
from corral.base.processes import ChildCommand, ChildProcess, Output, start_process
from corral.rpc.adapter_keeper import AdapterConfig, Adapters
from corral.rpc.adapter_link import AdapterLink, PassFile
from corral.worker.membership.addresses import HostPort
from corral.worker.processes.adapters import AdapterCommand, AdapterProcesses
from corral.worker.processes.ports import Ports


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningAdapter:
    """A ready adapter process without replicas."""

    process: ChildProcess
    link: AdapterLink
    url: str


def adapter_command(descriptor: int, place: HostPort, **variables: str) -> ChildCommand:
    return ChildCommand(
        argv=[sys.executable, "-m", "corral.processes.adapter", "--orders", str(descriptor), "--listen", str(place)],
        env={"PATH": os.defpath, **variables},
        handed_over=[descriptor],
        output=Output.TAIL,
    )


def adapters_on(
    ports: Ports, clock: Clock, config: AdapterConfig | None = None, *, command: AdapterCommand = adapter_command
) -> Adapters:
    """Return an adapter keeper. It starts no process before it is entered and a replica needs one."""
    config = config or AdapterConfig()
    source = AdapterProcesses(bind_host="127.0.0.1", command=command, ports=ports, config=config)
    return Adapters(source, clock, config)


@asynccontextmanager
async def running_adapter(on_file: PassFile | None = None, **variables: str) -> AsyncIterator[RunningAdapter]:
    link = AdapterLink.open(on_file)
    command = adapter_command(link.descriptor, HostPort("127.0.0.1", 0), **variables)
    async with start_process(command) as process, link:
        listening = await link.listening()
        yield RunningAdapter(process=process, link=link, url=f"http://{listening.host}:{listening.port}")
