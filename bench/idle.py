"""`idle`: what a fleet costs its control process while nobody asks for anything.

A `corral frontend` with a gateway, nats-server and a database as people run them; simulated workers beat every ten
seconds in a process of their own. PostgreSQL writes down every statement, `BEGIN` and `COMMIT` included.
"""

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.fanout_site import Site, StatementLog, open_site
from bench.readings import MEGABYTE, ProcessorShare, resident_of
from bench.report import Row, Table, figure
from bench.say import say

DATABASES: Final = ("sqlite", "postgres")
SMALL_FLEET: Final = 2
"""The goals are for a fleet of this size."""
PROCESSOR_PERCENT: Final = 1.0
STATEMENTS_PER_SECOND: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is simulated, and how long it is watched."""

    seconds: float = 60.0
    """Two rounds of the slowest loop that asks nodes."""
    settling_seconds: float = 15.0
    """After nodes joined, before anything is counted: every node has beaten once."""
    fleets: Sequence[int] = (SMALL_FLEET, 10, 100, 1000)


async def idle(scale: Scale, databases: Sequence[str] = DATABASES) -> list[Table]:
    return [await _on(kind, scale) for kind in databases]


async def _on(kind: str, scale: Scale) -> Table:
    rows: list[Row] = []
    joined = 0
    with tempfile.TemporaryDirectory(prefix="corral-bench-") as folder:
        async with open_site(kind, Path(folder)) as site:
            if site.postgres is not None:
                site.postgres.log_statements()
            for nodes in scale.fleets:
                await site.join(nodes - joined, work_seconds=0.0)
                joined = nodes
                await asyncio.sleep(scale.settling_seconds)
                rows += await _watched(site, nodes, scale.seconds)
                say(f"idle: {kind}, " + ", ".join(f"{row['what']}: {row['measured']:.2f}" for row in rows[-3:]))
    return Table(title=f"An idle fleet, a heartbeat every 10 s per node, on {kind}", rows=rows)


async def _watched(site: Site, nodes: int, seconds: float) -> list[Row]:
    is_small = nodes <= SMALL_FLEET
    share = ProcessorShare(site.control)
    statements = None if site.postgres is None else StatementLog(site.postgres)
    await asyncio.sleep(seconds)
    used = share.percent()
    rows = [
        figure(f"{nodes:,} nodes, control", used, "% of a core", at_most=PROCESSOR_PERCENT if is_small else None),
        figure(f"{nodes:,} nodes, control", resident_of(site.control) / MEGABYTE, "MB resident"),
    ]
    if statements is not None:
        goal = STATEMENTS_PER_SECOND if is_small else None
        rows.append(figure(f"{nodes:,} nodes", statements.counts()["all"] / seconds, "statements/s", at_most=goal))
    return rows
