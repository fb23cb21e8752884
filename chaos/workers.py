"""Workers that exist only as their messages, in a process of their own: they outlive every frontend.

Whoever starts the process (`Workers`) writes one command per line to its standard input and reads one answer per line.
It ends with its input. While the workers are *wild* they do all that workers do wrong, by a seed: they die in the
middle of an install, go away, freeze, lie, answer twice, late or never. What happened to each disk is in its journal.
"""

import asyncio
import logging
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Self, TypeAlias

import aiohttp
import msgspec

from chaos.simulated_worker import Mishaps, Worker
from corral.base.tasks import end_tasks, start_task, task_group
from corral.bus.client import NatsBus
from corral.bus.config import BusConfig
from corral.bus.port import Bus
from tests.kit.simulated_backends import DiskWrite, Faults
from tests.kit.simulated_node import SimulatedIdentity, SimulatedNode

_ROOT: Final = Path(__file__).parents[1]
_MOST_IN_A_LINE: Final = 64 * 1024 * 1024


class Surroundings(msgspec.Struct, kw_only=True):
    """Where the workers go, and who they are; the first line of the input."""

    frontend_urls: list[str]
    registration_token: str
    nats_url: str
    interval_seconds: float
    corral: list[str]
    """Names of those that are Corral's."""
    localai: list[str]


class Join(msgspec.Struct, kw_only=True, tag="join"):
    """Register, listen, and beat from then on."""


class Wild(msgspec.Struct, kw_only=True, tag="wild"):
    """Begin to do things wrong."""

    seed: int
    late_seconds: float
    """What a slow one takes."""
    loses_answers: bool


class Tame(msgspec.Struct, kw_only=True, tag="tame"):
    """Everybody is there, quick and honest from now on."""


class Leave(msgspec.Struct, kw_only=True, tag="leave"):
    """Be off until `Return`."""

    names: list[str]


class Return(msgspec.Struct, kw_only=True, tag="return"):
    """Be there again; answered when the first heartbeat was."""

    names: list[str]


class Behave(msgspec.Struct, kw_only=True, tag="behave"):
    """How these treat requests from now on."""

    names: list[str]
    work_seconds: float = 0.0
    silent: bool = False
    """Never answer."""


class Look(msgspec.Struct, kw_only=True, tag="look"):
    """Only tell."""


Command: TypeAlias = Join | Wild | Tame | Leave | Return | Behave | Look


class WorkerState(msgspec.Struct, kw_only=True):
    """The truth about one worker."""

    name: str
    node_id: str
    is_corral: bool
    disk: dict[str, str]
    """Where each backend comes from."""
    journal: list[DiskWrite]
    requests: list[tuple[str, dict[str, object]]]
    returned_at: datetime | None
    """When its heartbeat was answered after it had been away."""


class _Crowd:
    """All workers of the process."""

    def __init__(self, surroundings: Surroundings, stack: AsyncExitStack, workers: Sequence[Worker]) -> None:
        self._surroundings = surroundings
        self._stack = stack
        self._workers = workers
        self._mishaps: Mishaps | None = None
        self._wild: asyncio.Task[None] | None = None

    async def obey(self, command: Command) -> None:
        match command:
            case Join():
                await self._join()
            case Wild():
                self._mishaps = Mishaps(
                    self._workers,
                    seed=command.seed,
                    late_seconds=command.late_seconds,
                    loses_answers=command.loses_answers,
                )
                self._wild = start_task(self._mishaps.run(), name="mishaps")
            case Tame():
                await self._tame()
            case Leave(names=names):
                await self._each(names, Worker.leave)
            case Return(names=names):
                await self._each(names, Worker.come_back)
            case Behave(names=names):
                faults = Faults(silent=command.silent)
                await self._each(names, lambda worker: worker.behave(faults, work_seconds=command.work_seconds))
            case Look():
                pass

    def states(self) -> list[WorkerState]:
        return [_state(one) for one in self._workers]

    async def _join(self) -> None:
        async with task_group() as group:
            for worker in self._workers:
                group.create_task(worker.join())
        for worker in self._workers:
            life = start_task(worker.live(self._surroundings.interval_seconds), name=f"life of {worker.name}")
            self._stack.push_async_callback(end_tasks, life)

    async def _tame(self) -> None:
        if self._mishaps is not None and self._wild is not None:
            self._mishaps.end()
            await self._wild
        for worker in self._workers:
            await worker.behave(Faults(), work_seconds=0.0)

    async def _each(self, names: Sequence[str], do: Callable[[Worker], Awaitable[None]]) -> None:
        for worker in self._workers:
            if worker.name in names:
                await do(worker)


def _state(worker: Worker) -> WorkerState:
    backends = worker.backends
    return WorkerState(
        name=worker.name,
        node_id=backends.node_id,
        is_corral=backends.is_corral,
        disk={name: entry.uri for name, entry in backends.disk.items()},
        journal=backends.journal,
        requests=[(verb, msgspec.to_builtins(request)) for verb, request in backends.requests],
        returned_at=worker.returned_at,
    )


def _workers(surroundings: Surroundings, session: aiohttp.ClientSession, bus: Bus) -> Iterator[Worker]:
    urls = surroundings.frontend_urls
    for name in [*surroundings.corral, *surroundings.localai]:
        is_corral = name in surroundings.corral
        node = SimulatedNode(
            session,
            urls[0],
            surroundings.registration_token,
            name,
            timedelta(seconds=surroundings.interval_seconds),
            identity=SimulatedIdentity() if is_corral else SimulatedIdentity(secret=""),
        )
        yield Worker(node, urls, bus, is_corral=is_corral)


async def simulate() -> None:
    """The life of the process: until its input ends."""
    reader = asyncio.StreamReader(limit=_MOST_IN_A_LINE)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    surroundings = msgspec.json.decode(await reader.readline(), type=Surroundings)
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        bus = await stack.enter_async_context(NatsBus(BusConfig(url=surroundings.nats_url)))
        crowd = _Crowd(surroundings, stack, list(_workers(surroundings, session, bus)))
        while line := await reader.readline():
            await crowd.obey(msgspec.json.decode(line, type=Command))
            sys.stdout.buffer.write(msgspec.json.encode(crowd.states()) + b"\n")
            sys.stdout.buffer.flush()


class Workers:
    """The process as its parent sees it. Use it as a context manager."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._surroundings = surroundings
        self._process: Process | None = None

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            __name__,
            stdin=PIPE,
            stdout=PIPE,
            limit=_MOST_IN_A_LINE,
            cwd=_ROOT,
            env={"PATH": os.environ.get("PATH", os.defpath)},
        )
        self._write(self._surroundings)
        return self

    async def __aexit__(self, *_: object) -> None:
        process = self._running
        if process.stdin is not None:
            process.stdin.close()
        await process.wait()

    async def do(self, command: Command) -> dict[str, WorkerState]:
        """Returns when it is done, with how all workers are then, by name."""
        self._write(command)
        reader = self._running.stdout
        line = await reader.readline() if reader is not None else b""
        if not line:
            raise AssertionError("the simulated workers ended; why is on standard error")
        return {one.name: one for one in msgspec.json.decode(line, type=list[WorkerState])}

    def _write(self, line: msgspec.Struct) -> None:
        writer = self._running.stdin
        if writer is None:
            raise RuntimeError("the simulated workers were started without pipes")
        writer.write(msgspec.json.encode(line) + b"\n")

    @property
    def _running(self) -> Process:
        if self._process is None:
            raise RuntimeError("the simulated workers were not started")
        return self._process


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)  # what goes wrong here is meant to
    asyncio.run(simulate())
