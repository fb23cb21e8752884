"""Races between frontends, written down with gates: one has read and decided, then another one is quicker."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from corral.bus.port import Bus
from corral.frontend.nodes.decide.node import NodeStatus
from corral.frontend.nodes.store.nodes import Nodes
from corral.frontend.store.db import Database
from corral.frontend.store.secrets import SecretsKey
from tests.kit.asgi import AsgiAnswer
from tests.kit.clock import ManualClock
from tests.kit.frontend import REGISTRATION_TOKEN, Frontend, frontend_config, open_frontend
from tests.kit.gates import Gates, gated

WORKER = {"name": "w1", "address": "10.0.0.9:50051"}
HELLO = {"version": "1", "features": ["node-secret", "heartbeat-status"], "secret": "s" * 43, "heartbeat_seconds": 10}


@dataclass
class Rivals:
    """Two frontends on one database. What the slow one writes can be held before it is written."""

    slow: Frontend
    quick: Frontend
    gates: Gates
    nodes: Nodes

    async def overtaken(self, slow: Any, *quick: Any, at: str = "begin") -> AsgiAnswer:
        """Begin what the slow one does, let the quick one do its part meanwhile; the slow one's answer.

        `at` is how the slow one writes: in a transaction, or by one statement.
        """
        async with asyncio.TaskGroup() as group, self.gates.held_inside(at) as held:
            task = group.create_task(slow)
            await held.until_inside()
            for act in quick:
                assert (await act).status < 300
        answer: AsgiAnswer = task.result()
        return answer

    async def join(self, **change: object) -> str:
        answer = await self.quick.register({**WORKER, **change})
        assert answer.status == 201
        document: Any = answer.json()
        return str(document["id"])

    def act(self, frontend: Frontend, node_id: str, act: str) -> Any:
        return frontend.call("POST", f"/api/nodes/{node_id}/{act}")

    def own(self, frontend: Frontend, node_id: str, act: str) -> Any:
        return frontend.call("POST", f"/api/node/{node_id}/{act}", key=REGISTRATION_TOKEN)

    async def status(self, node_id: str) -> str:
        document: Any = (await self.quick.call("GET", f"/api/nodes/{node_id}")).json()
        return str(document["status"])


@pytest.fixture
async def rivals(database: Database, clock: ManualClock, bus: Bus, tmp_path: Path) -> AsyncIterator[Rivals]:
    config, key, gates = frontend_config(tmp_path), SecretsKey.generate(), Gates()
    held = gated(database, gates, "begin", "write")
    async with (
        open_frontend(database, clock, bus, config, key=key) as quick,
        open_frontend(held, clock, bus, config, key=key) as slow,
    ):
        yield Rivals(slow=slow, quick=quick, gates=gates, nodes=Nodes(database))


async def test_a_node_removed_meanwhile_is_not_brought_back_by_an_approval(rivals: Rivals) -> None:
    node = await rivals.join()

    answer = await rivals.overtaken(
        rivals.act(rivals.slow, node, "approve"), rivals.quick.call("DELETE", f"/api/nodes/{node}")
    )

    assert answer.status >= 400
    assert await rivals.nodes.all() == []


async def test_a_drain_and_an_approval_at_once_both_hold(rivals: Rivals) -> None:
    node = await rivals.join()

    answer = await rivals.overtaken(rivals.act(rivals.slow, node, "drain"), rivals.act(rivals.quick, node, "approve"))

    assert answer.status == 200
    assert await rivals.status(node) == NodeStatus.DRAINING


@pytest.mark.parametrize("hello", [{"corral": HELLO}, {}], ids=["with a secret", "by its name"])
async def test_a_worker_that_registers_at_two_frontends_at_once_is_one_node(
    rivals: Rivals, hello: dict[str, object]
) -> None:
    answer = await rivals.overtaken(
        rivals.slow.register({**WORKER, **hello}), rivals.quick.register({**WORKER, **hello})
    )

    document: Any = answer.json()
    assert [node.id for node in await rivals.nodes.all()] == [document["id"]]


async def test_an_approval_during_a_registration_is_not_lost(rivals: Rivals) -> None:
    node = await rivals.join()

    await rivals.overtaken(rivals.slow.register(WORKER), rivals.act(rivals.quick, node, "approve"))

    assert await rivals.status(node) == NodeStatus.HEALTHY


async def test_a_heartbeat_under_way_undoes_no_approval(rivals: Rivals) -> None:
    node = await rivals.join()

    answer = await rivals.overtaken(
        rivals.own(rivals.slow, node, "heartbeat"), rivals.act(rivals.quick, node, "approve"), at="write"
    )

    assert answer.status == 200
    assert await rivals.status(node) == NodeStatus.HEALTHY


async def test_a_heartbeat_under_way_undoes_no_good_bye(rivals: Rivals) -> None:
    node = await rivals.join()
    await rivals.act(rivals.quick, node, "approve")

    await rivals.overtaken(
        rivals.own(rivals.slow, node, "heartbeat"), rivals.own(rivals.quick, node, "deregister"), at="write"
    )

    assert await rivals.status(node) == NodeStatus.OFFLINE


async def test_a_heartbeat_of_a_node_removed_meanwhile_asks_it_to_register(rivals: Rivals) -> None:
    node = await rivals.join()

    answer = await rivals.overtaken(
        rivals.own(rivals.slow, node, "heartbeat"), rivals.quick.call("DELETE", f"/api/nodes/{node}"), at="write"
    )

    assert answer.status == 404
    assert await rivals.nodes.all() == []


async def test_a_status_that_changed_meanwhile_is_not_announced(rivals: Rivals) -> None:
    """The slow one saw it healthy; by then it said good-bye, and only that is told."""
    node = await rivals.join()
    await rivals.quick.settle()
    await rivals.act(rivals.quick, node, "approve")

    async with asyncio.TaskGroup() as group, rivals.gates.held_inside("begin") as held:
        group.create_task(rivals.slow.control.context.nodes.health.sweep())
        await held.until_inside()
        await rivals.own(rivals.quick, node, "deregister")
        await rivals.quick.settle()

    document: Any = (await rivals.quick.call("GET", "/api/v1/events?after=0")).json()
    told = [event["data"]["after"] for event in document if event["kind"] == "node.status"]
    assert told == ["pending", "offline"]


@pytest.mark.parametrize("change", ["approve", "drain"])
async def test_a_heartbeat_between_a_change_and_its_announcement_delays_nothing(rivals: Rivals, change: str) -> None:
    node = await rivals.join()
    await rivals.act(rivals.quick, node, "approve")
    if change == "drain":
        await rivals.quick.settle()
        await rivals.act(rivals.quick, node, "drain")

    assert (await rivals.own(rivals.slow, node, "heartbeat")).status == 200
    await rivals.quick.settle()

    document: Any = (await rivals.quick.call("GET", "/api/v1/events?after=0")).json()
    told = [event["data"]["after"] for event in document if event["kind"] == "node.status"]
    assert told[-1] == await rivals.status(node)
