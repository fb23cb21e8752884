"""NATS under attack: with the user of one node, with that of a removed one, and with none."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

import pytest

from corral.base.clock import SystemClock
from corral.base.ids import NodeId
from corral.bus.credentials import UserJwt
from corral.bus.minting import MOST_SUBSCRIPTIONS, Minter
from corral.bus.nkey_claims import ClaimsKey
from tests.kit.threats import AttackedFleet, NatsRefused, RawNats, ThiefNode

END_SECONDS = 1.0
"""How long a removed node may stay connected."""
KINDS = ("corral", "localai", "agent")


@dataclass
class Thief:
    """One machine that was let in, and is the attacker's."""

    node: ThiefNode
    user: UserJwt


@pytest.fixture(scope="module")
def thieves(fleet: AttackedFleet) -> Iterator[dict[str, Thief]]:
    """A node of each kind that can join."""
    made = {
        "corral": Thief(*fleet.admit("stolen-corral")),
        "localai": Thief(*fleet.admit("stolen-localai", is_corral=False)),
        "agent": Thief(*fleet.admit("stolen-agent", is_corral=False, node_type="agent")),
    }
    yield made
    for thief in made.values():
        fleet.remove(thief.node)


def foreign_ears(victim: str) -> list[str]:
    """What a thief would like to hear: other nodes' orders with prompts in them, answers, and what frontends say."""
    of_nodes = [
        f"nodes.{victim}.>",
        f"nodes.{victim}.backend.install",
        "nodes.>",
        "nodes.*.backend.install",
        ">",
        "*.>",
    ]
    answers = [
        "_INBOX.>",
        "_INBOX.frontend.>",
        f"_INBOX.frontend.{victim}.>",
        "_INBOX.frontend.*.*.*",
        "_WORKER_INBOX.>",
    ]
    return [*of_nodes, *answers, "corral.>", "state.>", "staging.>", "cache.>", "$SYS.>", "$JS.>"]


def foreign_words(victim: str) -> list[str]:
    """Orders to other nodes, reports and answers of theirs, and what only frontends say."""
    orders = ["backend.install", "backend.upgrade", "backend.delete", "backend.stop", "backend.list", "models.running"]
    orders += ["model.unload", "model.stop", "model.delete", "stop", "files.stage", "files.ensure", "files.listdir"]
    reports = ["corral.inventory", "corral.replica.exited", "backend.install.op.progress"]
    others = [
        f"_INBOX.frontend.{victim}.0.0",
        "_INBOX.frontend.fleet.0.0",
        "_INBOX.x",
        "corral.view",
        "$SYS.REQ.ACCOUNT",
    ]
    return [*(f"nodes.{victim}.{order}" for order in [*orders, *reports]), *others]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_node_hears_no_other_one(fleet: AttackedFleet, thieves: dict[str, Thief], kind: str) -> None:
    victim = fleet.victim()
    async with RawNats.connect(fleet.nats_url, thieves[kind].user) as nats:
        assert [subject for subject in foreign_ears(victim) if await nats.may_hear(subject)] == []


@pytest.mark.parametrize("kind", KINDS)
async def test_a_node_commands_and_answers_for_no_other_one(
    fleet: AttackedFleet, thieves: dict[str, Thief], kind: str
) -> None:
    victim = fleet.victim()
    async with RawNats.connect(fleet.nats_url, thieves[kind].user) as nats:
        assert [subject for subject in foreign_words(victim) if await nats.may_say(subject)] == []
    assert fleet.node(victim)["status"] == "healthy"


async def test_an_install_on_another_node_is_neither_heard_nor_answered(
    fleet: AttackedFleet, thieves: dict[str, Thief]
) -> None:
    """The attack of old: answer the install of another node first, and get the prompts of its model."""
    victim = fleet.victim()
    async with RawNats.connect(fleet.nats_url, thieves["corral"].user) as nats:
        await nats.may_hear(f"nodes.{victim}.>")
        asked = await asyncio.to_thread(fleet.admin, "GET", f"/api/nodes/{victim}/backends")
        assert asked.status == 200
        await nats.may_say(f"nodes.{thieves['corral'].node.id}.corral.inventory", b"not what it should be")
    assert nats.heard == []


@pytest.mark.parametrize("kind", KINDS)
async def test_a_node_gives_itself_no_orders(fleet: AttackedFleet, thieves: dict[str, Thief], kind: str) -> None:
    own = f"nodes.{thieves[kind].node.id}"
    async with RawNats.connect(fleet.nats_url, thieves[kind].user) as nats:
        for word in ("backend.install", "files.stage", "stop", "model.delete"):
            assert not await nats.may_say(f"{own}.{word}")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_node_keeps_little_in_the_memory_of_the_server(
    fleet: AttackedFleet, thieves: dict[str, Thief], kind: str
) -> None:
    """The server remembers each subscription, and what was said to each client that does not read."""
    own = f"nodes.{thieves[kind].node.id}"
    ear = "agent.x.cancel" if kind == "agent" else f"{own}.x"
    async with RawNats.connect(fleet.nats_url, thieves[kind].user) as nats:
        for number in range(MOST_SUBSCRIPTIONS):
            assert await nats.may_hear(ear), number
        assert not await nats.may_hear(ear)
    async with RawNats.connect(fleet.nats_url, thieves[kind].user) as nats:
        await nats.may_hear(f"{own}.>")
        await nats.may_say(f"{own}.backend.install.op.progress")
        assert not await nats.may_hear(f"{own}.backend.install.*.progress")
        assert nats.heard == []


async def test_what_is_too_large_ends_the_connection(fleet: AttackedFleet, thieves: dict[str, Thief]) -> None:
    thief = thieves["corral"]
    async with RawNats.connect(fleet.nats_url, thief.user) as nats:
        with pytest.raises(NatsRefused, match=r"Maximum Payload|closed|reset|Broken|lost"):
            await nats.may_say(f"nodes.{thief.node.id}.corral.inventory", bytes(2 * 1024 * 1024))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_removed_node_is_cut_off_within_a_second_and_stays_out(fleet: AttackedFleet, kind: str) -> None:
    more = {"node_type": "agent"} if kind == "agent" else {}
    node, user = fleet.admit(f"removed-{kind}", is_corral=kind == "corral", **more)
    async with RawNats.connect(fleet.nats_url, user) as nats:
        assert await nats.may_hear(f"nodes.{node.id}.backend.stop")
        closing = asyncio.create_task(nats.seconds_until_closed())
        await asyncio.to_thread(fleet.remove, node)
        began = asyncio.get_running_loop().time()
        await closing
        assert asyncio.get_running_loop().time() - began <= END_SECONDS
    with pytest.raises(NatsRefused, match="Authoriz"):
        await tried(fleet, user)
    again = fleet.register_again(node).json()
    assert (again["status"], "nats_jwt" in again) == ("pending", False)
    fleet.admin("DELETE", f"/api/v1/nodes/{again['id']}")


async def test_a_node_that_comes_back_as_another_type_is_cut_off(fleet: AttackedFleet) -> None:
    node, user = fleet.admit("changing")
    async with RawNats.connect(fleet.nats_url, user) as nats:
        closing = asyncio.create_task(nats.seconds_until_closed())
        reply = await asyncio.to_thread(fleet.register_again, node, node_type="agent")
        assert (reply.json()["status"], "nats_jwt" in reply.json()) == ("pending", False)
        await closing
    with pytest.raises(NatsRefused, match="Authoriz"):
        await tried(fleet, user)
    fleet.remove(node)


async def test_a_pending_node_has_no_user_of_nats(fleet: AttackedFleet) -> None:
    node = fleet.register("waiting for nats")
    assert {"nats_jwt", "nats_user_seed"} & fleet.register_again(node).json().keys() == set()
    assert fleet.node(node.id)["status"] == "pending"
    fleet.remove(node)


LOGINS: dict[str, Callable[[AttackedFleet], dict[str, str]]] = {
    "nothing": lambda fleet: {},
    "the old shared login": lambda fleet: {"user": "worker", "pass": fleet.registration_token},
    "the registration token": lambda fleet: {"auth_token": fleet.registration_token},
    "a node's secret": lambda fleet: {"auth_token": fleet.secret_of("worker-1")},
    "an administrator's key": lambda fleet: {"user": "frontend", "pass": fleet.admin_key},
}


@pytest.mark.parametrize("login", LOGINS)
async def test_nothing_else_opens_nats(fleet: AttackedFleet, login: str) -> None:
    with pytest.raises(NatsRefused, match="Authoriz"):
        await tried(fleet, login=LOGINS[login](fleet))


async def test_a_user_that_another_account_signed_is_a_stranger(
    fleet: AttackedFleet, thieves: dict[str, Thief]
) -> None:
    """Whoever makes users needs the seed of this very account; and a user is of no use without its own seed."""
    now = SystemClock().now()
    minter = Minter(ClaimsKey.make("account").seed, timedelta(hours=1))
    victim = NodeId(fleet.victim())
    forged = minter.mint(victim, node_type="backend", is_corral=True, approved_at=now, at=now).user
    for user in (forged, UserJwt(thieves["corral"].user.jwt, forged.seed)):
        with pytest.raises(NatsRefused, match="Authoriz"):
            await tried(fleet, user)


def test_another_nodes_secret_gets_no_user(fleet: AttackedFleet) -> None:
    """A node's secret in the header does not open a registration about another one."""
    body = {"name": "worker-1", "address": "127.0.0.1:9", "token": fleet.secret_of("worker-2")}
    reply = fleet.call("POST", "/api/node/register", body, key=fleet.secret_of("worker-2"))
    assert reply.status == 401
    assert b"nats_jwt" not in reply.body


async def tried(fleet: AttackedFleet, user: UserJwt | None = None, login: Mapping[str, str] | None = None) -> None:
    async with RawNats.connect(fleet.nats_url, user, login):
        pass
