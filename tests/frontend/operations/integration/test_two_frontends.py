"""Two frontends on one database, five workers of both kinds, one of them off: they work as one, and show the same."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from starlette.applications import Starlette

from corral.bus.port import Bus
from corral.frontend.app import build_app
from corral.frontend.operations.decide.intent import IntentPolicy
from corral.frontend.store.db import Database
from corral.processes.control import Control
from corral.wire.operation_views import JobStatus, OperationView
from corral.wire.registration import FEATURES, CorralHello
from tests.kit.asgi import call
from tests.kit.clock import ManualClock
from tests.kit.loop_time import overdue
from tests.kit.simulated_backends import SimulatedBackends
from tests.kit.world import SECRET, World, open_world

pytestmark = [pytest.mark.parametrize("database", ["postgres"], indirect=True), pytest.mark.postgres]

HASTE = timedelta(seconds=3)
"""Shorter than any time-out of the database, which must not be over as well."""
POLICY = IntentPolicy(upgrade=HASTE)


@dataclass(kw_only=True)
class Pair:
    world: World
    other: Control
    apps: tuple[Starlette, Starlette]
    workers: dict[str, SimulatedBackends]

    async def ask(self, app: Starlette, verb: str, **fields: object) -> str:
        answer = await self._call(app, "POST", "/api/v1/operations", {"verb": verb, "backend": "echo", **fields})
        return msgspec.json.decode(answer, type=OperationView).id

    async def work(self) -> None:
        """Both look for returned nodes, and race for what is due."""
        dispatchers = [self.world.control.context.operations.dispatcher, self.other.context.operations.dispatcher]
        for dispatcher in dispatchers:
            await dispatcher.notice_returns()
        async with asyncio.TaskGroup() as group:
            for dispatcher in dispatchers:
                group.create_task(dispatcher.tick())

    async def shown(self, id: str) -> tuple[OperationView, JobStatus]:
        """What both show alike, in Corral's view and LocalAI's."""
        views = [
            (
                msgspec.json.decode(await self._call(app, "GET", f"/api/v1/operations/{id}"), type=OperationView),
                msgspec.json.decode(await self._call(app, "GET", f"/api/backends/job/{id}"), type=JobStatus),
            )
            for app in self.apps
        ]
        assert views[0] == views[1]
        return views[0]

    async def minutes_later(self) -> None:
        await self.world.clock.advance(timedelta(minutes=2))
        await self.world.frontend.settle()
        await self.other.context.nodes.hearing.tick()

    async def _call(self, app: Starlette, method: str, path: str, body: object = None) -> bytes:
        headers = {"authorization": f"Bearer {self.world.frontend.admin_key}", "content-type": "application/json"}
        answer = await call(app, method, path, headers=headers, body=msgspec.json.encode(body) if body else b"")
        assert answer.status < 300, answer.body
        return answer.body


@pytest.fixture
async def pair(database: Database, clock: ManualClock, bus: Bus, tmp_path: Path) -> AsyncIterator[Pair]:
    async with open_world(database, clock, bus, tmp_path, intents=POLICY) as world:
        other = await world.again()
        workers = {
            name: await world.backends(name, is_corral=name.startswith("c")) for name in ("c1", "c2", "l1", "l2")
        }
        workers["c3"] = await world.backends("c3")
        yield Pair(world=world, other=other, apps=(world.frontend.app, build_app(other.context)), workers=workers)


@pytest.mark.parametrize("verb", ["install", "upgrade", "delete"])
async def test_the_fifth_gets_what_waited_for_it_with_its_first_heartbeat(pair: Pair, verb: str) -> None:
    first, second = pair.apps
    await pair.work()
    if verb != "install":
        await pair.ask(first, "install")
        await pair.work()
        await pair.minutes_later()
    asked = len(pair.workers["c3"].requests)
    await pair.workers["c3"].stop()
    id = await pair.ask(second, verb)
    await pair.work()

    native, compat = await pair.shown(id)
    assert (native.state, native.counts) == ("waiting", {"success": 4, "queued": 1})
    assert (compat.processed, compat.message) == (True, "waiting for c3 to come back")

    await pair.workers["c3"].listen(pair.world.bus)
    await _comes_back(pair.world, "c3")
    await pair.work()  # no time has passed since
    native, compat = await pair.shown(id)
    assert (native.state, native.counts, compat.completed) == ("done", {"success": 5}, True)
    assert len(pair.workers["c3"].requests) == asked + 1
    assert {"echo" in one.disk for one in pair.workers.values()} == {verb != "delete"}


async def test_an_upgrade_whose_answer_is_lost_is_proven_once_and_shown_alike(pair: Pair) -> None:
    first, second = pair.apps
    await pair.ask(first, "install")
    await pair.work()
    await pair.minutes_later()
    pair.workers["c1"].faults.silent = pair.workers["l1"].faults.silent = True
    for worker in pair.workers.values():
        worker.finished.clear()
    id = await pair.ask(second, "upgrade")
    await overdue(pair.work(), *(worker.finished for worker in pair.workers.values()), by=HASTE)
    native, compat = await pair.shown(id)
    assert native.counts == {"success": 3, "running_on_worker": 2}
    assert compat.message.startswith("still installing in background on c1, l1")
    await pair.other.context.backends.inventory.sweep()
    await pair.work()
    native, compat = await pair.shown(id)
    assert (native.state, [one.attempts for one in native.targets]) == ("done", [0] * 5)
    assert {one.written["echo"] for one in pair.workers.values()} == {2}


async def test_frontends_that_race_send_every_request_once(pair: Pair) -> None:
    first, second = pair.apps
    ids = [await pair.ask(app, "install", backend=name) for app, name in ((first, "a"), (second, "b"), (first, "c"))]
    await pair.work()
    for id in ids:
        native, _ = await pair.shown(id)
        assert (native.state, native.counts) == ("done", {"success": 5})
    assert {len(one.requests) for one in pair.workers.values()} == {3}


async def _comes_back(world: World, name: str) -> None:
    hello = CorralHello(version="1", features=list(FEATURES), secret=SECRET + name, incarnation="2")
    body = {"name": name, "address": "127.0.0.1:50051", "corral": msgspec.to_builtins(hello)}
    node = msgspec.json.decode((await world.frontend.register(body)).body)["id"]
    beat = await world.frontend.call("POST", f"/api/node/{node}/heartbeat", {}, key=SECRET + name)
    assert beat.status == 200
    await world.frontend.settle()
