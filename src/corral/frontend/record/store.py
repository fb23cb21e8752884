"""Events: the append-only record, in one order that every frontend agrees on.

The sequence comes from a counter row that stays locked until commit. So a reader that has seen number n will never find
a smaller one later, and a rolled back transaction leaves no gap. A transaction writes its events last: then a holder of
the counter never waits for another lock.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, Row, Select, and_, delete, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from corral.base.ids import NodeId
from corral.frontend.record.decide import (
    LONGEST_SUBJECT,
    Event,
    EventFilter,
    EventKind,
    StoredEvent,
    subjects_of,
)
from corral.frontend.store.db import Database
from corral.frontend.store.dialect import storable
from corral.frontend.store.schema import event_sequence, event_subjects, events, operation_targets
from corral.frontend.store.search import by_actor, by_id, containing

_TRIM_AT_ONCE: Final = 1000
"""Rows deleted in one transaction: others wait for a moment only."""
_LAST: Final = select(event_sequence.c.last)
_KNOWN: Final = [kind.value for kind in EventKind]
# An expression, so that no database takes the index of kinds to find almost everything.
_IS_KNOWN: Final = (events.c.kind + "").in_(_KNOWN)
_EVENTS: Final = select(events).where(_IS_KNOWN)


async def append(connection: AsyncConnection, happened: Sequence[Event]) -> None:
    """Write events in the caller's transaction, as its last statement."""
    if not happened:
        return
    count = update(event_sequence).values(last=event_sequence.c.last + len(happened)).returning(event_sequence.c.last)
    last = (await connection.execute(count)).scalar_one()
    first = last - len(happened) + 1
    rows = [
        {
            "sequence": sequence,
            "kind": event.kind.value,
            "at": event.at,
            "actor": event.actor,
            "node_id": event.node_id,
            "data": dict(event.data),
        }
        for sequence, event in enumerate(happened, first)
    ]
    await connection.execute(insert(events), rows)
    about = [
        {"subject": subject, "sequence": sequence}
        for sequence, event in enumerate(happened, first)
        for subject in dict.fromkeys(map(storable, subjects_of(event)))
    ]
    if about:
        await connection.execute(insert(event_subjects), about)


class Events:
    """Kinds that this version does not know, written by a newer frontend, are passed over."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def record(self, happened: Sequence[Event]) -> None:
        """Write events in a transaction of their own."""
        async with self._db.begin() as connection:
            await append(connection, happened)

    async def after(self, sequence: int, *, limit: int) -> list[StoredEvent]:
        """What happened since, oldest first."""
        return await self._fetch(_EVENTS.where(events.c.sequence > sequence).order_by(events.c.sequence).limit(limit))

    async def newest(self, limit: int) -> list[StoredEvent]:
        """The latest events, newest first."""
        return await self._fetch(_EVENTS.order_by(events.c.sequence.desc()).limit(limit))

    async def page(
        self, event_filter: EventFilter, *, limit: int, after: int | None = None, before: int | None = None
    ) -> list[StoredEvent]:
        """Events that are meant, oldest first: from `after` on, or else the latest ones, up to `before`."""
        statement = select(events).where(*event_conditions(event_filter))
        if before is not None:
            statement = statement.where(events.c.sequence < before)
        if after is not None:
            return await self._fetch(
                statement.where(events.c.sequence > after).order_by(events.c.sequence).limit(limit)
            )
        return [*reversed(await self._fetch(statement.order_by(events.c.sequence.desc()).limit(limit)))]

    async def newest_of(self, node_id: NodeId, kinds: Collection[EventKind], *, limit: int) -> list[StoredEvent]:
        """The latest events of these kinds about a node, newest first."""
        of_node = select(events).where(events.c.node_id == node_id, events.c.kind.in_(sorted(kinds)))
        return await self._fetch(of_node.order_by(events.c.sequence.desc()).limit(limit))

    async def last_sequence(self) -> int:
        """The number of the newest event ever written; 0 before the first."""
        async with self._db.look() as connection:
            return int((await connection.execute(_LAST)).scalar_one())

    async def trim(self, before: datetime, keep_at_least: int) -> int:
        """Delete what is older, but never the newest `keep_at_least`; returns how many went."""
        newest_to_go = await self.last_sequence() - keep_at_least
        old = select(events.c.sequence).where(events.c.at < before, events.c.sequence <= newest_to_go)
        batch = old.order_by(events.c.sequence).limit(_TRIM_AT_ONCE)
        deleted = 0
        while True:
            async with self._db.begin() as connection:
                await connection.execute(delete(event_subjects).where(event_subjects.c.sequence.in_(batch)))
                result = await connection.execute(delete(events).where(events.c.sequence.in_(batch)))
            deleted += result.rowcount
            if result.rowcount < _TRIM_AT_ONCE:
                return deleted

    async def _fetch(self, statement: Select[Any]) -> list[StoredEvent]:
        async with self._db.look() as connection:
            return [_stored(row) for row in await connection.execute(statement)]


def event_conditions(event_filter: EventFilter) -> list[ColumnElement[bool]]:
    """Conditions that all hold for an event which is meant."""
    conditions: list[ColumnElement[bool]] = [
        events.c.kind.in_(sorted(event_filter.kinds)) if event_filter.kinds else _IS_KNOWN
    ]
    if event_filter.node:
        conditions.append(_concerning(event_filter.node))
    if event_filter.actor:
        conditions.append(by_actor(events.c.actor, event_filter.actor))
    if event_filter.subject:
        subject = event_filter.subject[:LONGEST_SUBJECT]
        about = select(event_subjects.c.sequence).where(event_subjects.c.subject == subject)
        conditions.append(events.c.sequence.in_(about))
    if event_filter.text:
        conditions.append(containing(event_filter.text, events.c.kind, events.c.actor, events.c.data))
    return conditions


def _concerning(node: str) -> ColumnElement[bool]:
    """About a node, or about an operation that it has a part in. Not about other nodes of it."""
    parts = select(operation_targets.c.operation_id).where(by_id(operation_targets.c.node_id, node))
    shared = select(event_subjects.c.sequence).where(event_subjects.c.subject.in_(parts))
    return or_(by_id(events.c.node_id, node), and_(events.c.node_id.is_(None), events.c.sequence.in_(shared)))


def _stored(row: Row[Any]) -> StoredEvent:
    event = Event(kind=EventKind(row.kind), at=row.at, actor=row.actor, node_id=row.node_id, data=row.data)
    return StoredEvent(sequence=row.sequence, event=event)
