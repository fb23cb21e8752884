"""What a node's minted user hears and says on the embedded server, and that nothing of another node is in it."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from corral.base.errors import BusPermissionDenied, BusTimeout, MessageTooLarge, NoResponders, PathNotUsable
from corral.base.private_files import write_private
from corral.bus.authority import FOR_SYSTEM, RESOLVER_FOLDER, Authority, limit_connections
from corral.bus.client import NatsBus
from corral.bus.config import BusConfig
from corral.bus.credentials import UserJwt
from corral.bus.minting import MAX_SAID, IssuedUser
from corral.bus.nkey_claims import read_claims
from corral.bus.port import Message
from corral.bus.problems import ProblemKind
from corral.bus.revoking import ReadRevocations
from tests.kit.nats_realm import Realm
from tests.kit.relay import Relay
from tests.kit.threats import NatsRefused, RawNats

LONG = timedelta(seconds=20)
KINDS = pytest.mark.parametrize("is_corral", [True, False], ids=["corral", "localai"])


@pytest.fixture
async def realm(tmp_path: Path) -> AsyncIterator[Realm]:
    async with Realm.open(tmp_path / "nats") as realm:
        yield realm


@pytest.fixture
async def frontend(realm: Realm, open_bus: Any) -> Any:
    return await log_in(realm, open_bus, realm.minter().mint_frontend(at=datetime.now(UTC)))


async def log_in(realm: Realm, open_bus: Any, user: UserJwt, **options: object) -> Any:
    watched = await open_bus("", config=BusConfig(url=realm.url, jwt=user.jwt, seed=user.seed), **options)
    assert watched.bus.connected
    return watched


async def echo(message: Message) -> None:
    await message.respond(message.data)


@KINDS
async def test_a_node_is_asked_and_answers(realm: Realm, open_bus: Any, frontend: Any, is_corral: bool) -> None:
    node = await log_in(realm, open_bus, realm.node("n1", is_corral=is_corral).user)
    await node.bus.subscribe("nodes.n1.backend.list", echo)
    assert await frontend.bus.request("nodes.n1.backend.list", b"mine", timeout=LONG) == b"mine"


@KINDS
async def test_a_node_hears_nothing_but_its_own(realm: Realm, open_bus: Any, is_corral: bool) -> None:
    node = await log_in(realm, open_bus, realm.node("n1", is_corral=is_corral).user)
    others = ["nodes.n2.>", "nodes.n2.backend.install", "nodes.>", "nodes.*.backend.install", "_INBOX.>"]
    others += ["_INBOX.frontend.>", "_INBOX.frontend.n1.>", "corral.>", "gallery.>", "$SYS.>", ">"]
    for subject in others:
        for queue in ("", "workers"):
            with pytest.raises(BusPermissionDenied):
                await node.bus.subscribe(subject, echo, queue=queue)


NOT_ITS_OWN = [
    "nodes.n2.backend.install",
    "nodes.n2.backend.stop",
    "nodes.n2.stop",
    "nodes.n2.files.stage",
    "nodes.n1.backend.install",
    "nodes.n2.backend.install.op.progress",
    "nodes.n2.corral.inventory",
    "nodes.n2.corral.replica.exited",
    "_INBOX.frontend.n2.inbox.token",
    "_INBOX.frontend.fleet.inbox.token",
    "_INBOX.elsewhere",
    "corral.poke.events",
    "gallery.op.cancel",
    "cache.invalidate.models",
    "agent.execute",
]


@KINDS
async def test_a_node_says_nothing_for_others(realm: Realm, open_bus: Any, is_corral: bool) -> None:
    node = await log_in(realm, open_bus, realm.node("n1", is_corral=is_corral).user)
    for subject in NOT_ITS_OWN:
        await node.bus.publish(subject, b"{}")
        assert (await node.has(ProblemKind.PERMISSION_DENIED)).subject == subject.lower()


async def test_a_node_reports_what_only_it_knows(realm: Realm, open_bus: Any, frontend: Any, heard: Any) -> None:
    node = await log_in(realm, open_bus, realm.node("n1").user)
    await frontend.bus.subscribe("nodes.>", heard)
    said = ["backend.install.op.progress", "corral.replica.exited", "corral.inventory"]
    for subject in said:
        await node.bus.publish(f"nodes.n1.{subject}", b"{}")
    assert [(await heard.next()).subject for _ in said] == [f"nodes.n1.{subject}" for subject in said]
    assert node.problems.empty()


async def test_another_node_that_knows_the_reply_subject_cannot_answer(
    realm: Realm, open_bus: Any, frontend: Any
) -> None:
    """Not even one that was told: by a wiretap, a log, or the node itself."""
    victim = await log_in(realm, open_bus, realm.node("n1").user)
    attacker = await log_in(realm, open_bus, realm.node("n2").user)
    asked: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def silent(message: Message) -> None:
        asked.set_result(message.reply_to)

    await victim.bus.subscribe("nodes.n1.backend.install", silent)
    asking = asyncio.create_task(frontend.bus.request("nodes.n1.backend.install", b"{}", timeout=LONG))
    reply_to = await asked
    assert reply_to.startswith("_INBOX.frontend.n1.")
    await attacker.bus.publish(reply_to, b"forged")
    assert (await attacker.has(ProblemKind.PERMISSION_DENIED)).subject == reply_to.lower()
    await attacker.bus.publish(reply_to.replace(".n1.", ".n2."), b"forged")
    await attacker.bus.flush()
    await frontend.bus.flush()
    assert not asking.done()
    await victim.bus.publish(reply_to, b"true")
    assert await asking == b"true"


async def test_an_agent_starts_and_can_do_nothing(realm: Realm, open_bus: Any) -> None:
    agent = await log_in(realm, open_bus, realm.node("a1", is_corral=False, node_type="agent").user)
    for subject in ("agent.execute", "agent.*.cancel", "jobs.mcp-ci.new", "mcp.tools.execute", "mcp.discovery"):
        await agent.bus.subscribe(subject, echo)
    await agent.bus.subscribe("nodes.a1.backend.stop", echo)
    for subject in ("nodes.a1.>", "nodes.n1.backend.install", "gallery.*.progress"):
        with pytest.raises(BusPermissionDenied):
            await agent.bus.subscribe(subject, echo)
    await agent.bus.publish("agent.execute", b"{}")
    assert (await agent.has(ProblemKind.PERMISSION_DENIED)).subject == "agent.execute"


async def test_what_is_too_large_is_refused_here_and_the_connection_lives(
    realm: Realm, open_bus: Any, frontend: Any, heard: Any
) -> None:
    node = await log_in(realm, open_bus, realm.node("n1").user)
    with pytest.raises(MessageTooLarge):
        await node.bus.publish("nodes.n1.corral.inventory", bytes(MAX_SAID + 1))
    await frontend.bus.subscribe("nodes.*.corral.inventory", heard)
    await node.bus.publish("nodes.n1.corral.inventory", bytes(MAX_SAID))
    assert len((await heard.next()).data) == MAX_SAID


def rows(*revoked: IssuedUser) -> ReadRevocations:
    """Return what a frontend's database says."""

    async def read() -> tuple[dict[str, datetime], list[str]]:
        return {user.public_key: user.expires_at for user in revoked}, []

    return read


async def test_two_frontends_that_revoke_at_once_undo_nothing(realm: Realm, open_bus: Any) -> None:
    """The second looks at the claims before the first changes them, and changes them after it was done."""
    users = [realm.node("n1"), realm.node("n2")]
    nodes = [await log_in(realm, open_bus, user.user) for user in users]
    second, now, stored = realm.revoker, datetime.now(UTC), [users[1]]
    ask, asked = second._ask, []

    async def ask_slowly(bus: NatsBus, action: str, data: bytes) -> bytes:
        answer = await ask(bus, action, data)
        asked.append(action)
        if asked == ["LOOKUP"]:
            stored.append(users[0])
            await realm.revoker.apply(rows(*stored), now=now)
        return answer

    second._ask = ask_slowly  # type: ignore[method-assign]

    async def read() -> tuple[Mapping[str, datetime], Collection[str]]:
        return await rows(*stored)()

    await second.apply(read, now=now + timedelta(seconds=5))
    bus = NatsBus(BusConfig(url=realm.url), credentials=second._provide)
    async with bus:
        claims = read_claims((await ask(bus, "LOOKUP", b"")).decode())
    assert claims["nats"]["revocations"].keys() == {user.public_key for user in users}
    for node in nodes:
        await node.has(ProblemKind.UNAUTHORIZED)


async def test_a_revoked_user_is_gone_at_once_and_for_good(realm: Realm, open_bus: Any, frontend: Any) -> None:
    revoked = realm.node("n1")
    node = await log_in(realm, open_bus, revoked.user)
    bystander = await log_in(realm, open_bus, realm.node("n2").user)
    await node.becomes(connected=True)
    loop = asyncio.get_running_loop()
    began = loop.time()

    await realm.revoker.apply(rows(revoked), now=datetime.now(UTC))

    await node.becomes(connected=False)
    assert loop.time() - began < 1
    await node.has(ProblemKind.UNAUTHORIZED)
    assert bystander.bus.connected
    assert frontend.bus.connected
    await realm.server.kill()
    await realm.server.start()
    late = await open_bus("", config=BusConfig(url=realm.url, jwt=revoked.user.jwt, seed=revoked.user.seed))
    await late.has(ProblemKind.UNAUTHORIZED)
    assert not late.bus.connected


async def test_a_user_with_all_connections_of_the_server_can_still_be_ended(tmp_path: Path) -> None:
    """NATS has no limit of connections for each user. Others are locked out meanwhile, and control is not."""
    async with Realm.open(tmp_path / "nats", connections=FOR_SYSTEM + 12) as realm, AsyncExitStack() as stack:
        thief, other = realm.node("n1"), realm.node("n2")
        held = [await stack.enter_async_context(RawNats.connect(realm.url, thief.user)) for _ in range(12)]
        for user in (thief, other):
            with pytest.raises(NatsRefused, match="maximum account active connections"):
                await stack.enter_async_context(RawNats.connect(realm.url, user.user))

        await realm.revoker.apply(rows(thief), now=datetime.now(UTC))

        await asyncio.gather(*(nats.seconds_until_closed() for nats in held))
        async with RawNats.connect(realm.url, other.user):
            pass


@pytest.mark.parametrize("limit_before", [-1, 40])
async def test_the_limit_of_connections_changes_and_what_was_revoked_stays_so(
    tmp_path: Path, limit_before: int
) -> None:
    """Fleets of earlier versions have an account without a limit."""
    folder = tmp_path / "nats"
    async with Realm.open(folder) as realm:
        thief = realm.node("n1")
        await realm.revoker.apply(rows(thief), now=datetime.now(UTC))
    limit_connections(folder, limit_before)
    async with Realm.open(folder, connections=FOR_SYSTEM + 1) as realm, AsyncExitStack() as stack:
        with pytest.raises(NatsRefused, match="Authoriz"):
            await stack.enter_async_context(RawNats.connect(realm.url, thief.user))
        await stack.enter_async_context(RawNats.connect(realm.url, realm.node("n2").user))
        with pytest.raises(NatsRefused, match="maximum account active connections"):
            await stack.enter_async_context(RawNats.connect(realm.url, realm.node("n2").user))


@pytest.mark.parametrize("content", [b"not.claims", b"\xff", b"e30.e30.e30", b"e30.eyJuYXRzIjp7fX0.e30"])
def test_claims_that_cannot_be_read_are_named_by_their_file(tmp_path: Path, content: bytes) -> None:
    authority = Authority.load_or_create(tmp_path)
    file = tmp_path / RESOLVER_FOLDER / f"{authority.account}.jwt"
    write_private(file, content)

    with pytest.raises(PathNotUsable, match=str(file)):
        limit_connections(tmp_path, 7)


async def test_a_renewed_user_takes_over_without_losing_a_message(realm: Realm, open_bus: Any, frontend: Any) -> None:
    """Requests without a pause, while the user is replaced again and again: each is answered, and once."""
    served: list[bytes] = []

    async def provide() -> UserJwt:
        return realm.node("n1").user

    node = await open_bus(realm.url, credentials=provide, overlaps=True)

    async def serve(message: Message) -> None:
        served.append(message.data)
        await message.respond(message.data)

    await node.bus.subscribe("nodes.n1.backend.list", serve)
    sent: list[bytes] = []
    stop = asyncio.Event()

    async def ask(asker: int) -> None:
        while not stop.is_set():
            data = f"{asker}-{len(sent)}".encode()
            sent.append(data)
            assert await frontend.bus.request("nodes.n1.backend.list", data, timeout=LONG) == data

    async with asyncio.TaskGroup() as group:
        for asker in range(8):
            group.create_task(ask(asker))
        for _ in range(10):
            before = node.bus._link
            node.bus.renew(gently=True)
            await until_another_link(node, before)
            assert node.bus.connected
        stop.set()
    assert sorted(served) == sorted(sent)
    assert len(sent) > 100


async def until_another_link(node: Any, before: object) -> None:
    async with asyncio.timeout(20):
        while node.bus._link is before:  # noqa: ASYNC110 - a bus says nothing of a renewal that goes well
            await asyncio.sleep(0)


async def test_a_renewal_that_fails_leaves_the_old_link_in_place(realm: Realm, open_bus: Any, frontend: Any) -> None:
    users = [realm.node("n1").user]

    async def provide() -> UserJwt:
        return users[-1]

    node = await open_bus(realm.url, credentials=provide, overlaps=True)
    await node.bus.subscribe("nodes.n1.backend.list", echo)
    before = node.bus._link
    users.append(realm.stranger().node("n1").user)
    node.bus.renew(gently=True)
    await node.has(ProblemKind.UNAUTHORIZED)
    assert await frontend.bus.request("nodes.n1.backend.list", b"?", timeout=LONG) == b"?"
    assert node.bus._link is before
    users.append(realm.node("n1").user)
    await until_another_link(node, before)
    assert await frontend.bus.request("nodes.n1.backend.list", b"?", timeout=LONG) == b"?"
    assert not node.bus.unauthorized


async def test_a_renewal_that_breaks_half_way_loses_nothing_of_the_old_link(
    realm: Realm, open_bus: Any, frontend: Any
) -> None:
    """The first successor ends after it subscribed; what waits on the old link is handled when the second took over."""
    handled: list[bytes] = []
    began, go_on, done = asyncio.Event(), asyncio.Event(), asyncio.Event()
    sent = [str(number).encode() for number in range(20)]

    async def provide() -> UserJwt:
        return realm.node("n1").user

    async def handle(message: Message) -> None:
        began.set()
        await go_on.wait()
        handled.append(message.data)
        if len(handled) == len(sent):
            done.set()

    async with Relay(realm.server.port) as relay:
        node = await open_bus(f"nats://127.0.0.1:{relay.port}", credentials=provide, overlaps=True)
        await node.bus.subscribe("nodes.n1.backend.list", handle, concurrency=1)
        for data in sent:
            await frontend.bus.publish("nodes.n1.backend.list", data)
        await frontend.bus.flush()
        await node.bus.flush()
        await began.wait()
        before = node.bus._link
        relay.cut_after(b"SUB ")
        node.bus.renew(gently=True)
        await node.has(ProblemKind.UNREACHABLE)
        assert node.bus._link is before
        await until_another_link(node, before)
        for _ in range(20):  # enough for a link that is closed and not drained to be gone
            await node.bus.flush()
        go_on.set()
        async with asyncio.timeout(20):
            await done.wait()
        assert handled == sent


async def test_a_bus_without_a_server_connects_when_it_is_told_of_one(
    realm: Realm, open_bus: Any, frontend: Any
) -> None:
    user = realm.node("n1").user

    async def provide() -> UserJwt:
        return user

    node = await open_bus("", config=BusConfig(url=""), credentials=provide, overlaps=True)
    assert not node.bus.connected
    await node.bus.subscribe("nodes.n1.backend.list", echo)
    node.bus.use_servers(realm.url)
    await node.becomes(connected=True)
    assert await frontend.bus.request("nodes.n1.backend.list", b"?", timeout=LONG) == b"?"
    node.bus.use_servers("")
    await node.becomes(connected=False)
    with pytest.raises(NoResponders):
        await asked_until_gone(frontend)


async def asked_until_gone(frontend: Any) -> None:
    """The server notices a moment later."""
    async with asyncio.timeout(20):
        while True:
            with suppress(BusTimeout):
                await frontend.bus.request("nodes.n1.backend.list", b"?", timeout=timedelta(seconds=1))
