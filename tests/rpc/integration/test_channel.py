"""A channel and the troubles of its connection, and gRPC's own server at its other end."""

import asyncio
import itertools
import logging
import socket
import sys
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

from corral.base.logs import LogOutput, set_up_logs
from corral.rpc import channel, errors
from corral.rpc.backend import Backend
from corral.rpc.http2 import frames
from corral.rpc.messages import PredictOptions, Reply
from tests.kit.loop_time import overdue
from tests.kit.ports import lasting_port

LONG = timedelta(seconds=60)
SCRIPT = Path(__file__).with_name("uvloop_process.py")
SETTINGS = frames.settings({})


@dataclass
class Listener:
    """Plain TCP: what somebody else may have put at a backend's address."""

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
    """To the very turn of the event loop."""
    async with asyncio.timeout(60):
        for _ in itertools.takewhile(lambda _: not is_so(), itertools.count()):
            await asyncio.sleep(0)


async def failure_of(asked: Awaitable[object]) -> errors.BackendError:
    with pytest.raises(errors.BackendError) as failed:
        await asked
    return failed.value


async def test_nobody_at_the_address_is_told_at_once() -> None:
    async with Backend(f"127.0.0.1:{lasting_port()}") as backend:
        with pytest.raises(errors.BackendGone, match="cannot connect"):
            await backend.health(timeout=LONG)


@pytest.mark.parametrize("address", ["", "host", "127.0.0.1:", "127.0.0.1:many", "127.0.0.1:99999"])
async def test_an_address_that_is_none_is_named(address: str) -> None:
    async with Backend(address) as backend:
        with pytest.raises(errors.BackendGone, match="cannot connect"):
            await backend.health(timeout=LONG)


async def test_somebody_who_speaks_something_else_is_gone() -> None:
    async with listening(b"HTTP/1.1 400 Bad Request\r\n\r\n") as other, Backend(other.address) as backend:
        with pytest.raises(errors.BackendGone, match="does not speak HTTP/2"):
            await backend.predict(PredictOptions())


async def test_somebody_who_says_nothing_is_gone_after_a_while() -> None:
    async with listening() as mute, Backend(mute.address) as backend:
        by = timedelta(seconds=channel.CONNECT_SECONDS)
        error = await overdue(failure_of(backend.predict(PredictOptions())), mute.taken, by=by)
        assert isinstance(error, errors.BackendGone)
        assert error.said == "no HTTP/2 within 20 s"


async def test_a_deadline_before_that_means_busy() -> None:
    soon = timedelta(seconds=5)
    async with listening() as mute, Backend(mute.address) as backend:
        error = await overdue(failure_of(backend.health(timeout=soon)), mute.taken, by=soon)
        assert isinstance(error, errors.BackendBusy)


async def test_who_goes_away_while_it_connects_does_not_end_it_for_others() -> None:
    async with listening() as mute, Backend(mute.address) as backend:
        goes, stays = (asyncio.create_task(backend.health(timeout=LONG)) for _ in range(2))
        await mute.taken.wait()
        goes.cancel()
        await asyncio.wait({goes})
        mute.writers[0].write(SETTINGS)
        await until(lambda: backend._channel._connection is not None)
        mute.writers[0].transport.abort()
        with pytest.raises(errors.BackendGone):
            await stays
        assert goes.cancelled()
    assert mute.count == 1


@pytest.mark.parametrize("turns", range(6))
async def test_a_connection_that_ends_as_soon_as_it_is_there_is_not_waited_for(turns: int) -> None:
    async with listening() as fickle, Backend(fickle.address) as backend:
        asking = asyncio.create_task(backend.predict(PredictOptions()))
        await fickle.taken.wait()
        fickle.writers[0].write(SETTINGS)
        await until(lambda: backend._channel._connection is not None)
        for _ in range(turns):
            await asyncio.sleep(0)
        closing = asyncio.create_task(backend.close())
        with pytest.raises(errors.BackendGone, match="closed"):
            await asking
        await closing


async def test_a_peer_that_hangs_up_and_reads_no_more_is_gone() -> None:
    async with listening(SETTINGS) as deaf, Backend(deaf.address) as backend:
        asking = asyncio.create_task(backend.predict(PredictOptions(Prompt="x" * 1000)))
        await deaf.taken.wait()
        await until(lambda: backend._channel._connection is not None and bool(backend._channel._connection._streams))
        backend._channel._connection._transport.write(bytes(30_000_000))  # type: ignore[union-attr]
        deaf.writers[0].write_eof()
        with pytest.raises(errors.BackendGone, match="the connection was closed"):
            await asking


async def test_closing_while_it_connects_leaves_nothing() -> None:
    async with listening() as mute:
        backend = Backend(mute.address)
        asking = asyncio.create_task(backend.health(timeout=LONG))
        await mute.taken.wait()
        await backend.close()
        with pytest.raises(errors.BackendGone, match="closed"):
            await asking
        with pytest.raises(errors.BackendGone, match="the channel is closed"):
            await backend.health(timeout=LONG)


@dataclass
class Told:
    """What a backend on gRPC's own library says, and when."""

    complaint: str = ""
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def stream(self, _: bytes, __: Any) -> AsyncIterator[bytes]:
        try:
            yield Reply(message=b"first").SerializeToString()
            await self.go_on.wait()
            yield Reply(message=b"last").SerializeToString()
        finally:
            self.ended.set()

    async def health(self, _: bytes, __: Any) -> bytes:
        return Reply(message=b"OK").SerializeToString()

    async def nonsense(self, _: bytes, __: Any) -> bytes:
        return b"\xff\xff\xff"

    async def complain(self, _: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, self.complaint)
        return b""

    async def twice(self, _: bytes, __: Any) -> AsyncIterator[bytes]:
        yield b""
        yield b""


@asynccontextmanager
async def grpc_server(
    told: Told, *options: tuple[str, Any], host: str = "127.0.0.1"
) -> AsyncIterator[tuple[aio.Server, str]]:
    server = aio.server(options=options)
    handlers: dict[str, Any] = {
        "PredictStream": grpc.unary_stream_rpc_method_handler(told.stream),  # type: ignore[arg-type]
        "Health": grpc.unary_unary_rpc_method_handler(told.health),  # type: ignore[arg-type]
        "Predict": grpc.unary_unary_rpc_method_handler(told.nonsense),  # type: ignore[arg-type]
        "Embedding": grpc.unary_unary_rpc_method_handler(told.complain),  # type: ignore[arg-type]
        "TokenizeString": grpc.unary_stream_rpc_method_handler(told.twice),  # type: ignore[arg-type]
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("backend.Backend", handlers),))
    port = server.add_insecure_port(f"{host}:0")
    await server.start()
    try:
        yield server, f"{host}:{port}"
    finally:
        await server.stop(None)


async def test_an_answer_under_way_outlives_the_farewell_of_its_server() -> None:
    told = Told()
    async with grpc_server(told) as (server, address), Backend(address) as backend:
        parts = backend.predict_stream(PredictOptions())
        assert (await anext(parts)).message == b"first"
        stopping = asyncio.create_task(server.stop(60))
        connection = backend._channel._connection
        await until(lambda: connection is not None and not connection.takes_calls)
        told.go_on.set()
        assert [part.message async for part in parts] == [b"last"]
        await stopping


async def test_closing_the_channel_ends_what_is_under_way_on_both_sides() -> None:
    told = Told()
    async with grpc_server(told) as (_, address):
        backend = Backend(address)
        parts = backend.predict_stream(PredictOptions())
        await anext(parts)
        await backend.close()
        with pytest.raises(errors.BackendGone, match="the channel was closed"):
            await anext(parts)
        await told.ended.wait()


async def test_a_lost_connection_is_made_anew_by_the_next_call() -> None:
    told = Told()
    async with grpc_server(told) as (_, address), Backend(address) as backend:
        await backend.health(timeout=LONG)
        lost = backend._channel._connection
        assert lost is not None
        lost._transport.abort()
        await backend.health(timeout=LONG)
        assert backend._channel._connection is not lost


async def test_more_calls_than_the_server_takes_at_once_wait_for_their_turn() -> None:
    told = Told()
    told.go_on.set()
    options = ("grpc.max_concurrent_streams", 2)
    async with grpc_server(told, options) as (_, address), Backend(address) as backend:

        async def ask() -> list[bytes]:
            return [part.message async for part in backend.predict_stream(PredictOptions())]

        assert await asyncio.gather(*(ask() for _ in range(40))) == [[b"first", b"last"]] * 40


async def test_several_answers_where_one_was_agreed_are_a_failure() -> None:
    async with grpc_server(Told()) as (_, address), Backend(address) as backend:
        with pytest.raises(errors.BackendFailed, match="TokenizeString was answered with several messages"):
            await backend.tokenize(PredictOptions())


async def test_an_answer_that_is_no_message_is_a_failure() -> None:
    async with grpc_server(Told()) as (_, address), Backend(address) as backend:
        with pytest.raises(errors.BackendFailed, match="Predict was answered with something else"):
            await backend.predict(PredictOptions())


def hosts() -> list[str]:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return ["127.0.0.1", "localhost"]
    return ["127.0.0.1", "localhost", "[::1]"]


@pytest.mark.parametrize("host", hosts())
async def test_names_and_both_kinds_of_addresses(host: str) -> None:
    async with grpc_server(Told(), host=host) as (_, address), Backend(address) as backend:
        await backend.health(timeout=LONG)


@pytest.mark.parametrize("text", ["e" * 70_000, "\N{CJK UNIFIED IDEOGRAPH-4E00}" * 30_000])
async def test_a_long_text_of_an_error_harms_no_other_call(text: str) -> None:
    told = Told(complaint=text)
    async with grpc_server(told) as (_, address), Backend(address) as backend:
        parts = backend.predict_stream(PredictOptions())
        assert (await anext(parts)).message == b"first"
        with pytest.raises(errors.RequestRefused) as refused:
            await backend.embedding(PredictOptions())
        assert text.startswith(refused.value.said)
        told.go_on.set()
        assert [part.message async for part in parts] == [b"last"]


async def test_the_loop_that_adapters_run_on() -> None:
    """In a process of its own, because uvloop keeps a pipe for as long as its process lasts."""
    process = await asyncio.create_subprocess_exec(sys.executable, str(SCRIPT), stderr=asyncio.subprocess.PIPE)
    _, complaints = await process.communicate()
    assert (process.returncode, complaints.decode()) == (0, "")


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
def test_time_outs_have_at_most_eight_digits(seconds: float, expected: bytes) -> None:
    assert dict(Decoder().decode(channel._timeout_field(seconds), raw=True)) == {b"grpc-timeout": expected}


def test_no_token_is_in_the_logs(capfd: pytest.CaptureFixture[str]) -> None:
    """At no level: the library that encodes headers would tell them."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        set_up_logs("test", LogOutput(level="debug"))
        channel.Channel("127.0.0.1:1", token="very-secret")._head("/backend.Backend/Health")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    assert "very-secret" not in capfd.readouterr().err
