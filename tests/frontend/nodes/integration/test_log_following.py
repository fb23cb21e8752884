"""Logs through Corral's own route: a page of lines, or a stream that ends with its reader and survives its worker."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer

from corral.base.tasks import end_tasks, running, start_task
from corral.cli.client import ApiClient, FrontendTarget
from corral.cli.fleet.logs import LogFollower, LogSource, read_lines, sources_of
from corral.frontend.app import AdminServer, bind
from corral.frontend.nodes.decide.log_lines import LONGEST_LINE
from corral.frontend.nodes.logs import MOST_FOLLOWERS
from corral.worker.processes.backend_logs import OutputStream
from tests.kit.asgi import AsgiStream, open_stream
from tests.kit.clock import ManualClock
from tests.kit.file_worker import FileWorker, open_file_worker
from tests.kit.frontend import Frontend
from tests.kit.waiting import WAIT_TIMEOUT, eventually

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


async def joined(frontend: Frontend, http_address: str) -> str:
    answer = await frontend.register({"name": "w", "address": "127.0.0.1:1", "http_address": http_address})
    node_id = str(answer.json()["id"])
    await frontend.call("POST", f"/api/nodes/{node_id}/approve")
    return node_id


def write(worker: FileWorker, *texts: str, key: str = "m#0") -> None:
    for text in texts:
        worker.logs.of(key).add(OutputStream.STDOUT, text)


@asynccontextmanager
async def following(frontend: Frontend, node_id: str, query: str = "", **headers: str) -> AsyncIterator[AsgiStream]:
    url = f"/api/v1/nodes/{node_id}/logs/m?follow=true{query}"
    usual = {"Authorization": f"Bearer {frontend.admin_key}"}
    async with open_stream(frontend.app, url, headers={**usual, **headers}) as stream:
        assert await stream.next() == b"retry: 2000"
        yield stream


async def frame(stream: AsgiStream) -> tuple[str, Any]:
    """The next event that is not a comment."""
    while (raw := await stream.next()).startswith(b":"):
        pass
    fields = dict(part.split(": ", 1) for part in raw.decode().split("\n"))
    return fields["event"], msgspec.json.decode(fields["data"])


async def later_frame(stream: AsgiStream, clock: ManualClock) -> tuple[str, Any]:
    """The next event, while time passes."""

    async def has_come() -> bool:
        await pass_time(clock)
        return coming.done()

    coming = start_task(frame(stream), name="frame")
    try:
        await eventually(has_come, "an event")
        return await coming
    finally:
        await end_tasks(coming)


async def pass_time(clock: ManualClock) -> None:
    if clock.sleeping:
        await clock.advance(timedelta(seconds=5))


async def text(stream: AsgiStream) -> str:
    kind, data = await frame(stream)
    assert kind == "line", data
    return str(data["text"])


async def test_a_page_has_the_last_lines_that_are_meant(frontend: Frontend, tmp_path: Path) -> None:
    async with open_file_worker(tmp_path) as worker:
        write(worker, "one", "Two", "three" + "x" * 3000)
        write(worker, "of another replica", key="m#1")
        node_id = await joined(frontend, f"127.0.0.1:{worker.port}")
        path = f"/api/v1/nodes/{node_id}/logs"
        assert (await frontend.call("GET", path)).json() == ["m"]
        lines: Any = (await frontend.call("GET", f"{path}/m%230?lines=2")).json()
        found: Any = (await frontend.call("GET", f"{path}/m?search=TWO")).json()
        old: Any = (await frontend.call("GET", f"{path}/m?since=2999-01-01T00:00:00Z")).json()
        nothing: Any = (await frontend.call("GET", f"{path}/nobody")).json()
    assert [line["text"][:5] for line in lines["items"]] == ["Two", "three"]
    assert {*lines["items"][0]} == {"id", "at", "stream", "text", "truncated", "length"}
    assert [line["text"] for line in found["items"]] == ["Two"]
    assert (old["items"], nothing["items"]) == ([], [])


async def test_who_follows_gets_lines_as_they_come(frontend: Frontend, tmp_path: Path) -> None:
    async with open_file_worker(tmp_path) as worker:
        write(worker, "one", "two")
        node_id = await joined(frontend, f"127.0.0.1:{worker.port}")
        async with following(frontend, node_id, "&lines=1&search=o") as stream:
            assert await text(stream) == "two"
            write(worker, "here", "there is an o", key="m#3")
            assert await text(stream) == "there is an o"


class ScriptedWorker:
    """Serves logs over WebSockets: each connection gets the next of these frames, and lasts as long as its reader, or
    ends at once when they end with None."""

    def __init__(self, *connections: list[Any]) -> None:
        self._connections = list(connections)
        self.ended = asyncio.Event()
        """Set when a reader has left."""

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        assert request.headers["Authorization"].startswith("Bearer ")
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        for frame in self._connections.pop(0):
            if frame is None:
                await socket.close()
                return socket
            await socket.send_str(frame if isinstance(frame, str) else msgspec.json.encode(frame).decode())
        await socket.receive()
        self.ended.set()
        return socket


def initial(*texts: str, at: str = "2030-01-01T00:00:0{}Z") -> object:
    lines = [{"timestamp": at.format(number), "stream": "stderr", "text": text} for number, text in enumerate(texts, 1)]
    return {"type": "initial", "lines": lines}


async def test_a_reader_that_leaves_ends_the_connection_to_the_worker(frontend: Frontend) -> None:
    worker = ScriptedWorker([initial("one")])
    async with RawTestServer(worker.serve) as node:
        node_id = await joined(frontend, f"127.0.0.1:{node.port}")
        async with following(frontend, node_id) as stream:
            assert await text(stream) == "one"
            assert frontend.control.context.nodes.following.followers == 1
        assert frontend.control.context.nodes.following.followers == 0
        await asyncio.wait_for(worker.ended.wait(), WAIT_TIMEOUT.total_seconds())


async def test_a_line_of_a_megabyte_is_cut(frontend: Frontend) -> None:
    """LocalAI's workers cut nothing."""
    async with RawTestServer(ScriptedWorker([initial("<b>" + "x" * 1024 * 1024)]).serve) as node:
        node_id = await joined(frontend, f"127.0.0.1:{node.port}")
        async with following(frontend, node_id) as stream:
            kind, data = await frame(stream)
    assert (kind, len(data["text"]), data["truncated"]) == ("line", LONGEST_LINE, True)
    assert data["length"] == 1024 * 1024 + len("<b>")


async def test_a_worker_that_restarts_is_followed_again_and_what_is_lost_is_marked(
    frontend: Frontend, clock: ManualClock
) -> None:
    kept, forgot = [initial("one", "two"), None], [initial("other", at="2030-01-02T00:00:0{}Z")]
    worker = ScriptedWorker([initial("one"), None], kept, forgot)
    async with RawTestServer(worker.serve) as node:
        node_id = await joined(frontend, f"127.0.0.1:{node.port}")
        async with following(frontend, node_id) as stream:
            assert await text(stream) == "one"
            assert await frame(stream) == ("gap", {"gap": "the worker ended the stream; trying again", "lost": None})
            _, line = await later_frame(stream, clock)
            assert line["text"] == "two", "what was seen is not told again"
            assert (await frame(stream))[0] == "gap"
            kind, gap = await later_frame(stream, clock)
            assert (kind, "does not have the lines any more" in gap["gap"]) == ("gap", True)
            assert await text(stream) == "other"


async def test_a_reader_that_comes_back_goes_on_where_it_was(frontend: Frontend, tmp_path: Path) -> None:
    async with open_file_worker(tmp_path) as worker:
        write(worker, "one")
        node_id = await joined(frontend, f"127.0.0.1:{worker.port}")
        async with following(frontend, node_id) as stream:
            _, first = await frame(stream)
        write(worker, "two")
        async with following(frontend, node_id, **{"Last-Event-ID": first["id"]}) as stream:
            assert await text(stream) == "two"


async def test_the_command_line_tells_every_line_of_a_node_once(frontend: Frontend, tmp_path: Path) -> None:
    async with open_file_worker(tmp_path) as worker:
        write(worker, "one", "two")
        await joined(frontend, f"127.0.0.1:{worker.port}")
        server = AdminServer(frontend.app, bind("127.0.0.1", 0))
        target = FrontendTarget(
            url=f"http://127.0.0.1:{server.port}", key=frontend.admin_key, origin="a test", timeout=WAIT_TIMEOUT
        )
        client = ApiClient(target)

        def read() -> tuple[list[LogSource], dict[LogSource, str]]:
            sources = sources_of(client, "w")
            return sources, {source: line.id for source, line in read_lines(client, sources)[0]}

        async with running(server.run(ending=frontend.control.context.stopping.set), name="control"):
            sources, places = await asyncio.to_thread(read)
            assert [source.process for source in sources] == ["m"]
            write(worker, "three")
            told = LogFollower(client, [("lines", "1000")]).follow(lambda: sources, places)
            assert (await asyncio.to_thread(next, told))[1].text == "three", "what was read is not told again"
            write(worker, "x" * 20_000)
            _, long = await asyncio.to_thread(next, told)
            assert (len(long.text), long.truncated, long.length) == (LONGEST_LINE, True, 20_000)
            told.close()


async def test_lines_that_a_slow_reader_missed_are_counted(frontend: Frontend, tmp_path: Path) -> None:
    async with open_file_worker(tmp_path) as worker:
        node_id = await joined(frontend, f"127.0.0.1:{worker.port}")
        async with following(frontend, node_id) as stream:
            write(worker, "first")
            assert await text(stream) == "first"
            write(worker, *(str(number) for number in range(150)))  # without letting anybody else run
            assert [await text(stream) for _ in range(100)] == [str(number) for number in range(100)]
            write(worker, "again")
            kind, gap = await frame(stream)
            assert (kind, gap["lost"]) == ("gap", 50)
            assert await text(stream) == "again"


async def test_a_worker_that_sends_nonsense_is_told_and_not_trusted(frontend: Frontend) -> None:
    async def lie(_: web.BaseRequest) -> web.Response:
        return web.Response(text="<script>no log</script>")

    async with RawTestServer(lie) as node:
        node_id = await joined(frontend, f"127.0.0.1:{node.port}")
        page: Any = await frontend.call("GET", f"/api/v1/nodes/{node_id}/logs/m")
        async with following(frontend, node_id) as stream:
            kind, gap = await frame(stream)
    assert (page.status, page.json()["error"]["code"]) == (502, "worker_unreachable")
    assert (kind, gap["gap"].startswith("failed to reach worker: w: ")) == ("gap", True)
    async with RawTestServer(ScriptedWorker(['{"type": "surprise"}']).serve) as node:
        other = await frontend.register(
            {"name": "w2", "address": "127.0.0.1:2", "http_address": f"127.0.0.1:{node.port}"}
        )
        await frontend.call("POST", f"/api/nodes/{other.json()['id']}/approve")
        async with following(frontend, str(other.json()["id"])) as stream:
            _, gap = await frame(stream)
    assert gap["gap"] == "failed to reach worker: w2: it sends what is no log; trying again"


async def test_a_node_that_is_removed_ends_the_stream(frontend: Frontend, clock: ManualClock) -> None:
    node_id = await joined(frontend, "127.0.0.1:1")
    async with following(frontend, node_id) as stream:
        assert (await frame(stream))[0] == "gap"
        await frontend.call("DELETE", f"/api/v1/nodes/{node_id}")
        kind, gap = await later_frame(stream, clock)
        assert (kind, node_id in gap["gap"], "trying again" in gap["gap"]) == ("gap", True, False)


async def test_a_key_that_is_revoked_ends_the_stream(frontend: Frontend, clock: ManualClock) -> None:
    node_id = await joined(frontend, "127.0.0.1:1")
    made: Any = (await frontend.call("POST", "/api/v1/keys", {"name": "k", "scopes": ["operator"]})).json()
    headers = {"Authorization": f"Bearer {made['key']}"}
    async with following(frontend, node_id, **headers) as stream:
        assert (await frame(stream))[0] == "gap"
        await frontend.call("DELETE", f"/api/v1/keys/{made['id']}")

        async def has_ended() -> bool:
            await pass_time(clock)
            return frontend.control.context.nodes.following.followers == 0

        await eventually(has_ended, "the end of the stream")


async def test_a_viewer_may_not_follow(frontend: Frontend) -> None:
    """Engines may quote what people asked."""
    node_id = await joined(frontend, "127.0.0.1:1")
    made: Any = (await frontend.call("POST", "/api/v1/keys", {"name": "v", "scopes": ["viewer"]})).json()
    refused = await frontend.call("GET", f"/api/v1/nodes/{node_id}/logs/m?follow=true", key=made["key"])
    assert refused.status == 403


async def test_not_everybody_can_follow_at_once(frontend: Frontend) -> None:
    node_id = await joined(frontend, "127.0.0.1:1")
    frontend.control.context.nodes.following.followers = MOST_FOLLOWERS
    refused = await frontend.call("GET", f"/api/v1/nodes/{node_id}/logs/m?follow=true")
    assert (refused.status, "retry-after" in refused.headers) == (429, True)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("lines=1001", "lines"),
        ("lines=-1", "lines"),
        ("follow=yes", "follow"),
        ("since=yesterday", "since"),
        ("since=99999999999999d", "since"),
        (f"search={'x' * 201}", "search"),
    ],
)
async def test_a_parameter_that_makes_no_sense_is_named(frontend: Frontend, query: str, field: str) -> None:
    answer = await frontend.call("GET", f"/api/v1/nodes/n/logs/m?{query}")
    assert (answer.status, answer.json()["error"]["field"]) == (400, field)


async def test_an_unknown_or_pending_node_is_not_asked(frontend: Frontend) -> None:
    registered = await frontend.register({"name": "w", "address": "127.0.0.1:1", "http_address": "127.0.0.1:1"})
    for node_id, status in (("nobody", 404), (registered.json()["id"], 409)):
        for query in ("", "?follow=true"):
            assert (await frontend.call("GET", f"/api/v1/nodes/{node_id}/logs/m{query}")).status == status
