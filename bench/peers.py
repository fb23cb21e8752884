"""`peers`: how long eight nodes take to get the same file at once, from the frontend alone and from each other as well.

Every machine has a cable of the same speed for what it sends, made of a relay in front of each node: what goes to a
node is charged to the frontend, what comes from it is charged to the node. Everything else is real: the file servers
with their tickets, the frontend with its database, operations and digests. All of it shares one process.
"""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from bench.files import make_source
from bench.readings import MEGABYTE
from bench.report import Table, figure
from bench.say import say
from corral.base.errors import ChildFailed
from corral.base.ids import NodeId
from corral.base.tasks import task_group
from corral.frontend.operations.decide.operation import OperationState
from corral.frontend.serving.staging.decide.sources import SourceKind, StagingPolicy
from corral.frontend.serving.staging.operations import StagingAsk
from corral.frontend.store.db import Database
from corral.frontend.store.migrations import upgrade
from tests.kit.bus import MemoryBus, MemoryServer
from tests.kit.clock import ManualClock
from tests.kit.file_worker import FileWorker, open_file_worker
from tests.kit.world import SECRET, World, open_world

SIZE: Final = 64 * 1024**2
NODES: Final = 8
BYTES_PER_SECOND: Final = 25 * MEGABYTE
"""Slow, so that the cables decide and not the processors that all machines share."""
AGAINST_FRONTEND: Final = 0.75
"""Times as long as without peers, at most."""
_PIECE: Final = 256 * 1024
_HOST: Final = "127.0.0.1"


@dataclass(slots=True)
class Cable:
    """Lets so many bytes pass in a second."""

    speed: float
    carried: int = 0
    _free_at: float = 0.0

    async def carry(self, count: int) -> None:
        self.carried += count
        now = time.monotonic()
        self._free_at = max(self._free_at, now) + count / self.speed
        await asyncio.sleep(self._free_at - now)


@dataclass(slots=True)
class Machine:
    """A node behind its relay."""

    worker: FileWorker
    inwards: Cable
    """That of the frontend."""
    outwards: Cable

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(_HOST, self.worker.port)
        try:
            async with task_group() as group:
                group.create_task(_pump(reader, there_writer, self.inwards), name="to the node")
                group.create_task(_pump(there_reader, writer, self.outwards), name="from the node")
        finally:
            for end in (writer, there_writer):
                end.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cable: Cable) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_PIECE):
            await cable.carry(len(data))
            writer.write(data)
            await writer.drain()
    writer.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    seconds: float
    sent_by_frontend: int


async def peers(size: int | None = None, *, nodes: int = NODES, speed: float = BYTES_PER_SECOND) -> Table:
    """One node alone, then all at once without and with peers."""
    size = size or SIZE
    alone = await _staged(size, 1, speed, (SourceKind.FRONTEND,), fan_out=64)
    without = await _staged(size, nodes, speed, (SourceKind.FRONTEND,), fan_out=64)
    with_peers = await _staged(size, nodes, speed, (SourceKind.FRONTEND, SourceKind.PEERS), fan_out=2)
    ratio = with_peers.seconds / without.seconds
    return Table(
        title=f"A file of {size / MEGABYTE:,.0f} MB for {nodes} nodes, over cables of {speed / MEGABYTE:,.0f} MB/s",
        rows=[
            figure("one node", alone.seconds, "s"),
            figure(f"{nodes} nodes from the frontend alone", without.seconds, "s"),
            figure(f"{nodes} nodes from each other as well", with_peers.seconds, "s"),
            figure("with peers against without", ratio, "×", at_most=AGAINST_FRONTEND),
            figure("files over the frontend's cable without peers", without.sent_by_frontend / size, "×"),
            figure("files over the frontend's cable with peers", with_peers.sent_by_frontend / size, "×"),
        ],
        notes=["All machines are one process, whose processors hash and copy for all of them."],
    )


async def _staged(size: int, count: int, speed: float, order: tuple[SourceKind, ...], *, fan_out: int) -> Outcome:
    say(f"peers: {count} nodes, from {' and '.join(order)}")
    with tempfile.TemporaryDirectory(prefix="corral-bench-") as name:
        folder = Path(name)
        policy = replace(StagingPolicy(), order=order, fan_out=fan_out, least_bytes=1, reserve_bytes=0)
        async with _opened(folder, policy) as world, AsyncExitStack() as stack:
            await asyncio.to_thread(make_source, world.models / "small.gguf", size)
            cable = Cable(speed)
            ids = [await _node(world, stack, folder, f"n{number}", cable) for number in range(count)]
            began = time.perf_counter()
            context = world.control.context
            operation = await context.serving.stagings.start(StagingAsk(model="small", nodes=tuple(ids), by="bench"))
            await context.operations.dispatcher.tick()
            seconds = time.perf_counter() - began
            if (await context.operations.service.get(operation.id)).state is not OperationState.DONE:
                raise ChildFailed("the files did not reach all nodes")
    return Outcome(seconds=seconds, sent_by_frontend=cable.carried)


@asynccontextmanager
async def _opened(folder: Path, policy: StagingPolicy) -> AsyncIterator[World]:
    database = await Database.open(f"sqlite:///{folder / 'bench.db'}")
    try:
        await upgrade(database)
        clock = ManualClock(datetime.now(UTC))
        async with (
            MemoryBus(MemoryServer()) as bus,
            open_world(database, clock, bus, folder, staging=policy) as world,
        ):
            yield world
    finally:
        await database.close()


async def _node(world: World, stack: AsyncExitStack, folder: Path, name: str, frontend: Cable) -> NodeId:
    worker = await stack.enter_async_context(
        open_file_worker(folder / "nodes" / name, secret=SECRET + name, clock=world.clock)
    )
    machine = Machine(worker, inwards=frontend, outwards=Cable(frontend.speed))
    server = await asyncio.start_server(machine.serve, _HOST, 0, limit=2 * _PIECE)
    stack.push_async_callback(_closed, server)
    port = server.sockets[0].getsockname()[1]
    fake = await world.node(name, http_address=f"{_HOST}:{port}")
    worker.node_id = fake.id
    return fake.id


async def _closed(server: asyncio.Server) -> None:
    server.close()
    await asyncio.sleep(0)
