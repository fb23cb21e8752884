"""Users of NATS for nodes: with their registration and their approval, stored, and revoked with the node."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import nkeys
import pytest

from corral.base.errors import BusUnavailable
from corral.bus.config import BusConfig
from corral.bus.minting import Minter
from corral.bus.nkey_claims import read_claims
from corral.bus.port import Bus
from corral.bus.revoking import ReadRevocations
from corral.frontend.diagnosis.doctor.nats import check_nats_users
from corral.frontend.nodes.nats_users import FORGET_EVERY, NatsRevocations
from corral.frontend.nodes.store.nats_users import NatsUsers
from corral.frontend.store.db import Database
from corral.frontend.store.secrets import SecretsKey
from corral.processes.control_links import nats_offer
from tests.kit.bus import MemoryBus, MemoryServer
from tests.kit.clock import ManualClock
from tests.kit.frontend import TRUSTED_TOKEN, Frontend, frontend_config, open_frontend

SEED = nkeys.encode_seed(bytes(32), nkeys.PREFIX_BYTE_ACCOUNT).decode()
CREDENTIALS = {"nats_jwt", "nats_user_seed"}
LIFETIME = timedelta(hours=24)
HELLO = {"version": "1", "features": ["node-secret", "nats-user"], "secret": "s" * 40, "nats_login": "own"}
CORRAL = {"name": "w", "address": "a:1", "corral": HELLO}
LOCALAI = {"name": "w", "address": "a:1"}


@dataclass
class Server:
    """What the NATS server was told."""

    calls: list[tuple[dict[str, datetime], list[str]]] = field(default_factory=list)
    is_away: bool = False

    async def apply(self, read: ReadRevocations, *, now: datetime) -> None:
        if self.is_away:
            raise BusUnavailable("away")
        revoked, ended = await read()
        self.calls.append((dict(revoked), list(ended)))


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
async def minting(
    database: Database, clock: ManualClock, bus: Bus, tmp_path: Path, server: Server
) -> AsyncIterator[Frontend]:
    minter = Minter(SEED, LIFETIME)
    config = frontend_config(tmp_path, minter=minter, revoker=server, bus=BusConfig(url="nats://worker:pw@bus:4222"))
    async with open_frontend(database, clock, bus, config, key=SecretsKey.generate()) as opened:
        yield opened


def revocations(frontend: Frontend) -> NatsRevocations:
    return frontend.control.context.nodes.revocations


def key_of(joined: Mapping[str, Any]) -> str:
    return str(read_claims(joined["nats_jwt"])["sub"])


async def test_a_node_gets_them_once_it_is_approved(minting: Frontend, clock: ManualClock) -> None:
    pending = (await minting.register(LOCALAI)).json()
    assert (pending["status"], CREDENTIALS & set(pending)) == ("pending", set())

    approved = (await minting.call("POST", f"/api/nodes/{pending['id']}/approve")).json()
    await clock.advance(timedelta(minutes=1))
    again = (await minting.register(LOCALAI)).json()

    assert all(answer[name] for answer in (approved, again) for name in CREDENTIALS)
    assert approved["nats_jwt"] != again["nats_jwt"]
    assert key_of(approved) == key_of(again)
    assert again["id"] == pending["id"]


async def test_an_agent_gets_them_too(minting: Frontend) -> None:
    joined = (await minting.register({"name": "a", "node_type": "agent"}, token=TRUSTED_TOKEN)).json()
    assert set(joined) > {"api_token", *CREDENTIALS}


async def test_a_worker_of_corral_is_told_where_nats_is_too(minting: Frontend) -> None:
    joined = (await minting.register(CORRAL, token=TRUSTED_TOKEN)).json()
    assert set(joined) > CREDENTIALS
    assert joined["corral"]["nats"] == {"urls": ["nats://bus:4222"]}
    assert "nats-user" in joined["corral"]["features"]
    assert (await minting.control.context.nodes.store.get(joined["id"])).nats_login == "own"


async def test_the_approval_of_a_worker_of_corral_shows_its_user_to_nobody(minting: Frontend) -> None:
    pending = (await minting.register(CORRAL)).json()
    assert not CREDENTIALS & set(pending)
    approved = (await minting.call("POST", f"/api/nodes/{pending['id']}/approve")).json()
    assert not CREDENTIALS & set(approved)
    assert set((await minting.register(CORRAL)).json()) > CREDENTIALS


async def test_without_an_account_nobody_gets_any(frontend: Frontend) -> None:
    joined = (await frontend.register(CORRAL, token=TRUSTED_TOKEN)).json()
    assert (joined["status"], CREDENTIALS & set(joined)) == ("healthy", set())
    assert "nats" not in joined["corral"]
    assert "nats-user" not in joined["corral"]["features"]


@pytest.mark.parametrize("body", [CORRAL, LOCALAI], ids=["corral", "localai"])
async def test_a_removed_node_s_user_is_revoked_with_it(
    minting: Frontend, server: Server, clock: ManualClock, body: dict[str, Any]
) -> None:
    joined = (await minting.register(body, token=TRUSTED_TOKEN)).json()
    await clock.advance(timedelta(hours=1))
    await minting.register(body, token=TRUSTED_TOKEN)
    (await minting.register({"name": "other", "address": "b:1"}, token=TRUSTED_TOKEN)).json()
    await revocations(minting).step()
    assert server.calls == []
    began = clock.now()

    await minting.call("DELETE", f"/api/v1/nodes/{joined['id']}")
    await revocations(minting).step()

    assert server.calls == [({key_of(joined): began + LIFETIME}, [])]
    again = (await minting.register(body, token=TRUSTED_TOKEN)).json()
    assert key_of(again) != key_of(joined)


async def test_a_suspected_node_s_user_is_revoked_and_its_next_approval_makes_another(
    minting: Frontend, server: Server, clock: ManualClock
) -> None:
    joined = (await minting.register(LOCALAI, token=TRUSTED_TOKEN)).json()
    await clock.advance(timedelta(milliseconds=1))
    moved = (await minting.register({**LOCALAI, "address": "elsewhere:1"})).json()
    assert (moved["status"], CREDENTIALS & set(moved)) == ("pending", set())
    await revocations(minting).step()
    assert [*server.calls[0][0]] == [key_of(joined)]
    approved = (await minting.call("POST", f"/api/nodes/{joined['id']}/approve")).json()
    assert key_of(approved) != key_of(joined)


async def test_what_was_revoked_is_told_until_the_server_has_it_and_forgotten_after_its_end(
    minting: Frontend, server: Server, clock: ManualClock, database: Database
) -> None:
    joined = (await minting.register(CORRAL, token=TRUSTED_TOKEN)).json()
    await minting.register({"name": "other", "address": "b:1"}, token=TRUSTED_TOKEN)
    await minting.call("DELETE", f"/api/v1/nodes/{joined['id']}")
    server.is_away = True
    await revocations(minting).step()
    assert revocations(minting).problem == "away"
    server.is_away = False
    await revocations(minting).step()
    assert (revocations(minting).problem, len(server.calls)) == ("", 1)
    assert await NatsUsers(database).count() == 2

    await clock.advance(LIFETIME + FORGET_EVERY)
    await revocations(minting).step()

    assert server.calls[-1] == ({}, [key_of(joined)])
    assert await NatsUsers(database).count() == 0


async def test_a_problem_is_over_when_another_frontend_has_told_the_server(
    minting: Frontend, server: Server, clock: ManualClock, database: Database
) -> None:
    joined = (await minting.register(CORRAL, token=TRUSTED_TOKEN)).json()
    await minting.call("DELETE", f"/api/v1/nodes/{joined['id']}")
    server.is_away = True
    await revocations(minting).step()
    assert (await finding(minting))[0] == "problem"
    await clock.advance(LIFETIME)
    await NatsUsers(database).forget([key_of(joined)])  # as the other frontend does, once the server was told
    await revocations(minting).step()
    assert revocations(minting).problem == ""
    assert (await finding(minting))[0] == "ok"


async def test_the_server_is_told_again_after_every_reconnect(
    database: Database, clock: ManualClock, tmp_path: Path, server: Server
) -> None:
    """It may have lost its claims meanwhile."""
    config = frontend_config(tmp_path, minter=Minter(SEED, LIFETIME), revoker=server)
    memory = MemoryServer()
    async with MemoryBus(memory) as bus, open_frontend(database, clock, bus, config, key=SecretsKey.generate()) as one:
        memory.go_down()
        memory.come_up()
        async with asyncio.timeout(20):
            await revocations(one).poke.wait(clock, timedelta(days=365))


async def finding(frontend: Frontend) -> tuple[str, str]:
    report: Any = (await frontend.call("GET", "/api/v1/doctor")).json()
    (found,) = [one for one in report["findings"] if one["check"] == "nats users"]
    return found["level"], found["summary"]


async def test_the_doctor_tells_of_nodes_that_share_a_login(frontend: Frontend) -> None:
    assert (await finding(frontend))[0] == "warning"
    assert "share a login" in (await finding(frontend))[1]


async def test_the_doctor_tells_when_a_removed_node_s_user_ends(
    minting: Frontend, server: Server, database: Database, clock: ManualClock, bus: Bus, tmp_path: Path
) -> None:
    assert await finding(minting) == ("ok", "each node has its own; that of a removed node ends at once")
    joined = (await minting.register(CORRAL, token=TRUSTED_TOKEN)).json()
    await minting.call("DELETE", f"/api/v1/nodes/{joined['id']}")
    server.is_away = True
    await revocations(minting).step()
    assert await finding(minting) == ("problem", "users of nodes that are gone still live on NATS: away")


async def test_the_doctor_tells_that_a_user_without_the_operator_s_key_lives_on(
    database: Database, clock: ManualClock, bus: Bus, tmp_path: Path
) -> None:
    config = frontend_config(tmp_path, minter=Minter(SEED, timedelta(minutes=10)))
    async with open_frontend(database, clock, bus, config, key=SecretsKey.generate()) as one:
        assert (await finding(one))[1].endswith("ends when it expires, within 10m 0s")


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"features": ["node-secret"], "nats_login": ""}, "For old: upgrade Corral on its machine."),
        ({"nats_login": "shared"}, "For old: remove nats_jwt and nats_seed from its settings."),
        ({"nats_login": ""}, "For old: restart it: it registered before its frontend made users."),
    ],
)
async def test_the_doctor_names_workers_that_were_left_behind(
    minting: Frontend, changes: dict[str, Any], remedy: str
) -> None:
    body = {**CORRAL, "name": "old", "corral": {**HELLO, **changes}}
    await minting.register(body, token=TRUSTED_TOKEN)
    level, summary = await finding(minting)
    assert (level, summary.endswith("as users of their own: old")) == ("warning", True)
    assert (await check_nats_users(minting.control.context)).remedy == remedy


def test_renewed_authorities_of_nats_are_offered_without_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("old")
    offer = nats_offer(frontend_config(tmp_path, bus=BusConfig(url="tls://u:p@bus:4222", tls_ca=file)))
    assert (offer().urls, offer().tls_ca) == (["tls://bus:4222"], "old")
    file.write_text("new")
    assert offer().tls_ca == "new"
    file.unlink()
    assert offer().tls_ca == "new"
