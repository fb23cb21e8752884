"""A channel, what can go wrong with its connection, and gRPC's own server at its other end."""

import asyncio
import itertools
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio
from hpack import Decoder

import corral.rpc.grpc_client
from corral.rpc.grpc_client import CONNECT_SECONDS, Call, CallFailed, Channel, Code, Keepalive, Status, frames
from corral.rpc.grpc_client.channel import _timeout_field
from tests.kit.grpc_server import grpc_server
from tests.kit.loop_time import let_loop_time_pass, overdue
from tests.kit.ports import lasting_port

README = Path(corral.rpc.grpc_client.__file__).with_name("README.md")
SETTINGS = frames.settings({})
KEEPALIVE = Keepalive()
ECHO, COUNT, TALK = (f"/test.Test/{name}" for name in ("Echo", "Count", "Talk"))
SUM, SINK, COMPLAIN = (f"/test.Test/{name}" for name in ("Sum", "Sink", "Complain"))


@dataclass
class Listener:
    """Plain TCP: whatever else may listen at an address."""

    says: bytes = b""
    port: int = field(default_factory=lasting_port)
    taken: asyncio.Event = field(default_factory=asyncio.Event)
    count: int = 0
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def take(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.count += 1
        self.writers.append(writer)
        writer.write(self.says)
        self.taken.set()


@asynccontextmanager
async def listening(says: bytes = b"") -> AsyncIterator[Listener]:
    listener = Listener(says)
    server = await asyncio.start_server(listener.take, "127.0.0.1", listener.port)
    try:
        yield listener
    finally:
        server.close()
        for writer in listener.writers:
            writer.transport.abort()
        await asyncio.sleep(0)


async def until(is_so: Callable[[], bool]) -> None:
    """Until it is so, to the very turn of the event loop."""
    async with asyncio.timeout(60):
        for _ in itertools.takewhile(lambda _: not is_so(), itertools.count()):
            await asyncio.sleep(0)


async def read(call: Call) -> list[bytes]:
    """All messages. CallFailed when the call does."""
    with call:
        messages = []
        while (message := await call.next()) is not None:
            messages.append(message)
    assert call.status is not None
    if call.status.code is not Code.OK:
        raise CallFailed(call.status)
    return messages


async def ask(
    channel: Channel, path: str = ECHO, request: bytes = b"", timeout: timedelta | None = None
) -> list[bytes]:
    deadline = timeout and asyncio.get_running_loop().time() + timeout.total_seconds()
    return await read(await channel.begin(path, request, deadline))


async def failure_of(work: Awaitable[object]) -> Status:
    with pytest.raises(CallFailed) as failed:
        await work
    return failed.value.status


async def test_nobody_at_the_address_is_noticed_at_once() -> None:
    async with Channel(f"127.0.0.1:{lasting_port()}") as channel:
        status = await failure_of(ask(channel))
        assert status.code is Code.UNAVAILABLE
        assert status.details.startswith("cannot connect")


@pytest.mark.parametrize("address", ["", "host", "127.0.0.1:", "127.0.0.1:many", "127.0.0.1:99999"])
async def test_an_address_that_is_none_is_named(address: str) -> None:
    async with Channel(address) as channel:
        status = await failure_of(ask(channel))
        assert status.code is Code.UNAVAILABLE
        assert status.details.startswith("cannot connect")


async def test_a_server_of_http1_is_told_in_one_clear_sentence() -> None:
    async with listening(b"HTTP/1.1 400 Bad Request\r\n\r\n") as other, Channel(other.address) as channel:
        assert await failure_of(ask(channel)) == Status(Code.UNAVAILABLE, "it does not speak HTTP/2 but HTTP/1")


async def test_somebody_who_says_nothing_is_unavailable_after_a_while() -> None:
    async with listening() as mute, Channel(mute.address) as channel:
        by = timedelta(seconds=CONNECT_SECONDS)
        status = await overdue(failure_of(ask(channel)), mute.taken, by=by)
        assert status == Status(Code.UNAVAILABLE, "no HTTP/2 within 20 s")


async def test_a_deadline_before_that_is_the_deadlines() -> None:
    soon = timedelta(seconds=5)
    async with listening() as mute, Channel(mute.address) as channel:
        status = await overdue(failure_of(ask(channel, timeout=soon)), mute.taken, by=soon)
        assert status == Status(Code.DEADLINE_EXCEEDED, "no connection before the deadline")


async def test_who_goes_away_while_it_connects_does_not_end_it_for_others() -> None:
    async with listening() as mute, Channel(mute.address) as channel:
        goes, stays = (asyncio.create_task(ask(channel)) for _ in range(2))
        await mute.taken.wait()
        goes.cancel()
        await asyncio.wait({goes})
        mute.writers[0].write(SETTINGS)
        await until(lambda: channel._connection is not None)
        mute.writers[0].transport.abort()
        assert (await failure_of(stays)).code is Code.UNAVAILABLE
        assert goes.cancelled()
    assert mute.count == 1


@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_that_ends_as_soon_as_it_is_there_is_not_waited_for(turns: int) -> None:
    async with listening() as fickle, Channel(fickle.address) as channel:
        asking = asyncio.create_task(ask(channel))
        await fickle.taken.wait()
        fickle.writers[0].write(SETTINGS)
        await until(lambda: channel._connection is not None)
        for _ in range(turns):
            await asyncio.sleep(0)
        closing = asyncio.create_task(channel.close())
        assert "closed" in (await failure_of(asking)).details
        await closing


async def test_a_peer_that_hangs_up_and_reads_no_more_is_unavailable() -> None:
    async with listening(SETTINGS) as deaf, Channel(deaf.address) as channel:
        asking = asyncio.create_task(ask(channel, request=b"x" * 1000))
        await deaf.taken.wait()
        await until(lambda: channel._connection is not None and bool(channel._connection._calls))
        channel._connection._transport.write(bytes(30_000_000))  # type: ignore[union-attr]
        deaf.writers[0].write_eof()
        assert await failure_of(asking) == Status(Code.UNAVAILABLE, "the connection was closed")


async def test_closing_while_it_connects_leaves_nothing() -> None:
    async with listening() as mute:
        channel = Channel(mute.address)
        asking = asyncio.create_task(ask(channel))
        await mute.taken.wait()
        await channel.close()
        assert await failure_of(asking) == Status(Code.UNAVAILABLE, "the channel was closed")
        assert await failure_of(ask(channel)) == Status(Code.UNAVAILABLE, "the channel is closed")


@dataclass
class Service:
    """What a server on gRPC's own library answers, and when."""

    complaint: str = ""
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    async def echo(self, request: bytes, _: Any) -> bytes:
        return request

    async def count(self, _: bytes, __: Any) -> AsyncIterator[bytes]:
        """Two parts, and a wait in between."""
        try:
            yield b"first"
            await self.go_on.wait()
            yield b"last"
        finally:
            self.ended.set()

    async def talk(self, requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        """Every request again, then how many there were."""
        number = 0
        async for request in requests:
            number += 1
            yield request
        yield b"%d requests" % number

    async def complain(self, _: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, self.complaint)
        return b""

    async def sum(self, _: AsyncIterator[bytes], context: Any) -> bytes:
        """The sum of their lengths; or a complaint about the first, and the others are not read."""
        total = 0
        while (request := await context.read()) is not aio.EOF:
            total += len(request)
            if self.complaint:
                context.set_code(grpc.StatusCode.INVALID_ARGUMENT)
                context.set_details(self.complaint)
                break
        return b"%d" % total

    async def sink(self, requests: AsyncIterator[bytes], context: Any) -> bytes:
        """Reads nothing until it may."""
        self.begun.set()
        try:
            await self.go_on.wait()
            return await self.sum(requests, context)
        finally:
            self.ended.set()


@asynccontextmanager
async def serving(
    service: Service, *options: tuple[str, Any], host: str = "127.0.0.1"
) -> AsyncIterator[tuple[aio.Server, str]]:
    handlers: dict[str, Any] = {
        "Echo": grpc.unary_unary_rpc_method_handler(service.echo),  # type: ignore[arg-type]
        "Count": grpc.unary_stream_rpc_method_handler(service.count),  # type: ignore[arg-type]
        "Talk": grpc.stream_stream_rpc_method_handler(service.talk),  # type: ignore[arg-type]
        "Complain": grpc.unary_unary_rpc_method_handler(service.complain),  # type: ignore[arg-type]
        "Sum": grpc.stream_unary_rpc_method_handler(service.sum),  # type: ignore[arg-type]
        "Sink": grpc.stream_unary_rpc_method_handler(service.sink),  # type: ignore[arg-type]
    }
    async with grpc_server("test.Test", handlers, *options, host=host) as served:
        yield served


async def test_an_answer_under_way_outlives_the_goaway_of_its_server() -> None:
    service = Service()
    async with serving(service) as (server, address), Channel(address) as channel:
        call = await channel.begin(COUNT, b"")
        assert await call.next() == b"first"
        stopping = asyncio.create_task(server.stop(60))
        connection = channel._connection
        await until(lambda: connection is not None and not connection.takes_calls)
        service.go_on.set()
        assert await read(call) == [b"last"]
        await stopping


async def test_closing_the_channel_ends_what_is_under_way_on_both_sides() -> None:
    service = Service()
    async with serving(service) as (_, address):
        channel = Channel(address)
        call = await channel.begin(COUNT, b"")
        await call.next()
        await channel.close()
        assert await failure_of(read(call)) == Status(Code.UNAVAILABLE, "the channel was closed")
        await service.ended.wait()


async def test_a_lost_connection_is_replaced_by_the_next_call() -> None:
    async with serving(Service()) as (_, address), Channel(address) as channel:
        assert await ask(channel, request=b"one") == [b"one"]
        lost = channel._connection
        assert lost is not None
        lost._transport.abort()  # type: ignore[union-attr]
        assert await ask(channel, request=b"two") == [b"two"]
        assert channel._connection is not lost


async def test_more_calls_than_the_server_takes_at_once_wait_for_their_turn() -> None:
    """A server may still count a call whose end it has sent, and refuse the next one, which is safe to repeat."""
    service = Service()
    service.go_on.set()
    options = ("grpc.max_concurrent_streams", 2)

    async def ask_once_begun(channel: Channel) -> list[bytes]:
        while True:
            call = await channel.begin(COUNT, b"")
            try:
                return await read(call)
            except CallFailed:
                assert call.was_refused

    async with serving(service, options) as (_, address), Channel(address) as channel:
        answers = await asyncio.gather(*(ask_once_begun(channel) for _ in range(40)))
        assert answers == [[b"first", b"last"]] * 40


def hosts() -> list[str]:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return ["127.0.0.1", "localhost"]
    return ["127.0.0.1", "localhost", "[::1]"]


@pytest.mark.parametrize("host", hosts())
async def test_names_and_both_kinds_of_addresses(host: str) -> None:
    async with serving(Service(), host=host) as (_, address), Channel(address) as channel:
        assert await ask(channel, request=b"here") == [b"here"]


@pytest.mark.parametrize("text", ["e" * 70_000, "\N{CJK UNIFIED IDEOGRAPH-4E00}" * 30_000])
async def test_a_long_text_of_an_error_harms_no_other_call(text: str) -> None:
    service = Service(complaint=text)
    async with serving(service) as (_, address), Channel(address) as channel:
        call = await channel.begin(COUNT, b"")
        assert await call.next() == b"first"
        status = await failure_of(ask(channel, COMPLAIN))
        assert status.code is Code.INVALID_ARGUMENT
        assert text.startswith(status.details)
        service.go_on.set()
        assert await read(call) == [b"last"]


# Streams of requests.


async def test_requests_and_answers_of_one_call_take_turns() -> None:
    async with serving(Service()) as (_, address), Channel(address) as channel:
        call = await channel.begin_stream(TALK)
        for number in range(20):
            request = b"%d" % number * 5000
            assert await call.send(request)
            assert await call.next() == request
        call.done_sending()
        assert await read(call) == [b"20 requests"]


async def test_a_large_stream_of_requests_is_read_to_its_end() -> None:
    async with serving(Service()) as (_, address), Channel(address) as channel:
        call = await channel.begin_stream(SUM)
        for _ in range(20):
            assert await call.send(bytes(1_000_000))
        call.done_sending()
        assert await read(call) == [b"20000000"]


async def test_a_server_that_does_not_read_holds_the_sender_and_goes_on_when_it_does() -> None:
    service = Service()
    async with serving(service) as (_, address), Channel(address) as channel:
        call = await channel.begin_stream(SINK)
        await service.begun.wait()
        sent = 0

        async def send() -> None:
            nonlocal sent
            for _ in range(500):
                assert await call.send(bytes(100_000))
                sent += 1
            call.done_sending()

        sending = asyncio.create_task(send())
        assert await ask(channel, request=b"still here") == [b"still here"]
        await until(lambda: call.unsent is not None)
        for _ in range(200):
            assert await ask(channel, request=b"still here") == [b"still here"]
        assert sent < 500  # 50 MB, of which gRPC's server takes only a few without being asked to
        service.go_on.set()
        assert await read(call) == [b"50000000"]
        await sending


async def test_an_error_before_the_end_of_the_requests_stops_the_sender() -> None:
    service = Service(complaint="no more of this")
    async with serving(service) as (_, address), Channel(address) as channel:
        call = await channel.begin_stream(SUM)
        for _ in range(10_000):
            if not await call.send(bytes(100_000)):
                break
        assert await failure_of(read(call)) == Status(Code.INVALID_ARGUMENT, "no more of this")
        assert await ask(channel, request=b"still here") == [b"still here"]


async def test_a_sender_that_is_cancelled_cancels_the_call_in_the_server() -> None:
    service = Service()
    async with serving(service) as (_, address), Channel(address) as channel:
        call = await channel.begin_stream(SINK)
        await service.begun.wait()
        sending = asyncio.create_task(call.send(bytes(40_000_000)))
        await until(lambda: call.unsent is not None)
        sending.cancel()
        assert (await failure_of(read(call))).code is Code.CANCELLED
        await service.ended.wait()
        assert await ask(channel, request=b"still here") == [b"still here"]


# Pings.


async def pings_in_silence(channel: Channel, call: Call, number: int) -> None:
    """As many pings as that, one after the other, each answered."""
    pinger = channel._connection._pinger  # type: ignore[union-attr]
    for _ in range(number):
        before = pinger._pinged_at
        let_loop_time_pass(timedelta(seconds=KEEPALIVE.interval_seconds))
        await until(lambda: pinger._pinged_at > before or call.status is not None)  # noqa: B023 - awaited here
        await until(lambda: pinger._heard_at > pinger._pinged_at or call.status is not None)


async def test_grpcs_server_takes_as_many_pings_as_are_sent_in_a_silence() -> None:
    """It reads them within milliseconds of each other: what counts as too many does not depend on our interval."""
    service = Service()
    async with serving(service) as (_, address), Channel(address) as channel:
        call = await channel.begin(COUNT, b"")
        assert await call.next() == b"first"
        await pings_in_silence(channel, call, KEEPALIVE.pings_without_data)
        assert await ask(channel, request=b"alive") == [b"alive"]  # its answer starts the account of both sides again
        await pings_in_silence(channel, call, KEEPALIVE.pings_without_data)
        service.go_on.set()
        assert await read(call) == [b"last"]


async def test_one_more_would_be_too_many_for_it() -> None:
    """If this fails, gRPC's servers have become more patient and the limit of `Keepalive` can be raised."""
    eager = Keepalive(pings_without_data=100)
    async with serving(Service()) as (_, address), Channel(address, keepalive=eager) as channel:
        call = await channel.begin(COUNT, b"")
        assert await call.next() == b"first"
        await pings_in_silence(channel, call, KEEPALIVE.pings_without_data + 1)
        status = await failure_of(read(call))
        assert status.code is Code.UNAVAILABLE
        assert re.search("too.many.pings", status.details, re.IGNORECASE)


# What is sent, and the manual.


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.0001, b"1m"),
        (0.0011, b"2m"),
        (30, b"30000m"),
        (99_999.999, b"99999999m"),
        (100_000, b"100000S"),
        (10**12, b"99999999S"),
        (-1, b"1m"),
    ],
)
def test_timeouts_have_at_most_eight_digits(seconds: float, expected: bytes) -> None:
    assert dict(Decoder().decode(_timeout_field(seconds), raw=True)) == {b"grpc-timeout": expected}


async def test_the_example_of_the_manual_runs(capsys: pytest.CaptureFixture[str]) -> None:
    manual = README.read_text().replace("from grpc_client", f"from {corral.rpc.grpc_client.__name__}")
    [example] = re.findall(r"```python\n(.*?)```", manual, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(example, str(README), "exec"), names)
    async with serving(Service()) as (_, address):
        await names["main"](address)
    assert capsys.readouterr().out.splitlines() == ["hello", "one", "two", "2 requests"]
