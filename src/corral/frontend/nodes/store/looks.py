"""What health finds out about nodes, written for many of them at once, and only where nothing has changed meanwhile."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, Final

from sqlalchemy import Column, Select, Update, and_, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from corral.base.ids import NodeId
from corral.frontend.nodes.decide.node import Node, NodeStatus
from corral.frontend.record.decide import Event
from corral.frontend.store.dialect import RowSet, among, same
from corral.frontend.store.schema import nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLook:
    """What a look at a node, as it was read, led to."""

    node: Node
    next_look: datetime | None
    status: NodeStatus | None = None
    """One that nobody has announced yet; None when there is nothing to announce."""
    event: Event | None = None
    """Written with the announcement."""


_FACTS: Final = ("id", "revision", "announced", "last_heartbeat", "no_responders_at")
"""What a status follows from, and which status was announced last."""
_LOOKS: Final = RowSet(
    *(nodes.c[name] for name in _FACTS),
    Column("found", nodes.c.announced.type),
    Column("found_at", nodes.c.announced_at.type),
    nodes.c.next_look,
)


async def judge(connection: AsyncConnection, verdicts: Sequence[NodeLook], at: datetime) -> set[NodeId]:
    """Write those whose node is as it was read; returns which."""
    rows = [_row(one, at) for one in verdicts]
    dialect = connection.dialect.name
    unchanged = set((await connection.execute(_unchanged(dialect), _LOOKS.parameters(connection, rows))).scalars())
    if unchanged:
        valid = [row for row in rows if row["id"] in unchanged]
        await connection.execute(_write(dialect), _LOOKS.parameters(connection, valid))
    return unchanged


async def mark_no_responders(connection: AsyncConnection, ids: Sequence[NodeId], at: datetime) -> set[NodeId]:
    """Mark those that were not heard since and are not marked already, and have health look at them; returns which."""
    unheard = and_(among(connection, nodes.c.id, ids), nodes.c.last_heartbeat < at, nodes.c.no_responders_at.is_(None))
    found = set((await connection.execute(_locked(select(nodes.c.id).where(unheard)))).scalars())
    if found:
        mark = update(nodes).where(among(connection, nodes.c.id, sorted(found)))
        await connection.execute(mark.values(no_responders_at=at, next_look=at))
    return found


def _row(verdict: NodeLook, at: datetime) -> dict[str, object]:
    node = verdict.node
    announced = None if node.announced is None else node.announced.value
    return {
        "id": node.id,
        "revision": node.revision,
        "announced": announced,
        "last_heartbeat": node.facts.last_heartbeat,
        "no_responders_at": node.facts.no_responders_at,
        "found": announced if verdict.status is None else verdict.status.value,
        "found_at": None if verdict.status is None else at,
        "next_look": verdict.next_look,
    }


def _locked(statement: Select[Any]) -> Select[Any]:
    """In the order of ids, as heartbeats are written: two who meet wait for each other, never in a circle."""
    return statement.order_by(nodes.c.id).with_for_update(of=nodes)


@cache
def _unchanged(dialect: str) -> Select[Any]:
    given = _LOOKS.table(dialect)
    facts = (nodes.c[name].is_not_distinct_from(given.c[name]) for name in _FACTS[1:])
    there = and_(same(nodes, given, "id"), *facts)
    return _locked(select(nodes.c.id).join_from(nodes, given, there))


@cache
def _write(dialect: str) -> Update:
    given = _LOOKS.table(dialect)
    values = {
        "announced": given.c.found,
        "announced_at": func.coalesce(given.c.found_at, nodes.c.announced_at),
        "next_look": given.c.next_look,
    }
    return update(nodes).where(same(nodes, given, "id")).values(values)
