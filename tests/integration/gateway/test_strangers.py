"""What callers without a valid key cannot do to a gateway: hold its memory, its connections or its time."""

import asyncio
import gc
import weakref
from contextlib import AsyncExitStack
from ipaddress import ip_network

import pytest

from corral.gateway.config import Limits, TimeOuts
from corral.gateway.relay import ClientConnection
from corral.testing.gateway import RawClient, World, chat, request, world


@pytest.mark.parametrize("is_whole", [False, True], ids=["broken off", "answered"])
async def test_a_closed_connection_leaves_no_cycle_behind(gateway: World, is_whole: bool) -> None:
    """Bodies must be freed by reference counting: the process lets the garbage collector run rarely."""
    clients: list[weakref.ref[object]] = []
    gc.collect()
    gc.disable()
    try:
        async with gateway.client() as client:
            await client.send(request(chat(text="x" * 200_000))[: None if is_whole else -5])
            if is_whole:
                await client.read_answer()
            else:
                await gateway.until(lambda: gateway.gateway.services.bodies.held > 100_000)
            connected: list[ClientConnection] = list(gateway.gateway.server._clients)
            clients = [weakref.ref(one) for one in connected] + [weakref.ref(one._reader) for one in connected]
            del connected
        assert len(clients) == 2
        await gateway.until(lambda: all(client() is None for client in clients))
    finally:
        gc.enable()


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_pages_that_control_cannot_give_are_refused_with_the_headers_of_pages(
    gateway: World, version: str, method: str
) -> None:
    await gateway.control.stop()
    data = request(method=method, path="/", key=None, version=version)
    answer = await gateway.ask(data, is_head=method == "HEAD")
    assert answer.status == 503
    assert answer.headers["content-security-policy"] == "frame-ancestors 'none'"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


async def test_empty_lines_do_not_move_the_deadline_of_a_head() -> None:
    async with world(time_outs=TimeOuts(head=0.3, linger=0.1)) as strict, strict.client() as client:
        sending = asyncio.ensure_future(_drip(client, b"\r\n"))
        answer = await client.read_answer()
        assert (answer.status, answer.error["code"]) == (408, "request_timeout")
        sending.cancel()
        await asyncio.wait([sending])


async def test_empty_lines_between_requests_have_the_deadline_of_a_head() -> None:
    async with world(time_outs=TimeOuts(head=0.3, linger=0.1)) as strict, strict.client() as client:
        await client.send(request(method="GET", path="/healthz", key=None))
        assert (await client.read_answer()).status == 200
        sending = asyncio.ensure_future(_drip(client, b"\r\n"))
        assert (await client.read_answer()).status == 408
        sending.cancel()
        await asyncio.wait([sending])


async def _drip(client: RawClient, piece: bytes) -> None:
    while True:
        await client.send(piece)


async def test_a_body_that_comes_too_slowly_is_refused_before_its_deadline() -> None:
    time_outs = TimeOuts(body=600, body_grace=0.1, linger=0.1)
    async with world(time_outs=time_outs, limits=Limits(body_speed=10_000_000)) as strict, strict.client() as client:
        await client.send(request(chat(text="x" * 100_000))[:-5])
        answer = await client.read_answer()
        assert (answer.status, answer.error["code"]) == (408, "request_timeout")
        assert strict.gateway.services.tally.time_outs["body"] == 1


async def test_a_body_that_comes_slowly_but_steadily_is_taken() -> None:
    patient = world(time_outs=TimeOuts(body_grace=0.05), limits=Limits(body_speed=1))
    async with patient as opened, opened.client() as client:
        data = request(chat(text="x" * 1000))
        await client.send(*(data[at : at + 100] for at in range(0, len(data), 100)))
        assert (await client.read_answer()).status == 200


async def test_at_the_limit_the_oldest_connection_without_a_key_is_closed() -> None:
    async with world(limits=Limits(connections=3)) as small, small.client() as known, small.client() as idle:
        await known.send(request(chat()))
        assert (await known.read_answer()).status == 200
        await small.until(lambda: small.gateway.server.client_count == 2)
        async with small.client() as other, small.client() as newcomer:
            await newcomer.send(request(chat()))
            assert (await newcomer.read_answer()).status == 200
            assert await idle.until_closed() == b""
            await other.send(request(chat()))
            assert (await other.read_answer()).status == 200
        await known.send(request(chat()))
        assert (await known.read_answer()).status == 200


async def test_who_holds_many_connections_keeps_nobody_out_from_the_same_address() -> None:
    async with world(limits=Limits(source_connections=2)) as small, AsyncExitStack() as stack:
        known = await stack.enter_async_context(small.client())
        await known.send(request(chat()))
        assert (await known.read_answer()).status == 200
        idle = [await stack.enter_async_context(small.client()) for _ in range(5)]
        await small.until(lambda: small.gateway.server.client_count == 3)
        assert [await client.until_closed() for client in idle[:3]] == [b""] * 3
        assert small.gateway.services.tally.refusals["connection_evicted"] == 3
        for client in (known, *idle[3:]):  # the newest are there, and whoever had shown a key
            await client.send(request(chat()))
            assert (await client.read_answer()).status == 200


async def test_behind_a_trusted_proxy_the_forwarded_address_is_counted() -> None:
    proxy = ip_network("127.0.0.0/8")
    async with world(limits=Limits(source_connections=1), trusted_proxies=(proxy,)) as behind:
        behind.control.hangs_at = "/docs"
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(behind.client()) for _ in range(4)]
            for client, address in zip(clients, (b"192.0.2.1", b"192.0.2.2", b"192.0.2.1", b""), strict=True):
                named = b"X-Forwarded-For: 203.0.113.9, %b, 127.0.0.1\r\n" % address if address else b""
                await client.send(request(method="GET", path="/docs", key=None, head=named))
                await behind.until(lambda: bool(behind.control.passed))
                seen = behind.control.passed.pop()[2]
                assert seen["X-Forwarded-For"] == (address.decode() or "127.0.0.1")
            assert await clients[0].until_closed() == b""  # the second request of 192.0.2.1 took its place
            behind.control.hold.set()
            assert [(await client.read_answer()).status for client in clients[1:]] == [200] * 3
            await clients[1].send(request(chat(), head=b"X-Forwarded-Proto: https\r\n"))
            assert (await clients[1].read_answer()).status == 200
            assert ("X-Forwarded-Proto", "https") in behind.engine.requests[-1].headers


async def test_nobody_else_is_believed_about_addresses(gateway: World) -> None:
    await gateway.ask(request(method="GET", path="/docs", key=None, head=b"X-Forwarded-For: 192.0.2.1\r\n"))
    assert gateway.control.passed[0][2]["X-Forwarded-For"] == "127.0.0.1"
