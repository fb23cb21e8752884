"""The gateway as a process of its own."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from tests.kit.engine import GuidedStream
from tests.kit.gateway import GATEWAY_KEY, GatewayWorld, RawClient, chat, request, world

PROGRAM = """
import resource, sys
if sys.argv[3:]:
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[3]),) * 2)
from corral.processes.gateway import main
from corral.gateway.config import GatewayConfig
config = GatewayConfig(port=0, control_url=sys.argv[1], control_key=sys.argv[2])
main(config, ready=lambda port: print(port, flush=True))
"""


@asynccontextmanager
async def gateway_process(source: GatewayWorld, *more: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, int]]:
    """A gateway that has its view, and its port."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, source.control.url, GATEWAY_KEY, *more, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    port = int(await process.stdout.readline())
    while True:
        async with RawClient.open(port) as client:
            await client.send(request(method="GET", path="/readyz", key=None))
            if (await client.read_answer()).status == 200:
                break
    yield process, port
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0
    await process.communicate()


async def test_more_connections_than_descriptors_lock_nobody_out() -> None:
    async with world() as source, gateway_process(source, "300") as (_, port), AsyncExitStack() as stack:
        known = await stack.enter_async_context(RawClient.open(port))
        await known.send(request(chat()))
        assert (await known.read_answer()).status == 200
        for _ in range(5):
            idle = [await stack.enter_async_context(RawClient.open(port)) for _ in range(80)]
            async with RawClient.open(port) as client:
                await client.send(request(method="GET", path="/healthz", key=None))
                assert (await client.read_answer()).status == 200
            async with RawClient.open(port) as client:
                await client.send(request(chat()))
                assert (await client.read_answer()).status == 200
        await known.send(request(chat()))
        assert (await known.read_answer()).status == 200
        await idle[-1].send(request(method="GET", path="/healthz", key=None))
        assert (await idle[-1].read_answer()).status == 200


async def test_a_gateway_that_is_asked_to_end_finishes_its_answers_first() -> None:
    async with world() as source, gateway_process(source) as (process, port):
        source.engine.behave = pace = GuidedStream()
        async with RawClient.open(port) as client, RawClient.open(port) as idle:
            await idle.send(request(method="GET", path="/healthz", key=None))
            await idle.read_answer()
            await client.send(request(chat()))
            await pace.begun.acquire()
            process.send_signal(signal.SIGTERM)
            assert await idle.until_closed() == b""
            pace.go_on.set()
            assert (await client.read_answer()).is_whole
        assert await process.wait() == 0
