"""Which operations are meant, as conditions of SQL. The state of an operation follows from its targets, as in
`decide/operation.py`; a test compares both."""

from collections.abc import Collection
from typing import Final

from sqlalchemy import ColumnElement, and_, exists, not_, or_, select

from corral.frontend.operations.decide.operation import (
    FINAL,
    UNDER_WAY,
    OperationFilter,
    OperationState,
    TargetStatus,
)
from corral.frontend.store.schema import operation_targets, operations
from corral.frontend.store.search import by_actor, by_id, containing

_BAD: Final = (TargetStatus.ERROR, TargetStatus.BLOCKED)
_LIVING: Final = tuple(status for status in TargetStatus if status not in FINAL)


def conditions(which: OperationFilter) -> list[ColumnElement[bool]]:
    """Conditions that all hold for an operation which is meant."""
    found: list[ColumnElement[bool]] = []
    if which.states:
        found.append(or_(*(_is_in(state) for state in sorted(which.states))))
    if which.verbs:
        found.append(operations.c.verb.in_(sorted(which.verbs)))
    if which.subject:
        found.append(operations.c.subject == which.subject)
    if which.node:
        there = select(operation_targets.c.operation_id).where(by_id(operation_targets.c.node_id, which.node))
        found.append(operations.c.id.in_(there))
    if which.asked_by:
        found.append(by_actor(operations.c.asked_by, which.asked_by))
    if which.text:
        uri = operations.c.payload["uri"].as_string()
        found.append(containing(which.text, operations.c.subject, operations.c.asked_by, operations.c.id, uri))
    return found


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
    wanted: list[ColumnElement[bool]] = [operation_targets.c.status.in_(sorted(statuses))]
    if waits is not None:
        wanted.append(operation_targets.c.waits_for_node == int(waits))
    if TargetStatus.SUCCESS in statuses:
        return _of_operation(*wanted)
    return operations.c.id.in_(select(operation_targets.c.operation_id).where(*wanted))


def _of_operation(*wanted: ColumnElement[bool]) -> ColumnElement[bool]:
    return exists().where(operation_targets.c.operation_id == operations.c.id, *wanted)
