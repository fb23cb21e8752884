"""Users of nodes on a NATS server of one's own, over real processes: they come with approval and end with the node."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from corral.base.ids import NodeId
from corral.bus.authority import write_for_own_server
from corral.bus.client import NatsBus
from corral.bus.config import BusConfig
from corral.bus.port import Message
from corral.bus.problems import Problem, ProblemKind
from corral.bus.server import NatsServer
from corral.frontend.nodes.decide.node import NodeStatus
from tests.kit.admin_api import open_session
from tests.kit.databases import DatabaseSource
from tests.kit.ports import lasting_port
from tests.kit.processes import FrontendProcess, WorkerProcess, ready_together
from tests.kit.waiting import eventually

pytestmark = pytest.mark.parametrize("dialect", ["sqlite", "postgres"])


@dataclass
class Fleet:
    frontend: FrontendProcess
    token: str
    nats: NatsServer
    folder: Path

    def worker(self, name: str) -> WorkerProcess:
        settings = {
            "CORRAL_REGISTER_TO": self.frontend.url,
            "CORRAL_REGISTRATION_TOKEN": self.token,
            "CORRAL_HEARTBEAT_INTERVAL": "500ms",
        }
        return WorkerProcess(name, self.folder / name, settings)

    async def register(self, name: str) -> dict[str, Any]:
        body = {"name": name, "address": "127.0.0.1:50051", "token": self.token}
        answer = await self.frontend.call("POST", "/api/node/register", body, key=self.token)
        assert answer.status == 201, answer.body
        return dict(msgspec.json.decode(answer.body))


@pytest.fixture
async def fleet(tmp_path: Path, database_source: DatabaseSource, dialect: str) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        write_for_own_server(tmp_path / "nats")
        nats = await stack.enter_async_context(NatsServer(tmp_path / "nats", port=lasting_port()))
        session = await stack.enter_async_context(open_session())
        settings = {"CORRAL_DATA": str(tmp_path / "frontend"), **nats.frontend_environment}
        if dialect == "postgres":
            settings["CORRAL_DATABASE"] = await stack.enter_async_context(database_source.blank_url("postgres"))
        frontend = await stack.enter_async_context(FrontendProcess("frontend", session, settings))
        token = await ready_together([frontend])
        yield Fleet(frontend=frontend, token=token, nats=nats, folder=tmp_path)


async def test_a_worker_that_knows_nothing_of_nats_is_asked_there_once_it_is_approved(fleet: Fleet) -> None:
    async with fleet.worker("w1"):
        (node,) = await eventually(fleet.frontend.nodes, "the worker to register")
        detail = await fleet.frontend.node(node)
        assert (detail.status, detail.nats_login) == (NodeStatus.PENDING, "own")
        await fleet.frontend.approve(node)
        await eventually(lambda: _answers(fleet.frontend, node), "the worker to answer on NATS")


async def test_a_removed_node_is_off_nats_within_a_second_and_does_not_come_back(fleet: Fleet) -> None:
    """With the user that its worker had, as a thief would go on with it."""
    node = NodeId((await fleet.register("stolen"))["id"])
    await fleet.frontend.approve(node)
    user = await fleet.register("stolen")
    config = BusConfig(url=fleet.nats.url, jwt=user["nats_jwt"], seed=user["nats_user_seed"])
    lost, refused = asyncio.Event(), asyncio.Event()
    heard: list[Message] = []

    async def listen(message: Message) -> None:
        heard.append(message)

    def note(problem: Problem) -> None:
        if problem.kind is ProblemKind.UNAUTHORIZED:
            refused.set()

    async with NatsBus(config) as bus:
        await bus.subscribe(f"nodes.{node}.>", listen)
        bus.on_connection(lambda connected: None if connected else lost.set())
        bus.problems.listen(note)

        assert (await fleet.frontend.call("DELETE", f"/api/v1/nodes/{node}")).status in (200, 204)

        async with asyncio.timeout(timedelta(seconds=1).total_seconds()):
            await lost.wait()
        async with asyncio.timeout(20):
            await refused.wait()
        assert not bus.connected
    assert heard == []


async def test_a_new_account_ends_all_users_of_the_old_one_and_nodes_come_back_by_themselves(
    fleet: Fleet, corral: Any
) -> None:
    """As the guide to lost keys has it: the command makes new keys, server and frontends start again."""
    frontend, folder, thief = fleet.frontend, fleet.folder / "nats", NodeId((await fleet.register("stolen"))["id"])
    await frontend.approve(thief)
    user = await fleet.register("stolen")
    async with fleet.worker("w1"):
        (node,) = await eventually(lambda: _besides(frontend, thief), "the worker to register")
        await frontend.approve(node)
        await eventually(lambda: _answers(frontend, node), "the worker to answer on NATS")

        await frontend.stop()
        await fleet.nats.stop()
        done = await asyncio.to_thread(corral, "keys", "rotate-nats", str(folder))
        assert done.returncode == 0, done.stderr
        assert f"Give {folder / 'logins.conf'} to the servers" in done.stdout
        async with NatsServer(folder, port=fleet.nats.port) as nats:
            for name, value in nats.frontend_environment.items():
                frontend.set_variable(name, value)
            frontend.start()
            await frontend.until_ready()
            await eventually(lambda: _answers(frontend, node), "the worker to answer with a new user")
            await _is_refused(BusConfig(url=nats.url, jwt=user["nats_jwt"], seed=user["nats_user_seed"]))
            await frontend.stop()


async def _is_refused(config: BusConfig) -> None:
    refused = asyncio.Event()

    def note(problem: Problem) -> None:
        if problem.kind is ProblemKind.UNAUTHORIZED:
            refused.set()

    bus = NatsBus(config)
    bus.problems.listen(note)
    async with bus, asyncio.timeout(20):
        await refused.wait()
        assert not bus.connected


async def _besides(frontend: FrontendProcess, other: NodeId) -> list[NodeId]:
    return [node for node in await frontend.nodes() if node != other]


async def _answers(frontend: FrontendProcess, node: NodeId) -> bool:
    return (await frontend.call("GET", f"/api/nodes/{node}/backends")).status == 200
