"""What happened: the append-only record of who did what, with the state before and after, and why."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from corral.base.ids import NodeId


class EventKind(StrEnum):
    """Stable names; rendered into the reference."""

    NODE_REGISTERED = "node.registered"
    """A worker joined that nobody knew; it is pending unless something approved it."""
    NODE_REREGISTERED = "node.reregistered"
    """A known worker came back with a new process."""
    NODE_IMPERSONATION = "node.impersonation"
    """Alarm: a worker without the secret used the name of a node that has one."""
    NODE_SUSPECTED = "node.suspected"
    """Alarm: an approved node came back as another type, or without a secret at another address; it is pending."""
    NODE_EXPIRED = "node.expired"
    """A pending node that was silent since it registered is forgotten."""
    NODE_APPROVED = "node.approved"
    """A person admitted a pending node."""
    NODE_DRAINING = "node.draining"
    """A person, or the worker itself, asked for no new work."""
    NODE_RESUMED = "node.resumed"
    """A drain ended."""
    NODE_DEREGISTERED = "node.deregistered"
    """The worker said good-bye."""
    NODE_REMOVED = "node.removed"
    """A person made the fleet forget the node."""
    NODE_STATUS = "node.status"
    """The computed status changed; `before`, `after` and `why` say how."""
    NODE_LABELS = "node.labels"
    """A person changed labels."""
    NODE_MAX_REPLICAS = "node.max_replicas"
    """A person set or took back the limit of replicas per model."""
    NODE_VRAM_BUDGET = "node.vram_budget"
    """A person set or took back the video memory budget."""
    MODEL_LOADED = "model.loaded"
    """A replica of a model can answer."""
    MODEL_LOAD_FAILED = "model.load_failed"
    """A model could not be loaded; `why` says what happened."""
    MODEL_CHANGED = "model.changed"
    """A model was added, edited, copied, pulled, rolled back, disabled, enabled or pinned, or is gone with its file;
    `change` says which, `number` is its place in the model's history."""
    MODEL_REMOVED = "model.removed"
    """A person removed a model from the fleet; `operation` tells what nodes do about it."""
    MODEL_ADDED_AGAIN = "model.added_again"
    """A model that was removed is there again; nodes are no longer asked to delete its files."""
    MODEL_GALLERY_ADDED = "model_gallery.added"
    """A person added a gallery of models."""
    MODEL_GALLERY_REMOVED = "model_gallery.removed"
    """A person removed a gallery of models that had been added."""
    REPLICA_LOST = "replica.lost"
    """A replica is gone that nobody ended on purpose; `why` says how, `errors` its last words if it had any."""
    REPLICA_UNLOADING = "replica.unloading"
    """A replica gets no more requests and will be ended; `why` says the reason."""
    REPLICA_UNLOADED = "replica.unloaded"
    """A replica was ended as wanted, and its place is free."""
    PROCESS_ORPHANED = "process.orphaned"
    """A process that no replica and no load explains was told to end."""
    OPERATION_STARTED = "operation.started"
    """A person or a fleet rule asked for a backend to be installed, upgraded or deleted, or a model to be removed;
    `targets` counts the nodes."""
    OPERATION_CANCELLED = "operation.cancelled"
    """A person took an operation back, as far as that was still possible."""
    OPERATION_RETRIED = "operation.retried"
    """A person had failed targets of an operation tried again."""
    OPERATIONS_CLEARED = "operations.cleared"
    """A person removed the operations that are over from the history."""
    FLEET_RULES_CHANGED = "fleet_rules.changed"
    """A person changed what the fleet shall have; `added`, `changed` and `removed` name the rules."""
    BRAKE_HELD = "brake.held"
    """Alarm: many nodes went silent together, or control could not hear; nothing is evicted or rescheduled."""
    BRAKE_RELEASED = "brake.released"
    """The brake holds no more; `why` says what it held for."""
    KEY_CREATED = "key.created"
    """A key was made."""
    KEY_REVOKED = "key.revoked"
    """A key was revoked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    kind: EventKind
    at: datetime
    actor: str
    """Who: the name of a key, `worker`, `control`, `auto-approve`, or a fleet rule."""
    node_id: NodeId | None = None
    data: Mapping[str, object] = field(default_factory=dict)
    """Plain JSON values: before, after, why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    """An event with its place in the order that every frontend agrees on."""

    sequence: int
    event: Event
