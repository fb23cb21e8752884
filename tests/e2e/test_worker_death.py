"""kill -9 of a worker process: noticed in time, and forgotten as soon as it is back."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from corral.base.ids import NodeId
from corral.bus.server import NatsServer
from corral.frontend.nodes.decide.node import NodeStatus
from corral.wire.nodes import NodeDetail
from tests.kit.admin_api import open_session
from tests.kit.ports import lasting_port
from tests.kit.processes import FrontendProcess, WorkerProcess, ready_together
from tests.kit.waiting import eventually

INTERVAL = 1.0
UNHEALTHY_AFTER = 3


@dataclass
class Fleet:
    frontend: FrontendProcess
    worker: WorkerProcess

    async def until(self, node_id: NodeId, status: NodeStatus) -> list[NodeDetail]:
        """Everything that was seen of the node until it had this status, that included."""
        seen: list[NodeDetail] = []

        async def has_it() -> bool:
            seen.append(await self.frontend.node(node_id))
            return seen[-1].status == status

        await eventually(has_it, f"the node to be {status}")
        return seen


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[Fleet]:
    """One frontend on SQLite, one worker with a short interval."""
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(NatsServer(tmp_path / "nats", port=lasting_port()))
        session = await stack.enter_async_context(open_session())
        of_frontend = {"CORRAL_DATA": str(tmp_path / "frontend"), **nats.frontend_environment}
        frontend = await stack.enter_async_context(FrontendProcess("frontend", session, of_frontend))
        token = await ready_together([frontend])
        of_worker = {
            "CORRAL_REGISTER_TO": frontend.url,
            "CORRAL_REGISTRATION_TOKEN": token,
            "CORRAL_HEARTBEAT_INTERVAL": f"{INTERVAL:g}s",
        }
        worker = await stack.enter_async_context(WorkerProcess("w1", tmp_path / "worker", of_worker))
        yield Fleet(frontend=frontend, worker=worker)


async def test_a_worker_killed_with_9_is_unhealthy_within_three_intervals_and_comes_back_as_itself(
    fleet: Fleet,
) -> None:
    (node,) = await eventually(fleet.frontend.nodes, "the worker to register")
    await fleet.frontend.approve(node)
    await fleet.frontend.label(node, {"rack": "7"})
    await fleet.until(node, NodeStatus.HEALTHY)

    await fleet.worker.kill()
    seen = await fleet.until(node, NodeStatus.UNHEALTHY)

    # By the frontend's own measure: how long a look across processes takes depends on the machine.
    limit = UNHEALTHY_AFTER * INTERVAL
    assert [detail.silent_seconds for detail in seen[:-1] if detail.silent_seconds > limit] == []

    fleet.worker.start()
    back = (await fleet.until(node, NodeStatus.HEALTHY))[-1]

    assert list(await fleet.frontend.nodes()) == [node]
    assert back.labels["rack"] == "7"
    assert back.incarnation != seen[0].incarnation
