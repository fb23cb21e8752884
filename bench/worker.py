"""`worker`: how quickly a worker answers while one of its backends starts slowly and while it is flooded, and what it
costs at rest.

A real worker process on a real NATS server with real backend processes.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from bench.lone_worker import NODE, LoneWorker, lone_worker
from bench.readings import MEGABYTE, ProcessorShare, memory_of
from bench.report import Row, Table, figure, percentile
from bench.say import say
from corral.base.ids import NodeId
from corral.base.processes import ChildProcess
from corral.bus.client import NatsBus
from corral.wire import subjects
from tests.kit.backend_scripts import write_serving_backend

LONG: Final = timedelta(minutes=5)
AGAIN_MILLISECONDS: Final = 50
IDLE_MEGABYTES: Final = 75
IDLE_PERCENT: Final = 1
_IN_FLIGHT: Final = 1000

Asked = tuple[Callable[[NodeId], str], Mapping[str, object]]
"""The subject of a request, by node, and its body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is asked. The defaults are what the goals are about."""

    slow_seconds: float = 20.0
    """How long one backend takes to start."""
    burst: int = 200
    flood: int = 10_000
    again: int = 100
    idle_seconds: float = 20.0


async def worker(seconds: float | None, scale: Scale | None = None) -> list[Table]:
    if scale is None:
        scale = Scale() if seconds is None else Scale(slow_seconds=seconds, idle_seconds=seconds)
    with tempfile.TemporaryDirectory(prefix="corral-bench-") as folder:
        async with running_worker(Path(folder), scale) as running:
            process, bus = running.process, running.bus
            rows = [
                *await _at_rest(process, scale),
                *await _again(bus, scale),
                *await _while_one_starts(bus, scale),
                *await _flooded(process, bus, scale),
            ]
    title = f"one worker; a backend that takes {scale.slow_seconds:g} s to start; {scale.flood:,} messages at once"
    return [Table(title=title, rows=rows, notes=["MB are 1,000,000 bytes. Memory is judged as RSS."])]


@asynccontextmanager
async def running_worker(folder: Path, scale: Scale) -> AsyncIterator[LoneWorker]:
    """With two backends on its disk."""
    write_serving_backend(folder / "backends", "quick")
    sleep = f"import time; time.sleep({scale.slow_seconds})"
    write_serving_backend(folder / "backends", "slow", body=sleep)
    async with lone_worker(folder) as running:
        yield running


async def _at_rest(process: ChildProcess, scale: Scale) -> list[Row]:
    say("worker: at rest")
    share = ProcessorShare(process.pid)
    await asyncio.sleep(scale.idle_seconds)
    used, memory = share.percent(), memory_of(process.pid)
    return [
        figure("idle: RSS", memory.resident / MEGABYTE, "MB", at_most=IDLE_MEGABYTES),
        figure("idle: share of one core", used, "%", at_most=IDLE_PERCENT),
    ]


async def _again(bus: NatsBus, scale: Scale) -> list[Row]:
    say("worker: the same install again and again")
    asked = (subjects.backend_install, {"backend": "quick", "model_id": "m0"})
    first = await _timed(bus, *asked)
    again = [await _timed(bus, *asked) for _ in range(scale.again)]
    return [
        figure("first install, with a Python backend", first, "ms"),
        figure("the same again, p50", percentile(again, 0.5), "ms"),
        figure("the same again, slowest", max(again), "ms", at_most=AGAIN_MILLISECONDS),
    ]


async def _while_one_starts(bus: NatsBus, scale: Scale) -> list[Row]:
    """Everything but the slow start itself is timed; new processes apart, since they take time of their own."""
    say("worker: a burst while a backend starts")
    slow = asyncio.create_task(_timed(bus, subjects.backend_install, {"backend": "slow", "model_id": "s"}))
    kinds = [
        (subjects.models_running, {}),
        (subjects.backend_list, {}),
        (subjects.backend_install, {"backend": "quick", "model_id": "m0"}),
        (subjects.model_stop, {"process_key": "nobody#0"}),
        (subjects.model_unload, {"model_name": "nobody"}),
        (subjects.backend_install, {"backend": "no-such-thing"}),
        (subjects.backend_delete, {"backend": "no-such-thing"}),
        (subjects.model_delete, {"model_name": "nobody"}),
    ]
    burst = await _all_at_once(bus, [kinds[number % len(kinds)] for number in range(scale.burst)])
    start = await _timed(bus, subjects.backend_install, {"backend": "quick", "model_id": "m1"})
    of_slow = await _timed(bus, subjects.backend_list, {})
    is_still_starting = not slow.done()
    await slow
    return [
        figure(f"{scale.burst} mixed requests meanwhile, p50", percentile(burst, 0.5), "ms"),
        figure(f"{scale.burst} mixed requests meanwhile, p99", percentile(burst, 0.99), "ms"),
        figure("a new process of another backend meanwhile", start, "ms"),
        figure("one list meanwhile", of_slow, "ms"),
        figure("the slow one was done by then", float(not is_still_starting), "", at_most=0),
    ]


async def _flooded(process: ChildProcess, bus: NatsBus, scale: Scale) -> list[Row]:
    say(f"worker: {scale.flood:,} messages")
    before = memory_of(process.pid).resident
    kinds = [
        (subjects.models_running, {}),
        (subjects.backend_install, {"backend": "quick", "model_id": "m0"}),
        (subjects.model_stop, {"process_key": "nobody#0"}),
    ]
    began = time.monotonic()
    times = await _all_at_once(bus, [kinds[number % len(kinds)] for number in range(scale.flood)])
    took = time.monotonic() - began
    memory = memory_of(process.pid)
    return [
        figure("flood: not answered", scale.flood - len(times), "", at_most=0),
        figure("flood: answers", len(times) / took, "per s"),
        figure("flood: p99", percentile(times, 0.99), "ms"),
        figure("flood: more memory at its peak", (memory.peak - before) / MEGABYTE, "MB"),
        figure("flood: more memory afterwards", (memory.resident - before) / MEGABYTE, "MB"),
    ]


async def _all_at_once(bus: NatsBus, asked: Sequence[Asked]) -> list[float]:
    """How long each took; at most a thousand are on their way at a time."""
    slots = asyncio.Semaphore(_IN_FLIGHT)

    async def one(subject: Callable[[NodeId], str], request: Mapping[str, object]) -> float:
        async with slots:
            return await _timed(bus, subject, request)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(*each)) for each in asked]
    return [task.result() for task in tasks]


async def _timed(bus: NatsBus, subject: Callable[[NodeId], str], request: Mapping[str, object]) -> float:
    """Milliseconds until the answer."""
    began = time.perf_counter()
    await bus.request(subject(NODE), json.dumps(request).encode(), timeout=LONG)
    return 1000 * (time.perf_counter() - began)
