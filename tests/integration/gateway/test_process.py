"""The gateway as a process of its own."""

import asyncio
import signal
import sys

from corral.testing.engine import Pace
from corral.testing.gateway import GATEWAY_KEY, RawClient, chat, request, world

PROGRAM = """
import sys
from corral.app.gateway import main
from corral.gateway.config import GatewayConfig
main(GatewayConfig(control_url=sys.argv[1], control_key=sys.argv[2]), ready=lambda port: print(port, flush=True))
"""


async def test_a_gateway_that_is_asked_to_end_finishes_its_answers_first() -> None:
    async with world() as source:
        source.engine.behave = pace = Pace()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROGRAM, source.control.url, GATEWAY_KEY, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        while True:
            async with RawClient.open(port) as client:
                await client.send(request(method="GET", path="/readyz", key=None))
                if (await client.read_answer()).status == 200:
                    break
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
        await process.communicate()
