"""`heartbeats`: what a thousand nodes cost the control process, and how long lists take meanwhile.

Real processes of `corral up` on SQLite and on PostgreSQL; simulated nodes in a process of their own. Goals are those
of the design; memory is judged as RSS, and PSS is shown beside it.
"""

import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.readings import MEGABYTE, ProcessorShare, memory_of
from bench.report import Row, Table, figure
from bench.say import say
from bench.simulation import Beat, Join, Observe, Read, Samples, Simulation, Walk, simulation
from bench.stored_nodes import store_nodes
from bench.up import fleet, frontend_of
from corral.processes.up_file import UpFile
from tests.kit.postgres import PostgresServer

DATABASES: Final = ("sqlite", "postgres")
CONTROL_IDLE_MEGABYTES: Final = 130
CONTROL_BUSY_MEGABYTES: Final = 300
AGENT_MEGABYTES: Final = 75
LIST_MILLISECONDS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is simulated. The defaults are what the goals are about."""

    seconds: float = 60.0
    """How long heartbeats are counted."""
    nodes: int = 1000
    many_nodes: int = 10_000
    interval_seconds: float = 10.0
    reads: int = 200
    reads_per_second: float = 10.0
    settling_seconds: float = 5.0
    """What comes before idle memory is read, and then how long idle work is watched."""


async def heartbeats(scale: Scale, databases: Sequence[str] = DATABASES) -> list[Table]:
    return [await _on(database, scale) for database in databases]


async def _on(kind: str, scale: Scale) -> Table:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="corral-bench-") as folder, ExitStack() as stack:
        url = f"sqlite:///{folder}/corral.db" if kind == "sqlite" else stack.enter_context(PostgresServer()).url()
        # All simulated nodes come from here.
        settings = {"CORRAL_DATABASE": url, "CORRAL_AUTO_APPROVE": "true", "CORRAL_SOURCE_REGISTRATIONS": "0"}
        async with fleet(Path(folder), workers=1, settings=settings) as up:
            say(f"heartbeats: {kind}, at rest")
            rows += await _idle(up, scale)
            async with simulation(frontend_of(up)) as nodes:
                say(f"heartbeats: {kind}, {scale.nodes:,} nodes")
                rows += await _beating(nodes, up.pids.control, scale)
                say(f"heartbeats: {kind}, lists")
                rows += await _listing(nodes, up.pids.control, scale)
                say(f"heartbeats: {kind}, {scale.many_nodes:,} nodes")
                await store_nodes(url, scale.many_nodes - scale.nodes)
                rows += await _many(nodes, up.pids.control, scale)
    title = f"{scale.nodes:,} nodes, each with a heartbeat every {scale.interval_seconds:g} s, on {kind}"
    return Table(title=title, rows=rows, notes=["MB are 1,000,000 bytes. Memory is judged as RSS."])


async def _idle(up: UpFile, scale: Scale) -> list[Row]:
    await asyncio.sleep(scale.settling_seconds)
    share = ProcessorShare(up.pids.control)
    await asyncio.sleep(scale.settling_seconds)
    used = share.percent()
    agent, control = memory_of(up.pids.workers[0]), memory_of(up.pids.control)
    return [
        _megabytes("agent, idle: RSS", agent.resident, at_most=AGENT_MEGABYTES),
        _megabytes("agent, idle: PSS", agent.proportional),
        _megabytes("control, idle: RSS", control.resident, at_most=CONTROL_IDLE_MEGABYTES),
        _megabytes("control, idle: PSS", control.proportional),
        figure("control, idle: share of one core", used, "%"),
    ]


async def _beating(nodes: Simulation, control: int, scale: Scale) -> list[Row]:
    joined = await nodes.do(Join(count=scale.nodes, interval_seconds=scale.interval_seconds))
    await nodes.do(Beat())
    await nodes.do(Observe(seconds=min(scale.interval_seconds, scale.seconds)))
    share = ProcessorShare(control)
    beats = await nodes.do(Observe(seconds=scale.seconds))
    used = share.percent()
    return [
        figure("registrations, 8 at a time", joined.per_second, "per s"),
        figure("registrations that failed", joined.errors, "", at_most=0),
        figure("heartbeats", beats.per_second, "per s"),
        figure("heartbeats that failed", beats.errors, "", at_most=0),
        *_times("heartbeat", beats),
        figure("control: share of one core", used, "%"),
    ]


async def _listing(nodes: Simulation, control: int, scale: Scale) -> list[Row]:
    """Heartbeats go on."""
    whole = await nodes.do(Read(path="/api/nodes", count=scale.reads, per_second=scale.reads_per_second))
    page = await nodes.do(Read(path="/api/v1/nodes?limit=100", count=scale.reads, per_second=scale.reads_per_second))
    memory = memory_of(control)
    return [
        *_times(f"GET /api/nodes, all {scale.nodes:,}", whole, at_most=LIST_MILLISECONDS),
        *_times("GET /api/v1/nodes?limit=100", page, at_most=LIST_MILLISECONDS),
        figure("lists that failed", whole.errors + page.errors, "", at_most=0),
        _megabytes(f"control, {scale.nodes:,} nodes: most RSS", memory.peak, at_most=CONTROL_BUSY_MEGABYTES),
        _megabytes(f"control, {scale.nodes:,} nodes: PSS", memory.proportional),
    ]


async def _many(nodes: Simulation, control: int, scale: Scale) -> list[Row]:
    """Heartbeats of the first nodes go on."""
    fleet = f"{scale.many_nodes:,} nodes"
    pages = await nodes.do(Walk(path="/api/v1/nodes?limit=100"))
    large_pages = await nodes.do(Walk(path="/api/v1/nodes?limit=1000"))
    nothing = await nodes.do(Read(path="/api/v1/nodes?status=pending", count=scale.reads // 10, per_second=1))
    whole = await nodes.do(Read(path="/api/nodes", count=scale.reads // 20, per_second=1))
    failed = sum(samples.errors for samples in (pages, large_pages, nothing, whole))
    return [
        *_times(f"{fleet}: pages of 100", pages, at_most=LIST_MILLISECONDS),
        *_times(f"{fleet}: pages of 1,000", large_pages, at_most=LIST_MILLISECONDS),
        *_times(f"{fleet}: a filter that none fits", nothing, at_most=LIST_MILLISECONDS),
        *_times(f"{fleet}: GET /api/nodes, all", whole),
        figure(f"{fleet}: requests that failed", failed, "", at_most=0),
        _megabytes(f"control, {fleet}: most RSS", memory_of(control).peak),
    ]


def _megabytes(what: str, size: int, *, at_most: float | None = None) -> Row:
    return figure(what, size / MEGABYTE, "MB", at_most=at_most)


def _times(what: str, samples: Samples, *, at_most: float | None = None) -> list[Row]:
    """The goal is for the slowest but one in a hundred."""
    return [
        figure(f"{what}: p50", samples.p50, "ms"),
        figure(f"{what}: p99", samples.p99, "ms", at_most=at_most),
    ]
