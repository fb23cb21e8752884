"""Behind a real nginx with a bare `proxy_pass`, which asks in HTTP/1.0 and holds back what it may."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.kit.engine import (
    DONE,
    EVENTS,
    LAST_EVENT,
    STREAM_HEAD,
    EngineConnection,
    EngineRequest,
    GuidedStream,
    answering,
    chunk,
)
from tests.kit.gateway import GatewayWorld, RawClient, chat, request
from tests.kit.nginx import nginx_before


@pytest.fixture
async def client(gateway: GatewayWorld, tmp_path: Path) -> AsyncIterator[RawClient]:
    async with nginx_before(gateway.port, tmp_path) as port, RawClient.open(port) as client:
        yield client


async def test_a_stream_comes_event_by_event(gateway: GatewayWorld, client: RawClient) -> None:
    pace = gateway.engine.behave = GuidedStream()
    await client.send(request(chat()))
    status, headers = await client.read_head()
    assert (status, headers["transfer-encoding"]) == (200, "chunked")
    assert headers["x-request-id"].startswith("req-")
    assert await client.reader.readuntil(b"\r\n") == b"%x\r\n" % len(EVENTS[0])
    assert await client.reader.readexactly(len(EVENTS[0])) == EVENTS[0]  # while the engine has sent no more
    pace.go_on.set()
    rest = await client.reader.readuntil(b"\r\n0\r\n\r\n")
    assert LAST_EVENT in rest
    assert DONE in rest
    await gateway.until_quiet()


async def test_uploads_arrive_whole_one_after_another(gateway: GatewayWorld, client: RawClient) -> None:
    gateway.engine.behave = answering
    body = chat(text="a" * 900_000)  # nginx itself takes up to 1 MB without further settings
    for _ in range(3):
        await client.send(request(body))
        answer = await client.read_answer()
        assert (answer.status, answer.is_whole) == (200, True)
    assert [got.body == body for got in gateway.engine.requests] == [True] * 3


async def test_a_client_that_leaves_ends_the_work_of_the_engine(gateway: GatewayWorld, client: RawClient) -> None:
    pace = gateway.engine.behave = GuidedStream()
    await client.send(request(chat()))
    await pace.begun.acquire()
    client.writer.transport.abort()
    await gateway.engine.until(lambda: gateway.engine.unfinished == 1)
    await gateway.until_quiet()


async def test_a_stream_that_breaks_off_is_not_taken_for_whole(gateway: GatewayWorld, client: RawClient) -> None:
    async def breaking(_: EngineRequest, connection: EngineConnection) -> bool:
        await connection.send(STREAM_HEAD + chunk(EVENTS[0]))
        connection.cut()
        return False

    gateway.engine.behave = breaking
    await client.send(request(chat()))
    assert not (await client.read_answer()).is_whole


async def test_errors_keep_their_words(gateway: GatewayWorld, client: RawClient) -> None:
    await client.send(request(chat("nobody")))
    answer = await client.read_answer()
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")
