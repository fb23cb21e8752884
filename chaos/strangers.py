"""Abuse without a key, of every kind at once, while clients with keys stream: no stream of theirs may fail.

The abusers come from 127.0.0.1. So do half of the clients; the others come from another loopback address. Half of each
open a new connection for every request. A quiet phase in the same round tells what the abuse adds to their waiting.
"""

import asyncio
import contextlib
import itertools
import resource
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

import aiohttp
import psutil

from chaos.round import Workshop
from corral.base.tasks import running
from tests.kit.load_clients import StreamOutcome, StreamRequest, counted
from tests.kit.serving import ServingFleet, serving_fleet

CLIENTS: Final = 50
ABUSERS: Final = 4
"""Number of abusers of each kind, in addition to those that only hold connections open."""
LARGE_HEADS: Final = 200
"""Number of connections that send most of a large head and hold it: together more than the gateway keeps."""
_ADDRESSES: Final = ("127.0.0.1", "127.0.0.5")
_PAUSE_SECONDS: Final = 0.25
"""Between two questions of a client: the machine is not to be full before the abuse begins."""
_DRIP_SECONDS: Final = 0.25
_IDLE_PAUSE_SECONDS: Final = 10.0
"""Before a connection that was closed is opened again: holding many is meant here, not a flood of new ones, which this
program could not make without delaying its own clients."""
_LARGE_HEAD_PAUSE_SECONDS: Final = 2.0
_OPENED_AT_ONCE: Final = 20
_QUIET_SHARE: Final = 0.2
_QUIETEST_SECONDS: Final = 2.0
_LOOK_SECONDS: Final = 0.2
_ADDED_SHARE: Final = 1.0
"""The goal for what abuse may add to the wait at p99, as a share of that wait without abuse."""
_SMALLEST_ADDED_GOAL: Final = 250.0
"""In milliseconds. A short wait in the quiet phase would make the goal smaller than what a busy machine adds."""
_MOST_MEMORY: Final = 256 * 1024 * 1024
"""Beyond what the gateway had at the start."""
_PIECE: Final = b"x" * 65536
_PIPELINED: Final = b"GET /a HTTP/1.1\r\nHost:a\r\n\r\n" * 8192
_LARGE_HEAD: Final = b"GET /a HTTP/1.1\r\nHost:a\r\n" + (b"X: " + b"y" * 1000 + b"\r\n") * 58


async def without_keys(workshop: Workshop) -> None:
    """`steps` connections are held open by strangers, for as many seconds as an outage lasts."""
    _raise_descriptor_limit(workshop.steps)
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(serving_fleet(workshop.directory))
        first = await fleet.question().ask()
        assert first.is_served, first
        clients = [await stack.enter_async_context(_client(fleet, number)) for number in range(4)]
        memory = await stack.enter_async_context(_watched_memory(fleet.gateway.pid))
        quiet = await _stream(clients, max(workshop.seconds * _QUIET_SHARE, _QUIETEST_SECONDS))
        at_start = memory.now
        abuse = Abuse(fleet.gateway.url, idle=workshop.steps)
        async with running(abuse.run(), name="abuse"):
            busy = await _stream(clients, workshop.seconds)
        at_end = memory.now
        _judge(workshop, quiet, busy, abuse)
        story, peak = workshop.story, memory.peak
        story.measure(f"memory of the gateway: {_mib(at_start)} at start, {_mib(peak)} peak, {_mib(at_end)} at end")
        assert peak - at_start < _MOST_MEMORY, f"the gateway grew by {_mib(peak - at_start)}"


def _judge(workshop: Workshop, quiet: Sequence[StreamOutcome], busy: Sequence[StreamOutcome], abuse: "Abuse") -> None:
    failed = [answer for answer in (*quiet, *busy) if not answer.is_served]
    before, after = _p99(quiet), _p99(busy)
    workshop.story.measure(
        f"{len(busy)} streams of {CLIENTS} clients under abuse, {len(failed)} failed; "
        f"p99 {before:.0f} ms quiet, {after:.0f} ms abused, {_judged_delay(before, after)}"
    )
    workshop.story.measure("abuse: " + ", ".join(f"{times} {kind}" for kind, times in sorted(abuse.times.items())))
    assert not failed, f"{counted(failed)}: {sorted({answer.problem for answer in failed})}"
    assert all(abuse.times.values()), abuse.times


def _judged_delay(before: float, after: float) -> str:
    """What abuse adds in milliseconds, and whether that meets the goal. A missed goal fails no round: other programs of
    the machine may have caused it."""
    goal = max(before * _ADDED_SHARE, _SMALLEST_ADDED_GOAL)
    return f"{after - before:+.0f} ms (goal: at most {goal:+.0f} ms, {'met' if after - before <= goal else 'MISSED'})"


def _p99(answers: Sequence[StreamOutcome]) -> float:
    """In milliseconds."""
    ordered = sorted(answer.seconds for answer in answers)
    return ordered[min(len(ordered) * 99 // 100, len(ordered) - 1)] * 1000 if ordered else 0.0


def _mib(size: int) -> str:
    return f"{size / 1024 / 1024:.0f} MiB"


def _raise_descriptor_limit(idle: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = idle + 1024
    if soft != resource.RLIM_INFINITY and soft < needed:
        wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


# Clients with a key.


@asynccontextmanager
async def _client(fleet: ServingFleet, number: int) -> AsyncIterator[StreamRequest]:
    """The even ones from the abusers' address; the first two with a new connection per request."""
    connector = aiohttp.TCPConnector(local_addr=(_ADDRESSES[number % 2], 0), force_close=number < 2, limit=CLIENTS)
    async with aiohttp.ClientSession(connector=connector) as session:
        question = fleet.question()
        yield StreamRequest(
            session=session, url=question.url, key=question.key, model=question.model, tokens=question.tokens
        )


async def _stream(clients: Sequence[StreamRequest], seconds: float) -> list[StreamOutcome]:
    """All answers that were begun in this time, each to its end."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    answers: list[StreamOutcome] = []

    async def ask(question: StreamRequest) -> None:
        while loop.time() < end:
            answers.append(await question.ask())
            await asyncio.sleep(_PAUSE_SECONDS)

    async with asyncio.TaskGroup() as group:
        for question in itertools.islice(itertools.cycle(clients), CLIENTS):
            group.create_task(ask(question))
    return answers


@dataclass(slots=True, kw_only=True)
class Memory:
    now: int = 0
    peak: int = 0


@asynccontextmanager
async def _watched_memory(pid: int) -> AsyncIterator[Memory]:
    memory, process = Memory(), psutil.Process(pid)

    async def look() -> None:
        while True:
            memory.now = process.memory_info().rss
            memory.peak = max(memory.peak, memory.now)
            await asyncio.sleep(_LOOK_SECONDS)

    async with running(look(), name="memory"):
        yield memory


# Strangers.


class Abuse:
    """Every kind of abuse at once, each without an end. Whatever is refused or cut off begins again."""

    def __init__(self, url: str, *, idle: int) -> None:
        self._host, _, port = url.removeprefix("http://").rpartition(":")
        self._port = int(port)
        self._idle = idle
        self.times: dict[str, int] = {}

    async def run(self) -> None:
        kinds: dict[str, Callable[[asyncio.StreamWriter], Awaitable[None]]] = {
            "large bodies": self._send_large_body,
            "slow heads": self._drip_head,
            "slow bodies": self._drip_body,
            "empty lines": self._drip_empty_lines,
            "resets": self._reset,
            "wrong keys": self._try_wrong_key,
            "wrong tokens": self._try_wrong_token,
            "pipelined requests": self._pipeline,
        }
        async with asyncio.TaskGroup() as group:
            for kind, act in kinds.items():
                self.times[kind] = 0
                for _ in range(ABUSERS):
                    group.create_task(self._repeat(kind, act))
            self.times["large unfinished heads"] = 0
            for _ in range(LARGE_HEADS):
                act, pause = self._hold_large_head, _LARGE_HEAD_PAUSE_SECONDS
                group.create_task(self._repeat("large unfinished heads", act, pause=pause))
            self.times["idle connections"] = 0
            for number in range(self._idle):
                group.create_task(self._repeat("idle connections", self._hold, pause=_IDLE_PAUSE_SECONDS))
                if number % _OPENED_AT_ONCE == 0:
                    await asyncio.sleep(_OPENED_AT_ONCE / self._idle * _IDLE_PAUSE_SECONDS)

    async def _repeat(
        self, kind: str, act: Callable[[asyncio.StreamWriter], Awaitable[None]], *, pause: float = _DRIP_SECONDS
    ) -> None:
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection(self._host, self._port)
                self.times[kind] += 1
                try:
                    async with asyncio.timeout(60):
                        await _either(act(writer), reader.read())
                except TimeoutError:
                    pass
                finally:
                    writer.transport.abort()
            await asyncio.sleep(pause)

    async def _send_large_body(self, writer: asyncio.StreamWriter) -> None:
        writer.write(_head("POST /api/v1/keys", length=32_000_000))
        for _ in range(32_000_000 // len(_PIECE)):
            writer.write(_PIECE)
            await writer.drain()

    async def _drip_head(self, writer: asyncio.StreamWriter) -> None:
        await _drip(writer, itertools.chain(b"POST /v1/chat/completions HTTP/1.1\r\nX: ", itertools.repeat(120)))

    async def _drip_body(self, writer: asyncio.StreamWriter) -> None:
        writer.write(_head("POST /api/node/register", bearer="wrong", length=900_000))
        await _drip(writer, itertools.repeat(120), times=11)

    async def _drip_empty_lines(self, writer: asyncio.StreamWriter) -> None:
        await _drip(writer, itertools.cycle(b"\r\n"), times=2)

    async def _reset(self, writer: asyncio.StreamWriter) -> None:
        writer.write(_head("POST /v1/chat/completions", length=1000)[:-20])

    async def _try_wrong_key(self, writer: asyncio.StreamWriter) -> None:
        for path in ("POST /v1/chat/completions", "GET /api/nodes", "DELETE /api/v1/keys/x"):
            writer.write(_head(path, bearer="corral_wrong"))
        await writer.drain()
        await asyncio.Event().wait()

    async def _try_wrong_token(self, writer: asyncio.StreamWriter) -> None:
        writer.write(_head("POST /api/node/register", bearer="wrong", length=900_000) + b"x" * 900_000)
        await writer.drain()
        await asyncio.Event().wait()

    async def _pipeline(self, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(_PIPELINED)
            await writer.drain()

    async def _hold_large_head(self, writer: asyncio.StreamWriter) -> None:
        writer.write(_LARGE_HEAD)
        await writer.drain()
        await asyncio.Event().wait()

    async def _hold(self, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()


def _head(line: str, *, bearer: str = "", length: int = 0) -> bytes:
    fields = [f"{line} HTTP/1.1", "Host: corral", "Content-Type: application/json", f"Content-Length: {length}"]
    fields += [f"Authorization: Bearer {bearer}"] if bearer else []
    return "\r\n".join([*fields, "", ""]).encode()


async def _drip(writer: asyncio.StreamWriter, content: Iterator[int], *, times: int = 1) -> None:
    while True:
        writer.write(bytes(itertools.islice(content, times)))
        await writer.drain()
        await asyncio.sleep(_DRIP_SECONDS)


async def _either(first: Awaitable[object], second: Awaitable[object]) -> None:
    """Until one of them is over; the other is given up."""
    tasks = [asyncio.ensure_future(first), asyncio.ensure_future(second)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
