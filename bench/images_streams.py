"""Part of `images`: what open streams notice of an install on their node.

A whole fleet with one worker, which serves `echo` through its adapter and the gateway, and installs the image as a
frontend would have it: with a puller of its own, and the settings that every worker has by default.
"""

import asyncio
import contextlib
import json
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Final
from urllib.parse import urlsplit

import aiohttp

from bench.gaps import Gaps, Window, open_streams
from bench.gaps_process import GapsOrder
from bench.pulls import own_folder
from bench.readings import MEGABYTE, children_of, peak_of, resident_of, words_of
from bench.report import Row, Table, figure, percentile
from bench.sample_image import SampleImage
from bench.say import say
from bench.up import READY_WITHIN_SECONDS, fleet, frontend_bus
from corral.base.errors import ChildFailed
from corral.base.ids import NodeId
from corral.base.tasks import running
from corral.bus.client import NatsBus
from corral.oci.puller import MODULE
from corral.processes.up_file import UpFile
from corral.wire import subjects
from tests.kit.models import write_model

STREAMS: Final = 50
TOKENS_PER_SECOND: Final = 25
"""Rate of each stream."""
QUIET_SECONDS: Final = 10.0
TURNS: Final = 2
GROWTH_MILLISECONDS: Final = 20
_LONG: Final = timedelta(minutes=15)
_MODEL: Final = "m"
_BACKEND: Final = "bench-image"
_LOOK_SECONDS: Final = 0.1
_ENDLESS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much of it. The defaults are what the goals are about."""

    streams: int = STREAMS
    quiet_seconds: float = QUIET_SECONDS
    """How long streams are listened to before each install."""
    turns: int = TURNS


@dataclass(slots=True, kw_only=True)
class Seen:
    """What was seen of the agent and its puller. Bytes and seconds."""

    quiet: list[Window] = field(default_factory=list)
    pulling: list[Window] = field(default_factory=list)
    installs: list[float] = field(default_factory=list)
    agent_before: int = 0
    agent_most: int = 0
    puller_most: int = 0


async def beside_streams(image: SampleImage, folder: Path, scale: Scale | None = None) -> Table:
    """`folder` is there meanwhile only."""
    scale = scale or Scale()
    seen = Seen()
    with own_folder(folder):
        async with serving_fleet(folder) as (up, node), open_streams(streams_of(up, scale)) as streams:
            for turn in range(scale.turns):
                say(f"images: {scale.streams} streams, turn {turn + 1} of {scale.turns}")
                await _listen(scale, seen, up.pids.workers[0])
                await _install(node, image, seen, up.pids.workers[0])
                await node.ask(subjects.backend_delete, {"backend": _BACKEND})
            gaps = await streams.end()
    size = f"{image.size / MEGABYTE:,.0f} MB"
    title = f"{scale.streams} streams of {TOKENS_PER_SECOND} tokens/s while their node installs {size}"
    return Table(title=title, rows=_rows(gaps, seen), notes=_notes(gaps, seen))


# The fleet.


class Node:
    """The worker, as a frontend asks it."""

    def __init__(self, bus: NatsBus, node_id: NodeId) -> None:
        self._bus = bus
        self._id = node_id

    async def ask(self, subject: Callable[[NodeId], str], request: Mapping[str, object]) -> None:
        """ChildFailed when it did not work."""
        reply = await self._bus.request(subject(self._id), json.dumps(request).encode(), timeout=_LONG)
        answer = json.loads(reply)
        if not answer.get("success"):
            raise ChildFailed(f"the worker could not do it: {answer.get('error')}")


@asynccontextmanager
async def serving_fleet(folder: Path) -> AsyncIterator[tuple[UpFile, Node]]:
    """With a model that is loaded."""
    options = [f"tokens:{_ENDLESS}", f"rate:{TOKENS_PER_SECOND}"]
    write_model(folder / "models", _MODEL, backend="echo", options=options)
    settings = {"CORRAL_MODELS_PATH": str(folder / "models")}
    async with (
        fleet(folder / "up", workers=1, settings=settings) as up,
        NatsBus(frontend_bus(folder / "up", up)) as bus,
    ):
        headers = {"Authorization": f"Bearer {up.keys.admin}"}
        async with aiohttp.ClientSession(up.url, headers=headers) as session:
            node_id = await _node_id(session)
            await _load(session)
        yield up, Node(bus, node_id)


async def _node_id(session: aiohttp.ClientSession) -> NodeId:
    async with session.get("/api/nodes", raise_for_status=True) as answer:
        (node,) = await answer.json()
    return NodeId(node["id"])


async def _load(session: aiohttp.ClientSession) -> None:
    """By asking for it; a gateway that has just begun may not know the model yet."""
    deadline = time.monotonic() + READY_WITHIN_SECONDS
    body = {"model": _MODEL, "stream": True, "messages": [{"role": "user", "content": "hello"}]}
    while True:
        async with session.post("/v1/chat/completions", json=body) as answer:
            if answer.status == 200:
                answer.close()
                return
            if time.monotonic() > deadline:
                raise ChildFailed(f"the model was not served: {await answer.text()}")
        await asyncio.sleep(_LOOK_SECONDS)


def streams_of(up: UpFile, scale: Scale) -> GapsOrder:
    parts = urlsplit(up.url)
    host, port = parts.hostname or "", parts.port or 0
    return GapsOrder(host=host, port=port, key=up.keys.admin, model=_MODEL, streams=scale.streams)


# One turn.


async def _listen(scale: Scale, seen: Seen, agent: int) -> None:
    """While nothing else happens."""
    began = time.monotonic()
    await asyncio.sleep(scale.quiet_seconds)
    seen.quiet.append(Window(began=began, ended=time.monotonic()))
    seen.agent_before = max(seen.agent_before, resident_of(agent))


async def _install(node: Node, image: SampleImage, seen: Seen, agent: int) -> None:
    """As a frontend has it done for an administrator. The process that is started in the end is not the pull's."""
    began = time.monotonic()
    async with running(_watch(agent, seen), name="memory"):
        wanted = {"backend": _BACKEND, "name": _BACKEND, "uri": image.reference, "op_id": "bench"}
        await node.ask(subjects.backend_install, wanted)
    ended = time.monotonic()
    seen.installs.append(ended - began)
    if len(seen.pulling) < len(seen.installs):  # it was too quick to be seen
        seen.pulling.append(Window(began=began, ended=ended))


async def _watch(agent: int, seen: Seen) -> None:
    """The agent, and its puller for as long as there is one."""
    while (puller := _puller_of(agent)) is None:  # noqa: ASYNC110 - other processes ring no bells
        await asyncio.sleep(_LOOK_SECONDS)
    began = time.monotonic()
    try:
        while _puller_of(agent) == puller:
            with contextlib.suppress(OSError, KeyError):
                seen.puller_most = max(seen.puller_most, peak_of(puller))
            seen.agent_most = max(seen.agent_most, resident_of(agent))
            await asyncio.sleep(_LOOK_SECONDS)
    finally:
        seen.pulling.append(Window(began=began, ended=time.monotonic()))
    await asyncio.Event().wait()  # until the install is done as well


def _puller_of(agent: int) -> int | None:
    for child in children_of(agent):
        with contextlib.suppress(OSError):
            if MODULE in words_of(child):
                return child
    return None


# Reporting.


def _rows(gaps: Gaps, seen: Seen) -> list[Row]:
    quiet, pulling = gaps.within(seen.quiet), gaps.within(seen.pulling)
    growth = percentile(pulling, 0.99) - percentile(quiet, 0.99)
    return [
        figure("between two tokens before, p50", percentile(quiet, 0.5), "ms"),
        figure("between two tokens before, p99", percentile(quiet, 0.99), "ms"),
        figure("between two tokens meanwhile, p50", percentile(pulling, 0.5), "ms"),
        figure("between two tokens meanwhile, p99", percentile(pulling, 0.99), "ms"),
        figure("growth of p99", growth, "ms", at_most=GROWTH_MILLISECONDS),
        figure("longest before", max(quiet, default=math.nan), "ms"),
        figure("longest meanwhile", max(pulling, default=math.nan), "ms"),
        figure("streams that broke", gaps.broken, "", at_most=0),
        figure("install, to a ready process", median(seen.installs), "s"),
        figure("agent before, RSS", seen.agent_before / MEGABYTE, "MB"),
        figure("agent meanwhile, most RSS", seen.agent_most / MEGABYTE, "MB"),
        figure("its puller, most memory", seen.puller_most / MEGABYTE, "MB"),
    ]


def _notes(gaps: Gaps, seen: Seen) -> list[str]:
    each = []
    for quiet, pulling in zip(seen.quiet, seen.pulling, strict=True):
        before, meanwhile = (percentile(gaps.within([window]), 0.99) for window in (quiet, pulling))
        each.append(f"{before:.1f} → {meanwhile:.1f}")
    return [f"p99 of each turn, in ms: {', '.join(each)}. The settings are those that a worker has by default."]
