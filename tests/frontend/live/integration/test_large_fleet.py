"""A thousand nodes over real HTTP: snapshots in parts, and a reader that never reads costs next to nothing."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import aiohttp
import pytest
from msgspec.structs import replace
from starlette.types import Message, Receive, Scope, Send

from corral.base.tasks import running
from corral.frontend.app import AdminServer, bind
from corral.frontend.live.decide.frames import MOST_BYTES
from corral.frontend.nodes.decide.node import Capacity, Peer
from corral.frontend.nodes.decide.registration import AdmissionPolicy
from corral.frontend.nodes.store.liveness import AcceptedHeartbeat
from tests.kit.admin_api import open_session
from tests.kit.clock import ManualClock
from tests.kit.frontend import Frontend
from tests.kit.live import LiveEvent, LiveState
from tests.kit.samples import a_node
from tests.kit.waiting import within_timeout

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
NODES = 1000
FEWER = 250
ROUNDS = 20
KERNEL_BYTES = 32 * 1024
CAPACITY = Capacity(total_vram=80 * 2**30, available_vram=7 * 2**30, total_ram=2**36, available_ram=2**33)


@dataclass
class MeteredApp:
    """The application, and how much its connections have taken from it."""

    frontend: Frontend
    taken: dict[str, int] = field(default_factory=dict)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def metered(message: Message) -> None:
            await send(message)
            name = scope["query_string"].decode()
            self.taken[name] = self.taken.get(name, 0) + len(message.get("body", b""))

        await self.frontend.app(scope, receive, metered)


@asynccontextmanager
async def served(frontend: Frontend) -> AsyncIterator[tuple[MeteredApp, int]]:
    app, listener = MeteredApp(frontend), bind("127.0.0.1", 0)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BYTES)
    server = AdminServer(app, listener)  # type: ignore[arg-type]
    context = frontend.control.context

    def end() -> None:
        context.stopping.set()
        context.live.hub.ring()

    async with running(server.run(ending=end), name="control"):
        yield app, server.port


async def a_large_fleet(frontend: Frontend, clock: ManualClock, count: int = NODES) -> None:
    store, now = frontend.control.context.nodes.store, clock.now()
    for number in range(count):
        node = a_node(
            created_at=now,
            name=f"rack-{number // 40}-{number % 40}",
            peer=Peer(version="1.0"),
            capacity=replace(CAPACITY, available_ram=number),
        )
        await store.admit(node, events=[], policy=AdmissionPolicy())
    await frontend.settle()


async def all_beat(frontend: Frontend, clock: ManualClock) -> None:
    await clock.advance(timedelta(seconds=1))
    store, now = frontend.control.context.nodes.store, clock.now()
    beats = [
        AcceptedHeartbeat(
            before=node, node=replace(node, facts=replace(node.facts, last_heartbeat=now)), next_look=None, event=None
        )
        for node in await store.all()
    ]
    await store.beat(beats)
    await frontend.control.context.nodes.hearing.tick()


def headers(frontend: Frontend) -> dict[str, str]:
    return {"Authorization": f"Bearer {frontend.admin_key}"}


async def read_until(response: aiohttp.ClientResponse, state: LiveState, name: str) -> list[LiveEvent]:
    """Take in all events until one of this name."""
    events: list[LiveEvent] = []
    left = b""
    while not any(event.name == name for event in events):
        left += await within_timeout(response.content.readany(), lambda: f"{name} after {len(events)} events")
        *texts, left = left.split(b"\n\n")
        for text in texts:
            events.append(LiveEvent.parse(text))
            state.apply(events[-1])
    return events


async def test_a_thousand_nodes_come_in_parts_and_then_only_what_changed(
    frontend: Frontend, clock: ManualClock
) -> None:
    await a_large_fleet(frontend, clock)
    hub, state = frontend.control.context.live.hub, LiveState()
    async with served(frontend) as (_, port), open_session() as session:
        url = f"http://127.0.0.1:{port}/api/v1/live?topics=nodes,summary"
        async with session.get(url, headers=headers(frontend)) as response:
            events = await read_until(response, state, "ready")
            parts = [event for event in events if event.name == "snapshot" and event.data["topic"] == "nodes"]
            assert len(state.topics["nodes"]) == NODES
            assert len(parts) > 10
            assert max(len(part.text) for part in parts) < 2 * MOST_BYTES
            node = next(iter(state.topics["nodes"]))
            await frontend.call("PATCH", f"/api/v1/nodes/{node}/labels", {"rack": "7"})
            await hub.refresh(hub.read_topics)
            (change,) = [event for event in await read_until(response, state, "change") if event.name == "change"]
            assert list(change.data["items"]) == [node]


async def test_a_reader_that_never_reads_holds_up_nobody_and_takes_no_more_than_buffers(
    frontend: Frontend, clock: ManualClock
) -> None:
    await a_large_fleet(frontend, clock, FEWER)
    hub, state = frontend.control.context.live.hub, LiveState()
    async with served(frontend) as (app, port), open_session() as session, never_reading(frontend, port):
        url = f"http://127.0.0.1:{port}/api/v1/live?topics=nodes,loads"
        async with session.get(url, headers=headers(frontend)) as response:
            await read_until(response, state, "ready")
            for _ in range(ROUNDS):
                await all_beat(frontend, clock)
                await hub.refresh(hub.read_topics)
                await read_until(response, state, "change")
    offered, taken = app.taken["topics=nodes,loads"], app.taken["topics=nodes"]
    assert offered > 2_500_000
    assert taken < 600_000, "what the kernel and one write buffer hold"


@asynccontextmanager
async def never_reading(frontend: Frontend, port: int) -> AsyncIterator[None]:
    """A client that asks for the live stream and reads nothing."""
    loop, key = asyncio.get_running_loop(), frontend.admin_key
    ask = f"GET /api/v1/live?topics=nodes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n"
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.setblocking(False)
        await loop.sock_connect(deaf, ("127.0.0.1", port))
        await loop.sock_sendall(deaf, ask.encode())
        yield
