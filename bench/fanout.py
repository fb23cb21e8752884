"""`fanout`: how fast an operation reaches a hundred and a thousand nodes, what it costs, and what a kill costs it.

Wall time is from the sending of the request to the moment when the database says that the last target is proven.
Processor time is that of the control process, and means more than wall time on a machine that others use as well.
"""

import asyncio
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.fanout_site import Run, Site, StatementLog, open_site
from bench.readings import MEGABYTE, memory_of
from bench.report import Row, Table, figure
from bench.say import say
from tests.kit.simulated_fleet import Behave, LookAtNodes, NodeState, names_of

DATABASES: Final = ("postgres", "sqlite")
FEW_SECONDS: Final = 0.5
MANY_SECONDS: Final = 3.0
RECOVERY_SECONDS: Final = 10.0
CONTROL_MEGABYTES: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is simulated. The defaults are what the goals are about."""

    few: int = 100
    many: int = 1000
    hanging: int = 300
    dead: int = 50
    rounds: int = 3
    work_seconds: float = 0.1
    killed_after_seconds: float = 3.0
    slowest_seconds: float = 6.0
    """Duration of the deletes during which the frontend is killed: from a tenth of a second up to this."""


async def fanout(scale: Scale, databases: Sequence[str] = DATABASES) -> list[Table]:
    return [table for kind in databases for table in await _on(kind, scale)]


async def _on(kind: str, scale: Scale) -> list[Table]:
    with tempfile.TemporaryDirectory(prefix="corral-bench-") as folder:
        async with open_site(kind, Path(folder)) as site:
            say(f"fanout: {kind}, {scale.few} nodes")
            await site.join(scale.few, scale.work_seconds)
            runs = await _rounds(site, scale.few, scale, FEW_SECONDS)
            say(f"fanout: {kind}, killed")
            figures = await _killed(site, scale)
            say(f"fanout: {kind}, {scale.many:,} nodes")
            await site.join(scale.many - scale.few, scale.work_seconds)
            of_many = await _rounds(site, scale.many, scale, MANY_SECONDS)
            figures += await _statements(site, scale)
            say(f"fanout: {kind}, {scale.hanging} hang and {scale.dead} are dead")
            runs += [*of_many, *await _mixed(site, scale, most=_proven(of_many, "install"))]
            memory = memory_of(site.control)
            figures.append(figure("control: most RSS", memory.peak / MEGABYTE, "MB", at_most=CONTROL_MEGABYTES))
    return [
        Table(
            title=f"Operations on {scale.few:,} and {scale.many:,} nodes on {kind}, in seconds",
            rows=runs,
            notes=[
                "accepted, proven: from the request to its answer, and to the last proof in the database",
                "control, workers: processor time of the control process and of all simulated workers",
            ],
        ),
        Table(title=f"The same on {kind}, more figures", rows=figures),
    ]


async def _rounds(site: Site, count: int, scale: Scale, goal: float) -> list[Row]:
    """Install and delete in turn. The first install is reported separately, because its caches are empty."""
    rows: list[Row] = []
    for verb in ("install", "delete"):
        rows.append(_row(f"{count:,} nodes, first {verb}", (await site.run(verb, f"first-of-{count}", count=count))[0]))
    installs, deletes, backend = [], [], f"echo-of-{count}"
    for _ in range(scale.rounds):
        installs.append((await site.run("install", backend, count=count))[0])
        deletes.append((await site.run("delete", backend, count=count))[0])
    _check(await site.fleet.do(LookAtNodes()), backend, scale.rounds)
    rows.append(_row(f"{count:,} nodes, install", _median(installs), at_most=goal))
    rows.append(_row(f"{count:,} nodes, delete", _median(deletes), at_most=goal))
    return rows


def _median(runs: Sequence[Run]) -> Run:
    return sorted(runs, key=lambda run: run.proven)[len(runs) // 2]


def _row(what: str, run: Run, *, at_most: float | None = None) -> Row:
    judged = figure(what, run.proven, "s", at_most=at_most)
    return {
        "what": what,
        "accepted": run.accepted,
        "proven": run.proven,
        "goal": judged["goal"],
        "verdict": judged["verdict"],
        "control": run.processor,
        "workers": run.workers,
    }


def _check(states: Sequence[NodeState], backend: str, times: int) -> None:
    """The disks are what the frontend believes them to be, and nothing was downloaded more often than asked for."""
    for state in states:
        if backend in state.disk or state.written[backend] != times:
            raise RuntimeError(f"{state.name} has {state.disk}, and downloaded {state.written}")


async def _statements(site: Site, scale: Scale) -> list[Row]:
    if site.postgres is None:
        return []
    site.postgres.log_statements()
    log = StatementLog(site.postgres)
    await site.run("install", "counted", count=scale.many)
    counts = log.counts()
    await site.run("delete", "counted", count=scale.many)
    site.postgres.log_statements(which="none")
    return [
        figure("statements about intents, per target", counts["intents"] / scale.many, ""),
        figure("statements with all heartbeats, per target", counts["all"] / scale.many, ""),
    ]


async def _killed(site: Site, scale: Scale) -> list[Row]:
    await site.run("install", "killed", count=scale.few)
    await site.fleet.do(Behave(work_seconds=(0.1, scale.slowest_seconds)))
    operation = await site.start("delete", "killed")
    await asyncio.sleep(scale.killed_after_seconds)
    await site.frontend.kill()
    proven = await site.eye.proven(operation.id)
    began = time.monotonic()
    site.frontend.start()
    await site.until_proven(operation.id, scale.few)
    recovered = time.monotonic() - began
    states = await site.fleet.do(Behave(work_seconds=(scale.work_seconds, scale.work_seconds)))
    await site.frontend.until_ready()
    kept = sum("killed" in state.disk for state in states)
    return [
        figure("killed in a delete: proven by then", proven, "nodes"),
        figure("killed in a delete: all proven after the restart", recovered, "s", at_most=RECOVERY_SECONDS),
        figure("killed in a delete: nodes that keep the backend", kept, "", at_most=0),
    ]


def _proven(rows: Sequence[Row], verb: str) -> float:
    """How long the usual one of these took."""
    found = next(row["proven"] for row in rows if str(row["what"]).endswith(f"nodes, {verb}"))
    return float(found or 0)


async def _mixed(site: Site, scale: Scale, *, most: float) -> list[Row]:
    """Those that answer, alone, and among those that do not: they may take `most`, as long as all took without."""
    states = await site.fleet.do(LookAtNodes())
    bad = states[:: len(states) // (scale.hanging + scale.dead)][: scale.hanging + scale.dead]
    hanging, dead = bad[: scale.hanging], bad[scale.hanging :]
    ids = {one.node_id for one in states} - {one.node_id for one in bad}
    work = (scale.work_seconds, scale.work_seconds)
    await site.fleet.do(Behave(names=names_of(hanging), hangs=True, work_seconds=work))
    await site.fleet.do(Behave(names=names_of(dead), listens=False, work_seconds=work))
    alone, mixed = [], []
    for number in range(scale.rounds):
        alone.append((await site.run("install", f"alone-{number}", count=len(ids), nodes=sorted(ids)))[0])
        run, operation = await site.run("install", f"mixed-{number}", count=len(ids))
        mixed.append(run)
        await site.cancel(operation)
    what = f"{len(ids)} of {len(states):,} nodes"
    return [
        _row(f"{what}, alone", _median(alone)),
        _row(f"{what}, among {len(hanging)} that hang, {len(dead)} dead", _median(mixed), at_most=most),
    ]
