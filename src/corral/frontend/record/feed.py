"""Tells everyone that something new is in the record of events. The record is the truth; this is the doorbell."""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Sequence
from datetime import timedelta
from typing import Final

from corral.base.clock import Clock
from corral.base.errors import CorralError
from corral.base.ids import FrontendId
from corral.base.tasks import Listeners
from corral.bus.port import Bus, Message
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.store import Events
from corral.wire.subjects import POKE_EVENTS

log = logging.getLogger(__name__)

PERIOD: Final = timedelta(seconds=1)
"""Between looks for events whose ring was lost: while NATS is away, other frontends learn of them so much later."""
AT_LEAST_EVERY: Final = timedelta(seconds=15)
"""How long a change that is in no event, made by a frontend that died before its announcement, can stay unseen by
others."""

_AT_ONCE: Final = 1000
"""Events that are read and handled together."""


class Feed(Listeners):
    """Rings every listener of this process, and through NATS those of the other frontends."""

    def __init__(self, bus: Bus, frontend_id: FrontendId) -> None:
        super().__init__()
        self._bus = bus
        self._name = frontend_id.encode()
        self.rings = 0
        """How often it was rung: a caller that remembers the number sees whether something was announced since."""

    async def announce(self) -> None:
        """Call after an event was stored. A lost ring costs latency, never an event."""
        self.ring()
        try:
            await self._bus.publish(POKE_EVENTS, self._name)
        except CorralError as error:
            log.debug("other frontends could not be poked", extra={"event": "feed.unheard", "reason": str(error)})

    async def on_message(self, message: Message) -> None:
        """NATS brings this frontend its own announcements too, for which it has rung already."""
        if message.data != self._name:
            self.ring()

    def ring(self) -> None:
        """Wake the listeners of this process only."""
        self.rings += 1
        super().ring()


class EventCursor:
    """Hands over what is written to the record after the first call. What could not be handled comes again."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._seen: int | None = None

    async def begin(self) -> None:
        """Events that were written before this call are not handed over."""
        self._seen = await self._events.last_sequence()

    async def catch_up(self, handle: Callable[[Sequence[Event]], Awaitable[None]]) -> None:
        """Have all new events handled, in order. Of two calls at once, the slower one handles nothing twice."""
        if self._seen is None:
            await self.begin()
        while new := await self._events.after(since := self._seen or 0, limit=_AT_ONCE):
            if self._seen != since:
                return
            await handle([stored.event for stored in new])
            self._seen = new[-1].sequence


class EventCounts:
    """How many events of each kind were written since this process began. Reads the record only when asked."""

    def __init__(self, events: Events) -> None:
        self._cursor = EventCursor(events)
        self.counts: Counter[EventKind] = Counter(dict.fromkeys(EventKind, 0))

    async def begin(self) -> None:
        """Events that were written before this call are not counted."""
        await self._cursor.begin()

    async def catch_up(self) -> None:
        """Count what was written since the last call."""
        await self._cursor.catch_up(self._count)

    async def _count(self, events: Sequence[Event]) -> None:
        self.counts.update(event.kind for event in events)


class LostRings:
    """Rings for events that nobody announced here: the message was lost, or their writer died before sending it.

    One cheap statement in place of many: the loops that follow events need not ask the database themselves.
    """

    def __init__(self, events: Events, feed: Feed) -> None:
        self._events = events
        self._feed = feed
        self._last: int | None = None

    async def look(self) -> None:
        """The first look rings too: the other loops may have read the database a moment before it."""
        last = await self._events.last_sequence()
        if last != self._last:
            self._feed.ring()
        self._last = last


class Attention:
    """Runs a step that reads the database only when it may find something.

    That is when something was announced since the last one, when that one left something under way, when `mark`
    changed, and at least every so often, whatever was lost.
    """

    def __init__(
        self,
        feed: Feed,
        clock: Clock,
        step: Callable[[], Awaitable[bool]],
        *,
        mark: Callable[[], Hashable] = lambda: None,
    ) -> None:
        self._feed = feed
        self._clock = clock
        self._step = step
        self._mark = mark
        self._seen: tuple[int, Hashable] | None = None
        self._due_at = 0.0

    async def look(self) -> None:
        """A step that fails is due again."""
        now, seen = self._clock.monotonic(), (self._feed.rings, self._mark())
        if seen == self._seen and now < self._due_at:
            return
        self._seen = None
        is_under_way = await self._step()
        self._seen = seen
        self._due_at = now if is_under_way else now + AT_LEAST_EVERY.total_seconds()
