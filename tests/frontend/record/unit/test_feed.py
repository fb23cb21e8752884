"""An idle frontend asks the database little, and still misses nothing for longer than it says."""

import asyncio
from datetime import timedelta
from typing import cast

import pytest

from corral.base.clock import Clock
from corral.base.errors import DatabaseUnavailable
from corral.base.ids import FrontendId
from corral.bus.port import Bus, Handler, Message
from corral.frontend.record.feed import AT_LEAST_EVERY, Attention, Feed, LostRings
from corral.frontend.record.store import Events
from corral.wire.subjects import POKE_EVENTS
from tests.kit.bus import MemoryBus, MemoryServer
from tests.kit.clock import ManualClock

SECOND = timedelta(seconds=1)


class Step:
    """Counts how often it is run."""

    def __init__(self) -> None:
        self.runs = 0
        self.is_under_way = False
        self.fails = False

    async def __call__(self) -> bool:
        self.runs += 1
        if self.fails:
            raise DatabaseUnavailable("gone")
        return self.is_under_way


class Numbers:
    """The record of events, as far as its last number."""

    last = 5

    async def last_sequence(self) -> int:
        return self.last


@pytest.fixture
def feed() -> Feed:
    return Feed(cast(Bus, None), FrontendId("f"))


async def test_without_news_the_step_is_run_only_every_so_often(feed: Feed) -> None:
    clock, step = ManualClock(), Step()
    attention = Attention(feed, cast(Clock, clock), step)
    for _ in range(60):
        await attention.look()
        await clock.advance(SECOND)

    assert step.runs == timedelta(seconds=60) // AT_LEAST_EVERY


async def test_what_is_announced_is_looked_at_with_the_next_look(feed: Feed) -> None:
    step = Step()
    attention = Attention(feed, ManualClock(), step)
    await attention.look()
    feed.ring()
    await attention.look()
    await attention.look()

    assert step.runs == 2


async def test_what_is_announced_rings_once_here_and_once_elsewhere() -> None:
    """NATS brings a frontend its own messages as well, and every ring is a round of all loops that follow."""
    server, handled = MemoryServer(), asyncio.Queue[Feed]()

    def handler(feed: Feed) -> Handler:
        async def handle(message: Message) -> None:
            await feed.on_message(message)
            handled.put_nowait(feed)

        return handle

    async with MemoryBus(server) as here, MemoryBus(server) as elsewhere:
        announcing, hearing = Feed(here, FrontendId("here")), Feed(elsewhere, FrontendId("elsewhere"))
        await here.subscribe(POKE_EVENTS, handler(announcing))
        await elsewhere.subscribe(POKE_EVENTS, handler(hearing))
        await announcing.announce()
        assert {await handled.get(), await handled.get()} == {announcing, hearing}

    assert (announcing.rings, hearing.rings) == (1, 1)


async def test_what_is_announced_during_a_step_is_not_lost(feed: Feed) -> None:
    runs = 0

    async def step() -> bool:
        nonlocal runs
        runs += 1
        if runs == 1:
            feed.ring()
        return False

    attention = Attention(feed, ManualClock(), step)
    for _ in range(3):
        await attention.look()

    assert runs == 2


async def test_as_long_as_something_is_under_way_every_look_runs_the_step(feed: Feed) -> None:
    step = Step()
    step.is_under_way = True
    attention = Attention(feed, ManualClock(), step)
    for _ in range(3):
        await attention.look()
    step.is_under_way = False
    for _ in range(3):
        await attention.look()

    assert step.runs == 4


async def test_a_mark_that_changes_counts_as_news(feed: Feed) -> None:
    step, mark = Step(), ["hears"]
    attention = Attention(feed, ManualClock(), step, mark=lambda: tuple(mark))
    await attention.look()
    mark.append("is deaf")
    await attention.look()
    await attention.look()

    assert step.runs == 2


async def test_a_step_that_failed_is_due_again(feed: Feed) -> None:
    step = Step()
    attention = Attention(feed, ManualClock(), step)
    step.fails = True
    with pytest.raises(DatabaseUnavailable):
        await attention.look()
    step.fails = False
    await attention.look()

    assert step.runs == 2


async def test_an_event_that_nobody_announced_is_rung_for_once(feed: Feed) -> None:
    numbers = Numbers()
    lost = LostRings(cast(Events, numbers), feed)
    await lost.look()
    before = feed.rings
    numbers.last += 1
    await lost.look()
    await lost.look()

    assert feed.rings == before + 1


async def test_what_was_stored_before_the_first_look_is_rung_for(feed: Feed) -> None:
    """Other loops may have read the database before it."""
    await LostRings(cast(Events, Numbers()), feed).look()

    assert feed.rings == 1
