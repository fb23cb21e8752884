"""NATS credentials for LocalAI's nodes, with their registration and their approval."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import nkeys
import pytest

from corral.bus.minting import Minter
from corral.bus.port import Bus
from corral.frontend.store.db import Database
from corral.frontend.store.secrets import SecretsKey
from tests.kit.clock import ManualClock
from tests.kit.frontend import TRUSTED_TOKEN, Frontend, frontend_config, open_frontend

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
SEED = nkeys.encode_seed(bytes(32), nkeys.PREFIX_BYTE_ACCOUNT).decode()
CREDENTIALS = {"nats_jwt", "nats_user_seed"}


@pytest.fixture
async def minting(database: Database, clock: ManualClock, bus: Bus, tmp_path: Path) -> AsyncIterator[Frontend]:
    config = frontend_config(tmp_path, minter=Minter(SEED, timedelta(hours=24)))
    async with open_frontend(database, clock, bus, config, key=SecretsKey.generate()) as opened:
        yield opened


async def test_a_node_gets_them_once_it_is_approved(minting: Frontend) -> None:
    body = {"name": "w", "address": "a:1"}
    pending = (await minting.register(body)).json()
    assert (pending["status"], CREDENTIALS & set(pending)) == ("pending", set())

    approved = (await minting.call("POST", f"/api/nodes/{pending['id']}/approve")).json()
    again = (await minting.register(body)).json()

    assert all(answer[name] for answer in (approved, again) for name in CREDENTIALS)
    assert approved["nats_user_seed"] != again["nats_user_seed"]
    assert again["id"] == pending["id"]


async def test_an_agent_gets_them_too(minting: Frontend) -> None:
    joined = (await minting.register({"name": "a", "node_type": "agent"}, token=TRUSTED_TOKEN)).json()
    assert set(joined) > {"api_token", *CREDENTIALS}


async def test_a_worker_of_corral_has_its_own(minting: Frontend) -> None:
    hello = {"version": "1", "features": ["node-secret"], "secret": "s" * 40}
    body = {"name": "w", "address": "a:1", "corral": hello}
    joined = (await minting.register(body, token=TRUSTED_TOKEN)).json()
    assert (joined["status"], CREDENTIALS & set(joined)) == ("healthy", set())


async def test_without_an_account_nobody_gets_any(frontend: Frontend) -> None:
    joined = (await frontend.register({"name": "w", "address": "a:1"}, token=TRUSTED_TOKEN)).json()
    assert (joined["status"], CREDENTIALS & set(joined)) == ("healthy", set())
