"""`joins`: how long a fleet takes to come together, each node with a NATS user of its own."""

import asyncio
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from bench.report import Table, figure
from bench.say import say
from corral.bus.client import NatsBus
from corral.bus.config import BusConfig
from corral.bus.port import Message
from corral.bus.server import NatsServer
from tests.kit.admin_api import open_session
from tests.kit.ports import lasting_port
from tests.kit.processes import FrontendProcess, said_once

NODES: Final = 1000
AT_ONCE: Final = 32
WITHIN_SECONDS: Final = 30.0


async def joins(nodes: int = NODES) -> Table:
    """Register nodes at a frontend on SQLite, log each in to NATS, and end when each is subscribed there."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="corral-bench-")))
        nats = await stack.enter_async_context(NatsServer(folder / "nats", port=lasting_port()))
        session = await stack.enter_async_context(open_session())
        settings = {
            "CORRAL_DATA": str(folder / "frontend"),
            "CORRAL_AUTO_APPROVE": "true",
            "CORRAL_SOURCE_REGISTRATIONS": "0",
            **nats.frontend_environment,
        }
        frontend = await stack.enter_async_context(FrontendProcess("frontend", session, settings))
        await frontend.until_ready()
        token = said_once([frontend], lambda one: one.new_tokens)
        say(f"joins: {nodes} nodes")
        slots, registered = asyncio.Semaphore(AT_ONCE), [0.0]
        began = time.monotonic()

        async def join(number: int) -> None:
            async with slots:
                answer = await _register(session, frontend.url, token, number)
                registered[0] = max(registered[0], time.monotonic() - began)
                config = BusConfig(url=nats.url, jwt=answer["nats_jwt"], seed=answer["nats_user_seed"])
                bus = await stack.enter_async_context(NatsBus(config))
                await bus.wait_connected()
                await bus.subscribe(f"nodes.{answer['id']}.backend.list", _ignore)

        async with asyncio.TaskGroup() as group:
            for number in range(nodes):
                group.create_task(join(number))
        took = time.monotonic() - began
    rows = [
        figure(f"{nodes} nodes registered", registered[0], "s"),
        figure(f"{nodes} nodes listen on NATS, each as its own user", took, "s", at_most=WITHIN_SECONDS),
    ]
    return Table(title="Joining", rows=rows, notes=[f"SQLite, {AT_ONCE} nodes at a time; all clients are one process."])


async def _register(session: aiohttp.ClientSession, url: str, token: str, number: int) -> dict[str, Any]:
    hello = {"version": "bench", "features": ["node-secret", "nats-user"], "secret": f"{number:040}"}
    body = {"name": f"n{number}", "address": f"10.0.0.1:{1000 + number}", "token": token, "corral": hello}
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    data = msgspec.json.encode(body)
    async with session.post(f"{url}/api/node/register", data=data, headers=headers) as answer:
        content = await answer.read()
        if answer.status != 201:
            raise RuntimeError(f"not registered: {answer.status} {content[:200]!r}")
        return dict(msgspec.json.decode(content))


async def _ignore(message: Message) -> None:
    pass
