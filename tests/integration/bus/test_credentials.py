"""User JWTs that expire and rotate, against a server in operator mode."""

import asyncio
import base64
import json
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import nkeys
import pytest

from corral.base.errors import CorralError, InvalidInput
from corral.base.ids import NodeId
from corral.bus import client
from corral.bus.config import BusConfig
from corral.bus.credentials import UserJwt, credentials_from_files
from corral.bus.minting import Minter
from corral.bus.port import Message
from corral.bus.problems import ProblemKind
from corral.bus.server import NatsServer


def part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


@dataclass
class Key:
    seed: str
    public: str

    @classmethod
    def new(cls, prefix: int) -> "Key":
        seed = nkeys.encode_seed(secrets.token_bytes(32), prefix)
        return cls(seed.decode(), nkeys.from_seed(bytearray(seed)).public_key.decode())

    def sign(self, subject: "Key", claims: dict[str, Any], **standard: object) -> str:
        """A NATS JWT: this key says something about the subject."""
        body = {"jti": secrets.token_hex(8), "iat": int(time.time()), "iss": self.public, "name": "test"}
        body |= {"sub": subject.public, "nats": {"version": 2, **claims}, **standard}
        text = f"{part(json.dumps({'typ': 'JWT', 'alg': 'ed25519-nkey'}).encode())}.{part(json.dumps(body).encode())}"
        pair = nkeys.from_seed(bytearray(self.seed.encode()))
        return f"{text}.{part(pair.sign(text.encode()))}"


UNLIMITED = {"subs": -1, "data": -1, "payload": -1}
ACCOUNT = {"limits": {**UNLIMITED, "imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1}}


@dataclass
class Realm:
    server: NatsServer
    account: Key

    def user(self, *, lives: float = 3600) -> UserJwt:
        key = Key.new(nkeys.PREFIX_BYTE_USER)
        claims = {"type": "user", "pub": {}, "sub": {}, **UNLIMITED}
        return UserJwt(self.account.sign(key, claims, exp=int(time.time() + lives)), key.seed)

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.server.port}"


@pytest.fixture
async def realm(tmp_path: Path) -> AsyncIterator[Realm]:
    operator, account = Key.new(nkeys.PREFIX_BYTE_OPERATOR), Key.new(nkeys.PREFIX_BYTE_ACCOUNT)
    extra = {
        "authorization": {"timeout": 5},
        "operator": operator.sign(operator, {"type": "operator"}),
        "resolver": "MEMORY",
        "resolver_preload": {account.public: operator.sign(account, {"type": "account", **ACCOUNT})},
    }
    async with NatsServer(tmp_path / "nats", extra=extra) as server:
        yield Realm(server, account)


async def test_a_jwt_of_the_configuration_logs_in(realm: Realm, open_bus: Any) -> None:
    user = realm.user()
    watched = await open_bus("", config=BusConfig(url=realm.url, jwt=user.jwt, seed=user.seed))
    assert watched.bus.connected


async def test_an_expired_jwt_is_replaced_by_what_the_provider_gives(
    realm: Realm, open_bus: Any, heard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_UNAUTHORIZED_BACKOFF", client._UNREACHABLE_BACKOFF)
    given = 0

    async def provide() -> UserJwt:
        nonlocal given
        given += 1
        return realm.user(lives=2 if given == 1 else 3600)

    watched = await open_bus(realm.url, credentials=provide)
    await watched.becomes(connected=True)
    await watched.bus.subscribe("corral.news", heard)

    problem = await watched.has(ProblemKind.UNAUTHORIZED)
    assert "expired" in problem.detail
    await watched.becomes(connected=True)
    assert given >= 2
    await watched.bus.publish("corral.news", b"still here")
    assert (await heard.next()).data == b"still here"


async def test_a_jwt_that_is_refused_is_asked_for_again(
    realm: Realm, open_bus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_UNAUTHORIZED_BACKOFF", client._UNREACHABLE_BACKOFF)
    stranger = Realm(realm.server, Key.new(nkeys.PREFIX_BYTE_ACCOUNT))
    users = iter([stranger.user(), stranger.user(), stranger.user()])

    async def provide() -> UserJwt:
        return next(users, None) or realm.user()

    watched = await open_bus(realm.url, credentials=provide)
    await watched.becomes(connected=True)
    assert watched.bus.problems.counts[ProblemKind.UNAUTHORIZED] == 3


async def test_a_faulty_provider_does_not_end_the_bus(
    realm: Realm, open_bus: Any, caplog: pytest.LogCaptureFixture
) -> None:
    faults = iter([ZeroDivisionError("oops"), InvalidInput("registration", "no credentials yet")])

    async def provide() -> UserJwt:
        for fault in faults:
            raise fault
        return realm.user()

    watched = await open_bus(realm.url, credentials=provide)
    await watched.becomes(connected=True)
    assert "oops" in caplog.text
    assert "no credentials yet" in caplog.text


async def test_files_are_read_at_every_connection(realm: Realm, open_bus: Any, tmp_path: Path) -> None:
    jwt_file, seed_file = tmp_path / "user.jwt", tmp_path / "user.seed"
    user = realm.user()
    jwt_file.write_text(f"{user.jwt}\n")
    seed_file.write_text(f"{user.seed}\n")
    watched = await open_bus(realm.url, credentials=credentials_from_files(jwt_file, seed_file))
    await watched.becomes(connected=True)

    seed_file.write_text("")
    await realm.server.kill()
    await realm.server.start()
    async with asyncio.timeout(20):
        while "no user seed" not in (await watched.problems.get()).detail:
            pass
    seed_file.write_text(user.seed)
    await watched.becomes(connected=True)


def test_a_missing_file_is_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"NATS user JWT file: cannot read .*missing"):
        credentials_from_files(tmp_path / "missing", tmp_path / "missing")


@pytest.mark.parametrize("seed", ["", "SU", "SUnot base 32!", "SAAM", "SU" + "A" * 200])
def test_what_is_no_user_seed_is_refused_before_connecting(seed: str) -> None:
    with pytest.raises(InvalidInput, match="NATS user seed"):
        UserJwt("ey.ey.ey", seed)


async def test_minted_credentials_reach_the_node_s_own_subjects_and_no_others(
    realm: Realm, open_bus: Any, heard: Any
) -> None:
    minted = Minter(realm.account.seed, timedelta(hours=1)).mint(
        NodeId("n1"), node_type="backend", at=datetime.now(UTC)
    )
    node = await open_bus("", config=BusConfig(url=realm.url, jwt=minted.jwt, seed=minted.seed))
    user = realm.user()
    frontend = await open_bus("", config=BusConfig(url=realm.url, jwt=user.jwt, seed=user.seed))

    async def answer(message: Message) -> None:
        await message.respond(b"mine")

    await node.bus.subscribe("nodes.n1.backend.list", answer)
    assert await frontend.bus.request("nodes.n1.backend.list", b"{}", timeout=timedelta(seconds=30)) == b"mine"
    await frontend.bus.subscribe("nodes.n1.backend.install.op.progress", heard)
    await node.bus.publish("nodes.n1.backend.install.op.progress", b"half")
    assert (await heard.next()).data == b"half"
    with pytest.raises(CorralError):
        await node.bus.subscribe("nodes.n2.backend.list", answer)
