"""`live`: what people who watch a fleet cost its control process, and how soon they see a change.

A `corral frontend` with a gateway, nats-server and a database as people run them; simulated workers beat every ten
seconds in a process of their own. Each reader has a key of its own and reads all topics of the live stream through the
gateway, as a page does. One of them understands what it reads, and tells when it saw each change.
"""

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from bench.fanout_site import Site, StatementLog, open_site
from bench.readings import MEGABYTE, ProcessorShare, resident_of
from bench.report import Row, Table, figure, percentile
from bench.say import say
from corral.base.tasks import running
from tests.kit.admin_api import open_session
from tests.kit.live import LiveEvent, LiveState
from tests.kit.waiting import eventually

DATABASES: Final = ("sqlite", "postgres")
READERS_PERCENT: Final = 10.0
READER_MEGABYTES: Final = 1.0
SEEN_SECONDS: Final = 1.0
_TOPICS: Final = "summary,attention,nodes,replicas,operations,loads"
_CHANGED_EVERY: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is simulated, and how long it is watched."""

    seconds: float = 30.0
    settling_seconds: float = 15.0
    nodes: int = 1000
    readers: int = 50
    changes: int = 40
    """Labels that are set while everybody reads, to see how soon that is told."""


@dataclass(slots=True, kw_only=True)
class StreamTally:
    """What came over all streams."""

    bytes: int = 0
    events: Counter[str] = field(default_factory=Counter)


async def live(scale: Scale, databases: Sequence[str] = DATABASES) -> list[Table]:
    return [await _on(kind, scale) for kind in databases]


async def _on(kind: str, scale: Scale) -> Table:
    with tempfile.TemporaryDirectory(prefix="corral-bench-") as folder:
        async with open_site(kind, Path(folder)) as site:
            if site.postgres is not None:
                site.postgres.log_statements()
            await site.join(scale.nodes, work_seconds=0.0)
            await asyncio.sleep(scale.settling_seconds)
            alone = await _watched(site, scale.seconds)
            rows = await _with_readers(site, scale, alone)
    return Table(
        title=f"{scale.readers} readers of the live stream, {scale.nodes:,} nodes, on {kind}",
        rows=rows,
        notes=("Each reader has a key of its own; all nodes beat every 10 s, and each beat changes a row.",),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cost:
    percent: float
    resident: int
    statements: float | None


async def _watched(site: Site, seconds: float) -> _Cost:
    share = ProcessorShare(site.control)
    statements = None if site.postgres is None else StatementLog(site.postgres)
    await asyncio.sleep(seconds)
    counted = None if statements is None else statements.counts()["all"] / seconds
    return _Cost(percent=share.percent(), resident=resident_of(site.control), statements=counted)


async def _with_readers(site: Site, scale: Scale, alone: _Cost) -> list[Row]:
    tally, state = StreamTally(), LiveState()
    async with AsyncExitStack() as stack:
        for number in range(scale.readers):
            await stack.enter_async_context(_reader(site, number, tally, state if number == 0 else None))
        await asyncio.sleep(min(scale.settling_seconds, 5.0))
        tally.bytes, tally.events = 0, Counter()
        cost = await _watched(site, scale.seconds)
        read, changes = tally.bytes, tally.events["change"]
        delays = await _delays(site, scale.changes, state)
    kilobytes = read / scale.readers / scale.seconds / 1000
    added = cost.percent - alone.percent
    grown = max(cost.resident - alone.resident, 0) / scale.readers / MEGABYTE
    say(f"live: {cost.percent:.1f} % of a core, {alone.percent:.1f} % without readers, {kilobytes:.0f} kB/s each")
    rows = [
        figure("control without readers", alone.percent, "% of a core"),
        figure("control with all readers", cost.percent, "% of a core"),
        figure("added by all readers", added, "% of a core", at_most=READERS_PERCENT),
        figure("memory for each reader", grown, "MB", at_most=READER_MEGABYTES),
        figure("sent to each reader", kilobytes, "kB/s"),
        figure("changes to each reader", changes / scale.readers / scale.seconds, "frames/s"),
        figure("a label until it is read, median", percentile(delays, 0.5), "s"),
        figure("a label until it is read, 95 of 100", percentile(delays, 0.95), "s", at_most=SEEN_SECONDS),
    ]
    if cost.statements is not None and alone.statements is not None:
        rows.append(figure("without readers", alone.statements, "statements/s"))
        rows.append(figure("with all readers", cost.statements, "statements/s"))
    return rows


@asynccontextmanager
async def _reader(site: Site, number: int, tally: StreamTally, state: LiveState | None) -> AsyncIterator[None]:
    """A page that is open, since the moment at which it has all snapshots."""
    made = await site.frontend.call("POST", "/api/v1/keys", {"name": f"reader-{number}", "scopes": ["viewer"]})
    if made.status != 201:
        raise RuntimeError(f"no key for a reader: {made.status} {made.body!r}")
    headers = {"Authorization": f"Bearer {msgspec.json.decode(made.body)['key']}"}
    url = f"{site.frontend.url}/api/v1/live?topics={_TOPICS}"
    async with open_session() as session, session.get(url, headers=headers) as response:
        if response.status != 200:
            raise RuntimeError(f"the live stream was refused: {response.status}")
        is_ready = asyncio.Event()
        async with running(_read(response, tally, state, is_ready), name=f"reader {number}"):
            await is_ready.wait()
            yield


async def _read(
    response: aiohttp.ClientResponse, tally: StreamTally, state: LiveState | None, is_ready: asyncio.Event
) -> None:
    """Counts all that comes; with a state, also takes it in."""
    left = b""
    async for chunk in response.content.iter_any():
        tally.bytes += len(chunk)
        *events, left = (left + chunk).split(b"\n\n")
        for event in events:
            name = (
                "change" if b"event: change\n" in event[:200] else "ready" if b"event: ready\n" in event[:300] else ""
            )
            tally.events[name] += 1
            if name == "ready":
                is_ready.set()
            if state is not None:
                state.apply(LiveEvent.parse(event))


async def _delays(site: Site, count: int, state: LiveState) -> list[float]:
    """Seconds from the answer to a change until a reader has it."""
    nodes, delays = list(state.topics["nodes"]), []
    for number in range(count):
        node = nodes[number % len(nodes)]
        answer = await site.frontend.call("PATCH", f"/api/v1/nodes/{node}/labels", {"bench": str(number)})
        if answer.status != 200:
            raise RuntimeError(f"a label was not set: {answer.status} {answer.body!r}")
        began = time.monotonic()
        delays.append(await _seen_after(began, node, str(number), state))
        await asyncio.sleep(_CHANGED_EVERY)
    return delays


async def _seen_after(began: float, node: str, label: str, state: LiveState) -> float:
    async def is_seen() -> bool:
        return bool(state.topics["nodes"][node]["labels"].get("bench") == label)

    await eventually(is_seen, "a label", longest_pause=0.005)
    return time.monotonic() - began
