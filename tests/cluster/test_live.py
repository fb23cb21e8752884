"""The live stream at several frontends, over real HTTP: they show the same, and one takes over from the other."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest

from corral.base.tasks import running
from corral.frontend.nodes.decide.node import NodeStatus
from tests.kit.admin_api import open_session
from tests.kit.cluster import Cluster, NodeStatusChanged
from tests.kit.live import LiveState, next_event
from tests.kit.members import ClusterFrontend
from tests.kit.waiting import within_timeout

pytestmark = pytest.mark.postgres
TOPICS = "summary,attention,nodes,replicas,operations,loads,events"


class HttpEvents:
    """Whole events of a streamed answer."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def next(self) -> bytes:
        lines: list[bytes] = []
        while not lines or lines[-1] != b"\n":
            line = await within_timeout(self._response.content.readline(), lambda: "a line of the live stream")
            if not line:
                raise AssertionError("the stream ended")
            lines.append(line)
        return b"".join(lines).rstrip(b"\n")


@asynccontextmanager
async def reading(frontend: ClusterFrontend, state: LiveState) -> AsyncIterator[HttpEvents]:
    headers = {"Authorization": f"Bearer {frontend.admin_key}"}
    headers |= {"Last-Event-ID": state.place} if state.place else {}
    url = f"{frontend.url}/api/v1/live?topics={TOPICS}"
    async with open_session() as session, session.get(url, headers=headers) as response:
        assert response.status == 200
        events = HttpEvents(response)
        await state.read_until_ready(events)
        yield events


async def until(cluster: Cluster, events: HttpEvents, state: LiveState, holds: Callable[[], bool]) -> None:
    """Time passes until the reader was told something that makes it so."""

    async def pass_time() -> None:
        while True:
            await cluster.advance(cluster.interval)

    async def read() -> None:
        while not holds():
            state.apply(await next_event(events))

    async with running(pass_time(), name="time"):
        await within_timeout(read(), lambda: f"the reader to see it: {state.topics}")


def told(state: LiveState) -> dict[str, object]:
    """What both frontends must agree on: not what each has noticed itself."""
    nodes = {id: (row["name"], row["status"], row["labels"]) for id, row in state.topics["nodes"].items()}
    return {
        "nodes": nodes,
        "attention": sorted(state.topics["attention"]),
        "summary": state.topics["summary"]["fleet"]["nodes"],
        "frontends": state.topics["summary"]["fleet"]["frontends"],
        "events": sorted(map(int, state.topics["events"])),
    }


async def test_both_frontends_show_the_same(pair: Cluster) -> None:
    first = await pair.healthy("w1", through=1)
    await pair.healthy("w2", through=2)
    await pair.worker("w3").joined()
    await pair.frontend(2).label(first, {"rack": "7"})
    states = [LiveState(), LiveState()]
    async with reading(pair.frontend(1), states[0]), reading(pair.frontend(2), states[1]):
        assert told(states[0]) == told(states[1])
    assert states[0].topics["summary"]["fleet"]["frontends"] == 2
    assert [item["kind"] for item in states[0].topics["attention"].values()] == ["pending"]


async def test_a_reader_of_a_frontend_that_is_killed_goes_on_at_the_other(pair: Cluster) -> None:
    node = await pair.healthy("w1", through=2)
    state = LiveState()
    async with reading(pair.frontend(1), state) as events:
        seen = sorted(map(int, state.topics["events"]))
        await pair.frontend(1).kill()
        with pytest.raises((AssertionError, aiohttp.ClientError)):
            await _until_its_end(events)
    await pair.frontend(2).drain(node)
    await pair.until(NodeStatusChanged(node, NodeStatus.DRAINING))
    async with reading(pair.frontend(2), state):
        resumed = sorted(map(int, state.topics["events"]))
        assert resumed[: len(seen)] == seen
        assert resumed == list(range(resumed[0], resumed[-1] + 1)), "nothing is missing"
        assert state.topics["nodes"][node]["status"] == "draining"


async def test_what_one_frontend_does_reaches_readers_of_the_other(pair: Cluster) -> None:
    node = await pair.healthy("w1", through=1)
    state = LiveState()
    async with reading(pair.frontend(2), state) as events:
        await pair.frontend(1).label(node, {"rack": "7"})
        await until(pair, events, state, lambda: state.topics["nodes"][node]["labels"].get("rack") == "7")


async def test_a_node_that_goes_silent_is_seen_and_named_as_what_needs_somebody(cluster: Cluster) -> None:
    node = await cluster.healthy("w1")
    state = LiveState()
    async with reading(cluster.frontend(), state) as events:
        await cluster.worker("w1").kill()

        def is_seen() -> bool:
            is_named = f"node_silent:{node}" in state.topics["attention"]
            return is_named and state.topics["nodes"][node]["status"] in ("unhealthy", "offline")

        await until(cluster, events, state, is_seen)
        assert "heartbeats" in state.topics["nodes"][node]["reason"]


async def test_a_stream_ends_with_its_frontend(cluster: Cluster) -> None:
    state = LiveState()
    async with reading(cluster.frontend(), state) as events, running(cluster.frontend().stop(), name="ending"):
        with pytest.raises((AssertionError, aiohttp.ClientError), match="ended"):
            await _until_its_end(events)
        await cluster.frontend().until_ended()


async def _until_its_end(events: HttpEvents) -> None:
    while True:
        await next_event(events)
