"""The newest entries of the record, read and encoded once for all who follow it."""

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from corral.frontend.record.feed import Feed
from corral.frontend.record.shapes import event_view
from corral.frontend.record.store import Events

MOST_KEPT: Final = 1000
"""Most entries in memory. A reader that is further behind gets the newest ones and a mark that entries are missing."""
SNAPSHOT: Final = 100
"""Entries that a new reader gets."""
_BATCH: Final = 500


class LoggedEvent(NamedTuple):
    sequence: int
    encoded: bytes


class EventLog:
    def __init__(self, events: Events, feed: Feed) -> None:
        self._events = events
        self._feed = feed
        self._rings = -1
        self._newest: deque[LoggedEvent] = deque(maxlen=MOST_KEPT)
        self._all_after = 0
        """Everything that was written after this sequence number is kept."""
        self.last: int | None = None
        """The newest that was read; None before the first look."""

    async def catch_up(self) -> bool:
        """Read what is new, if something was announced since the last time; whether there was anything."""
        rings = self._feed.rings
        if rings == self._rings:
            return False
        before = self.last
        if self.last is None:
            await self._begin()
        while batch := await self._events.after(self.last or 0, limit=_BATCH):
            self._keep([LoggedEvent(each.sequence, msgspec.json.encode(event_view(each))) for each in batch])
        self._rings = rings
        return self.last != before

    async def _begin(self) -> None:
        last = await self._events.last_sequence()
        newest = [*reversed(await self._events.newest(SNAPSHOT))]
        self.last = self._all_after = last
        if newest:
            self._all_after = newest[0].sequence - 1
            self._keep([LoggedEvent(each.sequence, msgspec.json.encode(event_view(each))) for each in newest])
            self.last = max(last, newest[-1].sequence)

    def _keep(self, logged: Sequence[LoggedEvent]) -> None:
        for entry in logged:
            if len(self._newest) == MOST_KEPT:
                self._all_after = self._newest[0].sequence
            self._newest.append(entry)
            self.last = entry.sequence

    def newest(self) -> list[LoggedEvent]:
        return list(self._newest)[-SNAPSHOT:]

    async def after(self, sequence: int) -> list[LoggedEvent] | None:
        """All entries after a sequence number. None: there are more than a reader gets, or the number is of a record
        that was replaced by an earlier one, as by a restored database."""
        last = self.last or 0
        if sequence > last:  # another frontend may have read further
            return [] if sequence <= await self._events.last_sequence() else None
        if sequence >= self._all_after:
            return [entry for entry in self._newest if entry.sequence > sequence]
        if last - sequence > MOST_KEPT:
            return None
        stored = await self._events.after(sequence, limit=MOST_KEPT)
        return [
            LoggedEvent(each.sequence, msgspec.json.encode(event_view(each)))
            for each in stored
            if each.sequence <= last
        ]
