"""Intents: claimed by whoever works on them, stored by whoever holds the lease, together with their targets.

What was worked on and has been superseded or cancelled meanwhile is not stored; only what that says about requests
that may still be under way at the node is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, Row, Select, and_, case, func, or_, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from corral.base.ids import LeaseToken, NodeId
from corral.domain.backend import Artefact, Inventory, Verb
from corral.domain.intent import CLOCK_SKEW, Intent, IntentState, cancel, may_cancel, overtaken
from corral.state.db import Database
from corral.state.dialect import among
from corral.state.intent_batches import (
    IntentPlace,
    held,
    in_order,
    lease,
    locked,
    locked_places,
    place_of,
    prolong,
    write_intents,
    write_reports,
    write_targets,
)
from corral.state.intent_rows import intent_of
from corral.state.schema import backend_intents

_AT_ONCE: Final = 500
"""Places in one statement: databases take only so many values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntentChange:
    """What became of an intent that somebody worked on."""

    intent: Intent
    keeps_lease: bool
    """A request is about to be sent for it."""
    is_corral: bool
    seen: Inventory | None = None
    """What the node said to have, stored along with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingIntents:
    """Whether there is something to claim, and when there will be."""

    is_due: bool
    next: datetime | None
    """Of those that are not due yet; None when there is none."""


class Intents:
    def __init__(self, database: Database) -> None:
        self._db = database

    async def get(self, node_id: NodeId, backend: str) -> Intent | None:
        found = await self._fetch(
            select(backend_intents).where(backend_intents.c.node_id == node_id, backend_intents.c.backend == backend)
        )
        return found[0] if found else None

    async def of_node(self, node_id: NodeId) -> list[Intent]:
        return await self._fetch(select(backend_intents).where(backend_intents.c.node_id == node_id))

    async def open(self) -> list[Intent]:
        return await self._fetch(select(backend_intents).where(backend_intents.c.state == IntentState.OPEN.value))

    async def aliased(self, alias: str) -> dict[NodeId, str]:
        """The backends that were given this alias with their install, by node."""
        given = backend_intents.c.artefact["alias"].as_string() == alias
        kept = backend_intents.c.verb != Verb.DELETE.value
        columns = (backend_intents.c.node_id, backend_intents.c.backend)
        async with self._db.look() as connection:
            found = await connection.execute(select(*columns).where(given, kept))
            return {NodeId(row.node_id): row.backend for row in found}

    async def asked_for(self, backend: str) -> dict[NodeId, Artefact]:
        """What was last asked for as this backend, unless that was to delete it, by node."""
        kept = backend_intents.c.verb != Verb.DELETE.value
        found = await self._fetch(select(backend_intents).where(backend_intents.c.backend == backend, kept))
        return {one.node_id: one.wish.artefact for one in found}

    async def unsettled(
        self, nodes: Sequence[NodeId], backends: Sequence[str], *, whole: Sequence[NodeId]
    ) -> list[Intent]:
        """Of these backends on these nodes: all that is not just there as wanted, and everything on `whole` ones."""
        not_there = or_(
            backend_intents.c.verb == Verb.DELETE.value, backend_intents.c.state != IntentState.SATISFIED.value
        )
        async with self._db.look() as connection:
            meant = among(connection, backend_intents.c.backend, backends)
            there = among(connection, backend_intents.c.node_id, nodes)
            which = or_(not_there, among(connection, backend_intents.c.node_id, whole))
            found = await connection.execute(select(backend_intents).where(meant, there, which))
            return [intent_of(row) for row in found]

    async def waiting(self, *, now: datetime, until: datetime) -> WaitingIntents:
        """What `claim` would find, in one statement that locks nothing."""
        lease_until, next_try = backend_intents.c.lease_until, backend_intents.c.next_try
        free_at = case((lease_until > next_try, lease_until), else_=next_try)
        due = _due(now, until)
        statement = select(
            func.count().filter(due).label("due"), func.min(free_at).filter(free_at > now).label("next")
        ).where(backend_intents.c.state == IntentState.OPEN.value)
        async with self._db.look() as connection:
            row = (await connection.execute(statement)).one()
        return WaitingIntents(is_due=row.due > 0, next=row.next)

    async def claim(self, token: LeaseToken, *, now: datetime, until: datetime, limit: int) -> list[Intent]:
        """Take what is due and nobody works on, the longest waiting first."""
        due = select(backend_intents).where(_due(now, until)).order_by(backend_intents.c.next_try).limit(limit)
        async with self._db.begin() as connection:
            found = [intent_of(row) for row in await connection.execute(due.with_for_update(skip_locked=True))]
            if not found:
                return []
            await lease(connection, [place_of(one) for one in found], token, until)
        return found

    async def extend(self, token: LeaseToken, places: Sequence[IntentPlace], *, until: datetime) -> int:
        """Hold what this token holds of these longer; how many that are."""
        async with self._db.begin() as connection:
            return await prolong(connection, places, token, until)

    async def store(self, token: LeaseToken, changes: Sequence[IntentChange]) -> list[bool]:
        """Store each that is still ours and still wanted, all in one transaction; each place may come only once."""
        work = {place_of(change.intent): change for change in changes}
        if len(work) < len(changes):
            raise ValueError("two changes of one intent cannot be stored together")
        async with self._db.begin() as connection:
            rows = await held(connection, list(work))
            ours = {(row.node_id, row.backend): row for row in rows if row.lease_token == token}
            wanted = {place for place, change in work.items() if _is_wanted(change, ours.get(place))}
            stored = [_with_lease(work[place], ours[place]) for place in sorted(wanted)]
            late = {place: work[place] for place in sorted(ours.keys() - wanted)}
            await write_intents(connection, [*stored, *await _learned(connection, late)])
            await write_targets(connection, stored)
            await write_reports(connection, _newest_reports(changes))
        return [place in wanted for place in work]

    async def wake(self, ids: Sequence[NodeId], *, at: datetime) -> int:
        """These nodes are back: what waited for them is due."""
        return await self._wake(ids, at, backend_intents.c.waits_for_node == 1)

    async def wake_unmissed(self, ids: Sequence[NodeId], *, at: datetime) -> int:
        """The same for nodes that are heard again, apart from what found nobody listening: that keeps its pause."""
        return await self._wake(ids, at, and_(backend_intents.c.waits_for_node == 1, backend_intents.c.misses == 0))

    async def _wake(self, ids: Sequence[NodeId], at: datetime, which: ColumnElement[bool]) -> int:
        is_open = backend_intents.c.state == IntentState.OPEN.value
        async with self._db.begin() as connection:
            there = among(connection, backend_intents.c.node_id, ids)
            due = locked_places(and_(is_open, which, there))
            woken = update(backend_intents).where(due).values(next_try=at, misses=0)
            return (await connection.execute(woken)).rowcount

    async def look_at(self, ids: Sequence[NodeId], *, at: datetime) -> int:
        """A new report of these nodes may prove what was left running there."""
        busy = and_(backend_intents.c.state == IntentState.OPEN.value, backend_intents.c.outstanding.is_not(None))
        free = backend_intents.c.lease_token.is_(None)
        async with self._db.begin() as connection:
            there = among(connection, backend_intents.c.node_id, ids)
            due = locked_places(and_(busy, free, there))
            result = await connection.execute(update(backend_intents).where(due).values(next_try=at))
        return result.rowcount

    async def failed_installs(self, ids: Sequence[NodeId]) -> list[Intent]:
        """Installs on these nodes that failed, and wait for another try."""
        is_open = and_(backend_intents.c.state == IntentState.OPEN.value, backend_intents.c.attempts > 0)
        failed = and_(is_open, backend_intents.c.verb == Verb.INSTALL.value, backend_intents.c.outstanding.is_(None))
        async with self._db.look() as connection:
            there = among(connection, backend_intents.c.node_id, ids)
            return [intent_of(row) for row in await connection.execute(select(backend_intents).where(failed, there))]

    async def hurry(self, intents: Sequence[Intent], *, at: datetime) -> None:
        """Do not wait any longer with these, unless they have changed."""
        known = tuple_(backend_intents.c.node_id, backend_intents.c.backend, backend_intents.c.generation)
        free = backend_intents.c.lease_token.is_(None)
        async with self._db.begin() as connection:
            for start in range(0, len(intents), _AT_ONCE):
                some = [(*place_of(one), one.generation) for one in intents[start : start + _AT_ONCE]]
                same = locked_places(and_(known.in_(some), free))
                await connection.execute(update(backend_intents).where(same).values(next_try=at))

    async def _fetch(self, statement: Select[Any]) -> list[Intent]:
        ordered = statement.order_by(backend_intents.c.node_id, backend_intents.c.backend)
        async with self._db.look() as connection:
            return [intent_of(row) for row in await connection.execute(ordered)]


def _due(now: datetime, until: datetime) -> ColumnElement[bool]:
    """As `domain.intent.is_due` says it; a lease that is taken now ends at `until`."""
    lease_until = backend_intents.c.lease_until
    return and_(
        backend_intents.c.state == IntentState.OPEN.value,
        or_(backend_intents.c.next_try <= now, backend_intents.c.changed_at > now + CLOCK_SKEW),
        or_(lease_until.is_(None), lease_until <= now, lease_until > until + CLOCK_SKEW),
    )


def _is_wanted(change: IntentChange, ours: Row[Any] | None) -> bool:
    """Whether what was worked on is still what is wanted there, and ours to change."""
    return ours is not None and ours.generation == change.intent.generation and ours.state == IntentState.OPEN.value


def _with_lease(change: IntentChange, ours: Row[Any]) -> Intent:
    kept = (ours.lease_token, ours.lease_until) if change.keeps_lease else (None, None)
    return replace(change.intent, lease_token=kept[0], lease_until=kept[1])


async def _learned(connection: AsyncConnection, late: Mapping[IntentPlace, IntentChange]) -> list[Intent]:
    """The intents that were superseded or cancelled while we worked, free again, with what they learn from that."""
    known = [intent_of(row) for row in await locked(connection, list(late))]
    free = [replace(one, lease_token=None, lease_until=None) for one in known]
    return [_overtaken(one, late[place_of(one)]) for one in free]


def _overtaken(known: Intent, change: IntentChange) -> Intent:
    """A request that was not sent teaches nothing."""
    return known if change.keeps_lease else overtaken(known, change.intent, is_corral=change.is_corral)


def _newest_reports(changes: Sequence[IntentChange]) -> dict[NodeId, Inventory]:
    reports: dict[NodeId, Inventory] = {}
    for change in changes:
        known = reports.get(change.intent.node_id)
        if change.seen is not None and (known is None or known.seen_at <= change.seen.seen_at):
            reports[change.intent.node_id] = change.seen
    return reports


async def cancel_intents_of(connection: AsyncConnection, node_id: NodeId, *, reason: str, at: datetime) -> None:
    """For a node that is removed."""
    of_node = select(backend_intents).where(backend_intents.c.node_id == node_id)
    known = [intent_of(row) for row in await connection.execute(in_order(of_node))]
    gone = [cancel(one, reason, at) for one in known if may_cancel(one)]
    await write_intents(connection, [replace(one, lease_token=None, lease_until=None) for one in gone])
    await write_targets(connection, gone)
