"""What keeps nodes alive or lets them go: heartbeats, what health finds out, and since when some control could hear.

Heartbeats and looks are written for many nodes at once, and only where nothing has changed meanwhile.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final

import msgspec
from sqlalchemy import Column, Executable, Select, Update, and_, bindparam, case, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from corral.base.ids import NodeId
from corral.frontend.nodes.decide.liveness import Hearing
from corral.frontend.nodes.decide.node import Node, NodeStatus
from corral.frontend.nodes.store.rows import heartbeat_values
from corral.frontend.record.decide import Event
from corral.frontend.store.db import Database
from corral.frontend.store.dialect import RowSet, among, insert_into, same, upsert_into
from corral.frontend.store.schema import hearing, nodes
from corral.wire.registration import CAPACITY_FIELDS

_ROW: Final = 1
_PERIOD: Final = select(hearing.c.since, hearing.c.until).where(hearing.c.id == _ROW)


class HearingPeriods:
    """One period for the fleet, kept by all frontends together."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def confirm(self, now: datetime, *, longest_gap: timedelta) -> Hearing:
        """Some control can hear now: extends the period, or starts a new one after a longer gap.

        A frontend whose clock is behind moves nothing back.
        """
        times = {"now": now, "gap_ended": now - longest_gap}
        async with self._db.write() as connection:
            stored = (await connection.execute(_confirm(connection.dialect.name), times)).one()
        return Hearing(since=stored.since, until=stored.until)

    async def restart(self, now: datetime) -> Hearing:
        """Start a new period whatever was proven: the clock jumped, so times before it mean nothing."""
        async with self._db.write() as connection:
            period = {"since": now, "until": now}
            row = insert_into(connection, hearing).values(id=_ROW, **period)
            await connection.execute(row.on_conflict_do_update(index_elements=[hearing.c.id], set_=period))
        return Hearing(since=now, until=now)

    async def read(self) -> Hearing | None:
        """None before the first confirmation."""
        async with self._db.look() as connection:
            row = (await connection.execute(_PERIOD)).one_or_none()
        return None if row is None else Hearing(since=row.since, until=row.until)


@cache
def _confirm(dialect: str) -> Executable:
    """Made once for each dialect: it runs every second, and making it takes as long as running it."""
    now, gap_ended = (bindparam(name, type_=hearing.c.until.type) for name in ("now", "gap_ended"))
    row = upsert_into(dialect, hearing).values(id=_ROW, since=now, until=now)
    confirmed = {
        "since": case((hearing.c.until < gap_ended, row.excluded.since), else_=hearing.c.since),
        "until": case((row.excluded.until > hearing.c.until, row.excluded.until), else_=hearing.c.until),
    }
    upsert = row.on_conflict_do_update(index_elements=[hearing.c.id], set_=confirmed)
    return upsert.returning(hearing.c.since, hearing.c.until)


class AcceptedHeartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """A heartbeat that was taken in: the node as it was read, what it became, and when to look at it next."""

    before: Node
    node: Node
    next_look: datetime | None
    event: Event | None = None
    """An event to write in the transaction of the heartbeat."""


_BEAT_COLUMNS: Final = (
    "last_heartbeat",
    "recent_gaps",
    "incarnation",
    *CAPACITY_FIELDS,
    "gpu_vendor",
    "cards",
    "problems",
)
"""What a heartbeat sets, whatever is stored."""
_BEATS: Final = RowSet(
    *(nodes.c[name] for name in ("id", "revision", "no_responders_at", "next_look", *_BEAT_COLUMNS)),
    Column("decided_on", nodes.c.last_heartbeat.type),
)


async def write_beats(
    connection: AsyncConnection, beats: Sequence[AcceptedHeartbeat]
) -> tuple[set[NodeId], set[NodeId]]:
    """Write those that were decided on what is stored; returns which nodes exist, and which of them were written. The
    latter only where a heartbeat has an event: others do not pay for that."""
    ids = sorted({beat.before.id for beat in beats})
    existing = _locked(select(nodes.c.id).where(among(connection, nodes.c.id, ids)))
    node_ids = set((await connection.execute(existing)).scalars())
    statement, parameters = _write_beats(connection.dialect.name), _BEATS.parameters(connection, _beat_rows(beats))
    if all(beat.event is None for beat in beats):
        await connection.execute(statement, parameters)
        return node_ids, set()
    return node_ids, set((await connection.execute(statement.returning(nodes.c.id), parameters)).scalars())


async def write_beat(connection: AsyncConnection, beats: Sequence[AcceptedHeartbeat]) -> bool:
    """Write heartbeats of one node, as one statement. False: there is no such node, or a newer one was there first."""
    statement = _write_beats(connection.dialect.name).returning(nodes.c.id)
    written = await connection.execute(statement, _BEATS.parameters(connection, _beat_rows(beats)))
    return written.first() is not None


def _beat_rows(beats: Sequence[AcceptedHeartbeat]) -> list[dict[str, object]]:
    """One row for each node: of several heartbeats that follow each other, the last one counts."""
    rows: dict[NodeId, dict[str, object]] = {}
    for beat in beats:
        before = beat.before
        row = {
            **heartbeat_values(beat.node),
            "id": before.id,
            "next_look": beat.next_look,
            "revision": before.revision,
            "decided_on": before.facts.last_heartbeat,
        }
        earlier = rows.get(before.id)
        if earlier is None:
            rows[before.id] = row
        elif earlier["last_heartbeat"] == row["decided_on"]:
            rows[before.id] = {**row, "decided_on": earlier["decided_on"]}
    return list(rows.values())


@cache
def _write_beats(dialect: str) -> Update:
    beats = _BEATS.table(dialect)
    return (
        update(nodes)
        .where(same(nodes, beats, "id"), nodes.c.last_heartbeat == beats.c.decided_on)
        .values(
            **{name: _BEATS.value(beats, name, dialect) for name in _BEAT_COLUMNS},
            # A mark that was made after this heartbeat stays.
            no_responders_at=case(
                (nodes.c.no_responders_at > beats.c.last_heartbeat, nodes.c.no_responders_at),
                else_=beats.c.no_responders_at,
            ),
            # A change that people made since the node was read wants to be looked at as soon as it said.
            next_look=case((nodes.c.revision == beats.c.revision, beats.c.next_look), else_=nodes.c.next_look),
        )
    )


class NodeLook(msgspec.Struct, frozen=True, kw_only=True):
    """What a look at a node, as it was read, led to."""

    node: Node
    next_look: datetime | None
    status: NodeStatus | None = None
    """One that nobody has announced yet; None when there is nothing to announce."""
    event: Event | None = None
    """An event to write in the transaction of the announcement."""


_FACTS: Final = ("id", "revision", "announced", "last_heartbeat", "no_responders_at")
"""What a status follows from, and which status was announced last."""
_LOOKS: Final = RowSet(
    *(nodes.c[name] for name in _FACTS),
    Column("found", nodes.c.announced.type),
    Column("found_at", nodes.c.announced_at.type),
    nodes.c.next_look,
)


async def judge(connection: AsyncConnection, looks: Sequence[NodeLook], at: datetime) -> set[NodeId]:
    """Write those whose node is as it was read; returns which."""
    rows = [_look_row(look, at) for look in looks]
    dialect = connection.dialect.name
    unchanged = set((await connection.execute(_unchanged(dialect), _LOOKS.parameters(connection, rows))).scalars())
    if unchanged:
        valid = [row for row in rows if row["id"] in unchanged]
        await connection.execute(_write_looks(dialect), _LOOKS.parameters(connection, valid))
    return unchanged


async def mark_no_responders(connection: AsyncConnection, ids: Sequence[NodeId], at: datetime) -> set[NodeId]:
    """Mark those that were not heard since and are not marked already, and have health look at them; returns which.

    Not one that has only registered: it learns by that where it listens, and beats once it does. If it never beats, its
    silence tells.
    """
    unheard = and_(
        among(connection, nodes.c.id, ids),
        nodes.c.last_heartbeat < at,
        # Where this is not known, the row is older than the column, and so is the registration.
        or_(nodes.c.registered_at.is_(None), nodes.c.last_heartbeat > nodes.c.registered_at),
        nodes.c.no_responders_at.is_(None),
    )
    silent = set((await connection.execute(_locked(select(nodes.c.id).where(unheard)))).scalars())
    if silent:
        mark = update(nodes).where(among(connection, nodes.c.id, sorted(silent)))
        await connection.execute(mark.values(no_responders_at=at, next_look=at))
    return silent


def _look_row(look: NodeLook, at: datetime) -> dict[str, object]:
    node = look.node
    announced = None if node.announced is None else node.announced.value
    return {
        "id": node.id,
        "revision": node.revision,
        "announced": announced,
        "last_heartbeat": node.facts.last_heartbeat,
        "no_responders_at": node.facts.no_responders_at,
        "found": announced if look.status is None else look.status.value,
        "found_at": None if look.status is None else at,
        "next_look": look.next_look,
    }


def _locked(statement: Select[Any]) -> Select[Any]:
    """In the order of ids: two frontends that write overlapping batches wait for each other, never in a circle."""
    return statement.order_by(nodes.c.id).with_for_update(of=nodes)


@cache
def _unchanged(dialect: str) -> Select[Any]:
    looks = _LOOKS.table(dialect)
    facts = (nodes.c[name].is_not_distinct_from(looks.c[name]) for name in _FACTS[1:])
    same_facts = and_(same(nodes, looks, "id"), *facts)
    return _locked(select(nodes.c.id).join_from(nodes, looks, same_facts))


@cache
def _write_looks(dialect: str) -> Update:
    looks = _LOOKS.table(dialect)
    values = {
        "announced": looks.c.found,
        "announced_at": func.coalesce(looks.c.found_at, nodes.c.announced_at),
        "next_look": looks.c.next_look,
    }
    return update(nodes).where(same(nodes, looks, "id")).values(values)
