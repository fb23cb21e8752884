"""Real engines behind the gateway: `echo` and a compiled one through the adapter, and llama.cpp on a small chat model.

Each way is measured beside the one without the gateway within one run: those behind the adapter in turns, llama.cpp at
the same time. `echo` is Python and shares its time with the adapter; the compiled one, in Go, shows the adapter alone.
Without Go its tables are left out.
"""

import asyncio
import math
import shutil
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

import aiohttp

from bench.gateway import (
    BUILD,
    HERE,
    KEY,
    Load,
    Way,
    build,
    call_program,
    open_gateway,
    rate_table,
    run_load,
    running,
)
from bench.readings import MEGABYTE, memory_of, processor_seconds
from bench.report import Row, Table, at_least, figure
from bench.say import say
from corral.rpc.messages import ModelOptions
from corral.wire.adapter import AdapterModel, AdapterReplica
from tests.kit import backends
from tests.kit.adapters import running_adapter
from tests.kit.models import QUESTION, chat_model

CLIENTS: Final = (1, 8, 100, 1000)
TOKENS: Final = 26
"""Events of one streamed chat, as they were counted at LocalAI's frontend."""
LOCALAI_STREAMS: Final = 109
"""Streams of so many events a second that its frontend passed on, with 8 clients on 2 cores."""
TURNS: Final = 3
LLAMA_STREAMS: Final = 4
LLAMA_TOKENS: Final = 64
ADAPTER_KEY: Final = "replica"
EVENTS: Final = 39
"""Of one stream of the compiled engine."""
FAIR_CLIENTS: Final = (8, 32, 100)
FAIR: Final = 5.0
"""How many times longer than the middle stream the slowest hundredth may take."""


async def engines(seconds: float | None = None) -> list[Table]:
    """All tables. `seconds` is the length of one turn."""
    await build()
    turn = 2.0 if seconds is None else seconds
    return [
        *await through_the_adapter(turn, per_message=8, is_judged=True),
        *await through_the_adapter(turn, per_message=1, is_judged=False),
        *await compiled(turn),
        await llama(max(turn, 8.0)),
    ]


# echo: an engine that speaks gRPC only.


async def through_the_adapter(turn: float, *, per_message: int, is_judged: bool) -> list[Table]:
    title = f"{TOKENS} tokens, {per_message} per message"
    tables: list[Table] = []
    async with open_echo(per_message) as (ways, pids):
        rates = {}
        for clients in CLIENTS:
            say(f"echo: {title}, {clients} clients")
            found = {way.name: await run_load(way, clients, turn, "stream", key=key) for way, key in ways}
            tables.append(rate_table(f"echo, {title}, {clients} clients", found))
            rates[clients] = found["gateway"]
        rows = [figure(f"memory of {name}", memory_of(pid).resident / MEGABYTE, "MB") for name, pid in pids.items()]
    failed = sum(load.failed for load in rates.values())
    rows.append(figure("failed", failed, "", at_most=0))
    if is_judged:
        ratio = rates[8].rate / LOCALAI_STREAMS
        rows.append(at_least("streams/s against LocalAI's frontend, 8 clients", ratio, 5.0))
    return [*tables, Table(title=f"echo, {title}: goals", rows=rows)]


@asynccontextmanager
async def open_echo(per_message: int) -> AsyncIterator[tuple[list[tuple[Way, str]], dict[str, int]]]:
    """The ways with their keys, and the processes by name."""
    async with AsyncExitStack() as stack:
        echo = await stack.enter_async_context(backends.running_backend("echo"))
        options = [f"tokens:{TOKENS}", f"per_message:{per_message}"]
        await echo.client.load(ModelOptions(Model="m", Options=options), timeout=backends.SOON)
        ways, pids = await stack.enter_async_context(open_adapter(echo.address))
        yield ways, {"echo": echo.process.pid, **pids}


@asynccontextmanager
async def open_adapter(address: str) -> AsyncIterator[tuple[list[tuple[Way, str]], dict[str, int]]]:
    """The ways to a gRPC backend with their keys, and the processes on them by name."""
    async with AsyncExitStack() as stack:
        adapter = await stack.enter_async_context(running_adapter())
        model = AdapterModel(name="m", identity="m", use_tokenizer_template=True)
        replica = AdapterReplica(key=ADAPTER_KEY, address=address, token=backends.TOKEN, model=model)
        await adapter.link.serve(replica)
        gateway = await stack.enter_async_context(open_gateway(adapter.url, ADAPTER_KEY))
        direct = Way(name="adapter", port=int(adapter.url.rpartition(":")[2]), pid=adapter.process.pid)
        assert gateway.pid is not None
        pids = {"adapter": adapter.process.pid, "gateway": gateway.pid}
        yield [(direct, ADAPTER_KEY), (gateway, KEY)], pids


# A compiled engine that speaks gRPC only: how fair the adapter is to many clients.


async def compiled(turn: float) -> list[Table]:
    """Streams through the adapter, in turns with those that go through the gateway too."""
    program = await build_compiled()
    if program is None:
        return []
    async with AsyncExitStack() as stack:
        _, port = await stack.enter_async_context(running([program, str(EVENTS)], core=None))
        ways, pids = await stack.enter_async_context(open_adapter(f"127.0.0.1:{port.strip()}"))
        tables, goals = [], []
        for clients in FAIR_CLIENTS:
            say(f"compiled engine: {clients} clients")
            turns = [
                {way.name: await run_load(way, clients, turn, "stream", key=key) for way, key in ways}
                for _ in range(TURNS)
            ]
            found = {name: sorted((each[name] for each in turns), key=_unfairness)[TURNS // 2] for name in turns[0]}
            tables.append(rate_table(f"compiled engine, {EVENTS} events, {clients} clients", found))
            for name, load in found.items():
                goals.append(figure(f"{name}, {clients} clients: p99 / p50", _unfairness(load), "×", at_most=FAIR))
                goals.append(figure(f"{name}, {clients} clients: failed", load.failed, "", at_most=0))
        goals.append(figure("memory of the adapter", memory_of(pids["adapter"]).resident / MEGABYTE, "MB"))
    return [*tables, Table(title="compiled engine: goals", rows=goals)]


async def build_compiled() -> str | None:
    """The program; None without Go."""
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        say("compiled engine: left out, since there is no Go")
        return None
    program = BUILD / "backend"
    await call_program(go, "build", "-o", str(program), str(HERE / "backend.go"))
    return str(program)


def _unfairness(load: Load) -> float:
    """How many times longer than the middle one the slowest hundredth took."""
    return load.p99 / load.p50 if load.p50 else math.inf


# llama.cpp: an engine with an HTTP port of its own.


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """What the clients of one way got in one turn."""

    tokens: int
    seconds: float
    first: Sequence[float]
    """Seconds to the first token of each answer."""

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


async def llama(turn: float) -> Table:
    """Both ways at the same time, with half of the streams each: the engine serves all of them in one batch, so they
    meet the same moods of the machine. One after the other, the same way differed from itself by a tenth."""
    say(f"llama.cpp: {LLAMA_STREAMS} streams, half of them each way, {TURNS} turns of {turn:g} s")
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(backends.running_backend("llama_cpp"))
        file = chat_model()
        options = ModelOptions(
            Model=file.name, ModelFile=str(file), ContextSize=2048, Threads=1, Options=[f"parallel:{LLAMA_STREAMS}"]
        )
        await engine.client.load(options, timeout=backends.SOON)
        gateway = await stack.enter_async_context(open_gateway(engine.http_url, backends.KEY))
        ways = {
            "engine": (engine.http_url, backends.KEY),
            "gateway": (f"http://127.0.0.1:{gateway.port}", KEY),
        }
        began, used = time.monotonic(), processor_seconds(gateway.pid or 0)
        turns = [await _tell_all(ways, turn) for _ in range(TURNS)]
        share = (processor_seconds(gateway.pid or 0) - used) / (time.monotonic() - began)
    return _llama_table(turns, share)


def _llama_table(turns: list[dict[str, Telling]], share: float) -> Table:
    rows: list[Row] = []
    for name in turns[0]:
        rows.append(figure(f"{name}: tokens/s", statistics.median(turn[name].rate for turn in turns), ""))
        firsts = [first for turn in turns for first in turn[name].first]
        rows.append(figure(f"{name}: first token, median", 1000 * statistics.median(firsts), "ms"))
    ratio = statistics.median(turn["gateway"].rate / turn["engine"].rate for turn in turns)
    rows.append(at_least("tokens/s against the engine directly", ratio, 0.98))
    rows.append(figure("gateway: of one core, which slows both ways down", 100 * share, "%"))
    title = f"llama.cpp, {LLAMA_STREAMS} streams of {LLAMA_TOKENS} tokens, half of them each way, one thread"
    return Table(title=title, rows=rows)


async def _tell_all(ways: dict[str, tuple[str, str]], seconds: float) -> dict[str, Telling]:
    told = await asyncio.gather(*(_tell(url, key, seconds) for url, key in ways.values()))
    return dict(zip(ways, told, strict=True))


async def _tell(url: str, key: str, seconds: float) -> Telling:
    """Clients that ask again as soon as they are answered; what is begun in time counts to its end.

    A connection for each answer: the engine closes it after a stream, without saying so.
    """
    firsts: list[float] = []
    began = time.monotonic()
    headers = {"Authorization": f"Bearer {key}", "Connection": "close"}
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(base_url=url, headers=headers, connector=connector) as session:

        async def client() -> int:
            tokens = 0
            while time.monotonic() < began + seconds:
                tokens += await _ask(session, firsts)
            return tokens

        told = await asyncio.gather(*(client() for _ in range(LLAMA_STREAMS // 2)))
    return Telling(tokens=sum(told), seconds=time.monotonic() - began, first=firsts)


async def _ask(session: aiohttp.ClientSession, firsts: list[float]) -> int:
    """Count the tokens of one answer. Each prompt differs, so that the engine's prompt cache does not affect the
    result."""
    body = {
        "model": "m",
        "stream": True,
        "max_tokens": LLAMA_TOKENS,
        "ignore_eos": True,
        "temperature": 0,
        "cache_prompt": False,
        "messages": [{"role": "user", "content": QUESTION}],
    }
    asked, tokens = time.monotonic(), 0
    async with session.post("/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            if b'"content":"' not in line:
                continue
            if not tokens:
                firsts.append(time.monotonic() - asked)
            tokens += 1
    return tokens
