"""Requests that a client sends before it has read the answers to earlier ones: how much of them is handled at once."""

import asyncio
import re
from collections.abc import Iterator

import pytest

from tests.kit.wire import KEY, Wire, WireGateway

_IDS = re.compile(rb"X-Request-ID: (\d+)\r\n")


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def turn(loop: asyncio.AbstractEventLoop) -> None:
    """Let the loop handle what is ready, once."""
    loop.call_soon(loop.stop)
    loop.run_forever()


def listing(number: int, *, key: str = KEY) -> bytes:
    fields = b"Host: a\r\nX-Request-ID: %d\r\nAuthorization: Bearer %b\r\n" % (number, key.encode())
    return b"GET /v1/models HTTP/1.1\r\n%b\r\n" % fields


def answered(client: Wire) -> list[int]:
    return [int(found) for found in _IDS.findall(client.written)]


def test_pipelined_requests_are_answered_in_order_and_few_in_a_turn(loop: asyncio.AbstractEventLoop) -> None:
    gateway = WireGateway(loop)
    client = gateway.connect()
    client.protocol.data_received(b"".join(listing(number) for number in range(300)))

    counts = [len(answered(client))]
    while client.is_paused:
        turn(loop)
        counts.append(len(answered(client)))

    assert answered(client) == list(range(300))
    assert max(later - earlier for earlier, later in zip([0, *counts], counts, strict=False)) <= 16
    client.protocol.data_received(listing(300))
    assert answered(client)[-1] == 300


def test_what_arrives_while_pipelined_requests_wait_for_the_next_turn_comes_after_them(
    loop: asyncio.AbstractEventLoop,
) -> None:
    gateway = WireGateway(loop)
    client = gateway.connect()
    for first in range(0, 120, 40):
        client.protocol.data_received(b"".join(listing(number) for number in range(first, first + 40)))
    while client.is_paused:
        turn(loop)

    assert answered(client) == list(range(120))


def test_a_connection_that_is_lost_leaves_no_pipelined_request_behind(loop: asyncio.AbstractEventLoop) -> None:
    gateway = WireGateway(loop)
    client = gateway.connect()
    client.protocol.data_received(b"".join(listing(number) for number in range(300)))
    before = len(answered(client))
    client.abort()
    gateway.settle(client)
    turn(loop)

    assert len(answered(client)) == before
    assert not gateway.clients


def test_a_client_that_pipelines_is_read_no_further_until_its_requests_are_few(
    loop: asyncio.AbstractEventLoop,
) -> None:
    gateway = WireGateway(loop)
    client = gateway.connect()
    chat = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %b\r\nContent-Length: %d\r\n\r\n"
    client.protocol.data_received((head % (KEY.encode(), len(chat)) + chat) * 1000)
    assert client.is_paused

    gateway.pool.wires[0].protocol.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    assert client.written.count(b"HTTP/1.1 200") == 1
    assert client.is_paused


def test_a_connection_without_a_key_is_closed_after_a_few_refusals(loop: asyncio.AbstractEventLoop) -> None:
    gateway = WireGateway(loop)
    client = gateway.connect()
    client.protocol.data_received(listing(1, key="wrong") * 1000)
    for _ in range(1000):
        turn(loop)

    assert 2 <= client.written.count(b"HTTP/1.1 401") <= 10
    assert client.written.count(b"HTTP/1.1") == client.written.count(b"HTTP/1.1 401")
    assert client.written.count(b"Connection: close") == 1
    gateway.expire(client)
    assert not gateway.clients


def test_what_a_client_with_a_key_is_refused_closes_nothing(loop: asyncio.AbstractEventLoop) -> None:
    gateway = WireGateway(loop)
    client = gateway.connect()
    client.protocol.data_received(listing(0))
    for number in range(1, 50):
        client.protocol.data_received(listing(number, key="wrong"))
    client.protocol.data_received(listing(50))

    assert answered(client) == list(range(51))
    assert b"Connection: close" not in client.written


def test_a_source_that_is_refused_often_without_a_key_connects_anew_each_time(loop: asyncio.AbstractEventLoop) -> None:
    gateway = WireGateway(loop)
    for _ in range(1000):
        client = gateway.connect()
        client.protocol.data_received(listing(1, key="wrong"))
        assert b"HTTP/1.1 401" in client.written
        if b"Connection: close" in client.written:
            break

    assert b"Connection: close" in client.written
    with_key = gateway.connect()
    with_key.protocol.data_received(listing(2))
    assert b"HTTP/1.1 200" in with_key.written
    assert b"Connection: close" not in with_key.written


def test_a_gateway_that_cannot_check_keys_counts_no_refusals(loop: asyncio.AbstractEventLoop) -> None:
    gateway = WireGateway(loop)
    gateway.services.directory._view = None
    for _ in range(1000):
        client = gateway.connect()
        client.protocol.data_received(listing(1))
        assert b"HTTP/1.1 503" in client.written
        assert b"Connection: close" not in client.written
