"""A server process that is stopped (SIGSTOP): its kernel still answers TCP, and only pings notice it."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from corral.rpc.grpc_client import NO_KEEPALIVE, Channel, Code, Keepalive, Status
from tests.kit.loop_time import let_loop_time_pass

SCRIPT = Path(__file__).with_name("server_process.py")
KEEPALIVE = Keepalive()
NO_ANSWER = Status(Code.UNAVAILABLE, "no answer to a ping within 20 s")


class ServerProcess:
    """The process, and where it listens."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.address = f"127.0.0.1:{port}"

    def hang(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)


@pytest.fixture
async def server() -> AsyncIterator[ServerProcess]:
    process = await asyncio.create_subprocess_exec(sys.executable, str(SCRIPT), stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield ServerProcess(process, int(await process.stdout.readline()))
    finally:
        process.kill()
        await process.communicate()


async def pass_time(seconds: float) -> None:
    """Let the loop's time pass, and whatever is due or has come then be done."""
    let_loop_time_pass(timedelta(seconds=seconds))
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_hanging_process_is_noticed_within_interval_and_timeout(server: ServerProcess) -> None:
    async with Channel(server.address) as channel:
        call = await channel.begin("/test.Test/Tick", b"")
        assert await call.next() == b"first"
        server.hang()
        reading = asyncio.create_task(call.next())
        await pass_time(KEEPALIVE.interval_seconds)
        assert not reading.done()
        await pass_time(KEEPALIVE.timeout_seconds)
        assert await reading is None
        assert call.status == NO_ANSWER
        assert not call.was_refused  # it may have begun: whoever tries again must know that


async def test_a_sender_that_a_hanging_process_holds_is_freed(server: ServerProcess) -> None:
    async with Channel(server.address) as channel:
        with await channel.begin("/test.Test/Echo", b"1") as echo:
            # The server's first frames have been read then: read later, they would count as a sign of life.
            assert [await echo.next(), await echo.next()] == [b"1", None]
        call = await channel.begin_stream("/test.Test/Sink")
        server.hang()
        sending = asyncio.create_task(call.send(bytes(40_000_000)))
        await pass_time(KEEPALIVE.interval_seconds)
        await pass_time(KEEPALIVE.timeout_seconds)
        assert not await sending
        assert call.status == NO_ANSWER


async def test_the_next_call_uses_a_new_connection(server: ServerProcess) -> None:
    async with Channel(server.address) as channel:
        call = await channel.begin("/test.Test/Tick", b"")
        assert await call.next() == b"first"
        server.hang()
        await pass_time(KEEPALIVE.interval_seconds)
        await pass_time(KEEPALIVE.timeout_seconds)
        assert await call.next() is None
        server.go_on()
        with await channel.begin("/test.Test/Echo", b"again") as echo:
            assert await echo.next() == b"again"


async def test_without_pings_a_hanging_process_is_not_noticed(server: ServerProcess) -> None:
    """What the pings are for: TCP's own keepalive is answered by the kernel."""
    async with Channel(server.address, keepalive=NO_KEEPALIVE) as channel:
        call = await channel.begin("/test.Test/Tick", b"")
        assert await call.next() == b"first"
        server.hang()
        await pass_time(1000)
        assert call.status is None
        call.cancel()
