"""Plain examples of domain objects; a test names only what it is about."""

import itertools
from datetime import datetime, timedelta
from typing import Any, Final

from corral.base.ids import KeyId, NodeId
from corral.domain.event import Event, EventKind
from corral.domain.key import ApiKey, Scope
from corral.domain.node import Node, NodeFacts
from corral.testing.clock import START

_numbers: Final = itertools.count(1)


def a_node(**fields: Any) -> Node:
    """An approved node. Names of facts may be given as well."""
    number = next(_numbers)
    facts = {name: fields.pop(name) for name in NodeFacts.__slots__ if name in fields}
    at = fields.setdefault("created_at", START)
    return Node(
        **{
            "id": NodeId(f"node-{number:06}"),
            "name": f"worker-{number:06}",
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


def an_event(kind: EventKind = EventKind.NODE_STATUS, **fields: Any) -> Event:
    return Event(kind=kind, **{"at": START, "actor": "control", **fields})


def after(seconds: float) -> datetime:
    """So long after the time at which the clock of tests starts."""
    return START + timedelta(seconds=seconds)
