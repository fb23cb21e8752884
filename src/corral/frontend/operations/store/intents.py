"""Intents: claimed by the frontend that works on them, stored together with their targets while it holds the lease.

What was worked on and has been superseded or cancelled meanwhile is not stored; only what that says about requests
that may still be under way at the node is.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec.structs import replace
from sqlalchemy import ColumnElement, Row, Select, and_, case, func, or_, select, true, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from corral.base.ids import LeaseToken, NodeId
from corral.frontend.operations.decide.intent import (
    CLOCK_SKEW,
    Intent,
    IntentKey,
    IntentKind,
    IntentState,
    Report,
    Verb,
    cancel,
    may_cancel,
    overtaken,
)
from corral.frontend.operations.decide.reasons import ReasonCode, because
from corral.frontend.operations.store.intent_batches import (
    held,
    in_order,
    intent_of,
    lease,
    locked,
    locked_places,
    prolong,
    write_intents,
    write_targets,
)
from corral.frontend.store.db import Database
from corral.frontend.store.dialect import among
from corral.frontend.store.schema import intents as intents_table

_KEY: Final = (intents_table.c.node_id, intents_table.c.kind, intents_table.c.subject)
_AT_ONCE: Final = 500
"""Places in one statement: databases take only so many values."""


class IntentChange(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an intent that somebody worked on."""

    intent: Intent
    keeps_lease: bool
    """A request is about to be sent for it."""
    is_corral: bool
    report: Report | None = None
    """What the node said to have; stored in the same transaction."""


class WaitingIntents(msgspec.Struct, frozen=True, kw_only=True):
    """Whether there is something to claim, and when there will be."""

    is_due: bool
    next: datetime | None
    """When the first of the others is due; None when there is none."""


WriteReports = Callable[[AsyncConnection, Mapping[NodeId, Report]], Awaitable[None]]
"""Stores what nodes said to have, in a transaction of ours. The kinds know how."""


class Intents:
    def __init__(self, database: Database, write_reports: WriteReports) -> None:
        self._db = database
        self._write_reports = write_reports

    async def get(self, key: IntentKey) -> Intent | None:
        intents = await self._fetch(select(intents_table).where(tuple_(*_KEY) == tuple_(*key)))
        return intents[0] if intents else None

    async def of_node(self, node_id: NodeId) -> list[Intent]:
        return await self._fetch(select(intents_table).where(intents_table.c.node_id == node_id))

    async def of_nodes(self, kind: IntentKind, ids: Sequence[NodeId]) -> list[Intent]:
        """All of a kind on these nodes."""
        async with self._db.look() as connection:
            on_nodes = among(connection, intents_table.c.node_id, ids)
            rows = await connection.execute(select(intents_table).where(on_nodes, intents_table.c.kind == kind.value))
            return [intent_of(row) for row in rows]

    async def open(self, kind: IntentKind | None = None) -> list[Intent]:
        """All of a kind, or of all kinds."""
        is_open = intents_table.c.state == IntentState.OPEN.value
        condition = is_open if kind is None else and_(is_open, intents_table.c.kind == kind.value)
        return await self._fetch(select(intents_table).where(condition))

    async def satisfied(self, kind: IntentKind) -> list[Intent]:
        """All of a kind that were proven, and are only compared since."""
        is_satisfied = intents_table.c.state == IntentState.SATISFIED.value
        return await self._fetch(select(intents_table).where(is_satisfied, intents_table.c.kind == kind.value))

    async def of_subject(self, kind: IntentKind, subject: str) -> list[Intent]:
        """The intents about a subject, on all nodes."""
        same = and_(intents_table.c.kind == kind.value, intents_table.c.subject == subject)
        return await self._fetch(select(intents_table).where(same))

    async def with_text(self, kind: IntentKind, field: str, text: str) -> list[Intent]:
        """The intents of a kind that have this text in this field of their payload."""
        same = and_(intents_table.c.kind == kind.value, intents_table.c.payload[field].as_string() == text)
        return await self._fetch(select(intents_table).where(same))

    async def unsettled(
        self, kind: IntentKind, nodes: Sequence[NodeId], subjects: Sequence[str], *, whole: Sequence[NodeId]
    ) -> list[Intent]:
        """The intents about these subjects on these nodes that delete, or are not satisfied; on `whole` nodes all."""
        deleting = intents_table.c.verb.in_([verb.value for verb in Verb if verb.deletes])
        not_there = or_(deleting, intents_table.c.state != IntentState.SATISFIED.value)
        async with self._db.look() as connection:
            about_subjects = among(connection, intents_table.c.subject, subjects)
            on_nodes = among(connection, intents_table.c.node_id, nodes)
            unsettled = or_(not_there, among(connection, intents_table.c.node_id, whole))
            rows = await connection.execute(
                select(intents_table).where(intents_table.c.kind == kind.value, about_subjects, on_nodes, unsettled)
            )
            return [intent_of(row) for row in rows]

    async def waiting(self, *, now: datetime, until: datetime, elsewhere: Collection[NodeId] = ()) -> WaitingIntents:
        """What `claim` would find, in one statement that locks nothing."""
        lease_until, next_try = intents_table.c.lease_until, intents_table.c.next_try
        free_at = case((lease_until > next_try, lease_until), else_=next_try)
        due = _due(now, until)
        statement = select(
            func.count().filter(due).label("due"), func.min(free_at).filter(free_at > now).label("next")
        ).where(intents_table.c.state == IntentState.OPEN.value, _not_at(elsewhere))
        async with self._db.look() as connection:
            row = (await connection.execute(statement)).one()
        return WaitingIntents(is_due=row.due > 0, next=row.next)

    async def claim(
        self, token: LeaseToken, *, now: datetime, until: datetime, limit: int, elsewhere: Collection[NodeId] = ()
    ) -> list[Intent]:
        """Take what is due and nobody works on, the longest waiting first; nothing of stores that are `elsewhere`."""
        due = (
            select(intents_table)
            .where(_due(now, until), _not_at(elsewhere))
            .order_by(intents_table.c.next_try)
            .limit(limit)
        )
        async with self._db.begin() as connection:
            intents = [intent_of(row) for row in await connection.execute(due.with_for_update(skip_locked=True))]
            if not intents:
                return []
            await lease(connection, [intent.key for intent in intents], token, until)
        return intents

    async def extend(self, token: LeaseToken, places: Sequence[IntentKey], *, until: datetime) -> int:
        """Hold what this token holds of these longer; how many that are."""
        async with self._db.begin() as connection:
            return await prolong(connection, places, token, until)

    async def store(self, token: LeaseToken, changes: Sequence[IntentChange]) -> list[bool]:
        """Store each that is still ours and still wanted, all in one transaction; each place may come only once."""
        work = {change.intent.key: change for change in changes}
        if len(work) < len(changes):
            raise ValueError("two changes of one intent cannot be stored together")
        async with self._db.begin() as connection:
            rows = await held(connection, list(work))
            leased = {
                (NodeId(row.node_id), IntentKind(row.kind), str(row.subject)): row
                for row in rows
                if row.lease_token == token
            }
            unfinished = {
                place
                for place, row in leased.items()
                if row.generation == work[place].intent.generation and row.state == IntentState.OPEN.value
            }
            stored = [_with_lease(work[place], leased[place]) for place in sorted(unfinished)]
            late = {place: work[place] for place in sorted(leased.keys() - unfinished)}
            await write_intents(connection, [*stored, *await _learned(connection, late)])
            await write_targets(connection, stored)
            await self._write_reports(connection, _newest_reports(changes))
        return [place in unfinished for place in work]

    async def wake(self, ids: Sequence[NodeId], *, at: datetime) -> int:
        """Make the open intents of nodes that came back due."""
        return await self._wake(ids, at, intents_table.c.waits_for_node == 1)

    async def wake_unmissed(self, ids: Sequence[NodeId], *, at: datetime) -> int:
        """Make the open intents of nodes that are heard again due, except those that got no responders."""
        return await self._wake(ids, at, and_(intents_table.c.waits_for_node == 1, intents_table.c.misses == 0))

    async def _wake(self, ids: Sequence[NodeId], at: datetime, condition: ColumnElement[bool]) -> int:
        is_open = intents_table.c.state == IntentState.OPEN.value
        async with self._db.begin() as connection:
            on_nodes = among(connection, intents_table.c.node_id, ids)
            due = locked_places(and_(is_open, condition, on_nodes))
            woken = update(intents_table).where(due).values(next_try=at, misses=0)
            return (await connection.execute(woken)).rowcount

    async def look_at(self, ids: Sequence[NodeId], *, at: datetime) -> int:
        """A new report of these nodes may prove what was left running there."""
        busy = and_(intents_table.c.state == IntentState.OPEN.value, intents_table.c.outstanding.is_not(None))
        free = intents_table.c.lease_token.is_(None)
        async with self._db.begin() as connection:
            on_nodes = among(connection, intents_table.c.node_id, ids)
            due = locked_places(and_(busy, free, on_nodes))
            result = await connection.execute(update(intents_table).where(due).values(next_try=at))
        return result.rowcount

    async def postponed(self, verb: Verb, ids: Sequence[NodeId], *, now: datetime) -> list[Intent]:
        """The intents with this verb on these nodes of which nothing runs, and that wait for a later time."""
        waits = and_(intents_table.c.state == IntentState.OPEN.value, intents_table.c.next_try > now)
        idle = and_(waits, intents_table.c.verb == verb.value, intents_table.c.outstanding.is_(None))
        async with self._db.look() as connection:
            on_nodes = among(connection, intents_table.c.node_id, ids)
            return [intent_of(row) for row in await connection.execute(select(intents_table).where(idle, on_nodes))]

    async def hurry(self, intents: Sequence[Intent], *, at: datetime) -> None:
        """Do not wait any longer with these, unless they have changed."""
        key_and_generation = tuple_(*_KEY, intents_table.c.generation)
        free = intents_table.c.lease_token.is_(None)
        async with self._db.begin() as connection:
            for start in range(0, len(intents), _AT_ONCE):
                some = [(*intent.key, intent.generation) for intent in intents[start : start + _AT_ONCE]]
                same = locked_places(and_(key_and_generation.in_(some), free))
                await connection.execute(update(intents_table).where(same).values(next_try=at))

    async def _fetch(self, statement: Select[Any]) -> list[Intent]:
        ordered = statement.order_by(*_KEY)
        async with self._db.look() as connection:
            return [intent_of(row) for row in await connection.execute(ordered)]


def _due(now: datetime, until: datetime) -> ColumnElement[bool]:
    """As `is_due` of an intent says it; a lease that is taken now ends at `until`."""
    lease_until = intents_table.c.lease_until
    return and_(
        intents_table.c.state == IntentState.OPEN.value,
        or_(intents_table.c.next_try <= now, intents_table.c.changed_at > now + CLOCK_SKEW),
        or_(lease_until.is_(None), lease_until <= now, lease_until > until + CLOCK_SKEW),
    )


def _not_at(stores: Collection[NodeId]) -> ColumnElement[bool]:
    """The condition that an intent is at none of these stores. There are at most as many stores as frontends."""
    return intents_table.c.node_id.not_in(sorted(stores)) if stores else true()


def _with_lease(change: IntentChange, row: Row[Any]) -> Intent:
    lease = (row.lease_token, row.lease_until) if change.keeps_lease else (None, None)
    if (change.intent.lease_token, change.intent.lease_until) == lease:
        return change.intent
    return replace(change.intent, lease_token=lease[0], lease_until=lease[1])


async def _learned(connection: AsyncConnection, late: Mapping[IntentKey, IntentChange]) -> list[Intent]:
    """The intents that were superseded or cancelled while we worked, free again, with what they learn from that."""
    learned = []
    for row in await locked(connection, list(late)):
        intent = replace(intent_of(row), lease_token=None, lease_until=None)
        change = late[intent.key]
        if not change.keeps_lease:  # a request that was not sent teaches nothing
            intent = overtaken(intent, change.intent, is_corral=change.is_corral)
        learned.append(intent)
    return learned


def _newest_reports(changes: Sequence[IntentChange]) -> dict[NodeId, Report]:
    reports: dict[NodeId, Report] = {}
    for change in changes:
        newest = reports.get(change.intent.node_id)
        if change.report is not None and (newest is None or newest.seen_at <= change.report.seen_at):
            reports[change.intent.node_id] = change.report
    return reports


async def cancel_intents_of(connection: AsyncConnection, node_id: NodeId, *, reason: str, at: datetime) -> None:
    """For a node that is removed."""
    of_node = select(intents_table).where(intents_table.c.node_id == node_id)
    intents_there = [intent_of(row) for row in await connection.execute(in_order(of_node))]
    why = because(ReasonCode.NODE_GONE, why=reason)
    cancelled = [cancel(intent, why, at) for intent in intents_there if may_cancel(intent)]
    await write_intents(connection, [replace(intent, lease_token=None, lease_until=None) for intent in cancelled])
    await write_targets(connection, cancelled)
