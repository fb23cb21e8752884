"""A worker whose NATS user is made by its frontend, as LocalAI's frontends do, on a server that knows nobody else."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from corral.base.ids import NodeId
from corral.bus.client import NatsBus
from corral.bus.config import BusConfig
from corral.processes.exit_codes import ExitCode
from corral.wire.subjects import models_running, node_stop
from corral.worker.config import WorkerConfig
from tests.kit.nats_realm import Realm
from tests.kit.plain_nats import PlainNats

NODE = NodeId("n1")


@pytest.fixture
async def realm(tmp_path: Path) -> AsyncIterator[Realm]:
    async with Realm.open(tmp_path / "nats") as realm:
        yield realm


@pytest.fixture
async def asking(realm: Realm) -> AsyncIterator[NatsBus]:
    user = realm.user()
    async with NatsBus(BusConfig(url=realm.url, jwt=user.jwt, seed=user.seed)) as bus:
        await bus.wait_connected()
        yield bus


@pytest.fixture
def guarded(config: WorkerConfig, realm: Realm) -> WorkerConfig:
    return replace(config, bus=BusConfig(url=realm.url))


def registered(realm: Realm, node_id: str, status: str = "healthy") -> dict[str, str]:
    user = realm.worker(node_id)
    return {"id": node_id, "status": status, "nats_jwt": user.jwt, "nats_user_seed": user.seed}


async def test_a_node_that_waits_for_approval_asks_until_it_may_listen(
    worker: Any, guarded: WorkerConfig, frontend: Any, answer: Any, realm: Realm, asking: NatsBus
) -> None:
    frontend.usually_answers("register", answer(201, {"id": NODE, "status": "pending"}))
    async with worker(guarded) as running:
        await frontend.until_received("register")
        await running.until_answers("/readyz", (503, "not ready: not connected to NATS"))
        await running.clock.until_sleeping(2)  # the next heartbeat, and the next registration
        await running.clock.advance(timedelta(seconds=3))
        await frontend.until_received("register", 2)
        frontend.usually_answers("register", answer(201, registered(realm, NODE)))
        await running.clock.until_sleeping(2)
        await running.clock.advance(timedelta(seconds=10))
        await running.until_answers("/readyz", (200, "ok"))

        assert await asking.request(models_running(NODE), b"{}", timeout=timedelta(seconds=30)) == b'{"models":[]}'
        await asking.publish(node_stop(NODE), b"null")
        assert await running.ended() is ExitCode.OK


async def test_a_node_that_was_forgotten_listens_as_the_user_of_its_new_id(
    worker: Any, guarded: WorkerConfig, frontend: Any, answer: Any, realm: Realm, asking: NatsBus
) -> None:
    frontend.will_answer("register", answer(201, registered(realm, NODE)), answer(201, registered(realm, "n2")))
    frontend.will_answer("heartbeat", answer(404))
    async with worker(guarded) as running:
        await frontend.until_received("register")
        await running.until_answers("/readyz", (200, "ok"))
        await running.pass_time(seconds=10)
        await frontend.until_received("register", 2)
        await running.clock.until_sleeping(1)
        await running.until_answers("/readyz", (200, "ok"))

        asked = models_running(NodeId("n2"))
        assert await asking.request(asked, b"{}", timeout=timedelta(seconds=30)) == b'{"models":[]}'


async def test_a_shared_login_that_ended_is_replaced_by_a_user_of_the_upgraded_frontend(
    worker: Any, on_nats: WorkerConfig, frontend: Any, answer: Any, nats: PlainNats, tmp_path: Path
) -> None:
    """The worker was upgraded first, and registered while its frontend made no users."""
    welcome = {"version": "0.1.0", "features": ["node-secret"]}
    frontend.usually_answers("register", answer(201, {"id": NODE, "status": "healthy", "corral": welcome}))
    async with worker(on_nats) as running:
        await frontend.until_received("register")
        await running.until_answers("/readyz", (200, "ok"))
        await nats.kill()
        async with Realm.open(tmp_path / "operator", port=nats.port) as realm:
            offer = {"version": "0.2.0", "features": ["node-secret", "nats-user"]}
            frontend.usually_answers("register", answer(201, {**registered(realm, NODE), "corral": offer}))
            await running.clock.until_sleeping(2)  # the next heartbeat, and the moment after the refusal
            await running.clock.advance(timedelta(seconds=3))
            await frontend.until_received("register", 2)
            await running.until_answers("/readyz", (200, "ok"))
