"""Logs of a node's backends through the frontend: as the worker answers, or why it could not be asked."""

from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer

from corral.worker.processes.backend_logs import OutputStream
from tests.kit.file_worker import open_file_worker
from tests.kit.frontend import Frontend

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


async def registered(frontend: Frontend, http_address: str) -> str:
    answer = await frontend.register({"name": "w", "address": "127.0.0.1:1", "http_address": http_address})
    return str(answer.json()["id"])


async def joined(frontend: Frontend, http_address: str) -> str:
    node_id = await registered(frontend, http_address)
    await frontend.call("POST", f"/api/nodes/{node_id}/approve")
    return node_id


async def test_the_worker_s_answer_is_passed_on(frontend: Frontend, tmp_path: Path) -> None:
    async with open_file_worker(tmp_path) as worker:
        for text in ("one", "two"):
            worker.logs.of("a/b#0").add(OutputStream.STDOUT, text)
        node_id = await joined(frontend, f"127.0.0.1:{worker.port}")
        names = await frontend.call("GET", f"/api/nodes/{node_id}/backend-logs")
        lines = await frontend.call("GET", f"/api/nodes/{node_id}/backend-logs/a%2Fb%230")
        nothing = await frontend.call("GET", f"/api/nodes/{node_id}/backend-logs/nobody")
        refused = await frontend.call("GET", f"/api/nodes/{node_id}/backend-logs/")
    assert (names.status, names.json()) == (200, ["a/b"])
    assert [line["text"] for line in lines.json()] == ["one", "two"]
    assert (nothing.status, nothing.json()) == (200, [])
    assert (refused.status, refused.body) == (400, b"model ID required\n")


async def test_a_worker_that_names_no_host_is_on_this_machine(frontend: Frontend, tmp_path: Path) -> None:
    """As for Go: LocalAI's worker registers what LOCALAI_ADDR says, which may be `:50051`."""
    async with open_file_worker(tmp_path) as worker:
        worker.logs.of("m#0").add(OutputStream.STDOUT, "one")
        node_id = await joined(frontend, f":{worker.port}")
        names = await frontend.call("GET", f"/api/nodes/{node_id}/backend-logs")
    assert (names.status, names.json()) == (200, ["m"])


@pytest.mark.parametrize("name", ["%2e", "%2e%2e"])
async def test_no_name_leads_to_another_path_of_the_worker(frontend: Frontend, name: str) -> None:
    asked: list[str] = []

    async def answer(request: web.BaseRequest) -> web.Response:
        asked.append(request.path)
        return web.Response(body=b"[]")

    async with RawTestServer(answer) as node:
        node_id = await joined(frontend, f"127.0.0.1:{node.port}")
        native = await frontend.call("GET", f"/api/v1/nodes/{node_id}/logs/{name}")
        localai = await frontend.call("GET", f"/api/nodes/{node_id}/backend-logs/{name}")

    assert (native.status, localai.status, asked) == (400, 400, [])


async def test_what_a_node_sends_is_plain_text_whatever_it_calls_it(frontend: Frontend) -> None:
    page = b"<script>alert(document.cookie)</script>"

    async def answer(_: web.BaseRequest) -> web.Response:
        return web.Response(body=page, content_type="text/html", headers={"Set-Cookie": "a=b"})

    async with RawTestServer(answer) as node:
        node_id = await joined(frontend, f"127.0.0.1:{node.port}")
        seen = await frontend.call("GET", f"/api/nodes/{node_id}/backend-logs/m")

    assert (seen.status, seen.body) == (200, page)
    assert seen.headers["content-type"] == "text/plain; charset=utf-8"
    assert seen.headers["x-content-type-options"] == "nosniff"
    assert "set-cookie" not in seen.headers


async def test_a_bearer_does_not_follow_a_redirect(frontend: Frontend) -> None:
    """A node that is asked with a secret must not be able to have it brought to somebody else."""
    elsewhere: list[str] = []

    async def collect(request: web.BaseRequest) -> web.Response:
        elsewhere.append(request.headers.get("Authorization", ""))
        return web.Response()

    async with RawTestServer(collect) as thief:

        async def lead_on(_: web.BaseRequest) -> web.Response:
            return web.Response(status=307, headers={"Location": f"http://127.0.0.1:{thief.port}/v1/backend-logs"})

        async with RawTestServer(lead_on) as node:
            node_id = await joined(frontend, f"127.0.0.1:{node.port}")
            await frontend.call("GET", f"/api/nodes/{node_id}/backend-logs")

    assert elsewhere == []


async def test_a_pending_node_is_not_asked(frontend: Frontend) -> None:
    asked: list[str] = []

    async def answer(request: web.BaseRequest) -> web.Response:
        asked.append(request.path)
        return web.Response()

    async with RawTestServer(answer) as node:
        node_id = await registered(frontend, f"127.0.0.1:{node.port}")
        seen = await frontend.call("GET", f"/api/nodes/{node_id}/backend-logs")

    assert asked == []
    assert seen.status == 409
    assert "node w waits for approval" in seen.json()["error"]["message"]


@pytest.mark.parametrize("address", ["127.0.0.1:1", "", "no port", "127.0.0.1:99999", "[::1"])
async def test_a_worker_that_cannot_be_asked(frontend: Frontend, address: str) -> None:
    node_id = await joined(frontend, address)
    for path in ("backend-logs", "backend-logs/m"):
        answer = await frontend.call("GET", f"/api/nodes/{node_id}/{path}")
        error = answer.json()["error"]
        assert (answer.status, error["code"], error["type"]) == (502, 502, "node_error")
        assert error["message"].startswith("failed to reach worker: ")


async def test_a_node_that_there_is_not(frontend: Frontend) -> None:
    answer = await frontend.call("GET", "/api/nodes/nobody/backend-logs")
    assert (answer.status, answer.json()["error"]["message"]) == (404, "node not found")


async def test_a_worker_without_logs_may_say_null(frontend: Frontend) -> None:
    """As Go writes an empty list."""

    async def answer(_: web.BaseRequest) -> web.Response:
        return web.Response(body=b"null", content_type="application/json")

    async with RawTestServer(answer) as node:
        node_id = await joined(frontend, f"127.0.0.1:{node.port}")
        names = await frontend.call("GET", f"/api/v1/nodes/{node_id}/logs")
        lines = await frontend.call("GET", f"/api/v1/nodes/{node_id}/logs/m")

    assert (names.status, names.json()) == (200, [])
    assert (lines.status, lines.json()["items"]) == (200, [])


async def test_a_pending_localai_worker_that_asks_again_begins_no_new_life(frontend: Frontend) -> None:
    first = await registered(frontend, "127.0.0.1:2")
    for _ in range(3):
        assert await registered(frontend, "127.0.0.1:2") == first
    events = (await frontend.call("GET", "/api/v1/events")).json()
    assert [event["kind"] for event in events].count("node.reregistered") == 0
