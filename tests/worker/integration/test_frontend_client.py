"""Calls over real connections: headers, failures, moving between frontends, and secrets that stay secret."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import aiohttp
import pytest

from corral.base.errors import PeerRefused, PeerUnavailable
from corral.base.http_client import open_session
from corral.base.ids import NodeId
from corral.wire.registration import CorralStatus, HeartbeatRequest, RegisterRequest
from corral.worker.membership.frontend_client import FrontendClient, error_text
from corral.worker.membership.registration import AcceptedRegistration

MEMBER = AcceptedRegistration(node_id=NodeId("n1"), bearer="own-secret", status="healthy")
BODY = RegisterRequest(name="w1", address="127.0.0.1:51101", token="tok")


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with open_session(timeout=timedelta(seconds=10), connect_timeout=timedelta(seconds=3)) as opened:
        yield opened


@pytest.fixture
def client(session: aiohttp.ClientSession, frontend: Any) -> FrontendClient:
    return FrontendClient(session, [frontend.url])


async def test_registration_shows_the_token_in_the_header_and_in_the_body(client: Any, frontend: Any) -> None:
    await client.register(BODY)

    [request] = frontend.received
    assert (request.method, request.path) == ("POST", "/api/node/register")
    assert request.headers == {"Authorization": "Bearer tok", "Content-Type": "application/json"}
    assert request.body == {"name": "w1", "address": "127.0.0.1:51101", "token": "tok"}


async def test_without_a_token_no_header_is_sent(client: Any, frontend: Any) -> None:
    await client.register(RegisterRequest(name="w1"))

    assert "Authorization" not in frontend.received[0].headers


async def test_calls_of_a_member_show_its_own_bearer_and_only_heartbeats_have_a_body(
    client: Any, frontend: Any
) -> None:
    await client.heartbeat(MEMBER, HeartbeatRequest(available_ram=1))
    await client.drain(MEMBER)
    await client.in_flight(MEMBER)
    await client.deregister(MEMBER)

    bearer = {"Authorization": "Bearer own-secret"}
    assert [(request.method, request.path, request.body) for request in frontend.received] == [
        ("POST", "/api/node/n1/heartbeat", {"available_ram": 1}),
        ("POST", "/api/node/n1/drain", None),
        ("GET", "/api/node/n1/models", None),
        ("POST", "/api/node/n1/deregister", None),
    ]
    assert frontend.received[0].headers == {**bearer, "Content-Type": "application/json"}
    assert all(request.headers["Authorization"] == "Bearer own-secret" for request in frontend.received)


async def test_a_strange_node_id_cannot_leave_its_place_in_the_path(client: Any, frontend: Any) -> None:
    await client.drain(AcceptedRegistration(node_id=NodeId("../x?y"), bearer="b"))

    assert frontend.received[0].path == "/api/node/../x?y/drain"
    assert frontend.actions == ["drain"]


@pytest.mark.parametrize("status", [200, 201, 202, 299])
async def test_any_2xx_with_an_id_is_a_registration(client: Any, frontend: Any, answer: Any, status: int) -> None:
    frontend.will_answer("register", answer(status, {"ID": "n1", "unknown": {"deep": [1]}, "status": None}))

    response = await client.register(BODY)

    assert (response.id, response.status) == ("n1", "")


@pytest.mark.parametrize("body", [{}, {"id": ""}, {"id": 7}, [], b"<html>welcome</html>", b"", None])
async def test_2xx_without_an_id_is_no_frontend_and_worth_another_try(
    client: Any, frontend: Any, answer: Any, body: Any
) -> None:
    frontend.will_answer("register", answer(200, body))

    with pytest.raises(PeerUnavailable, match="not as a frontend"):
        await client.register(BODY)


@pytest.mark.parametrize("status", [500, 502, 503, 504, 408, 425, 429])
async def test_failures_that_pass_are_worth_another_try(client: Any, frontend: Any, answer: Any, status: int) -> None:
    error = {"error": {"code": status, "message": "failed to register node", "type": "node_error"}}
    frontend.will_answer("register", answer(status, error))

    with pytest.raises(PeerUnavailable, match=f"127.0.0.1:.* answered {status} .*: failed to register node"):
        await client.register(BODY)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422])
async def test_refusals_carry_status_and_reason(client: Any, frontend: Any, answer: Any, status: int) -> None:
    frontend.will_answer("drain", answer(status, {"error": "missing or invalid Authorization header"}))

    with pytest.raises(PeerRefused, match="missing or invalid Authorization header") as refusal:
        await client.drain(MEMBER)
    assert refusal.value.status == status


async def test_redirects_are_not_followed(client: Any, frontend: Any, second_frontend: Any, answer: Any) -> None:
    elsewhere = {"Location": f"{second_frontend.url}/api/node/register"}
    frontend.will_answer("register", answer(307, b"", elsewhere))

    with pytest.raises(PeerRefused, match="redirects are not followed"):
        await client.register(BODY)
    assert second_frontend.received == []


async def test_no_message_ever_carries_a_token(client: Any, frontend: Any, answer: Any) -> None:
    frontend.will_answer("deregister", answer(401, {"error": "own-secret is not the token"}))

    with pytest.raises(PeerRefused) as refusal:
        await client.deregister(MEMBER)
    assert "own-secret" not in str(refusal.value)
    assert "*** is not the token" in str(refusal.value)


async def test_a_frontend_that_is_not_there_is_named(client: Any, frontend: Any) -> None:
    await frontend.stop()

    with pytest.raises(PeerUnavailable, match=r"127\.0\.0\.1:\d+ does not answer: "):
        await client.deregister(MEMBER)


async def test_a_frontend_that_hangs_is_given_up(frontend: Any) -> None:
    let_go = frontend.hold("heartbeat")
    async with open_session(timeout=timedelta(milliseconds=50), connect_timeout=timedelta(seconds=3)) as session:
        with pytest.raises(PeerUnavailable, match="timed out"):
            await FrontendClient(session, [frontend.url]).heartbeat(MEMBER, HeartbeatRequest())
    let_go()


async def test_an_endless_answer_is_not_read(client: Any, frontend: Any, answer: Any) -> None:
    frontend.will_answer("models", answer(200, b" " * (5 * 1024 * 1024)))

    with pytest.raises(PeerUnavailable, match="more than"):
        await client.in_flight(MEMBER)


async def test_a_kept_connection_that_died_is_replaced_without_a_failure(session: Any) -> None:
    """A server may close an idle connection at the very moment we use it."""
    connections = 0

    async def serve_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        if connections == 1:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]")
            await reader.readuntil(b"\r\n\r\n")  # the next request arrives, and is never answered
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()

    async with await asyncio.start_server(serve_once, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        client = FrontendClient(session, [f"http://127.0.0.1:{port}"])
        await client.in_flight(MEMBER)
        await client.drain(MEMBER)

    assert connections == 2


async def test_what_is_in_flight_is_added_up(client: Any, frontend: Any, answer: Any) -> None:
    rows = [{"in_flight": 2, "model_name": "a", "state": "loaded"}, {"in_flight": 3}, {"id": "x"}]
    frontend.will_answer("models", answer(200, rows), answer(200, []), answer(200, None))

    assert [await client.in_flight(MEMBER) for _ in range(3)] == [5, 0, 0]


async def test_an_error_is_never_taken_for_nothing_in_flight(client: Any, frontend: Any, answer: Any) -> None:
    frontend.will_answer("models", answer(200, {"error": "no"}), answer(500, []))

    for _ in range(2):
        with pytest.raises(PeerUnavailable):
            await client.in_flight(MEMBER)


@pytest.mark.parametrize("body", [b"", b"ok", None, [], {"corral": None}, {"message": 7}])
async def test_a_heartbeat_needs_no_particular_answer(client: Any, frontend: Any, answer: Any, body: Any) -> None:
    frontend.will_answer("heartbeat", answer(200, body))

    assert not isinstance((await client.heartbeat(MEMBER, HeartbeatRequest())).corral, CorralStatus)


async def test_a_corral_frontend_tells_the_status(client: Any, frontend: Any, answer: Any) -> None:
    frontend.will_answer("heartbeat", answer(200, {"corral": {"status": "draining", "deregistered": True}}))

    told = (await client.heartbeat(MEMBER, HeartbeatRequest())).corral

    assert told == CorralStatus(status="draining", deregistered=True)


@pytest.mark.parametrize("status", [404, 405])
async def test_a_registration_without_a_route_goes_to_the_next_frontend(
    session: Any, frontend: Any, second_frontend: Any, answer: Any, status: int
) -> None:
    frontend.usually_answers("register", answer(status))
    client = FrontendClient(session, [frontend.url, second_frontend.url])

    with pytest.raises(PeerRefused):
        await client.register(BODY)

    assert (await client.register(BODY)).id


async def test_it_moves_to_the_next_frontend_and_stays_there(
    session: Any, frontend: Any, second_frontend: Any, answer: Any
) -> None:
    client = FrontendClient(session, [frontend.url, second_frontend.url])
    frontend.will_answer("heartbeat", answer(503))

    for _ in range(3):
        await client.heartbeat(MEMBER, HeartbeatRequest())

    assert (len(frontend.received), len(second_frontend.received)) == (1, 3)

    await second_frontend.stop()
    await client.heartbeat(MEMBER, HeartbeatRequest())
    assert len(frontend.received) == 2


async def test_a_refusal_is_not_taken_to_another_frontend(
    session: Any, frontend: Any, second_frontend: Any, answer: Any
) -> None:
    client = FrontendClient(session, [frontend.url, second_frontend.url])
    frontend.will_answer("register", answer(401, {"error": "invalid registration token"}))

    with pytest.raises(PeerRefused):
        await client.register(BODY)
    assert second_frontend.received == []


async def test_when_all_are_down_the_message_is_always_the_same(
    session: Any, frontend: Any, second_frontend: Any
) -> None:
    client = FrontendClient(session, [frontend.url, second_frontend.url])
    await frontend.stop()
    await second_frontend.stop()
    messages = set()

    for _ in range(3):
        with pytest.raises(PeerUnavailable) as failure:
            await client.drain(MEMBER)
        messages.add(str(failure.value))

    [message] = messages
    assert frontend.url.removeprefix("http://") in message
    assert second_frontend.url.removeprefix("http://") in message


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"error":"plain"}', "plain"),
        (b'{"error":{"code":400,"message":"nested","type":"node_error"}}', "nested"),
        (b'{"detail":"other"}', ""),
        (b"plain\n  text", "plain text"),
        (b"  <html><body>502</body></html>", ""),
        (b"", ""),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"x" * 1000, "x" * 300),
    ],
)
def test_reasons_are_found_in_every_kind_of_body(body: bytes, expected: str) -> None:
    assert error_text(body) == expected
