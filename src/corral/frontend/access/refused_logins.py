"""Puts wrong keys and passwords on the record, but only a limited number, so that somebody who guesses cannot fill
it."""

from typing import Final

from corral.base.clock import Clock
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.feed import Feed
from corral.frontend.record.store import Events

_AT_ONCE: Final = 20
_REGAINED_AFTER: Final = 3.0
"""Seconds until one more may be written. At most 20 a minute for long, and a mistake of a person is always there."""
NOBODY_YET: Final = "anonymous"
"""The actor of what somebody does who proved nothing."""


class RefusedLogins:
    """Counts what is not written, and tells it with the next one that is."""

    def __init__(self, events: Events, feed: Feed, clock: Clock) -> None:
        self._events = events
        self._feed = feed
        self._clock = clock
        self._full_again = 0.0
        self._unwritten = 0

    async def record(self, *, how: str, source: str, user: str = "") -> None:
        """`user` is the name of one that exists: what else was typed as a name may well be a password."""
        now = self._clock.monotonic()
        if self._full_again - now > _REGAINED_AFTER * (_AT_ONCE - 1):
            self._unwritten += 1
            return
        self._full_again = max(self._full_again, now) + _REGAINED_AFTER
        unwritten, self._unwritten = self._unwritten, 0
        data = {"how": how, "source": source, "user": user, **({"unwritten": unwritten} if unwritten else {})}
        event = Event(kind=EventKind.LOGIN_REFUSED, at=self._clock.now(), actor=NOBODY_YET, data=data)
        await self._events.record([event])
        await self._feed.announce()
