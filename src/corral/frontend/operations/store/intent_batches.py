"""Intents claimed and settled many at a time, and rows of intents as values."""

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any, Final, TypeVar

import msgspec
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
from sqlalchemy.ext.asyncio import AsyncConnection

from corral.base.ids import LeaseToken
from corral.frontend.operations.decide.intent import Intent, IntentKey
from corral.frontend.operations.decide.operation import FINAL, Target, TargetStatus, status_of
from corral.frontend.store.dialect import RowSet, same
from corral.frontend.store.schema import intents as intents_table
from corral.frontend.store.schema import operation_targets


def document(value: object) -> Any:
    """A domain value as JSON."""
    return None if value is None else msgspec.to_builtins(value, order="sorted")


def intent_row(intent: Intent) -> dict[str, object]:
    return {
        "node_id": intent.node_id,
        "kind": intent.kind.value,
        "subject": intent.subject,
        "generation": intent.generation,
        "operation_id": intent.operation_id,
        "verb": intent.verb.value,
        "accepted_at": intent.accepted_at,
        "payload": dict(intent.payload),
        "state": intent.state.value,
        "before": document(intent.before),
        "outstanding": document(intent.outstanding),
        "doubt": document(intent.doubt),
        "attempts": intent.attempts,
        "misses": intent.misses,
        "next_try": intent.next_try,
        "waits_for_node": int(intent.waits_for_node),
        "reason": document(intent.reason),
        "changed_at": intent.changed_at,
        "lease_token": intent.lease_token,
        "lease_until": intent.lease_until,
    }


RecordT = TypeVar("RecordT")


def intent_of(row: Row[Any]) -> Intent:
    """The intent of a whole row of its table."""
    return _converted(_INTENT_NAMES, row, Intent)


def target_of(row: Row[Any]) -> Target:
    """The target of a whole row of its table."""
    return _converted(_TARGET_NAMES, row, Target)


def _converted(names: Sequence[str], row: Row[Any], kind: type[RecordT]) -> RecordT:
    """Read the columns by position: an operation reads thousands of rows, and the mapping of a row is the slowest
    part."""
    values = dict(zip(names, row, strict=True))
    values["waits_for_node"] = bool(values["waits_for_node"])
    return msgspec.convert(values, kind)


_INTENT_NAMES: Final = tuple(str(column.name) for column in intents_table.c)
_TARGET_NAMES: Final = tuple(str(column.name) for column in operation_targets.c)


_PLACE: Final = ("node_id", "kind", "subject")
_HOLDING: Final = (*_PLACE, "generation", "state", "lease_token", "lease_until")
_FIXED: Final = ("generation", "operation_id", "verb", "accepted_at")
_TARGET: Final = ("operation_id", "node_id")
_TARGET_STATE: Final = ("status", "waits_for_node", "reason", "attempts", "changed_at")

_PLACES: Final = RowSet(*(intents_table.c[name] for name in _PLACE))
_INTENTS: Final = RowSet(*intents_table.c)
_INTENT_STATES: Final = RowSet(*(column for column in intents_table.c if column.name not in _FIXED))
_TARGET_KEYS: Final = RowSet(*(operation_targets.c[name] for name in _TARGET))
_TARGETS: Final = RowSet(*operation_targets.c)
_TARGET_STATES: Final = RowSet(*(operation_targets.c[name] for name in (*_TARGET, *_TARGET_STATE)))

_AT: Final[Tuple] = tuple_(*(intents_table.c[name] for name in _PLACE))
_TOKEN: Final = bindparam("token", type_=intents_table.c.lease_token.type)
_UNTIL: Final = bindparam("until", type_=intents_table.c.lease_until.type)
_LIVING: Final = operation_targets.c.status.not_in([status.value for status in FINAL])


def in_order(statement: Select[Any]) -> Select[Any]:
    """Lock the rows that are selected, in the order that everybody keeps."""
    return statement.order_by(*_AT.clauses).with_for_update(of=intents_table)


def locked_places(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """A condition for an update: the rows that match `condition`, locked in order first."""
    return _AT.in_(in_order(select(*_AT.clauses).where(condition)))


async def locked(connection: AsyncConnection, places: Sequence[IntentKey]) -> list[Row[Any]]:
    """What is at these places, which stays so until the end of the transaction."""
    if not places:
        return []
    return list(await connection.execute(_lock(connection.dialect.name), _places(connection, places)))


async def held(connection: AsyncConnection, places: Sequence[IntentKey]) -> list[Row[Any]]:
    """Lock what is at these places, and return no more of each than says whose it is, and of which generation."""
    return list(await connection.execute(_hold(connection.dialect.name), _places(connection, places)))


async def lease(connection: AsyncConnection, places: Sequence[IntentKey], token: LeaseToken, until: datetime) -> None:
    """Give all of these places the same lease; they are locked."""
    parameters = {**_places(connection, places), "token": token, "until": until}
    await connection.execute(_lease(connection.dialect.name), parameters)


async def prolong(connection: AsyncConnection, places: Sequence[IntentKey], token: LeaseToken, until: datetime) -> int:
    """Have those of these places that have this lease keep it longer; how many that are."""
    parameters = {**_places(connection, places), "token": token, "until": until}
    return (await connection.execute(_prolong(connection.dialect.name), parameters)).rowcount


async def replace_intents(connection: AsyncConnection, replaced: Sequence[IntentKey], new: Sequence[Intent]) -> None:
    """The new ones take the place of those that are known, which are locked."""
    dialect = connection.dialect.name
    if replaced:
        await connection.execute(_delete_intents(dialect), _places(connection, replaced))
    statement = _insert(intents_table, _INTENTS, dialect)
    await connection.execute(statement, _INTENTS.parameters(connection, [intent_row(intent) for intent in new]))


async def write_intents(connection: AsyncConnection, changed: Sequence[Intent]) -> None:
    """All that changes in the life of one generation, and the lease; they are locked."""
    if changed:
        rows = [intent_row(intent) for intent in changed]
        statement = _update_intents(connection.dialect.name)
        await connection.execute(statement, _INTENT_STATES.parameters(connection, rows))


async def insert_targets(connection: AsyncConnection, targets: Sequence[Target]) -> None:
    rows = [
        {
            "operation_id": target.operation_id,
            "node_id": target.node_id,
            "node_name": target.node_name,
            "subject": target.subject,
            "status": target.status.value,
            "waits_for_node": int(target.waits_for_node),
            "reason": document(target.reason),
            "attempts": target.attempts,
            "changed_at": target.changed_at,
        }
        for target in targets
    ]
    statement = _insert(operation_targets, _TARGETS, connection.dialect.name)
    await connection.execute(statement, _TARGETS.parameters(connection, rows))


async def write_targets(connection: AsyncConnection, changed: Sequence[Intent]) -> None:
    """The targets of the intents' own operations, apart from those that are over."""
    if changed:
        rows = [
            {
                "operation_id": intent.operation_id,
                "node_id": intent.node_id,
                "status": status_of(intent).value,
                "waits_for_node": int(intent.waits_for_node),
                "reason": document(intent.reason),
                "attempts": intent.attempts,
                "changed_at": intent.changed_at,
            }
            for intent in changed
        ]
        statement = _update_targets(connection.dialect.name)
        await connection.execute(statement, _TARGET_STATES.parameters(connection, rows))


async def supersede_targets(connection: AsyncConnection, replaced: Sequence[Intent], *, at: datetime) -> None:
    """The targets of these intents' own operations are over, apart from those that were already."""
    if replaced:
        rows = [{"operation_id": intent.operation_id, "node_id": intent.node_id} for intent in replaced]
        parameters = {**_TARGET_KEYS.parameters(connection, rows), "at": at}
        await connection.execute(_supersede_targets(connection.dialect.name), parameters)


def _places(connection: AsyncConnection, places: Sequence[IntentKey]) -> dict[str, object]:
    rows = [dict(zip(_PLACE, place, strict=True)) for place in places]
    return _PLACES.parameters(connection, rows)


# The statements, one of each for each dialect.


@cache
def _lock(dialect: str) -> Select[Any]:
    rows = _PLACES.table(dialect)
    same_place = same(intents_table, rows, *_PLACE)
    return in_order(select(intents_table).join_from(intents_table, rows, same_place))


@cache
def _hold(dialect: str) -> Select[Any]:
    return _lock(dialect).with_only_columns(*(intents_table.c[name] for name in _HOLDING), maintain_column_froms=True)


@cache
def _lease(dialect: str) -> Update:
    same_place = same(intents_table, _PLACES.table(dialect), *_PLACE)
    return update(intents_table).where(same_place).values(lease_token=_TOKEN, lease_until=_UNTIL)


@cache
def _prolong(dialect: str) -> Update:
    locked = _lock(dialect).with_only_columns(*_AT.clauses, maintain_column_froms=True)
    with_token = locked.where(intents_table.c.lease_token == _TOKEN)
    return update(intents_table).where(_AT.in_(with_token)).values(lease_until=_UNTIL)


@cache
def _delete_intents(dialect: str) -> Delete:
    rows = _PLACES.table(dialect)
    return delete(intents_table).where(_AT.in_(select(*(rows.c[name] for name in _PLACE))))


@cache
def _insert(table: Table, rows: RowSet, dialect: str) -> Insert:
    new = rows.table(dialect)
    names = [column.name for column in table.c]
    return insert(table).from_select(names, select(*(rows.value(new, name, dialect) for name in names)))


@cache
def _update_intents(dialect: str) -> Update:
    rows = _INTENT_STATES.table(dialect)
    names = [column.name for column in intents_table.c if column.name not in (*_FIXED, *_PLACE)]
    values = {name: _INTENT_STATES.value(rows, name, dialect) for name in names}
    return update(intents_table).where(same(intents_table, rows, *_PLACE)).values(values)


@cache
def _update_targets(dialect: str) -> Update:
    rows = _TARGET_STATES.table(dialect)
    values = {name: _TARGET_STATES.value(rows, name, dialect) for name in _TARGET_STATE}
    return update(operation_targets).where(same(operation_targets, rows, *_TARGET), _LIVING).values(values)


@cache
def _supersede_targets(dialect: str) -> Update:
    same_target = same(operation_targets, _TARGET_KEYS.table(dialect), *_TARGET)
    at = bindparam("at", type_=operation_targets.c.changed_at.type)
    over = {"status": TargetStatus.SUPERSEDED.value, "waits_for_node": 0, "changed_at": at}
    return update(operation_targets).where(same_target, _LIVING).values(over)
