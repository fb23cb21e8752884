"""Intents, targets and reports as sets: however many there are, each step is one statement.

Whoever changes several intents locks them first, in the order of node and backend; so two who meet wait for each other,
and never in a circle. The target of an intent is only ever changed by whoever has locked the intent.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Delete,
    Insert,
    Row,
    Select,
    Table,
    Tuple,
    Update,
    bindparam,
    delete,
    insert,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from corral.base.ids import LeaseToken, NodeId
from corral.domain.backend import Inventory
from corral.domain.intent import Intent
from corral.domain.operation import FINAL, Target, TargetStatus
from corral.state.intent_rows import document, intent_row, target_row, target_values
from corral.state.row_sets import POSTGRES, RowSet, same
from corral.state.schema import backend_intents, backend_inventory, operation_targets

_PLACE: Final = ("node_id", "backend")
_HOLDING: Final = (*_PLACE, "generation", "state", "lease_token", "lease_until")
_FIXED: Final = ("generation", "operation_id", "verb", "accepted_at")
_TARGET: Final = ("operation_id", "node_id")
_TARGET_STATE: Final = ("status", "waits_for_node", "message", "attempts", "changed_at")

_PLACES: Final = RowSet(*(backend_intents.c[name] for name in _PLACE))
_INTENTS: Final = RowSet(*backend_intents.c)
_INTENT_STATES: Final = RowSet(*(column for column in backend_intents.c if column.name not in _FIXED))
_TARGETS: Final = RowSet(*operation_targets.c)
_TARGET_STATES: Final = RowSet(*(operation_targets.c[name] for name in (*_TARGET, *_TARGET_STATE)))
_REPORTS: Final = RowSet(*backend_inventory.c)

_AT: Final[Tuple] = tuple_(backend_intents.c.node_id, backend_intents.c.backend)
_TOKEN: Final = bindparam("token", type_=backend_intents.c.lease_token.type)
_UNTIL: Final = bindparam("until", type_=backend_intents.c.lease_until.type)
_LIVING: Final = operation_targets.c.status.not_in([status.value for status in FINAL])

IntentPlace = tuple[NodeId, str]


def place_of(intent: Intent) -> IntentPlace:
    return intent.node_id, intent.backend


def in_order(statement: Select[Any]) -> Select[Any]:
    """Lock the rows that are selected, in the order that everybody keeps."""
    return statement.order_by(backend_intents.c.node_id, backend_intents.c.backend).with_for_update(of=backend_intents)


def locked_places(which: ColumnElement[bool]) -> ColumnElement[bool]:
    """The same rows as the condition says, locked in order first: for an update of all that match."""
    return _AT.in_(in_order(select(backend_intents.c.node_id, backend_intents.c.backend).where(which)))


async def locked(connection: AsyncConnection, places: Sequence[IntentPlace]) -> list[Row[Any]]:
    """What is at these places, which stays so until the end of the transaction."""
    if not places:
        return []
    return list(await connection.execute(_lock(connection.dialect.name), _places(connection, places)))


async def held(connection: AsyncConnection, places: Sequence[IntentPlace]) -> list[Row[Any]]:
    """The same, with no more of each than says whose it is, and of which generation."""
    return list(await connection.execute(_hold(connection.dialect.name), _places(connection, places)))


async def lease(connection: AsyncConnection, places: Sequence[IntentPlace], token: LeaseToken, until: datetime) -> None:
    """Give all of these places the same lease; they are locked."""
    parameters = {**_places(connection, places), "token": token, "until": until}
    await connection.execute(_lease(connection.dialect.name), parameters)


async def prolong(
    connection: AsyncConnection, places: Sequence[IntentPlace], token: LeaseToken, until: datetime
) -> int:
    """Have those of these places that have this lease keep it longer; how many that are."""
    parameters = {**_places(connection, places), "token": token, "until": until}
    return (await connection.execute(_prolong(connection.dialect.name), parameters)).rowcount


async def replace_intents(connection: AsyncConnection, known: Sequence[IntentPlace], new: Sequence[Intent]) -> None:
    """The new ones take the place of those that are known, which are locked."""
    dialect = connection.dialect.name
    if known:
        await connection.execute(_delete_intents(dialect), _places(connection, known))
    rows = [intent_row(one) for one in new]
    await connection.execute(_insert_intents(dialect), _INTENTS.parameters(connection, rows))


async def write_intents(connection: AsyncConnection, changed: Sequence[Intent]) -> None:
    """All that changes in the life of one generation, and the lease; they are locked."""
    if changed:
        rows = [intent_row(one) for one in changed]
        statement = _update_intents(connection.dialect.name)
        await connection.execute(statement, _INTENT_STATES.parameters(connection, rows))


async def insert_targets(connection: AsyncConnection, targets: Sequence[Target]) -> None:
    rows = [target_row(one) for one in targets]
    await connection.execute(_insert_targets(connection.dialect.name), _TARGETS.parameters(connection, rows))


async def write_targets(connection: AsyncConnection, changed: Sequence[Intent]) -> None:
    """The targets of the intents' own operations, apart from those that are over."""
    if changed:
        rows = [{"operation_id": one.operation_id, "node_id": one.node_id, **target_values(one)} for one in changed]
        statement = _update_targets(connection.dialect.name)
        await connection.execute(statement, _TARGET_STATES.parameters(connection, rows))


async def supersede_targets(connection: AsyncConnection, places: Sequence[IntentPlace], *, at: datetime) -> None:
    """Whatever was wanted at these places is over."""
    if places:
        parameters = {**_places(connection, places), "at": at}
        await connection.execute(_supersede_targets(connection.dialect.name), parameters)


async def write_reports(connection: AsyncConnection, reports: Mapping[NodeId, Inventory]) -> None:
    """What nodes said to have; an older report never replaces a newer one."""
    if reports:
        rows = [
            {"node_id": node_id, "entries": document(report.entries), "seen_at": report.seen_at}
            for node_id, report in sorted(reports.items())
        ]
        statement = _upsert_reports(connection.dialect.name)
        await connection.execute(statement, _REPORTS.parameters(connection, rows))


def _places(connection: AsyncConnection, places: Sequence[IntentPlace]) -> dict[str, object]:
    rows = [{"node_id": node_id, "backend": backend} for node_id, backend in places]
    return _PLACES.parameters(connection, rows)


# The statements, one of each for each dialect.


@cache
def _lock(dialect: str) -> Select[Any]:
    given = _PLACES.table(dialect)
    there = same(backend_intents, given, *_PLACE)
    return in_order(select(backend_intents).join_from(backend_intents, given, there))


@cache
def _hold(dialect: str) -> Select[Any]:
    return _lock(dialect).with_only_columns(*(backend_intents.c[name] for name in _HOLDING), maintain_column_froms=True)


@cache
def _lease(dialect: str) -> Update:
    there = same(backend_intents, _PLACES.table(dialect), *_PLACE)
    return update(backend_intents).where(there).values(lease_token=_TOKEN, lease_until=_UNTIL)


@cache
def _prolong(dialect: str) -> Update:
    there = _lock(dialect).with_only_columns(*_AT.clauses, maintain_column_froms=True)
    ours = there.where(backend_intents.c.lease_token == _TOKEN)
    return update(backend_intents).where(_AT.in_(ours)).values(lease_until=_UNTIL)


@cache
def _delete_intents(dialect: str) -> Delete:
    given = _PLACES.table(dialect)
    return delete(backend_intents).where(_AT.in_(select(given.c.node_id, given.c.backend)))


@cache
def _insert_intents(dialect: str) -> Insert:
    return _insert(backend_intents, _INTENTS, dialect)


@cache
def _insert_targets(dialect: str) -> Insert:
    return _insert(operation_targets, _TARGETS, dialect)


def _insert(table: Table, rows: RowSet, dialect: str) -> Insert:
    given = rows.table(dialect)
    names = [column.name for column in table.c]
    return insert(table).from_select(names, select(*(rows.value(given, name, dialect) for name in names)))


@cache
def _update_intents(dialect: str) -> Update:
    given = _INTENT_STATES.table(dialect)
    names = [column.name for column in backend_intents.c if column.name not in (*_FIXED, *_PLACE)]
    values = {name: _INTENT_STATES.value(given, name, dialect) for name in names}
    return update(backend_intents).where(same(backend_intents, given, *_PLACE)).values(values)


@cache
def _update_targets(dialect: str) -> Update:
    given = _TARGET_STATES.table(dialect)
    values = {name: given.c[name] for name in _TARGET_STATE}
    return update(operation_targets).where(same(operation_targets, given, *_TARGET), _LIVING).values(values)


@cache
def _supersede_targets(dialect: str) -> Update:
    there = same(operation_targets, _PLACES.table(dialect), *_PLACE)
    at = bindparam("at", type_=operation_targets.c.changed_at.type)
    over = {"status": TargetStatus.SUPERSEDED.value, "waits_for_node": 0, "changed_at": at}
    return update(operation_targets).where(there, _LIVING).values(over)


@cache
def _upsert_reports(dialect: str) -> Insert:
    given = _REPORTS.table(dialect)
    names = [column.name for column in backend_inventory.c]
    rows = select(*(_REPORTS.value(given, name, dialect) for name in names))
    into = postgresql.insert if dialect == POSTGRES else sqlite.insert
    # SQLite would read ON CONFLICT as a part of the SELECT, unless a WHERE ends it.
    new = into(backend_inventory).from_select(names, rows.where(given.c.node_id.is_not(None)))
    newer = backend_inventory.c.seen_at <= new.excluded.seen_at
    values = {"entries": new.excluded.entries, "seen_at": new.excluded.seen_at}
    return new.on_conflict_do_update(index_elements=[backend_inventory.c.node_id], set_=values, where=newer)
