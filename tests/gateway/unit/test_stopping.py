"""What a stop of the gateway means for clients that still send: nobody holds it up who has no request in progress."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.kit.wire import KEY, Wire, WireGateway

GRACE = 0.5
LAST_HEAD = 2.0
LINGER = 2.0
"""For clients without a valid key."""


class SetTime:
    """The time of a loop, as the test sets it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> SetTime:
    return SetTime()


@pytest.fixture
def gateway(time: SetTime) -> Iterator[WireGateway]:
    loop = asyncio.new_event_loop()
    loop.time = time  # type: ignore[method-assign]
    yield WireGateway(loop)
    loop.close()


def begin(gateway: WireGateway, *, length: int, key: str = KEY) -> Wire:
    """A client that has sent a head and the first byte of its body."""
    client = gateway.connect()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %b\r\nContent-Length: %d\r\n\r\n"
    client.protocol.data_received(head % (key.encode(), length) + b"x")
    return client


def refused(gateway: WireGateway, *, key: str = KEY) -> Wire:
    client = begin(gateway, length=1_000_000, key=key)
    assert client.written.startswith(b"HTTP/1.1 413 " if key == KEY else b"HTTP/1.1 401 ")
    return client


def stop(gateway: WireGateway) -> None:
    gateway.is_draining = True
    for client in gateway.clients:
        client.drain()


def is_open_at(gateway: WireGateway, client: Wire, now: float) -> bool:
    for connection in list(gateway.clients):
        connection.sweep(now)
    gateway.settle(client)
    return client.is_open


def test_a_refused_client_may_go_on_sending_for_a_while(gateway: WireGateway, time: SetTime) -> None:
    client = refused(gateway)

    assert is_open_at(gateway, client, time.now + 19)


@pytest.mark.parametrize("key", [KEY, "stranger"])
def test_a_refused_client_has_a_moment_once_the_gateway_stops(gateway: WireGateway, time: SetTime, key: str) -> None:
    client = refused(gateway, key=key)
    time.now += 1
    stop(gateway)

    client.protocol.data_received(b"x" * 1000)
    assert is_open_at(gateway, client, time.now + GRACE - 0.01)
    assert not is_open_at(gateway, client, time.now + GRACE)


def test_a_stop_does_not_prolong_the_time_of_a_refused_client(gateway: WireGateway, time: SetTime) -> None:
    client = refused(gateway, key="stranger")
    end = time.now + LINGER
    time.now = end - GRACE / 2
    stop(gateway)

    assert not is_open_at(gateway, client, end)


def test_who_is_refused_while_the_gateway_stops_has_the_same_moment(gateway: WireGateway, time: SetTime) -> None:
    stop(gateway)
    client = refused(gateway)

    assert is_open_at(gateway, client, time.now + GRACE - 0.01)
    assert not is_open_at(gateway, client, time.now + GRACE)


def test_a_client_whose_body_is_not_refused_goes_on_sending_it(gateway: WireGateway, time: SetTime) -> None:
    client = begin(gateway, length=4000)
    stop(gateway)

    assert is_open_at(gateway, client, time.now + 5)
    assert client.written == b""


def test_a_head_that_has_begun_has_little_time_once_the_gateway_stops(gateway: WireGateway, time: SetTime) -> None:
    client = gateway.connect()
    client.protocol.data_received(b"GET /healthz HTTP/1.1\r\nHost: a\r\n")
    time.now += 1
    stop(gateway)

    assert is_open_at(gateway, client, time.now + LAST_HEAD - 0.01)
    assert client.written == b""
    time.now += LAST_HEAD
    is_open_at(gateway, client, time.now)
    assert client.written.startswith(b"HTTP/1.1 408 ")
    assert not is_open_at(gateway, client, time.now + GRACE)


def test_a_head_that_is_complete_in_time_is_answered_although_the_gateway_stops(gateway: WireGateway) -> None:
    client = gateway.connect()
    client.protocol.data_received(b"GET /healthz HTTP/1.1\r\nHost: a\r\n")
    stop(gateway)

    client.protocol.data_received(b"\r\n")
    assert client.written.startswith(b"HTTP/1.1 ")
    assert b"408" not in client.written[:20]
