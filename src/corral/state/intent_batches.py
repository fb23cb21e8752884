"""Intents, targets and reports as sets: however many there are, each step is one statement.

Whoever changes several intents locks them first, in the order of node and backend; so two who meet wait for each other,
and never in a circle. The target of an intent is only ever changed by whoever has locked the intent.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Row, Select, Table, Tuple, delete, insert, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncConnection

from corral.base.ids import NodeId
from corral.domain.backend import Inventory
from corral.domain.intent import Intent
from corral.domain.operation import FINAL, Target, TargetStatus
from corral.state.dialect import insert_into
from corral.state.intent_rows import document, intent_row, intent_values, target_row, target_values
from corral.state.row_sets import RowSet
from corral.state.schema import backend_intents, backend_inventory, operation_targets

_FINAL: Final = [status.value for status in FINAL]
_PLACE: Final = ("node_id", "backend")
_TARGET: Final = ("operation_id", "node_id")

_PLACES: Final = RowSet(backend_intents.c.node_id, backend_intents.c.backend)
_INTENTS: Final = RowSet(*backend_intents.c)
_FIXED: Final = frozenset({"generation", "operation_id", "verb", "accepted_at"})
_INTENT_STATES: Final = RowSet(*(column for column in backend_intents.c if column.name not in _FIXED))
_TARGETS: Final = RowSet(*operation_targets.c)
_TARGET_STATES: Final = RowSet(
    *(operation_targets.c[name] for name in (*_TARGET, "status", "waits_for_node", "message", "attempts", "changed_at"))
)
_REPORTS: Final = RowSet(*backend_inventory.c)

Place = tuple[NodeId, str]


def place_of(intent: Intent) -> Place:
    return intent.node_id, intent.backend


def in_order(statement: Select[Any]) -> Select[Any]:
    """Lock the rows that are selected, in the order that everybody keeps."""
    return statement.order_by(backend_intents.c.node_id, backend_intents.c.backend).with_for_update(of=backend_intents)


def locked_places(which: ColumnElement[bool]) -> ColumnElement[bool]:
    """The same rows as the condition says, locked in order first: for an update of all that match."""
    places: Tuple = tuple_(backend_intents.c.node_id, backend_intents.c.backend)
    return places.in_(in_order(select(backend_intents.c.node_id, backend_intents.c.backend).where(which)))


async def locked(
    connection: AsyncConnection, places: Sequence[Place], columns: Iterable[ColumnElement[Any]] = backend_intents.c
) -> list[Row[Any]]:
    """What is at these places, which stays so until the end of the transaction."""
    if not places:
        return []
    there = _PLACES.same(connection, backend_intents, *_PLACE)
    found = select(*columns).join_from(backend_intents, _PLACES.table(connection), there)
    return list(await connection.execute(in_order(found), _places(connection, places)))


async def lease(connection: AsyncConnection, places: Sequence[Place], values: Mapping[str, object]) -> None:
    """Give all of these places the same lease."""
    there = _PLACES.same(connection, backend_intents, *_PLACE)
    taken = update(backend_intents).where(there).values(dict(values))
    await connection.execute(taken, _places(connection, places))


async def replace_intents(connection: AsyncConnection, known: Sequence[Place], new: Sequence[Intent]) -> None:
    """The new ones take the place of those that are known; all of those are locked."""
    if known:
        there = select(_PLACES.table(connection).c.node_id, _PLACES.table(connection).c.backend)
        places: Tuple = tuple_(backend_intents.c.node_id, backend_intents.c.backend)
        await connection.execute(delete(backend_intents).where(places.in_(there)), _places(connection, known))
    await _insert(connection, backend_intents, _INTENTS, [intent_row(one) for one in new])


async def write_intents(connection: AsyncConnection, changed: Sequence[Intent]) -> None:
    """All that changes in the life of one generation, and the lease; they are locked."""
    if not changed:
        return
    names = (*intent_values(changed[0]), "lease_token", "lease_until")
    values = {name: _INTENT_STATES.value(connection, name) for name in names}
    there = _INTENT_STATES.same(connection, backend_intents, *_PLACE)
    rows = [intent_row(one) for one in changed]
    statement = update(backend_intents).where(there).values(values)
    await connection.execute(statement, _INTENT_STATES.parameters(connection, rows))


async def insert_targets(connection: AsyncConnection, targets: Sequence[Target]) -> None:
    await _insert(connection, operation_targets, _TARGETS, [target_row(one) for one in targets])


async def write_targets(connection: AsyncConnection, changed: Sequence[Intent]) -> None:
    """The targets of the intents' own operations, apart from those that are over."""
    if not changed:
        return
    living = operation_targets.c.status.not_in(_FINAL)
    there = _TARGET_STATES.same(connection, operation_targets, *_TARGET)
    values = {name: _TARGET_STATES.value(connection, name) for name in target_values(changed[0])}
    rows = [
        {"operation_id": one.operation_id, "node_id": one.node_id, **target_values(one)}
        for one in sorted(changed, key=place_of)
    ]
    statement = update(operation_targets).where(there, living).values(values)
    await connection.execute(statement, _TARGET_STATES.parameters(connection, rows))


async def supersede_targets(connection: AsyncConnection, places: Sequence[Place], values: Mapping[str, object]) -> None:
    """Whatever was wanted at these places is over."""
    if not places:
        return
    living = operation_targets.c.status.not_in(_FINAL)
    there = _PLACES.same(connection, operation_targets, *_PLACE)
    over = {"status": TargetStatus.SUPERSEDED.value, "waits_for_node": 0, **values}
    statement = update(operation_targets).where(there, living).values(over)
    await connection.execute(statement, _places(connection, places))


async def write_reports(connection: AsyncConnection, reports: Mapping[NodeId, Inventory]) -> None:
    """What nodes said to have; an older report never replaces a newer one."""
    if not reports:
        return
    table = _REPORTS.table(connection)
    names = [column.name for column in backend_inventory.c]
    # SQLite takes ON CONFLICT after SELECT for a part of the join, unless there is a WHERE before it.
    given = select(*(_REPORTS.value(connection, name) for name in names)).where(table.c.node_id.is_not(None))
    new = insert_into(connection, backend_inventory).from_select(names, given)
    newer = backend_inventory.c.seen_at <= new.excluded.seen_at
    values = {"entries": new.excluded.entries, "seen_at": new.excluded.seen_at}
    statement = new.on_conflict_do_update(index_elements=[backend_inventory.c.node_id], set_=values, where=newer)
    rows = [
        {"node_id": node_id, "entries": document(report.entries), "seen_at": report.seen_at}
        for node_id, report in sorted(reports.items())
    ]
    await connection.execute(statement, _REPORTS.parameters(connection, rows))


async def _insert(
    connection: AsyncConnection, table: Table, given: RowSet, rows: Sequence[Mapping[str, object]]
) -> None:
    if not rows:
        return
    names = [column.name for column in table.c]
    every = select(*(given.value(connection, name) for name in names))
    await connection.execute(insert(table).from_select(names, every), given.parameters(connection, rows))


def _places(connection: AsyncConnection, places: Sequence[Place]) -> dict[str, object]:
    rows = [{"node_id": node_id, "backend": backend} for node_id, backend in places]
    return _PLACES.parameters(connection, rows)
