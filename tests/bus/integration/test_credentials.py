"""User JWTs that expire and rotate, against a server in operator mode."""

import asyncio
import base64
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from corral.base.errors import InvalidInput
from corral.bus import client
from corral.bus.config import BusConfig, names_login
from corral.bus.credentials import UserJwt, lifetime_of
from corral.bus.problems import ProblemKind
from tests.kit.nats_realm import Realm


@pytest.fixture
async def realm(tmp_path: Path) -> AsyncIterator[Realm]:
    async with Realm.open(tmp_path / "nats") as realm:
        yield realm


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
        return realm.user(lives=4 if given == 1 else 3600)

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
    stranger = realm.stranger()
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


async def test_a_seed_that_cannot_be_used_is_reported_until_the_provider_has_another(
    realm: Realm, open_bus: Any
) -> None:
    user = realm.user()
    seed = user.seed

    async def provide() -> UserJwt:
        return UserJwt(user.jwt, seed)

    watched = await open_bus(realm.url, credentials=provide)
    await watched.becomes(connected=True)

    seed = ""
    await realm.server.kill()
    await realm.server.start()
    async with asyncio.timeout(60):
        while "no user seed" not in (await watched.problems.get()).detail:
            pass
    seed = user.seed
    await watched.becomes(connected=True)


@pytest.mark.parametrize("seed", ["", "SU", "SUnot base 32!", "SAAM", "SU" + "A" * 200])
def test_what_is_no_user_seed_is_refused_before_connecting(seed: str) -> None:
    with pytest.raises(InvalidInput, match="NATS user seed"):
        UserJwt("ey.ey.ey", seed)


async def test_renewed_credentials_are_used_at_once_and_subscriptions_stay(
    realm: Realm, open_bus: Any, heard: Any
) -> None:
    """Also after a refusal, which otherwise makes the bus wait."""
    given = [realm.stranger().user()]

    async def provide() -> UserJwt:
        return given[-1]

    watched = await open_bus(realm.url, credentials=provide)
    await watched.has(ProblemKind.UNAUTHORIZED)
    assert watched.bus.unauthorized
    given.append(realm.user())
    watched.bus.renew()
    await watched.becomes(connected=True)
    assert not watched.bus.unauthorized
    await watched.bus.subscribe("corral.news", heard)

    given.append(realm.user())
    watched.bus.renew()
    assert not watched.bus.connected
    await watched.bus.wait_connected()
    await watched.bus.publish("corral.news", b"still here")
    assert (await heard.next()).data == b"still here"


async def test_credentials_that_are_renewed_during_an_attempt_count(realm: Realm) -> None:
    given: list[UserJwt] = []

    async def provide() -> UserJwt:
        given.append(realm.user())
        if len(given) == 1:
            bus.renew()
        return given[-1]

    bus = client.NatsBus(BusConfig(url=realm.url), credentials=provide)
    async with bus:
        await bus.wait_connected()
        assert len(given) == 2


def test_the_lifetime_of_a_jwt_is_read_from_it() -> None:
    claims = "eyJpYXQiOjE3MDAwMDAwMDAsImV4cCI6MTcwMDAwMDA2MH0"  # {"iat":1700000000,"exp":1700000060}
    assert lifetime_of(f"head.{claims}.signature") == timedelta(minutes=1)


NO_END = (b"not JSON", b"{}", b'{"iat":5}', b'{"iat":5,"exp":5}', b'{"iat":1,"exp":1e300}', b'{"iat":"x","exp":9}')


@pytest.mark.parametrize("claims", NO_END)
def test_a_jwt_that_tells_no_end_has_none(claims: bytes) -> None:
    assert lifetime_of(f"head.{base64.urlsafe_b64encode(claims).decode()}.signature") is None


@pytest.mark.parametrize("jwt", ["", "ey", "a.b", "a.%%%.c"])
def test_what_is_no_jwt_has_no_end(jwt: str) -> None:
    assert lifetime_of(jwt) is None


@pytest.mark.parametrize(
    ("urls", "named"),
    [
        ("", False),
        ("nats://127.0.0.1:4222", False),
        ("nats://token@127.0.0.1:4222", True),
        ("nats://a:4222,nats://user:password@b:4222", True),
    ],
)
def test_urls_may_name_the_user(urls: str, named: bool) -> None:
    assert names_login(urls) is named
