"""Progress of one operation at two frontends, on PostgreSQL and a real nats-server: alike, also for who moves over."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from starlette.applications import Starlette

from corral.base.clock import SystemClock
from corral.base.ids import NodeId
from corral.base.tasks import running
from corral.bus.client import NatsBus
from corral.bus.config import BusConfig
from corral.frontend.app import build_app
from corral.frontend.operations.decide.intent import IntentPolicy
from corral.frontend.store.db import Database
from corral.frontend.store.secrets import Secrets, SecretsKey
from corral.processes.control import Stores, build_control
from corral.wire.operation_views import OperationUpdate, OperationView
from tests.kit.asgi import AsgiStream, open_stream
from tests.kit.frontend import TRUSTED_TOKEN, Frontend, frontend_config, open_frontend
from tests.kit.plain_nats import PlainNats
from tests.kit.ports import lasting_port
from tests.kit.simulated_backends import SimulatedBackends

pytestmark = [pytest.mark.parametrize("database", ["postgres"], indirect=True), pytest.mark.postgres]

CLOCK = SystemClock()
POLICY = IntentPolicy(install=timedelta(minutes=10))
PATIENCE = 120.0
LOOPS = ("dispatcher", "intents", "progress")


@dataclass
class Fleet:
    frontend: Frontend
    apps: tuple[Starlette, Starlette]
    worker: SimulatedBackends

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.frontend.admin_key}"}

    async def installing(self) -> str:
        """An install that the node has begun with, and does not finish."""
        self.worker.gate.clear()
        asked = {"verb": "install", "backend": "echo"}
        answer = await self.frontend.call("POST", "/api/v1/operations", asked)
        async with asyncio.timeout(PATIENCE):
            await self.worker.begun.wait()
        return msgspec.json.decode(answer.body, type=OperationView).id


@pytest.fixture
async def fleet(database: Database, tmp_path: Path) -> AsyncIterator[Fleet]:
    """Each frontend has a connection of its own to NATS, as the worker has."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(PlainNats(tmp_path / "nats", port=lasting_port()))
        config, key = frontend_config(tmp_path, intents=POLICY), SecretsKey.generate()
        first, second, third = [
            await stack.enter_async_context(NatsBus(BusConfig(url=server.frontend_url))) for _ in range(3)
        ]
        frontend = await stack.enter_async_context(open_frontend(database, CLOCK, first, config, key=key))
        stores = Stores(database, await Secrets.open(database, key, at=CLOCK.now()))
        other = await build_control(config, CLOCK, stores, second)
        for control in (frontend.control, other):
            await control.context.nodes.hearing.tick()
            for name, loop in control.loops().items():
                if name in LOOPS:
                    await stack.enter_async_context(running(loop, name=name))
                else:
                    loop.close()
        answer = await frontend.register({"name": "w", "address": "127.0.0.1:1"}, token=TRUSTED_TOKEN)
        worker = SimulatedBackends(NodeId(msgspec.json.decode(answer.body)["id"]), CLOCK)
        await worker.listen(third)
        stack.push_async_callback(worker.stop)
        yield Fleet(frontend, (frontend.app, build_app(other.context)), worker)


class Reader:
    """Somebody who watches an operation, and notes where they are."""

    def __init__(self, stream: AsgiStream) -> None:
        self._stream = stream
        self.place = ""
        self.seen: list[float] = []

    async def until(self, percentage: float) -> None:
        """Read on until this is shown."""
        while self.seen[-1:] != [percentage]:
            self.seen.append((await self.next()).operation.progress)

    async def next(self) -> OperationUpdate:
        async with asyncio.timeout(PATIENCE):
            while True:
                lines = dict(line.split(b": ", 1) for line in (await self._stream.next()).splitlines() if b": " in line)
                if b"data" in lines:
                    self.place = lines[b"id"].decode()
                    return msgspec.json.decode(lines[b"data"], type=OperationUpdate)


async def test_both_frontends_show_the_same_and_a_reader_may_move_to_the_other(fleet: Fleet) -> None:
    id = await fleet.installing()
    path = f"/api/v1/operations/{id}/stream"
    async with open_stream(fleet.apps[1], path, headers=fleet.headers) as stream:
        elsewhere = Reader(stream)
        assert (await elsewhere.next()).is_whole
        async with open_stream(fleet.apps[0], path, headers=fleet.headers) as stream:
            here = Reader(stream)
            assert (await here.next()).is_whole
            for percentage in (12.5, 50.0):
                await tell_until(fleet, id, percentage, here, elsewhere)
        assert here.seen == sorted(here.seen)
        assert elsewhere.seen == sorted(elsewhere.seen)

        resuming = fleet.headers | {"last-event-id": here.place}
        async with open_stream(fleet.apps[1], path, headers=resuming) as stream:
            moved = Reader(stream)
            first = await moved.next()
            assert (first.is_whole, first.operation.progress) == (True, 50.0)  # places of another process mean nothing
            await tell_until(fleet, id, 75.0, moved)
            fleet.worker.gate.set()
            last = await moved.next()
            while last.operation.state == "running":
                last = await moved.next()
            assert (last.operation.state, last.operation.progress) == ("done", 100.0)


async def tell_until(fleet: Fleet, id: str, percentage: float, *readers: Reader) -> None:
    """A worker repeats itself: what it said before a frontend listened, nobody hears."""
    async with asyncio.TaskGroup() as group:
        reading = [group.create_task(reader.until(percentage)) for reader in readers]
        while not all(task.done() for task in reading):
            await fleet.worker.say(id, percentage)
            await asyncio.wait(reading, timeout=0.2)
