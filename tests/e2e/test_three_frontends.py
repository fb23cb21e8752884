"""Three frontend processes on one PostgreSQL and a cluster of three NATS servers: any of them may die."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from corral.base.ids import NodeId
from corral.frontend.nodes.decide.node import NodeStatus
from corral.frontend.record.decide import EventKind
from corral.frontend.store.secrets import SecretsKey
from tests.kit.admin_api import open_session
from tests.kit.databases import DatabaseSource
from tests.kit.nats_cluster import running_cluster
from tests.kit.page_sessions import SignedIn, ask_page
from tests.kit.plain_nats import PlainNats
from tests.kit.processes import FrontendProcess, WorkerProcess, ready_together
from tests.kit.waiting import eventually

pytestmark = pytest.mark.postgres


@dataclass
class Fleet:
    """What a test talks to."""

    frontends: list[FrontendProcess]
    nats: list[PlainNats]
    worker: WorkerProcess

    async def the_node(self) -> NodeId:
        """The worker's id, once it has registered."""
        nodes = await eventually(self.frontends[0].nodes, "the worker to register")
        (node_id,) = nodes
        return node_id

    async def until_seen(self, node_id: NodeId, status: NodeStatus, *, by: list[FrontendProcess]) -> None:
        """Each of these frontends lists this node alone, and with this status."""
        for frontend in by:

            async def lists_it(frontend: FrontendProcess = frontend) -> bool:
                seen = {id: node.status for id, node in (await frontend.nodes()).items()}
                return seen == {node_id: status.value}

            await eventually(lists_it, f"{frontend.name} to see {status}")

    async def until_it_beats(self, node_id: NodeId, *, by: FrontendProcess) -> None:
        """A heartbeat arrives after now."""
        last = (await by.node(node_id)).last_heartbeat

        async def is_later() -> bool:
            return (await by.node(node_id)).last_heartbeat > last

        await eventually(is_later, "another heartbeat")


@pytest.fixture
async def fleet(tmp_path: Path, database_source: DatabaseSource) -> AsyncIterator[Fleet]:
    """Three frontends started at once on an empty database, and one worker that knows them all."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(database_source.blank_url("postgres"))
        nats = await stack.enter_async_context(running_cluster(tmp_path / "nats"))
        session = await stack.enter_async_context(open_session())
        shared = {
            "CORRAL_DATABASE": url,
            "CORRAL_NATS_URL": ",".join(server.frontend_url for server in nats),
            "CORRAL_SECRETS_KEY": SecretsKey.generate().to_text(),
        }
        frontends = [
            FrontendProcess(f"f{number}", session, {**shared, "CORRAL_DATA": str(tmp_path / f"f{number}")})
            for number in (1, 2, 3)
        ]
        for frontend in frontends:
            await stack.enter_async_context(frontend)
        token = await ready_together(frontends)
        own = {
            "CORRAL_REGISTER_TO": ",".join(frontend.url for frontend in frontends),
            "CORRAL_REGISTRATION_TOKEN": token,
            "CORRAL_NATS_URL": ",".join(server.worker_url for server in nats),
            "CORRAL_HEARTBEAT_INTERVAL": "1s",
        }
        worker = await stack.enter_async_context(WorkerProcess("w1", tmp_path / "w1", own))
        yield Fleet(frontends=frontends, nats=nats, worker=worker)


async def test_three_frontends_that_start_together_work_as_one(fleet: Fleet) -> None:
    first, second, third = fleet.frontends
    node = await fleet.the_node()

    await second.approve(node)
    await fleet.until_seen(node, NodeStatus.HEALTHY, by=fleet.frontends)
    await third.drain(node)
    await fleet.until_seen(node, NodeStatus.DRAINING, by=fleet.frontends)

    async def is_recorded() -> bool:
        record = await first.record()
        is_announced = any(event.data.get("after") == NodeStatus.DRAINING for event in record)
        return is_announced and any(event.kind == EventKind.NODE_DRAINED for event in record)

    await eventually(is_recorded, "the drain and its end to be recorded")  # a status is computed, and seen before that
    keys = (await first.call("GET", "/api/v1/keys")).json()
    assert isinstance(keys, list)
    assert [key["name"] for key in keys] == ["admin"]
    record = await first.record()
    assert [event.kind for event in record].count(EventKind.KEY_CREATED) == 1
    assert [event.kind for event in record].count(EventKind.NODE_REGISTERED) == 1
    assert await second.record() == await third.record() == record


async def test_a_session_of_one_frontend_is_valid_and_ends_at_all_of_them_at_once(fleet: Fleet) -> None:
    urls = [frontend.url for frontend in fleet.frontends]
    page = await asyncio.to_thread(SignedIn.at, urls[0], {"key": fleet.frontends[0].admin_key})
    assert page.session["unconfirmed_gateways"] == []
    body = {"name": "k", "scopes": ["inference"]}
    for url in urls:  # no waiting: the answer came when all gateways knew it
        assert (await asyncio.to_thread(page.call, "GET", "/api/v1/nodes", at=url)).status == 200
        assert (await asyncio.to_thread(page.call, "POST", "/api/v1/keys", body, at=url)).status == 201
        view = await asyncio.to_thread(ask_page, "GET", f"{url}/ui/fleet", headers={"Accept": "text/html"})
        assert view.status == 200
    made = await asyncio.to_thread(page.call, "POST", "/api/v1/session/inference-key", at=urls[1])
    bearer = {"Authorization": f"Bearer {made.json()['key']}"}
    models = [await asyncio.to_thread(ask_page, "GET", f"{url}/v1/models", headers=bearer) for url in urls]
    assert [reply.status for reply in models] == [200] * 3

    assert (await asyncio.to_thread(page.call, "DELETE", "/api/v1/session", at=urls[2])).status == 204
    for url in urls:
        assert not await asyncio.to_thread(page.is_in, at=url)
        assert (await asyncio.to_thread(ask_page, "GET", f"{url}/v1/models", headers=bearer)).status == 401


async def test_kill_9_of_any_frontend_or_nats_server_leaves_the_list_right(fleet: Fleet) -> None:
    node = await fleet.the_node()
    await fleet.frontends[0].approve(node)
    await fleet.frontends[0].label(node, {"rack": "7"})

    for victim in fleet.frontends:
        await victim.kill()
        others = [frontend for frontend in fleet.frontends if frontend is not victim]
        await fleet.until_it_beats(node, by=others[0])
        await fleet.until_seen(node, NodeStatus.HEALTHY, by=others)
        victim.start()
        await victim.until_ready()

    for server in fleet.nats:
        await server.kill()
        await fleet.until_it_beats(node, by=fleet.frontends[0])
        for frontend in fleet.frontends:
            await frontend.until_ready()  # on one of the servers that are left
        await fleet.until_seen(node, NodeStatus.HEALTHY, by=fleet.frontends)
        await server.start()

    record = await fleet.frontends[0].record()
    assert [event.sequence for event in record] == list(range(1, len(record) + 1))
    assert [event.data for event in record if event.data.get("after") == "offline"] == []
    for frontend in fleet.frontends:
        assert (await frontend.node(node)).labels["rack"] == "7"
