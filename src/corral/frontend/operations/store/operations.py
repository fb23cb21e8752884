"""Operations: one transaction writes the act, its targets and the intents; if it fails, nothing has happened."""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, Row, and_, delete, exists, insert, not_, or_, select, true, update
from sqlalchemy.ext.asyncio import AsyncConnection

from corral.base.errors import Overtaken
from corral.base.ids import NodeId, OperationId
from corral.frontend.operations.decide.intent import Inherit, Intent, IntentKey, IntentKind, supersede
from corral.frontend.operations.decide.operation import (
    FINAL,
    UNDER_WAY,
    Operation,
    OperationFilter,
    OperationState,
    Target,
    TargetStatus,
)
from corral.frontend.operations.store.intent_batches import (
    in_order,
    insert_targets,
    intent_of,
    locked,
    replace_intents,
    supersede_targets,
    target_of,
    write_intents,
    write_targets,
)
from corral.frontend.record.decide import Event
from corral.frontend.record.store import append
from corral.frontend.store.db import Database
from corral.frontend.store.dialect import among
from corral.frontend.store.schema import intents as intents_table
from corral.frontend.store.schema import operation_targets, operations
from corral.frontend.store.search import by_actor, by_id, containing

_NAMES: Final = tuple(str(column.name) for column in operations.c)
_FINAL: Final = [status.value for status in FINAL]
_AT_ONCE: Final = 1000
"""Rows in one statement. To prepare them takes a while in which nobody else is served."""
_UNDER_WAY: Final = [status.value for status in UNDER_WAY]

ALL_OPERATIONS: Final = OperationFilter()

DecideIntent = Callable[[Intent], Intent | None]
Beside = Callable[[AsyncConnection], Awaitable[None]]
Generations = Mapping[IntentKey, int]
"""The generation of each intent that was seen; 0 where there was none."""


async def _nothing(_: AsyncConnection) -> None:
    """Writes nothing: most operations need no other write in their transaction."""


class OperationStore:
    def __init__(self, database: Database, inherit: Inherit) -> None:
        """`inherit` says what an intent takes over from the one that it supersedes."""
        self._db = database
        self._inherit = inherit

    async def start(
        self,
        operation: Operation,
        intents: Sequence[Intent],
        *,
        events: Sequence[Event],
        seen: Generations | None = None,
        beside: Beside = _nothing,
    ) -> Operation:
        """Write it all, in place of what was wanted before, and what `beside` writes. With an idempotency key that is
        known: that operation.

        ConstraintViolated when somebody else did the same at the same moment: then try again. Overtaken when an intent
        is not of the generation that was `seen`: then nothing is written.
        """
        async with self._db.begin() as connection:
            if (earlier := await _by_key(connection, operation.idempotency_key)) is not None:
                return earlier
            await write_operations(connection, [operation], intents, self._inherit, seen=seen)
            await beside(connection)
            await append(connection, events)
        return operation

    async def get(self, id: OperationId) -> Operation | None:
        async with self._db.read() as connection:
            return await _load_one(connection, operations.c.id == id)

    async def with_key(self, idempotency_key: str) -> Operation | None:
        async with self._db.read() as connection:
            return await _by_key(connection, idempotency_key)

    async def generations(self, keys: Sequence[IntentKey]) -> dict[IntentKey, int]:
        """The generation of each of these intents as they are now; 0 where there is none."""
        numbers = dict.fromkeys(keys, 0)
        columns = (intents_table.c.node_id, intents_table.c.kind, intents_table.c.subject, intents_table.c.generation)
        async with self._db.read() as connection:
            for start in range(0, len(keys), _AT_ONCE):
                part = keys[start : start + _AT_ONCE]
                on_nodes = among(connection, intents_table.c.node_id, [node_id for node_id, _, _ in part])
                about_subjects = among(connection, intents_table.c.subject, sorted({subject for _, _, subject in part}))
                kinds = intents_table.c.kind.in_(sorted({kind.value for _, kind, _ in part}))
                for row in await connection.execute(select(*columns).where(on_nodes, about_subjects, kinds)):
                    key = (NodeId(row.node_id), IntentKind(row.kind), row.subject)
                    if key in numbers:
                        numbers[key] = row.generation
        return numbers

    async def newest(
        self,
        *,
        limit: int,
        before: tuple[datetime, str] | None = None,
        operation_filter: OperationFilter = ALL_OPERATIONS,
    ) -> list[Operation]:
        """The operations that match the filter, newest first; `before` is where an earlier page ended."""
        return await self._page(and_(true(), *conditions(operation_filter)), limit=limit, before=before)

    async def latest(self, limit: int) -> list[OperationId]:
        """The ids of the operations that were accepted last, newest first."""
        newest = select(operations.c.id).order_by(operations.c.accepted_at.desc(), operations.c.id.desc()).limit(limit)
        async with self._db.look() as connection:
            return [OperationId(id) for id in (await connection.execute(newest)).scalars()]

    async def some(self, ids: Sequence[OperationId]) -> list[Operation]:
        """Return those of the operations that exist."""
        async with self._db.read() as connection:
            condition = among(connection, operations.c.id, ids)
            rows = (await connection.execute(select(operations).where(condition))).all()
            return await _with_targets(connection, rows)

    async def left(self, *, limit: int, before: tuple[datetime, str] | None = None) -> list[Operation]:
        """Operations of which nothing is under way, or that somebody has dismissed, newest first."""
        moving = select(operation_targets.c.operation_id).where(operation_targets.c.status.in_(_UNDER_WAY))
        over = or_(operations.c.id.not_in(moving), operations.c.dismissed_at.is_not(None))
        return await self._page(over, limit=limit, before=before)

    async def _page(
        self, condition: ColumnElement[bool], *, limit: int, before: tuple[datetime, str] | None
    ) -> list[Operation]:
        earlier: ColumnElement[bool] = true()
        if before is not None:
            at, id = before
            same_time_before = and_(operations.c.accepted_at == at, operations.c.id < id)
            earlier = or_(operations.c.accepted_at < at, same_time_before)
        newest = select(operations).order_by(operations.c.accepted_at.desc(), operations.c.id.desc())
        async with self._db.read() as connection:
            rows = (await connection.execute(newest.where(condition, earlier).limit(limit))).all()
            return await _with_targets(connection, rows)

    async def current(self) -> list[Operation]:
        """All that nobody has dismissed and that are not over, the oldest first."""
        living = select(operation_targets.c.operation_id).where(operation_targets.c.status.not_in(_FINAL))
        listed = and_(operations.c.id.in_(living), operations.c.dismissed_at.is_(None))
        async with self._db.read() as connection:
            rows = (await connection.execute(select(operations).where(listed).order_by(operations.c.accepted_at))).all()
            return await _with_targets(connection, rows)

    async def change(
        self, id: OperationId, nodes: Sequence[NodeId] | None, decide: DecideIntent, *, events: Sequence[Event]
    ) -> list[Intent]:
        """Let `decide` change the operation's intents, on these nodes or all; returns those that it changed."""
        of_operation = intents_table.c.operation_id == id
        async with self._db.begin() as connection:
            condition = (
                of_operation if nodes is None else and_(of_operation, among(connection, intents_table.c.node_id, nodes))
            )
            rows = (await connection.execute(in_order(select(intents_table).where(condition)))).all()
            decided = [decide(intent_of(row)) for row in rows]
            changed = [intent for intent in decided if intent is not None]
            await write_intents(connection, changed)
            await write_targets(connection, changed)
            if changed:
                await append(connection, events)
        return changed

    async def dismiss(self, id: OperationId, *, at: datetime) -> bool:
        open_ = and_(operations.c.id == id, operations.c.dismissed_at.is_(None))
        async with self._db.begin() as connection:
            return (await connection.execute(update(operations).where(open_).values(dismissed_at=at))).rowcount == 1

    async def trim(self, before: datetime) -> int:
        """Remove operations that were accepted before, and that no intent follows from any more."""
        async with self._db.begin() as connection:
            return await _remove(connection, operations.c.accepted_at < before)

    async def clear(self, *, event: Event) -> int:
        """Remove all that no intent follows from any more, and keep in mind that somebody did."""
        async with self._db.begin() as connection:
            removed = await _remove(connection, true())
            if removed:
                await append(connection, [event])
            return removed


async def write_operations(
    connection: AsyncConnection,
    started: Sequence[Operation],
    intents: Sequence[Intent],
    inherit: Inherit,
    *,
    seen: Generations | None = None,
) -> None:
    """Operations of one moment, and the intents of all of them, of which each place has at most one."""
    for operation in started:
        row = {
            "id": operation.id,
            "verb": operation.verb.value,
            "subject": operation.subject,
            "payload": dict(operation.payload),
            "asked_by": operation.asked_by,
            "accepted_at": operation.accepted_at,
            "node_id": operation.node_id,
            "idempotency_key": operation.idempotency_key or None,
            "dismissed_at": operation.dismissed_at,
        }
        await connection.execute(insert(operations).values(row))
    ordered = sorted(intents, key=lambda intent: intent.key)
    for start in range(0, len(ordered), _AT_ONCE):
        await _replace(connection, ordered[start : start + _AT_ONCE], inherit, seen)
    targets = [target for operation in started for target in operation.targets]
    for start in range(0, len(targets), _AT_ONCE):
        await insert_targets(connection, targets[start : start + _AT_ONCE])


async def _replace(
    connection: AsyncConnection, fresh: Sequence[Intent], inherit: Inherit, seen: Generations | None
) -> None:
    """What was wanted at these places before is superseded; leases and requests under way are carried along."""
    rows = await locked(connection, [intent.key for intent in fresh])
    intents_by_key = {intent.key: intent for intent in map(intent_of, rows)}
    new = [supersede(intents_by_key.get(intent.key), intent, inherit) for intent in fresh]
    if seen is not None and any(intent.generation != seen.get(intent.key, -1) + 1 for intent in new):
        raise Overtaken
    await supersede_targets(connection, list(intents_by_key.values()), at=max(intent.accepted_at for intent in fresh))
    await replace_intents(connection, list(intents_by_key), new)


async def _remove(connection: AsyncConnection, condition: ColumnElement[bool]) -> int:
    living = select(operation_targets.c.operation_id).where(operation_targets.c.status.not_in(_FINAL))
    over = and_(condition, operations.c.id.not_in(living))
    of_these = operation_targets.c.operation_id.in_(select(operations.c.id).where(over))
    await connection.execute(delete(operation_targets).where(of_these))
    return (await connection.execute(delete(operations).where(over))).rowcount


async def _by_key(connection: AsyncConnection, key: str) -> Operation | None:
    return await _load_one(connection, operations.c.idempotency_key == key) if key else None


async def _load_one(connection: AsyncConnection, condition: ColumnElement[bool]) -> Operation | None:
    rows = (await connection.execute(select(operations).where(condition))).all()
    return next(iter(await _with_targets(connection, rows)), None)


async def _with_targets(connection: AsyncConnection, rows: Sequence[Row[Any]]) -> list[Operation]:
    if not rows:
        return []
    of_these = among(connection, operation_targets.c.operation_id, [row.id for row in rows])
    by_name = (
        select(operation_targets).where(of_these).order_by(operation_targets.c.node_name, operation_targets.c.node_id)
    )
    targets: dict[str, list[Target]] = {row.id: [] for row in rows}
    for row in await connection.execute(by_name):
        targets[row.operation_id].append(target_of(row))
    loaded = []
    for row in rows:
        values = dict(zip(_NAMES, row, strict=True))
        values |= {"idempotency_key": row.idempotency_key or "", "targets": tuple(targets[row.id])}
        loaded.append(msgspec.convert(values, Operation))
    return loaded


_BAD: Final = (TargetStatus.ERROR, TargetStatus.BLOCKED)
_LIVING: Final = tuple(status for status in TargetStatus if status not in FINAL)


def conditions(operation_filter: OperationFilter) -> list[ColumnElement[bool]]:
    """Conditions that all hold for an operation which is meant."""
    terms: list[ColumnElement[bool]] = []
    if operation_filter.states:
        terms.append(or_(*(_is_in(state) for state in sorted(operation_filter.states))))
    if operation_filter.verbs:
        terms.append(operations.c.verb.in_(sorted(operation_filter.verbs)))
    if operation_filter.subject:
        terms.append(operations.c.subject == operation_filter.subject)
    if operation_filter.node:
        on_node = select(operation_targets.c.operation_id).where(
            by_id(operation_targets.c.node_id, operation_filter.node)
        )
        terms.append(operations.c.id.in_(on_node))
    if operation_filter.asked_by:
        terms.append(by_actor(operations.c.asked_by, operation_filter.asked_by))
    if operation_filter.text:
        uri = operations.c.payload["uri"].as_string()
        terms.append(
            containing(operation_filter.text, operations.c.subject, operations.c.asked_by, operations.c.id, uri)
        )
    return terms


def _is_in(state: OperationState) -> ColumnElement[bool]:
    """The operation is in this state: the first in this order that holds."""
    running = _has(UNDER_WAY, waits=False)
    failed = _has(_BAD, waits=False)
    waiting = _has(_LIVING, waits=True)
    done = or_(_has((TargetStatus.SUCCESS,)), not_(_of_operation()))
    match state:
        case OperationState.RUNNING:
            return running
        case OperationState.FAILED:
            return and_(failed, not_(running))
        case OperationState.WAITING:
            return and_(waiting, not_(running), not_(failed))
        case OperationState.DONE:
            return and_(done, not_(running), not_(failed), not_(waiting))
        case OperationState.CANCELLED:
            return and_(not_(done), not_(running), not_(failed), not_(waiting))


def _has(statuses: Collection[TargetStatus], *, waits: bool | None = None) -> ColumnElement[bool]:
    """Some target of the operation has one of these statuses; and waits for its node, or does not.

    Few targets are not over: those are looked up by their status. Almost all succeeded: those are looked up by their
    operation.
    """
    terms: list[ColumnElement[bool]] = [operation_targets.c.status.in_(sorted(statuses))]
    if waits is not None:
        terms.append(operation_targets.c.waits_for_node == int(waits))
    if TargetStatus.SUCCESS in statuses:
        return _of_operation(*terms)
    return operations.c.id.in_(select(operation_targets.c.operation_id).where(*terms))


def _of_operation(*terms: ColumnElement[bool]) -> ColumnElement[bool]:
    return exists().where(operation_targets.c.operation_id == operations.c.id, *terms)
