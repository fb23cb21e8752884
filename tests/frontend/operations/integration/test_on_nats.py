"""Operations on a real nats-server and in real time: the loops as they run, and a fleet of two kinds of workers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from corral.base.clock import SystemClock
from corral.base.ids import NodeId
from corral.base.tasks import running
from corral.bus.client import NatsBus
from corral.bus.config import BusConfig
from corral.frontend.backends.planning import Ask
from corral.frontend.operations.decide.intent import IntentPolicy, Verb
from corral.frontend.operations.decide.operation import Operation, OperationState, TargetStatus
from corral.frontend.store.db import Database
from corral.frontend.store.secrets import Secrets, SecretsKey
from corral.galleries.build_uris import BackendRef
from corral.processes.control import Control, Stores, build_control
from tests.kit.frontend import TRUSTED_TOKEN, Frontend, frontend_config, open_frontend
from tests.kit.plain_nats import PlainNats
from tests.kit.ports import lasting_port
from tests.kit.simulated_backends import SimulatedBackends
from tests.kit.waiting import eventually

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
"""The other database is for the tests of what is stored."""

CLOCK = SystemClock()
POLICY = IntentPolicy(install=timedelta(seconds=60), lease=timedelta(seconds=2), look_again=timedelta(seconds=1))


@dataclass
class Fleet:
    frontend: Frontend
    other: Control
    bus: NatsBus
    worker_bus: NatsBus
    stack: AsyncExitStack

    async def node(self, name: str, *, is_corral: bool) -> SimulatedBackends:
        answer = await self.frontend.register({"name": name, "address": "127.0.0.1:1"}, token=TRUSTED_TOKEN)
        node = SimulatedBackends(NodeId(msgspec.json.decode(answer.body)["id"]), CLOCK, is_corral)
        await node.listen(self.worker_bus)
        self.stack.push_async_callback(node.stop)
        return node

    async def start(self, verb: Verb, control: Control | None = None) -> Operation:
        chosen = control or self.frontend.control
        return await chosen.context.backends.operations.start(Ask(verb=verb, ref=BackendRef(backend="echo"), by="me"))

    async def until(self, operation: Operation, state: OperationState) -> Operation:
        async def reached() -> Operation | None:
            found = await self.other.context.operations.service.get(operation.id)
            return found if found.state is state else None

        found = await eventually(reached, f"{operation.verb} to be {state}", seconds=60)
        assert found is not None
        return found


@pytest.fixture
async def fleet(database: Database, tmp_path: Path) -> AsyncIterator[Fleet]:
    """Two frontends on one database, their dispatchers running."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(PlainNats(tmp_path / "nats", port=lasting_port()))
        bus = await stack.enter_async_context(NatsBus(BusConfig(url=server.frontend_url)))
        worker_bus = await stack.enter_async_context(NatsBus(BusConfig(url=server.frontend_url)))
        config, key = frontend_config(tmp_path, intents=POLICY), SecretsKey.generate()
        frontend = await stack.enter_async_context(open_frontend(database, CLOCK, bus, config, key=key))
        other = await build_control(
            config, CLOCK, Stores(database, await Secrets.open(database, key, at=CLOCK.now())), bus
        )
        for control in (frontend.control, other):
            await control.context.nodes.hearing.tick()
            loops = control.loops()
            for name in [name for name in loops if name not in ("dispatcher", "intents", "returns")]:
                loops.pop(name).close()
            for name, loop in loops.items():
                await stack.enter_async_context(running(loop, name=name))
        yield Fleet(frontend, other, bus, worker_bus, stack)


async def test_a_fleet_of_both_kinds_is_driven_by_two_frontends(fleet: Fleet) -> None:
    nodes = [await fleet.node(f"w{number:02}", is_corral=number % 2 == 0) for number in range(20)]
    await fleet.until(await fleet.start(Verb.INSTALL), OperationState.DONE)
    await fleet.until(await fleet.start(Verb.UPGRADE, fleet.other), OperationState.DONE)
    await fleet.until(await fleet.start(Verb.DELETE), OperationState.DONE)
    assert [node.disk for node in nodes] == [{}] * 20
    assert {node.written["echo"] for node in nodes} == {2}


async def test_hanging_and_dead_nodes_hold_up_nobody_and_get_there_later(fleet: Fleet) -> None:
    quick = [await fleet.node(f"a{number}", is_corral=True) for number in range(10)]
    hanging = [await fleet.node(f"h{number}", is_corral=False) for number in range(5)]
    dead = await fleet.node("z", is_corral=True)
    await dead.stop()
    for node in hanging:
        node.gate.clear()
    operation = await fleet.start(Verb.INSTALL)
    for node in quick:
        async with asyncio.timeout(60):
            await node.finished.wait()
    for node in hanging:
        node.gate.set()
    waiting = await fleet.until(operation, OperationState.WAITING)
    assert [one.node_name for one in waiting.targets if one.status is not TargetStatus.SUCCESS] == ["z"]
    assert {node.written["echo"] for node in (*quick, *hanging)} == {1}
