"""How often what happened: events by kind since this process started. Read from the record only when asked."""

from collections import Counter
from typing import Final

from corral.domain.event import EventKind
from corral.state.events import Events

_BATCH: Final = 1000


class Happenings:
    def __init__(self, events: Events) -> None:
        self._events = events
        self._seen: int | None = None
        self.counts: Counter[EventKind] = Counter(dict.fromkeys(EventKind, 0))

    async def begin(self) -> None:
        """What was written before does not count."""
        self._seen = await self._events.last_sequence()

    async def catch_up(self) -> None:
        """Count what is new. Two at once count nothing twice."""
        if self._seen is None:
            await self.begin()
        more = True
        while more:
            since = self._seen or 0
            new = await self._events.after(since, limit=_BATCH)
            if self._seen != since:
                return  # another one was faster
            self.counts.update(stored.event.kind for stored in new)
            if new:
                self._seen = new[-1].sequence
            more = len(new) == _BATCH
