"""The user that a frontend makes for this worker: when it is used, and when another one is asked for."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from corral.base.errors import InvalidInput
from corral.base.ids import NodeId
from corral.base.retry import Backoff
from corral.bus.config import BusConfig
from corral.bus.credentials import UserJwt
from corral.bus.problems import Problem, ProblemKind, Problems
from corral.wire.registration import Feature
from corral.worker.membership.identity import NO_LOGIN, NO_SERVER, NatsUser
from corral.worker.membership.registration import AcceptedRegistration
from tests.kit.clock import ManualClock

BACKOFF = Backoff(first=timedelta(seconds=2), cap=timedelta(seconds=30), spread=0)
SEED = "SU" + "A" * 56
REFUSED = Problem(kind=ProblemKind.UNAUTHORIZED, detail="no")


@dataclass
class FakeLink:
    connected: bool = False
    unauthorized: bool = False
    renewals: int = 0
    gentle_renewals: int = 0
    servers: list[str] = field(default_factory=list)
    problems: Problems = field(default_factory=Problems)

    def renew(self, *, gently: bool = False) -> None:
        self.renewals += not gently
        self.gentle_renewals += gently

    def use_servers(self, urls: str, *, authorities: str = "", gently: bool = False) -> None:
        if authorities == "no PEM":
            raise InvalidInput("NATS TLS CA", "cannot use what the frontend offers")
        self.servers.append(f"{urls} {authorities}".strip())
        self.renew(gently=gently)


def user(hours: float, number: int = 1) -> UserJwt:
    """It lives so many hours, by a clock that has nothing to do with ours."""
    claims = {"iat": 1700000000, "exp": 1700000000 + int(hours * 3600), "jti": str(number)}
    return UserJwt(f"head.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode()}.signature", SEED)


def member(
    nats_user: UserJwt | None = None, node_id: str = "n1", *, is_corral: bool = False, **more: Any
) -> AcceptedRegistration:
    return AcceptedRegistration(node_id=NodeId(node_id), bearer="tok", nats_user=nats_user, is_corral=is_corral, **more)


def corral_member(nats_user: UserJwt | None = None, **more: Any) -> AcceptedRegistration:
    """At a frontend that makes users."""
    status = "pending" if nats_user is None else "healthy"
    offer = {"nats_urls": "nats://bus:4222", "nats_authorities": "PEM", **more}
    return member(nats_user, is_corral=True, status=status, features=frozenset({Feature.NATS_USER}), **offer)


def user_on(
    link: FakeLink,
    *,
    clock: ManualClock | None = None,
    url: str = "nats://configured:1",
    jwt: str = "",
    needs_login: bool = False,
) -> NatsUser:
    settings = BusConfig(url=url, jwt=jwt)
    one = NatsUser(clock or ManualClock(), backoff=BACKOFF, settings=settings, needs_login=needs_login)
    one.follow(link)
    return one


async def given(one: NatsUser) -> UserJwt | None:
    assert one.provider is not None
    return await one.provider()


@asynccontextmanager
async def waiting(one: NatsUser) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(one.until_due())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_the_first_user_is_used_at_once() -> None:
    link = FakeLink(connected=True)
    one = user_on(link)
    assert await given(one) is None
    one.take(member(user(24)))
    assert await given(one) == user(24)
    assert link.renewals == 1


async def test_the_next_user_of_the_same_node_takes_over_gently() -> None:
    link = FakeLink(connected=True)
    one = user_on(link)
    one.take(member(user(24)))
    one.take(member(user(48, 2)))
    assert await given(one) == user(48, 2)
    assert (link.renewals, link.gentle_renewals) == (1, 1)


async def test_without_a_connection_the_next_user_is_used_at_once() -> None:
    link = FakeLink(unauthorized=True)
    one = user_on(link)
    one.take(member(user(24)))
    one.take(member(user(48, 2)))
    assert link.renewals == 2


async def test_another_node_is_another_user_at_once() -> None:
    """The old one may not listen to the new node's subjects."""
    link = FakeLink(connected=True)
    one = user_on(link)
    one.take(member(user(24)))
    one.take(member(user(24, 2), "n2"))
    assert link.renewals == 2
    one.take(member(None, "n3"))
    assert await given(one) is None
    assert link.renewals == 3


async def test_a_registration_that_names_no_user_takes_none_away() -> None:
    link = FakeLink(connected=True)
    one = user_on(link)
    one.take(member(user(24)))
    one.take(member())
    assert await given(one) == user(24)


async def test_settings_that_name_a_jwt_come_first() -> None:
    link = FakeLink()
    one = user_on(link, jwt="ey.ey.ey")
    one.take(member(user(24)))
    link.problems.report(REFUSED)
    assert one.provider is None
    assert link.renewals == 0
    assert one.login == "shared"


async def test_a_login_of_the_url_is_used_until_a_frontend_makes_a_user() -> None:
    """So a fleet is upgraded: workers first."""
    link, url = FakeLink(connected=True), "nats://worker:password@bus:4222"
    one = user_on(link, url=url)
    assert one.first_url == url
    one.take(member(is_corral=True))
    assert (await given(one), link.renewals) == (None, 0)
    one.take(corral_member(user(24)))
    assert (await given(one), link.renewals, link.servers) == (user(24), 1, [])
    assert one.login == "own"


async def test_without_settings_the_frontend_says_where_nats_is() -> None:
    link = FakeLink()
    one = user_on(link, url="")
    assert one.first_url == ""
    one.take(corral_member(user(24)))
    assert (await given(one), link.servers) == (user(24), ["nats://bus:4222 PEM"])
    one.take(corral_member(user(24, 2)))
    assert link.servers == ["nats://bus:4222 PEM"]


async def test_renewed_authorities_of_the_same_servers_are_used_without_a_gap() -> None:
    link = FakeLink()
    one = user_on(link, url="")
    one.take(corral_member(user(24)))
    link.connected = True
    one.take(corral_member(user(24, 2), nats_authorities="NEW"))
    assert link.servers == ["nats://bus:4222 PEM", "nats://bus:4222 NEW"]
    assert (link.renewals, link.gentle_renewals) == (1, 1)
    one.take(corral_member(user(24, 3), nats_authorities=""))
    assert link.servers[-1] == "nats://bus:4222"


async def test_authorities_that_are_of_no_use_are_told_and_the_link_stays() -> None:
    link = FakeLink(connected=True)
    one = user_on(link, url="")
    one.take(corral_member(user(24)))
    one.take(corral_member(user(24, 2), nats_authorities="no PEM"))
    assert (link.servers, link.gentle_renewals) == (["nats://bus:4222 PEM"], 1)
    assert "cannot use what the frontend offers" in one.problems()[0]
    one.take(corral_member(user(24, 3), nats_authorities="NEW"))
    assert (link.servers[-1], one.problems()) == ("nats://bus:4222 NEW", ())


async def test_nobody_names_a_nats_server(caplog: pytest.LogCaptureFixture) -> None:
    one = user_on(FakeLink(), url="")
    assert one.problems() == ()
    for accepted in (member(), member(is_corral=True), member(user(24))):
        one.take(accepted)
        assert one.problems() == (NO_SERVER,)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    one.take(corral_member())
    assert one.problems() == ()  # it waits for its approval
    one.take(corral_member(user(24)))
    assert one.problems() == ()


async def test_a_pending_node_connects_nowhere_and_asks_when_it_is_approved() -> None:
    clock, link = ManualClock(), FakeLink()
    one = user_on(link, clock=clock)
    one.take(corral_member())
    assert link.servers == []
    async with waiting(one) as due:
        for status in ("", "pending"):
            one.note_status(status)
        await clock.advance(timedelta(hours=1))
        assert not due.done()
        one.note_status("healthy")
        await due
    one.take(corral_member(user(24)))
    assert link.servers == ["nats://configured:1 PEM"]


async def test_a_node_that_lost_its_approval_leaves_and_waits() -> None:
    link = FakeLink(connected=True)
    one = user_on(link)
    one.take(corral_member(user(24)))
    one.take(corral_member())
    assert (await given(one), link.servers[-1]) == (None, "")
    async with waiting(one) as due:
        one.note_status("healthy")
        await due


async def test_another_one_is_due_after_three_quarters_of_its_life() -> None:
    clock, link = ManualClock(), FakeLink(connected=True)
    one = user_on(link, clock=clock)
    one.take(member(user(24)))
    async with waiting(one) as due:
        await clock.until_sleeping(1)
        await clock.advance(timedelta(hours=18, seconds=-1))
        assert not due.done()
        await clock.advance(timedelta(seconds=1))
        await due


async def test_a_refused_login_is_due_a_moment_later() -> None:
    clock, link = ManualClock(), FakeLink(unauthorized=True)
    one = user_on(link, clock=clock)
    one.take(member())
    async with waiting(one) as due:
        link.problems.report(REFUSED)
        await clock.until_sleeping(1)
        assert not due.done()
        await clock.advance(timedelta(seconds=2))
        await due


async def test_a_user_that_ended_but_was_replaced_is_not_due() -> None:
    """The server ends the connection with the old one, and takes the new one."""
    clock, link = ManualClock(), FakeLink(connected=True)
    one = user_on(link, clock=clock)
    one.take(member(user(24)))
    async with waiting(one) as due:
        link.problems.report(REFUSED)
        await clock.until_sleeping(2)
        await clock.advance(timedelta(seconds=10))
        assert not due.done()


async def test_a_server_that_is_only_away_is_not_due() -> None:
    clock, link = ManualClock(), FakeLink()
    one = user_on(link, clock=clock)
    one.take(member())
    async with waiting(one) as due:
        link.problems.report(Problem(kind=ProblemKind.UNREACHABLE, detail="away"))
        await clock.advance(timedelta(hours=1))
        assert not due.done()


async def test_a_corral_frontend_that_made_none_is_asked_again_when_the_login_ends() -> None:
    """It may have been upgraded since, and have made the shared login useless."""
    clock, link = ManualClock(), FakeLink(connected=True)
    one = user_on(link, clock=clock, url="nats://worker:password@bus:4222")
    one.take(member(is_corral=True))
    async with waiting(one) as due:
        await clock.advance(timedelta(hours=1))
        assert not due.done()
        link.connected, link.unauthorized = False, True
        link.problems.report(REFUSED)
        await clock.until_sleeping(1)
        await clock.advance(timedelta(seconds=2))
        await due
    one.take(corral_member(user(24)))
    assert (await given(one), link.renewals) == (user(24), 1)


async def test_asking_in_vain_becomes_rarer_and_a_long_peace_makes_up_for_it() -> None:
    clock, link = ManualClock(), FakeLink(unauthorized=True)
    one = user_on(link, clock=clock)
    pauses: list[float] = []
    for number in range(8):
        one.take(member(user(24, number)))
        before = clock.monotonic()
        link.problems.report(REFUSED)
        await until_due(one, clock)
        pauses.append(clock.monotonic() - before)
        if number == 6:
            await clock.advance(timedelta(minutes=6))
    assert pauses == [2, 2, 4, 8, 16, 30, 30, 2]


@pytest.mark.parametrize(("lives_seconds", "pause"), [(20, 15), (60, 45), (1, 2)])
async def test_users_that_soon_become_old_are_replaced_as_often(lives_seconds: float, pause: float) -> None:
    """A frontend that makes such users gives the next one when it is asked; waiting longer would outlive this one."""
    clock, link = ManualClock(), FakeLink(connected=True)
    one = user_on(link, clock=clock)
    pauses: list[float] = []
    for number in range(8):
        one.take(member(user(lives_seconds / 3600, number)))
        before = clock.monotonic()
        await until_due(one, clock)
        pauses.append(clock.monotonic() - before)
    assert pauses[1:] == [pause] * 7


async def test_without_a_login_nothing_connects_where_one_is_required() -> None:
    clock, link = ManualClock(), FakeLink()
    one = user_on(link, clock=clock, needs_login=True)
    pauses: list[float] = []
    for _ in range(4):
        one.take(member())
        assert (link.servers, one.problems()) == ([], (NO_LOGIN,))
        before = clock.monotonic()
        await until_due(one, clock)
        pauses.append(clock.monotonic() - before)
    one.take(member(user(24)))
    assert (link.servers, one.problems(), await given(one)) == (["nats://configured:1"], (), user(24))
    assert pauses == [2, 2, 4, 8]


@pytest.mark.parametrize(
    "login", [{"url": "nats://name:word@bus:1"}, {"url": "nats://token@bus:1"}, {"jwt": "ey.ey.ey"}]
)
async def test_a_login_of_the_settings_is_one(login: dict[str, str]) -> None:
    one = user_on(FakeLink(), needs_login=True, **login)
    one.take(member())
    assert (bool(one.first_url), one.problems()) == (True, ())


async def test_an_approved_node_that_gets_no_user_stays_away_where_a_login_is_required() -> None:
    link = FakeLink()
    one = user_on(link, needs_login=True, url="")
    one.take(corral_member(None))
    assert (link.servers, one.problems()) == ([], ()), "it waits for approval"
    one.take(replace(corral_member(None), status="healthy"))
    assert (link.servers, one.problems()) == ([], (NO_LOGIN,))


async def until_due(one: NatsUser, clock: ManualClock) -> None:
    async with waiting(one) as due:
        while not due.done():
            await clock.advance(timedelta(seconds=1))
        await due
