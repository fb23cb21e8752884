"""Every request has an id: its client's own, or a new one. Answers, errors, engines, control and the log know it."""

import logging
import re

import msgspec
import pytest

from tests.kit.engine import EVENTS, EngineConnection, EngineRequest, chunk, json_answer
from tests.kit.gateway import GatewayWorld, chat, request, world

MADE = re.compile(r"req-[0-9a-f]{12}-[0-9a-f]+")


def named(id: str) -> bytes:
    return b"X-Request-Id: " + id.encode("latin-1") + b"\r\n"


async def test_an_id_of_the_client_is_kept_everywhere(gateway: GatewayWorld) -> None:
    answer = await gateway.ask(request(chat(), head=named("mine-1")))
    passed = await gateway.ask(request(method="GET", path="/api/v1/nodes", head=named("mine-2")))
    own = await gateway.ask(request(method="GET", path="/v1/models", head=named("mine-3")))
    old = await gateway.ask(request(chat(), head=named("mine-4"), version="1.0"))

    told = [one.headers["x-request-id"] for one in (answer, passed, own, old)]
    assert told == ["mine-1", "mine-2", "mine-3", "mine-4"]
    assert gateway.engine.requests[0].header("x-request-id") == "mine-1"
    assert gateway.control.passed[0][2]["X-Request-ID"] == "mine-2"


@pytest.mark.parametrize("bad", ["", "a b", "x" * 129, "ä", "a\tb"])
async def test_an_id_that_cannot_be_used_is_replaced(gateway: GatewayWorld, bad: str) -> None:
    answer = await gateway.ask(request(chat(), head=named(bad)))

    assert MADE.fullmatch(answer.headers["x-request-id"])
    assert gateway.engine.requests[0].header("x-request-id") == answer.headers["x-request-id"]


async def test_requests_of_one_connection_have_ids_of_their_own(gateway: GatewayWorld) -> None:
    ids = []
    async with gateway.client() as client:
        for _ in range(3):
            await client.send(request(chat()))
            ids.append((await client.read_answer()).headers["x-request-id"])
        await client.send(request(method="GET", path="/v1/models", key="wrong"))
        ids.append((await client.read_answer()).headers["x-request-id"])
        await client.send(b"nonsense\r\n\r\n")
        ids.append((await client.read_answer()).headers["x-request-id"])

    assert len(set(ids)) == 5
    assert all(MADE.fullmatch(id) for id in ids)
    assert [one.header("x-request-id") for one in gateway.engine.requests] == ids[:3]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_errors_say_it_in_the_body_too(gateway: GatewayWorld, path: str) -> None:
    answer = await gateway.ask(request(chat("nobody"), path=path, head=named("mine")))

    assert (answer.status, answer.headers["x-request-id"]) == (404, "mine")
    assert msgspec.json.decode(answer.body)["request_id"] == "mine"


async def test_an_id_of_the_engine_does_not_come_beside_it(gateway: GatewayWorld) -> None:
    async def naming(_: EngineRequest, connection: EngineConnection) -> bool:
        await connection.send(json_answer(b"{}", head=b"x-request-ID: of-the-engine\r\n"))
        return True

    gateway.engine.behave = naming
    async with gateway.client() as client:
        await client.send(request(chat(), head=named("mine")))
        raw = await client.reader.readuntil(b"\r\n\r\n")
    assert raw.lower().count(b"x-request-id: mine\r\n") == raw.lower().count(b"x-request-id") == 1


async def test_failures_are_logged_under_it(gateway: GatewayWorld, caplog: pytest.LogCaptureFixture) -> None:
    async def dying(_: EngineRequest, connection: EngineConnection) -> bool:
        await connection.send(b"nonsense")
        return False

    async def breaking(_: EngineRequest, connection: EngineConnection) -> bool:
        await connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(EVENTS[0]))
        connection.cut()
        return False

    caplog.set_level(logging.INFO, "corral.gateway")
    gateway.engine.behave = dying
    assert (await gateway.ask(request(chat(), head=named("first")))).status == 502
    gateway.engine.behave = breaking
    assert not (await gateway.ask(request(chat(), head=named("second")))).is_whole

    lines = [line for line in caplog.records if getattr(line, "event", "") == "gateway.request_failed"]
    assert [getattr(line, "request_id", "") for line in lines] == ["first", "second"]


async def test_a_tunnel_is_named(gateway: GatewayWorld) -> None:
    head = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" + named("tunnel")
    head += b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    async with gateway.client() as client:
        await client.send(request(method="GET", path="/ws", head=head))
        status, headers = await client.read_head()
        assert (status, headers["x-request-id"]) == (101, "tunnel")


async def test_a_tunnel_has_one_id_and_one_policy_of_origins() -> None:
    """What control says of both is taken out, as of every other answer."""
    head = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nOrigin: http://page.test\r\n"
    head += b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" + named("tunnel")
    async with world(cors_origins=("http://page.test",)) as strict, strict.client() as client:
        await client.send(request(method="GET", path="/ws", head=head))
        lines = (await client.reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
    assert lines[0].startswith(b"http/1.1 101")
    assert [line for line in lines if line.startswith(b"x-request-id:")] == [b"x-request-id: tunnel"]
    allowed = [line for line in lines if line.startswith(b"access-control-allow-origin:")]
    assert allowed == [b"access-control-allow-origin: http://page.test"]
    assert {b"upgrade: websocket", b"connection: upgrade"} <= set(lines)
