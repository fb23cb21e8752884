"""Plain examples of domain objects; a test names only what it is about."""

import itertools
from datetime import datetime, timedelta
from typing import Any, Final

from corral.base.ids import KeyId, LoadJobId, NodeId, OperationId, ReplicaId
from corral.frontend.backends.decide.backend import Artefact, payload_of
from corral.frontend.nodes.decide.node import Node, NodeFacts
from corral.frontend.operations.decide.intent import Intent, Verb
from corral.frontend.operations.decide.operation import Operation, Target
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.serving.decide.load_job import LoadJob, LoadState
from corral.frontend.serving.decide.replica import Replica, ReplicaState
from corral.wire.keys import ApiKey, Scope
from tests.kit.clock import START

_numbers: Final = itertools.count(1)
_ARTEFACT: Final = Artefact(
    backend="echo", galleries='[{"url":"u"}]', uri="oci://a", name="n", alias="x", digests=frozenset({"d"}), renewal="r"
)


def a_node(**fields: Any) -> Node:
    """An approved node. Names of facts may be given as well."""
    number = next(_numbers)
    facts = {name: fields.pop(name) for name in NodeFacts.__struct_fields__ if name in fields}
    at = fields.setdefault("created_at", START)
    return Node(
        **{
            "id": NodeId(f"node-{number:06}"),
            "name": f"worker-{number:06}",
            "registered_at": at,
            "updated_at": at,
            "facts": NodeFacts(**{"approved_at": at, "approved_by": "admin", "last_heartbeat": at, **facts}),
            **fields,
        }
    )


def a_key(**fields: Any) -> ApiKey:
    number = next(_numbers)
    return ApiKey(
        **{
            "id": KeyId(f"key-{number:06}"),
            "name": "alice",
            "hash": f"hash-{number:06}",
            "scopes": frozenset({Scope.INFERENCE}),
            "created_at": START,
            "created_by": "admin",
            **fields,
        }
    )


def a_replica(**fields: Any) -> Replica:
    """Return a loaded replica."""
    number = next(_numbers)
    return Replica(
        **{
            "id": ReplicaId(f"replica-{number:06}"),
            "node_id": NodeId("node-of-nobody"),
            "model": "small",
            "index": 0,
            "revision": "r1",
            "backend": "echo",
            "state": ReplicaState.LOADED,
            "created_at": START,
            "changed_at": START,
            **fields,
        }
    )


def a_load_job(**fields: Any) -> LoadJob:
    number = next(_numbers)
    return LoadJob(
        **{
            "id": LoadJobId(f"job-{number:06}"),
            "model": "small",
            "revision": "r1",
            "state": LoadState.PENDING,
            "retry_at": START,
            "created_at": START,
            "changed_at": START,
            **fields,
        }
    )


def an_operation(id: str, *nodes: str, verb: Verb = Verb.INSTALL, key: str = "") -> tuple[Operation, list[Intent]]:
    """An operation that `alice` asked for, on these nodes, with what it wants of each."""
    targets = tuple(
        Target(operation_id=OperationId(id), node_id=NodeId(node), node_name=node, subject="echo", changed_at=after(0))
        for node in nodes
    )
    operation = Operation(
        id=OperationId(id),
        verb=verb,
        subject="g@echo",
        payload=payload_of(_ARTEFACT),
        asked_by="alice",
        accepted_at=after(0),
        idempotency_key=key,
        targets=targets,
    )
    wishes = [
        Intent(
            node_id=NodeId(node),
            verb=verb,
            subject="echo",
            payload=payload_of(_ARTEFACT),
            operation_id=operation.id,
            accepted_at=after(0),
            changed_at=after(0),
            next_try=after(0),
        )
        for node in nodes
    ]
    return operation, wishes


def an_event(kind: EventKind = EventKind.NODE_STATUS, **fields: Any) -> Event:
    return Event(kind=kind, **{"at": START, "actor": "control", **fields})


def after(seconds: float) -> datetime:
    """So long after the time at which the clock of tests starts."""
    return START + timedelta(seconds=seconds)
