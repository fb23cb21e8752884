"""The admin API of one frontend over HTTP, in the words of tests."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
import msgspec

from corral.base.ids import NodeId
from corral.frontend.nodes.decide.node import NodeStatus
from corral.wire.nodes import EventView, NodeDetail, NodePage
from tests.kit.waiting import within_timeout


def open_session() -> aiohttp.ClientSession:
    """A new connection for each call: a frontend that died and came back is another one."""
    connector = aiohttp.TCPConnector(force_close=True)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None))


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminAnswer:
    """What a frontend answered over HTTP."""

    status: int
    body: bytes

    def json(self) -> object:
        return msgspec.json.decode(self.body)


class EventStream:
    """Server-sent events as they arrive."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def next(self) -> EventView:
        """The next event, whatever comment or keep-alive is in between."""
        while True:
            line = await within_timeout(self._response.content.readline(), lambda: "an event on the stream")
            if not line:
                raise AssertionError("the stream ended")
            if line.startswith(b"data: "):
                return msgspec.json.decode(line[len(b"data: ") :], type=EventView)


class AdminApi:
    """One frontend, as an administrator talks to it."""

    def __init__(self, session: aiohttp.ClientSession, url: str, *, key: str = "") -> None:
        self.url = url
        self.admin_key = key
        self._session = session

    async def call(self, method: str, path: str, body: object = None, *, key: str | None = None) -> AdminAnswer:
        """`key` is the bearer, the administrator's by default."""
        headers = {"Authorization": f"Bearer {key or self.admin_key}", "Content-Type": "application/json"}
        return await self.send(method, path, b"" if body is None else msgspec.json.encode(body), headers)

    async def send(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> AdminAnswer:
        """Send a request with a body of bytes."""
        request = self._session.request(method, self.url + path, data=body, headers=headers)
        async with await within_timeout(request, lambda: f"an answer to {method} {path}") as response:
            return AdminAnswer(status=response.status, body=await response.read())

    async def nodes(self) -> dict[NodeId, NodeDetail]:
        """Every node as this frontend sees it now."""
        answer = await self._good("GET", "/api/v1/nodes?limit=1000")
        page = msgspec.json.decode(answer.body, type=NodePage)
        return {NodeId(node.id): node for node in page.items}

    async def node(self, node_id: NodeId) -> NodeDetail:
        return msgspec.json.decode((await self._good("GET", f"/api/v1/nodes/{node_id}")).body, type=NodeDetail)

    async def status(self, node_id: NodeId) -> NodeStatus:
        return NodeStatus((await self.node(node_id)).status)

    async def approve(self, node_id: NodeId) -> None:
        await self._good("POST", f"/api/v1/nodes/{node_id}/approve")

    async def drain(self, node_id: NodeId) -> None:
        await self._good("POST", f"/api/v1/nodes/{node_id}/drain")

    async def resume(self, node_id: NodeId) -> None:
        await self._good("POST", f"/api/v1/nodes/{node_id}/resume")

    async def label(self, node_id: NodeId, labels: Mapping[str, str]) -> None:
        await self._good("PATCH", f"/api/v1/nodes/{node_id}/labels", labels)

    async def remove(self, node_id: NodeId) -> None:
        await self._good("DELETE", f"/api/v1/nodes/{node_id}")

    async def record(self, *, after: int = 0) -> list[EventView]:
        """The newest thousand events after a sequence number, oldest first."""
        answer = await self._good("GET", f"/api/v1/events?after={after}&limit=1000")
        return msgspec.json.decode(answer.body, type=list[EventView])

    @asynccontextmanager
    async def stream(self, *, after: int | None = None) -> AsyncIterator[EventStream]:
        """Server-sent events from now on, or after one already seen. Listening has begun when the block begins."""
        headers = {"Authorization": f"Bearer {self.admin_key}", "Accept": "text/event-stream"}
        headers |= {} if after is None else {"Last-Event-ID": str(after)}
        async with self._session.get(f"{self.url}/api/v1/events", headers=headers) as response:
            await within_timeout(response.content.readline(), lambda: "the stream to begin")
            yield EventStream(response)

    async def _good(self, method: str, path: str, body: object = None) -> AdminAnswer:
        answer = await self.call(method, path, body)
        if answer.status >= 400:
            raise AssertionError(f"{method} {path} at {self.url}: {answer.status} {answer.body!r}")
        return answer
