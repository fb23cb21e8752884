"""TLS on the public port, and on the way to control."""

import asyncio
import errno
import logging
import socket
import ssl
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from corral.gateway.config import GatewayConfig, Limits, TimeOuts
from corral.processes.configs import client_tls, server_tls
from corral.processes.gateway import open_gateway
from corral.wire.view import ViewChange
from tests.kit.certificates import Authority
from tests.kit.engine import GuidedStream
from tests.kit.gateway import GATEWAY_KEY, GatewayWorld, RawClient, chat, request, world
from tests.kit.ports import lasting_port


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


def serving(authority: Authority) -> ssl.SSLContext:
    context = server_tls(*authority.issue("gateway"))
    assert context is not None
    return context


async def test_streams_and_large_bodies_pass_over_tls(authority: Authority) -> None:
    trust = client_tls(authority.file)
    async with world(tls=serving(authority)) as secure:
        async with RawClient.open(secure.port, tls=trust) as client:
            for _ in range(3):  # on one connection
                await client.send(request(chat()))
                answer = await client.read_answer()
                assert (answer.status, answer.is_whole) == (200, True)
            await client.send(request(chat(text="x" * 2_000_000)))
            assert (await client.read_answer()).is_whole
            await client.send(request(method="GET", path="/api/v1/nodes"))
            await client.read_answer()
        assert secure.control.passed[0][2]["X-Forwarded-Proto"] == "https"
        assert len(secure.engine.requests) == 4
        await secure.until_quiet()


async def test_a_client_that_leaves_over_tls_ends_its_request(authority: Authority) -> None:
    async with world(tls=serving(authority)) as secure:
        secure.engine.behave = pace = GuidedStream()
        async with RawClient.open(secure.port, tls=client_tls(authority.file)) as client:
            await client.send(request(chat()))
            await pace.begun.acquire()
        await secure.until_quiet()
        await secure.engine.until(lambda: secure.engine.unfinished == 1)


async def test_a_refusal_reaches_a_client_that_still_sends(authority: Authority) -> None:
    async with world(tls=serving(authority)) as secure:
        async with RawClient.open(secure.port, tls=client_tls(authority.file)) as client:
            await client.send(request(key=None, head=b"Content-Length: 1000000\r\n"), b"x" * 100_000)
            answer = await client.read_answer()
            assert (answer.status, answer.headers["connection"]) == (401, "close")
        await secure.until_quiet()


async def test_nothing_is_answered_in_the_clear(authority: Authority) -> None:
    async with world(tls=serving(authority)) as secure:
        async with secure.client() as client:
            await client.send(request(method="GET", path="/healthz", key=None))
            assert b"HTTP/1.1" not in await client.until_closed()
        with pytest.raises(ssl.SSLCertVerificationError):
            async with RawClient.open(secure.port, tls=client_tls(None)):
                pass


async def test_who_never_finishes_a_handshake_is_let_go_and_holds_up_no_end(authority: Authority) -> None:
    async with world(tls=serving(authority), time_outs=TimeOuts(head=0.2)) as secure:
        async with secure.client() as idle:
            assert await idle.until_closed() == b""
        lasting = await asyncio.open_connection("127.0.0.1", secure.port)
    lasting[1].close()


async def test_a_pending_handshake_makes_room_at_the_limit(authority: Authority) -> None:
    """Connections that send nothing are counted before they have spoken TLS, and the oldest goes first."""
    trust = client_tls(authority.file)
    async with world(tls=serving(authority), limits=Limits(connections=3)) as secure, AsyncExitStack() as stack:
        server = secure.gateway.server
        known = await stack.enter_async_context(RawClient.open(secure.port, tls=trust))
        await known.send(request(chat()))
        assert (await known.read_answer()).status == 200
        idle = [await stack.enter_async_context(secure.client()) for _ in range(6)]
        await secure.until(lambda: (server.client_count, server.handshake_count) == (1, 2))
        assert [await client.until_closed() for client in idle[:4]] == [b""] * 4
        assert secure.gateway.services.tally.refusals["connection_evicted"] == 4
        newcomer = await stack.enter_async_context(RawClient.open(secure.port, tls=trust))
        for client in (newcomer, known):
            await client.send(request(chat()))
            assert (await client.read_answer()).status == 200
        assert await idle[4].until_closed() == b""
        assert (server.client_count, server.handshake_count) == (2, 1)


async def test_pending_handshakes_of_one_source_are_limited(authority: Authority) -> None:
    limits = Limits(source_connections=2)
    async with world(tls=serving(authority), limits=limits) as secure, AsyncExitStack() as stack:
        idle = [await stack.enter_async_context(secure.client()) for _ in range(5)]
        assert [await client.until_closed() for client in idle[:3]] == [b""] * 3
        assert secure.gateway.server.handshake_count == 2


async def test_at_the_limit_of_known_clients_a_newcomer_over_tls_reads_why(authority: Authority) -> None:
    trust = client_tls(authority.file)
    async with world(tls=serving(authority), limits=Limits(connections=1)) as secure:
        async with RawClient.open(secure.port, tls=trust) as known:
            await known.send(request(chat()))
            assert (await known.read_answer()).status == 200
            async with RawClient.open(secure.port, tls=trust) as newcomer:
                answer = await newcomer.read_answer()
                assert (answer.status, answer.error["code"]) == (503, "too_many_connections")
            await known.send(request(chat()))
            assert (await known.read_answer()).status == 200
        await secure.until(lambda: not secure.gateway.server.client_count)
        assert not len(secure.gateway.server.senders.strangers)


async def test_the_end_of_a_gateway_does_not_wait_for_handshakes(authority: Authority) -> None:
    async with AsyncExitStack() as clients:
        async with world(tls=serving(authority)) as secure:
            idle = await clients.enter_async_context(secure.client())
            await secure.until(lambda: secure.gateway.server.handshake_count == 1)
        assert await idle.until_closed() == b""
        assert secure.gateway.server.handshake_count == 0
        with pytest.raises(ConnectionRefusedError):
            await clients.enter_async_context(secure.client())


async def test_without_descriptors_accepting_pauses_and_goes_on(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    accept, failures = socket.socket.accept, [OSError(errno.EMFILE, "too many"), OSError(errno.ECONNABORTED, "left")]

    def failing(self: socket.socket) -> tuple[socket.socket, object]:
        if failures:
            raise failures.pop(0)
        return accept(self)

    async with world(tls=serving(authority)) as secure:
        monkeypatch.setattr(socket.socket, "accept", failing)
        async with RawClient.open(secure.port, tls=client_tls(authority.file)) as client:
            await client.send(request(chat()))
            assert (await client.read_answer()).is_whole
    assert caplog.text.count("cannot accept clients") == 1


async def test_a_plain_port_of_this_machine_may_stay_beside_tls(authority: Authority) -> None:
    plain = lasting_port()
    async with world(tls=serving(authority), plain_port=plain) as both:
        for port, tls in ((plain, None), (both.port, client_tls(authority.file))):
            async with RawClient.open(port, tls=tls) as client:
                await client.send(request(chat()))
                assert (await client.read_answer()).is_whole


# The way to control.


async def test_a_control_that_nobody_vouches_for_is_not_believed(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = Authority(tmp_path / "stranger")
    caplog.set_level(logging.INFO)  # a gateway that has just started does not warn yet
    async with world() as source:
        await source.control.stop()
        source.control.tls = serving(authority)
        await source.control.start()
        config = GatewayConfig(
            port=0, control_url=source.control.url, control_key=GATEWAY_KEY, control_tls=client_tls(stranger.file)
        )
        async with open_gateway(config) as wary:
            other = GatewayWorld(gateway=wary, control=source.control, engines=source.engines, port=wary.port)
            await other.until(lambda: "certificate verify failed" in caplog.text)
            assert (await other.ask(request(method="GET", path="/readyz", key=None))).status == 503
            assert (await other.ask(request(method="GET", path="/api/v1/nodes"))).status == 503
        assert not [one for one in source.control.passed if one[1] == "/api/v1/nodes"]
        trusting = replace(config, control_tls=client_tls(authority.file))
        async with open_gateway(trusting) as following:
            other = GatewayWorld(gateway=following, control=source.control, engines=source.engines, port=following.port)
            await other.until(lambda: following.services.directory.version is not None)
            assert (await other.ask(request(chat()))).is_whole
            for _ in range(2):  # the second on a kept connection
                assert (await other.ask(request(method="GET", path="/api/v1/nodes"))).status == 200
            await other.control.until_news()


async def test_without_a_word_on_trust_only_the_system_s_authorities_count(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """Also for a replica: what asks for TLS never gets a word in the clear."""
    caplog.set_level(logging.INFO)  # a gateway that has just started does not warn yet
    async with world(time_outs=TimeOuts(replacement=0.1)) as source:
        await source.control.stop()
        source.control.tls = serving(authority)
        await source.control.start()
        served = source.control.views_served
        entry = msgspec.structs.replace(source.control.view.replicas["r0"], url=source.control.url)
        source.gateway.services.directory.hear(
            ViewChange(base=1, version=2, replicas=[entry]), now=asyncio.get_running_loop().time()
        )
        answer = await source.ask(request(chat()))
        assert (answer.status, answer.error["code"]) == (502, "replica_failed")
        config = GatewayConfig(port=0, control_url=source.control.url, control_key=GATEWAY_KEY)
        async with open_gateway(config) as careful:
            other = GatewayWorld(gateway=careful, control=source.control, engines=source.engines, port=careful.port)
            await other.until(lambda: "certificate verify failed" in caplog.text)
        assert source.control.views_served == served
        assert not source.control.passed
