"""A NatsBus and the troubles of its connection: absent, killed, frozen and refusing servers."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from corral.base.errors import BusTimeout, BusUnavailable, InvalidInput, NoResponders
from corral.bus import client, link
from corral.bus.client import NatsBus
from corral.bus.config import BusConfig, Endpoint
from corral.bus.port import Message
from corral.bus.problems import ProblemKind
from tests.kit.loop_time import let_loop_time_pass
from tests.kit.plain_nats import PlainNats
from tests.kit.ports import lasting_port
from tests.kit.relay import Relay

LONG = timedelta(seconds=20)


async def ignore(_: object) -> None:
    """Whatever comes."""


async def echo(message: Message) -> None:
    await message.respond(message.data)


async def test_a_server_that_is_there_is_connected_on_return(server: PlainNats, open_bus: Any) -> None:
    watched = await open_bus(server.frontend_url)
    assert watched.bus.connected
    await watched.bus.flush()


async def test_an_absent_server_is_no_error_and_is_found_when_it_comes(
    tmp_path: Path, open_bus: Any, heard: Any
) -> None:
    server = PlainNats(tmp_path, port=lasting_port())
    server.prepare()
    watched = await open_bus(server.frontend_url)
    assert not watched.bus.connected
    assert (await watched.has(ProblemKind.UNREACHABLE)).detail.startswith("no connection to NATS at nats://127.0.0.1:")
    with pytest.raises(BusUnavailable):
        await watched.bus.publish("corral.news", b"")
    await watched.bus.subscribe("corral.news", heard)

    async with server:
        await watched.becomes(connected=True)
        assert watched.bus.problems.enduring is None
        await watched.bus.publish("corral.news", b"now")
        assert (await heard.next()).data == b"now"


async def test_kill_minus_nine_of_the_server_and_a_restart_on_the_same_port(
    server: PlainNats, open_bus: Any, heard: Any
) -> None:
    frontend, worker = await open_bus(server.frontend_url), await open_bus(server.worker_url)
    await worker.bus.subscribe("nodes.n1.backend.list", echo)
    await frontend.bus.subscribe("nodes.*.backend.install.*.progress", heard)
    for _ in range(2):
        assert await frontend.bus.request("nodes.n1.backend.list", b"?", timeout=LONG) == b"?"
        await server.kill()
        await frontend.becomes(connected=False)
        await worker.becomes(connected=False)
        await server.start()
        await frontend.becomes(connected=True)
        await worker.becomes(connected=True)
        await worker.bus.publish("nodes.n1.backend.install.op.progress", b"half")
        assert (await heard.next()).data == b"half"
    assert await frontend.bus.request("nodes.n1.backend.list", b"!", timeout=LONG) == b"!"


async def test_a_wrong_password_is_surfaced_and_tried_for_ever(
    server: PlainNats, open_bus: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client, "_UNAUTHORIZED_BACKOFF", client._UNREACHABLE_BACKOFF)
    watched = await open_bus(server.url.replace("nats://", "nats://frontend:wrong-password@"))

    for _ in range(5):
        problem = await watched.has(ProblemKind.UNAUTHORIZED)
        assert "Authorization Violation" in problem.detail
    assert not watched.bus.connected
    assert watched.bus.problems.counts[ProblemKind.UNAUTHORIZED] >= 5
    assert [record.levelname for record in caplog.records].count("ERROR") == 1, "said once, not at every attempt"
    assert "wrong-password" not in caplog.text


async def test_a_password_that_becomes_right_is_noticed(
    tmp_path: Path, server: PlainNats, open_bus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_UNAUTHORIZED_BACKOFF", client._UNREACHABLE_BACKOFF)
    successor = PlainNats(tmp_path / "successor", port=server.port)
    stranger = await open_bus(server.frontend_url.replace(server.passwords.frontend, "not-yet"))
    await stranger.has(ProblemKind.UNAUTHORIZED)
    await stranger.has(ProblemKind.UNAUTHORIZED)

    await server.stop()
    passwords = server.passwords
    object.__setattr__(passwords, "frontend", "not-yet")
    successor.passwords = passwords
    async with successor:
        await stranger.becomes(connected=True)


async def test_a_frozen_server_is_noticed_by_its_silence(
    server: PlainNats, open_bus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_HEARTBEAT", timedelta(milliseconds=20))
    watched = await open_bus(server.frontend_url)
    await watched.becomes(connected=True)
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        while watched.bus.connected:
            let_loop_time_pass(timedelta(seconds=1))
            await asyncio.sleep(0)
        await watched.becomes(connected=False)
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    await watched.becomes(connected=True)


class Silent:
    """The owner of a link on which nothing goes wrong."""

    def on_refused(self, action: str, subject: str) -> None:
        raise AssertionError(subject)

    def on_dropped(self, subject: str) -> None:
        raise AssertionError(subject)


async def test_a_ping_stays_behind_what_was_sent_before_it() -> None:
    """Else its pong would confirm a subscription that the server has not seen yet."""
    commands: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"max_payload": 1000}\r\n')
        async for line in reader:
            commands.append(line.split()[0])
            if line == b"PING\r\n":
                writer.write(b"PONG\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        single = link.Link(Endpoint(host="127.0.0.1", port=port), Silent())
        try:
            await single.open(name="test", credentials=None, tls=None)
            await single.subscribe("corral.view", "", ignore)
            await single._client.rtt(5)
        finally:
            await single.close()

    assert commands == [b"CONNECT", b"PING", b"SUB", b"PING"]


@asynccontextmanager
async def link_full_of_bytes() -> AsyncIterator[tuple[link.Link, asyncio.StreamWriter]]:
    """A link that listens, whose server reads no more, and the server's end of it; more waits to be sent than any
    buffer takes."""
    taken: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"max_payload": 1048576}\r\n')
        while await reader.readline() != b"PING\r\n":
            pass
        writer.write(b"PONG\r\n")
        writer.transport.pause_reading()
        taken.set_result(writer)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        single = link.Link(Endpoint(host="127.0.0.1", port=port), Silent())
        try:
            await single.open(name="test", credentials=None, tls=None)
            await single.subscribe("corral.view", "", ignore)
            while single._client._transport._io_writer.transport.get_write_buffer_size() == 0:
                await single.publish("corral.news", bytes(1048576))
                await asyncio.sleep(0)
            await single.publish("corral.news", b"waits in the client")
            yield single, await taken
        finally:
            await single.close()
            (await taken).transport.abort()


async def test_a_connection_that_breaks_full_of_bytes_is_noticed_at_once_and_leaves_nothing() -> None:
    async with link_full_of_bytes() as (single, server_end):
        server_end.transport.abort()
        async with asyncio.timeout(60):
            await single.lost()


async def test_closing_a_connection_that_takes_no_more_bytes_leaves_nothing() -> None:
    async with link_full_of_bytes() as (single, _):
        client_end = single._client._transport._io_writer.transport
        closing = asyncio.create_task(single.close())
        while not closing.done():
            await asyncio.sleep(0)
            let_loop_time_pass(timedelta(seconds=link.CLOSE_SECONDS))
        assert client_end.get_write_buffer_size() == 0


async def test_an_answer_that_a_dying_connection_does_not_take_is_sent_on_the_next_one(
    server: PlainNats, open_bus: Any
) -> None:
    worker, frontend = await open_bus(server.worker_url), await open_bus(server.frontend_url)

    async def answer(message: Message) -> None:
        await worker.bus._link._client.close()
        await message.respond(b"late")

    await worker.bus.subscribe("nodes.n1.backend.list", answer)
    assert await frontend.bus.request("nodes.n1.backend.list", b"{}", timeout=timedelta(seconds=60)) == b"late"


@pytest.mark.parametrize("outcome", ["goes on", "fails"])
async def test_a_cancellation_that_the_client_swallowed_is_raised(outcome: str) -> None:
    async def swallow() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        if outcome == "fails":
            raise OSError

    async def call() -> None:
        with suppress(OSError), link._Cancellable():
            await swallow()

    task = asyncio.create_task(call())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancelled_flush_does_not_harm_the_connection(server: PlainNats, open_bus: Any, heard: Any) -> None:
    watched = await open_bus(server.frontend_url)
    await watched.becomes(connected=True)
    await watched.bus.subscribe("corral.news", heard)
    for _ in range(5):
        flush = asyncio.create_task(watched.bus.flush())
        await asyncio.sleep(0)
        flush.cancel()
        with pytest.raises(asyncio.CancelledError):
            await flush
    await watched.bus.flush()
    await watched.bus.publish("corral.news", b"well")
    assert (await heard.next()).data == b"well"
    assert watched.changes.empty()


async def test_a_cancelled_subscribe_leaves_no_subscription(server: PlainNats, open_bus: Any) -> None:
    watched = await open_bus(server.frontend_url)
    subscribing = asyncio.create_task(watched.bus.subscribe("corral.news", echo))
    await asyncio.sleep(0)
    subscribing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await subscribing
    await watched.bus.flush()
    assert await watched.bus.gather("corral.news", b"", window=LONG, at_most=1) == []


async def test_handlers_that_do_not_keep_up_are_surfaced(
    server: PlainNats, open_bus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "PENDING_MESSAGES", 3)
    watched = await open_bus(server.frontend_url)
    release = asyncio.Event()

    async def slow(_: Message) -> None:
        await release.wait()

    await watched.bus.subscribe("corral.flood", slow, concurrency=1)
    for _ in range(20):
        await watched.bus.publish("corral.flood", b"")
    problem = await watched.has(ProblemKind.SLOW_CONSUMER)
    release.set()

    assert problem.subject == "corral.flood"
    assert watched.bus.connected


@pytest.fixture
async def mute_server() -> AsyncIterator["MuteServer"]:
    mute = MuteServer()
    server = await asyncio.start_server(mute.take, "127.0.0.1", 0)
    mute.port = server.sockets[0].getsockname()[1]
    yield mute
    server.close()
    for writer in mute.writers:
        writer.close()
        await writer.wait_closed()
    await server.wait_closed()


class MuteServer:
    """Takes connections and says nothing."""

    def __init__(self) -> None:
        self.port = 0
        self.writers: list[asyncio.StreamWriter] = []
        self.taken = asyncio.Event()

    def take(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        self.taken.set()


async def test_a_mute_server_is_passed_over(
    mute_server: MuteServer, server: PlainNats, open_bus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "FIRST_ATTEMPT", LONG)
    monkeypatch.setattr("random.sample", lambda endpoints, _: list(endpoints))

    opening = asyncio.create_task(open_bus(f"nats://127.0.0.1:{mute_server.port},{server.frontend_url}"))
    await mute_server.taken.wait()
    for _ in range(20):  # until the client has noticed that too, and waits for a word
        await asyncio.sleep(0)
    let_loop_time_pass(timedelta(seconds=link.CONNECT_SECONDS))
    watched = await opening

    assert watched.bus.connected
    assert (await watched.has(ProblemKind.UNREACHABLE)).detail.endswith("TimeoutError")


async def test_leaving_while_it_still_tries_is_quick_and_clean(mute_server: MuteServer) -> None:
    async with asyncio.timeout(20):
        bus = NatsBus(BusConfig(url=f"nats://127.0.0.1:{mute_server.port}"))
        entering = asyncio.create_task(bus.__aenter__())
        await asyncio.sleep(0)
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering


@pytest.mark.parametrize("steps", range(0, 40, 3))
async def test_cancelled_at_any_point_of_its_start_it_leaves_nothing(server: PlainNats, steps: int) -> None:
    async def life() -> None:
        async with NatsBus(BusConfig(url=server.frontend_url)) as bus:
            await bus.subscribe("corral.news", echo)
            await bus.request("corral.news", b"", timeout=LONG)

    task = asyncio.create_task(life())
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        (lambda _: BusConfig(url=","), "NATS URL: is empty"),
        (lambda _: BusConfig(url="http://u:secret@h"), "starts with neither"),
        (lambda _: BusConfig(url="nats://u:secret@h:port"), "no usable port"),
        (lambda _: BusConfig(url="nats://h", jwt="ey", seed=""), "NATS user seed: is no user seed"),
        (lambda _: BusConfig(url="nats://h", tls_ca=Path("none.pem")), "NATS TLS CA: there is no file none.pem"),
        (lambda path: BusConfig(url="nats://h", tls_cert=path), "certificate: was given without a key"),
        (lambda path: BusConfig(url="nats://h", tls_key=path), "key: was given without a certificate"),
        (lambda path: BusConfig(url="nats://h", tls_ca=path), "NATS TLS CA: cannot use"),
        (lambda path: BusConfig(url="nats://h", tls_cert=path, tls_key=path), "NATS TLS certificate: cannot use"),
    ],
)
async def test_what_can_never_work_stops_the_start(
    tmp_path: Path, config: Callable[[Path], BusConfig], complaint: str
) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch()
    with pytest.raises(InvalidInput, match=complaint) as invalid:
        async with NatsBus(config(empty)):
            pass
    assert "secret" not in str(invalid.value)


async def test_a_closed_subscription_is_closed_for_everybody(open_bus: Any, server: PlainNats) -> None:
    """Whoever asks afterwards learns at once that nobody is there, whatever way their own connection takes."""
    async with Relay(server.port) as wire:
        worker = await open_bus(server.worker_url.replace(f":{server.port}", f":{wire.port}"))
        asker = await open_bus(server.frontend_url)
        subscription = await worker.bus.subscribe("nodes.first.stop", ignore)
        wire.freeze()
        closing = asyncio.create_task(subscription.close())
        await asyncio.sleep(0)
        with pytest.raises(BusTimeout):
            await asker.bus.request("nodes.first.stop", b"", timeout=timedelta(milliseconds=50))
        assert not closing.done()
        wire.thaw()
        await closing
        with pytest.raises(NoResponders):
            await asker.bus.request("nodes.first.stop", b"", timeout=timedelta(seconds=20))
