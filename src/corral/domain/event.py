"""What happened: the append-only record of who did what, with the state before and after, and why."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from corral.base.ids import NodeId


class EventKind(StrEnum):
    """Stable names; rendered into the reference."""

    NODE_REGISTERED = "node.registered"
    NODE_REREGISTERED = "node.reregistered"
    NODE_IMPERSONATION = "node.impersonation"
    NODE_APPROVED = "node.approved"
    NODE_DRAINING = "node.draining"
    NODE_RESUMED = "node.resumed"
    NODE_DEREGISTERED = "node.deregistered"
    NODE_REMOVED = "node.removed"
    NODE_STATUS = "node.status"
    NODE_LABELS = "node.labels"
    NODE_MAX_REPLICAS = "node.max_replicas"
    NODE_VRAM_BUDGET = "node.vram_budget"
    MODEL_LOADED = "model.loaded"
    MODEL_LOAD_FAILED = "model.load_failed"
    REPLICA_LOST = "replica.lost"
    KEY_CREATED = "key.created"
    KEY_REVOKED = "key.revoked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    kind: EventKind
    at: datetime
    actor: str
    """Who: the name of a key, `worker`, `control` or `auto-approve`."""
    node_id: NodeId | None = None
    data: Mapping[str, object] = field(default_factory=dict)
    """Plain JSON values: before, after, why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    """An event with its place in the order that every frontend agrees on."""

    sequence: int
    event: Event
