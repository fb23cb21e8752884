"""The gateway and the adapter of this tree beside those of another one, in short turns within one run.

Two runs one after the other differ by more than what is looked for here whenever the machine has other moods. So both
trees serve at the same time, the load goes to one of them for a moment and then to the other, whoever was last goes
first in the next turn, and what is shown is the middle of the ratios of all turns. The other tree needs its `.venv`
(`make setup`).
"""

import asyncio
import statistics
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from bench.engines import EVENTS, build_compiled
from bench.gateway import BUILD, KEY, OTHER_CORE, Load, Way, build, run_load, running
from bench.report import Row, Table
from bench.say import say

HERE: Final = Path(__file__).parent.parent
_HOLD: Final = """
import asyncio, json, sys
{imports}

async def hold():
    async with {ways} as ways:
        print(json.dumps({shown}), flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

asyncio.run(hold())
"""
"""What each tree runs with its own Python: it opens its ways, names them, and closes them with its standard input."""
_GATEWAY: Final = _HOLD.format(
    imports="from bench.gateway import open_gateway",
    ways='open_gateway(f"http://{sys.argv[1]}", "engine", core=0)',
    shown=f'[[{{"name": "gateway", "port": ways.port, "pid": ways.pid}}, {KEY!r}]]',
)
_ADAPTER: Final = _HOLD.format(
    imports="from bench.engines import open_adapter",
    ways="open_adapter(sys.argv[1])",
    shown='[[{"name": way.name, "port": way.port, "pid": way.pid}, key] for way, key in ways[0]]',
)


class KeyedWay(msgspec.Struct, frozen=True, kw_only=True):
    way: Way
    key: str


class _Case(msgspec.Struct, frozen=True, kw_only=True):
    clients: int
    kind: str = "stream"

    @property
    def title(self) -> str:
        return f"{self.clients} clients, {'33 writes each' if self.kind == 'stream' else 'one write each'}"


_GATEWAY_CASES: Final = (
    *(_Case(clients=clients) for clients in (1, 8, 100, 1000)),
    _Case(clients=100, kind="burst"),
)
_ADAPTER_CLIENTS: Final = (8, 32, 100)


class Turns(msgspec.Struct, frozen=True, kw_only=True):
    """How often both trees have their turn in each case, and for how long."""

    count: int = 16
    seconds: float = 0.8

    @property
    def note(self) -> str:
        return f"The middle of {self.count} turns, and in brackets the quarters; above 1 is better for streams/s only."


async def gateways(tree: Path, turns: Turns) -> Table:
    rows = []
    await build()
    async with AsyncExitStack() as stack:
        _, said = await stack.enter_async_context(running([str(BUILD / "native"), "engine", "0"], core=OTHER_CORE))
        address = f"127.0.0.1:{said.split()[1]}"
        here, there = [await stack.enter_async_context(_open(each, _GATEWAY, address)) for each in (HERE, tree)]
        for case in _GATEWAY_CASES:
            say(f"gateway: {case.title}")
            rows.append(_row(case.title, await _in_turns((here[0], there[0]), case, turns)))
    return Table(title="gateway: this tree, as a multiple of the other", rows=rows, notes=[turns.note])


async def adapters(tree: Path, turns: Turns) -> Table:
    rows: list[Row] = []
    await build()
    program = await build_compiled()
    if program is None:
        return Table(title="adapter: left out, since there is no Go", rows=rows)
    async with AsyncExitStack() as stack:
        _, port = await stack.enter_async_context(running([program, str(EVENTS)], core=None))
        address = f"127.0.0.1:{port.strip()}"
        here, there = [await stack.enter_async_context(_open(each, _ADAPTER, address)) for each in (HERE, tree)]
        for clients in _ADAPTER_CLIENTS:
            for ways in zip(here, there, strict=True):
                title = f"{ways[0].way.name}, {clients} clients"
                say(f"compiled engine: {title}")
                rows.append(_row(title, await _in_turns(ways, _Case(clients=clients), turns)))
    title = f"compiled engine, {EVENTS} events: this tree, as a multiple of the other"
    return Table(title=title, rows=rows, notes=[turns.note])


@asynccontextmanager
async def _open(tree: Path, code: str, address: str) -> AsyncIterator[list[KeyedWay]]:
    """The ways of a tree to this engine."""
    words = [str(tree / ".venv" / "bin" / "python"), "-c", code, address]
    process = await asyncio.create_subprocess_exec(
        *words, cwd=tree, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = await process.stdout.readline()
        if not line:
            raise RuntimeError(f"{tree} opened no way to the engine; was `make setup` run there?")
        ways = [KeyedWay(way=way, key=key) for way, key in msgspec.json.decode(line, type=list[tuple[Way, str]])]
        for each in ways:
            await run_load(each.way, 8, 0.5, "stream", key=each.key)
        yield ways
    finally:
        process.stdin.close()
        await process.wait()


async def _in_turns(ways: tuple[KeyedWay, KeyedWay], case: _Case, turns: Turns) -> list[tuple[Load, Load]]:
    """What both ways did in each turn, the one of this tree first."""
    pairs = []
    for number in range(turns.count):
        order = (0, 1) if number % 2 else (1, 0)
        loads = {
            place: await run_load(ways[place].way, case.clients, turns.seconds, case.kind, key=ways[place].key)
            for place in order
        }
        if loads[0].streams and loads[1].streams:  # a thousand clients may need longer for their first answers
            pairs.append((loads[0], loads[1]))
    return pairs


def _row(title: str, pairs: Sequence[tuple[Load, Load]]) -> Row:
    return {
        "load": title,
        "turns": len(pairs),
        "streams/s": _middle([here.rate / there.rate for here, there in pairs]),
        "p50": _middle([here.p50 / there.p50 for here, there in pairs]),
        "p99": _middle([here.p99 / there.p99 for here, there in pairs]),
        "CPU/stream": _middle([here.microseconds / there.microseconds for here, there in pairs]),
        "failed": sum(here.failed for here, _ in pairs),
    }


def _middle(ratios: Sequence[float]) -> str | None:
    if len(ratios) < 2:  # hardly any answer came in time
        return None
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"
