"""Intents and targets as rows, and back. Only the stores of operations and intents call this."""

from typing import Any

import msgspec
from sqlalchemy import Row

from corral.base.ids import NodeId, OperationId
from corral.frontend.operations.decide.intent import Before, Intent, IntentState, Outstanding, Verb
from corral.frontend.operations.decide.operation import Target, TargetStatus, status_of


def document(value: object) -> Any:
    """A domain value as JSON."""
    return None if value is None else msgspec.to_builtins(value, order="sorted")


def intent_values(intent: Intent) -> dict[str, object]:
    """What changes in the life of one generation, apart from its lease."""
    return {
        "payload": dict(intent.payload),
        "state": intent.state.value,
        "before": document(intent.before),
        "outstanding": document(intent.outstanding),
        "doubt": document(intent.doubt),
        "attempts": intent.attempts,
        "misses": intent.misses,
        "next_try": intent.next_try,
        "waits_for_node": int(intent.waits_for_node),
        "message": intent.message,
        "changed_at": intent.changed_at,
    }


def intent_row(intent: Intent) -> dict[str, object]:
    return {
        **intent_values(intent),
        "node_id": intent.node_id,
        "kind": intent.kind.value,
        "subject": intent.subject,
        "generation": intent.generation,
        "operation_id": intent.operation_id,
        "verb": intent.verb.value,
        "accepted_at": intent.accepted_at,
        "lease_token": intent.lease_token,
        "lease_until": intent.lease_until,
    }


def intent_of(row: Row[Any]) -> Intent:
    return Intent(
        node_id=NodeId(row.node_id),
        verb=Verb(row.verb),
        subject=row.subject,
        payload=row.payload,
        operation_id=OperationId(row.operation_id),
        generation=row.generation,
        state=IntentState(row.state),
        accepted_at=row.accepted_at,
        changed_at=row.changed_at,
        before=None if row.before is None else msgspec.convert(row.before, Before),
        outstanding=None if row.outstanding is None else msgspec.convert(row.outstanding, Outstanding),
        doubt=None if row.doubt is None else msgspec.convert(row.doubt, Outstanding),
        attempts=row.attempts,
        misses=row.misses,
        next_try=row.next_try,
        waits_for_node=bool(row.waits_for_node),
        message=row.message,
        lease_token=row.lease_token,
        lease_until=row.lease_until,
    )


def target_values(intent: Intent) -> dict[str, object]:
    """How the target of an intent's own operation stands."""
    return {
        "status": status_of(intent).value,
        "waits_for_node": int(intent.waits_for_node),
        "message": intent.message,
        "attempts": intent.attempts,
        "changed_at": intent.changed_at,
    }


def target_row(target: Target) -> dict[str, object]:
    return {
        "operation_id": target.operation_id,
        "node_id": target.node_id,
        "node_name": target.node_name,
        "subject": target.subject,
        "status": target.status.value,
        "waits_for_node": int(target.waits_for_node),
        "message": target.message,
        "attempts": target.attempts,
        "changed_at": target.changed_at,
    }


def target_of(row: Row[Any]) -> Target:
    return Target(
        operation_id=OperationId(row.operation_id),
        node_id=NodeId(row.node_id),
        node_name=row.node_name,
        subject=row.subject,
        status=TargetStatus(row.status),
        waits_for_node=bool(row.waits_for_node),
        message=row.message,
        attempts=row.attempts,
        changed_at=row.changed_at,
    )
