"""The user that a frontend makes for this worker: when it is used, and when another one is asked for."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from corral.base.ids import NodeId
from corral.base.retry import Backoff
from corral.bus.credentials import UserJwt
from corral.bus.problems import Problem, ProblemKind, Problems
from corral.worker.membership.identity import NatsUser
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
    problems: Problems = field(default_factory=Problems)

    def renew(self) -> None:
        self.renewals += 1


def user(hours: float, number: int = 1) -> UserJwt:
    """It lives so many hours, by a clock that has nothing to do with ours."""
    claims = {"iat": 1700000000, "exp": 1700000000 + int(hours * 3600), "jti": str(number)}
    return UserJwt(f"head.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode()}.signature", SEED)


def member(nats_user: UserJwt | None = None, node_id: str = "n1", *, is_corral: bool = False) -> AcceptedRegistration:
    return AcceptedRegistration(node_id=NodeId(node_id), bearer="tok", nats_user=nats_user, is_corral=is_corral)


def user_on(link: FakeLink, *, clock: ManualClock | None = None, is_wanted: bool = True) -> NatsUser:
    one = NatsUser(clock or ManualClock(), backoff=BACKOFF, is_wanted=is_wanted)
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


async def test_the_next_user_of_the_same_node_waits_for_the_next_connection() -> None:
    link = FakeLink(connected=True)
    one = user_on(link)
    one.take(member(user(24)))
    one.take(member(user(48, 2)))
    assert await given(one) == user(48, 2)
    assert link.renewals == 1


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


async def test_settings_that_name_a_user_come_first() -> None:
    link = FakeLink()
    one = user_on(link, is_wanted=False)
    one.take(member(user(24)))
    link.problems.report(REFUSED)
    assert one.provider is None
    assert link.renewals == 0


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


async def test_a_corral_frontend_that_makes_none_is_not_asked_again() -> None:
    clock, link = ManualClock(), FakeLink(unauthorized=True)
    one = user_on(link, clock=clock)
    one.take(member(is_corral=True))
    async with waiting(one) as due:
        link.problems.report(REFUSED)
        await clock.advance(timedelta(hours=1))
        assert not due.done()


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


async def until_due(one: NatsUser, clock: ManualClock) -> None:
    async with waiting(one) as due:
        while not due.done():
            await clock.advance(timedelta(seconds=1))
        await due
