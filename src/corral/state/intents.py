"""Intents: claimed by whoever works on them, stored by whoever holds the lease, together with their targets.

What was worked on and has been superseded or cancelled meanwhile is not stored; only what that says about requests
that may still be under way at the node is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, and_, or_, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from corral.base.ids import LeaseToken, NodeId
from corral.domain.backend import Inventory, Verb
from corral.domain.intent import Intent, IntentState, cancel, may_cancel, overtaken
from corral.domain.operation import FINAL
from corral.state.db import Database
from corral.state.dialect import among
from corral.state.intent_rows import intent_of, intent_values, own_target, place_of, target_values
from corral.state.inventories import store_report
from corral.state.schema import backend_intents, operation_targets

_FREE: Final = {"lease_token": None, "lease_until": None}
_FINAL: Final = [status.value for status in FINAL]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What became of an intent that somebody worked on."""

    intent: Intent
    keeps_lease: bool
    """A request is about to be sent for it."""
    is_corral: bool
    seen: Inventory | None = None
    """What the node said to have, stored along with it."""


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

    async def unsettled(
        self, nodes: Sequence[NodeId], backends: Sequence[str], *, whole: Sequence[NodeId]
    ) -> list[Intent]:
        """Of these backends on these nodes: all that is not just there as wanted, and everything on `whole` ones."""
        not_there = or_(
            backend_intents.c.verb == Verb.DELETE.value, backend_intents.c.state != IntentState.SATISFIED.value
        )
        async with self._db.read() as connection:
            meant = among(connection, backend_intents.c.backend, backends)
            there = among(connection, backend_intents.c.node_id, nodes)
            which = or_(not_there, among(connection, backend_intents.c.node_id, whole))
            found = await connection.execute(select(backend_intents).where(meant, there, which))
            return [intent_of(row) for row in found]

    async def claim(self, token: LeaseToken, *, now: datetime, until: datetime, limit: int) -> list[Intent]:
        """Take what is due and nobody works on, the longest waiting first."""
        due = select(backend_intents).where(_due(now)).order_by(backend_intents.c.next_try).limit(limit)
        async with self._db.begin() as connection:
            found = [intent_of(row) for row in await connection.execute(due.with_for_update(skip_locked=True))]
            if not found:
                return []
            places = tuple_(backend_intents.c.node_id, backend_intents.c.backend)
            taken = places.in_([(one.node_id, one.backend) for one in found])
            lease = {"lease_token": token, "lease_until": until}
            await connection.execute(update(backend_intents).where(taken).values(lease))
        return found

    async def extend(self, token: LeaseToken, *, until: datetime) -> int:
        """Hold all that this token holds longer; how many that are."""
        held = backend_intents.c.lease_token == token
        async with self._db.begin() as connection:
            result = await connection.execute(update(backend_intents).where(held).values(lease_until=until))
        return result.rowcount

    async def store(self, token: LeaseToken, changes: Sequence[Change]) -> list[bool]:
        """Store each, if it is still ours and still wanted; in one transaction, since each is cheap and that is not."""
        stored: dict[int, bool] = {}
        async with self._db.begin() as connection:
            for number in sorted(range(len(changes)), key=lambda number: _place(changes[number])):
                stored[number] = await _store(connection, token, changes[number])
        return [stored[number] for number in range(len(changes))]

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
            due = update(backend_intents).where(is_open, which, there).values(next_try=at, misses=0)
            return (await connection.execute(due)).rowcount

    async def look_at(self, ids: Sequence[NodeId], *, at: datetime) -> int:
        """A new report of these nodes may prove what was left running there."""
        busy = and_(backend_intents.c.state == IntentState.OPEN.value, backend_intents.c.outstanding.is_not(None))
        free = backend_intents.c.lease_token.is_(None)
        async with self._db.begin() as connection:
            there = among(connection, backend_intents.c.node_id, ids)
            result = await connection.execute(update(backend_intents).where(busy, free, there).values(next_try=at))
        return result.rowcount

    async def _fetch(self, statement: Select[Any]) -> list[Intent]:
        ordered = statement.order_by(backend_intents.c.node_id, backend_intents.c.backend)
        async with self._db.read() as connection:
            return [intent_of(row) for row in await connection.execute(ordered)]


def _place(change: Change) -> tuple[str, str]:
    return change.intent.node_id, change.intent.backend


def _due(now: datetime) -> ColumnElement[bool]:
    """As `domain.intent.is_due` says it."""
    return and_(
        backend_intents.c.state == IntentState.OPEN.value,
        backend_intents.c.next_try <= now,
        or_(backend_intents.c.lease_until.is_(None), backend_intents.c.lease_until <= now),
    )


async def _store(connection: AsyncConnection, token: LeaseToken, change: Change) -> bool:
    intent = change.intent
    if change.seen is not None:
        await store_report(connection, intent.node_id, change.seen)
    mine = and_(place_of(intent), backend_intents.c.lease_token == token)
    wanted = and_(
        mine,
        backend_intents.c.generation == intent.generation,
        backend_intents.c.state == IntentState.OPEN.value,
    )
    values = intent_values(intent) if change.keeps_lease else {**intent_values(intent), **_FREE}
    if (await connection.execute(update(backend_intents).where(wanted).values(values))).rowcount == 1:
        await store_target(connection, intent)
        return True
    row = (await connection.execute(select(backend_intents).where(mine).with_for_update())).one_or_none()
    if row is not None:
        worked = intent if not change.keeps_lease else None
        known = intent_of(row)
        known = known if worked is None else overtaken(known, worked, is_corral=change.is_corral)
        await connection.execute(update(backend_intents).where(mine).values({**intent_values(known), **_FREE}))
    return False


async def store_target(connection: AsyncConnection, intent: Intent) -> None:
    """The target of the intent's own operation, unless it is over."""
    living = operation_targets.c.status.not_in(_FINAL)
    statement = update(operation_targets).where(own_target(intent), living).values(target_values(intent))
    await connection.execute(statement)


async def cancel_intents_of(connection: AsyncConnection, node_id: NodeId, *, reason: str, at: datetime) -> None:
    """For a node that is removed."""
    rows = await connection.execute(select(backend_intents).where(backend_intents.c.node_id == node_id))
    for known in [intent_of(row) for row in rows]:
        if may_cancel(known):
            gone = cancel(known, reason, at)
            await connection.execute(
                update(backend_intents).where(place_of(gone)).values({**intent_values(gone), **_FREE})
            )
            await store_target(connection, gone)
