"""What all rooms are built on: the foundation, and the record with the feed that their loops follow."""

from collections.abc import Awaitable, Callable, Coroutine, Hashable
from datetime import timedelta
from functools import partial
from typing import Self

import msgspec

from corral.base.clock import Clock
from corral.base.ids import FrontendId
from corral.base.tasks import Poke, poke_or_period
from corral.bus.port import Bus, Handler
from corral.frontend.record.feed import PERIOD, Attention, EventCounts, Feed, LostRings
from corral.frontend.record.store import Events
from corral.frontend.store.db import Database
from corral.frontend.store.leases import Leader, Leases
from corral.frontend.store.secrets import Secrets
from corral.wire.subjects import POKE_EVENTS

Loop = Callable[[], Coroutine[None, None, None]]
Step = Callable[[], Awaitable[timedelta | None]]


class Foundation(msgspec.Struct, frozen=True, kw_only=True):
    """What every room stands on."""

    database: Database
    secrets: Secrets
    bus: Bus
    clock: Clock
    frontend_id: FrontendId
    leader: Leader

    @classmethod
    def build(cls, database: Database, secrets: Secrets, bus: Bus, clock: Clock, frontend_id: FrontendId) -> Self:
        leader = Leader(Leases(database), clock, holder=frontend_id)
        return cls(database=database, secrets=secrets, bus=bus, clock=clock, frontend_id=frontend_id, leader=leader)


class RecordRoom(msgspec.Struct, frozen=True, kw_only=True):
    events: Events
    counts: EventCounts
    feed: Feed
    lost_rings: LostRings
    clock: Clock

    @classmethod
    async def build(cls, foundation: Foundation) -> Self:
        """Build the record and its feed, and begin to count events."""
        events, feed = Events(foundation.database), Feed(foundation.bus, foundation.frontend_id)
        counts = EventCounts(events)
        await counts.begin()
        return cls(events=events, counts=counts, feed=feed, lost_rings=LostRings(events, feed), clock=foundation.clock)

    def subscriptions(self) -> dict[str, Handler]:
        return {POKE_EVENTS: self.feed.on_message}

    def loops(self) -> dict[str, Loop]:
        return {"lost rings": self.every(PERIOD, Poke(), self.lost_rings.look, "events")}

    def every(self, period: timedelta, poke: Poke, step: Step, name: str) -> Loop:
        """A loop that runs a step when it is poked and at least once per period. Logs call it `name`."""
        return partial(poke_or_period, step, poke=poke, clock=self.clock, period=period, name=name)

    def follow(self, period: timedelta, step: Step, name: str) -> Loop:
        """A loop that runs a step with everything that any frontend announces, and at least once per period."""

        async def run() -> None:
            with self.feed.listener() as poke:
                await self.every(period, poke, step, name)()

        return run

    def when_new(
        self, step: Callable[[], Awaitable[bool]], *, mark: Callable[[], Hashable] = lambda: None
    ) -> Callable[[], Awaitable[None]]:
        """A step that is skipped while there is nothing new to find: an idle fleet costs no statements."""
        return Attention(self.feed, self.clock, step, mark=mark).look
