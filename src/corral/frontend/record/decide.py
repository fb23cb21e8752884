"""What happened: the append-only record of who did what, with the state before and after, and why."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Final

import msgspec

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
    """Alarm: an approved node came back as another type, or, without a secret, at or from another address; it is
    pending."""
    NODE_MOVED = "node.moved"
    """A node that proved who it is came back at another address; `before` and `after` have both."""
    NODE_CHANGED = "node.changed"
    """A node reports another name, other labels or other hardware, such as fewer GPUs or less memory; `before` and
    `after` have what differs."""
    NODE_EXPIRED = "node.expired"
    """A pending node that was silent since it registered is forgotten."""
    NODE_APPROVED = "node.approved"
    """A person admitted a pending node."""
    NODE_DRAINING = "node.draining"
    """A person, or the worker itself, asked for no new work."""
    NODE_DRAINED = "node.drained"
    """Nothing is left on a node that was to be emptied."""
    NODE_RESUMED = "node.resumed"
    """A drain ended."""
    NODE_DEREGISTERED = "node.deregistered"
    """The worker announced that it leaves."""
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
    NODE_CARDS = "node.cards"
    """A person took a GPU of a node out of service, or put it back; `before` and `after` list those that are out."""
    MODEL_LOADED = "model.loaded"
    """A replica of a model can answer."""
    MODEL_LOAD_FAILED = "model.load_failed"
    """A model could not be loaded; `why` says what happened."""
    MODEL_SCALING = "model.scaling"
    """A model gets one more replica, because of a rule or of its load; `why` says which."""
    MODEL_SHORT = "model.short"
    """A rule of scheduling cannot be satisfied now; `why` says what is in the way."""
    MODEL_CHANGED = "model.changed"
    """A model was added, edited, copied, pulled, rolled back, disabled, enabled or pinned, or is gone with its file;
    `change` says which, `number` is its place in the model's history."""
    MODEL_REMOVED = "model.removed"
    """A person removed a model from the fleet; `operation` tells what nodes do about it."""
    MODEL_ADDED_AGAIN = "model.added_again"
    """A model that was removed is there again; nodes are no longer asked to delete its files."""
    MODEL_FILES_DELETED = "model.files_deleted"
    """Files of a model that had been brought to a node were deleted there to make room; `bytes` says how much."""
    MODEL_GALLERY_ADDED = "model_gallery.added"
    """A person added a gallery of models."""
    MODEL_GALLERY_REMOVED = "model_gallery.removed"
    """A person removed a gallery of models that had been added."""
    REPLICA_LOST = "replica.lost"
    """A replica is gone that nobody ended on purpose; `why` says how, `errors` its last words if it had any."""
    REPLICA_UNLOADING = "replica.unloading"
    """A replica gets no more requests and will be ended; `why` says the reason."""
    REPLICA_EVICTED = "replica.evicted"
    """An idle replica gets no more requests and will be ended, to make room for the model that `for` names."""
    REPLICA_UNLOADED = "replica.unloaded"
    """A replica was ended as wanted, and its place is free."""
    PROCESS_ORPHANED = "process.orphaned"
    """A process that belongs to no replica and no load was asked to end."""
    OPERATION_STARTED = "operation.started"
    """A person or a fleet rule asked for a backend to be installed, upgraded or deleted, or a model to be pulled,
    staged or removed; `targets` counts the nodes."""
    OPERATION_CANCELLED = "operation.cancelled"
    """A person took an operation back, as far as that was still possible."""
    OPERATION_RETRIED = "operation.retried"
    """A person had failed targets of an operation tried again."""
    OPERATIONS_CLEARED = "operations.cleared"
    """A person removed the operations that are over from the history."""
    BACKEND_POLICY_CHANGED = "backend.policy_changed"
    """A person decided how a backend is confined; `before` and `after` say how, `why` the reason for none at all."""
    ENGINE_ADDED = "engine.added"
    """A person added an engine that somebody else runs."""
    ENGINE_CHANGED = "engine.changed"
    """A person changed an engine that somebody else runs; the values are the new ones."""
    ENGINE_REMOVED = "engine.removed"
    """A person removed an engine that somebody else runs; the engine itself was left alone."""
    FLEET_RULES_CHANGED = "fleet_rules.changed"
    """A person changed what the fleet shall have; `added`, `changed` and `removed` name the rules."""
    SCHEDULING_CHANGED = "scheduling.changed"
    """How many replicas models should have, or where, was changed; `added`, `changed` and `removed` name the models,
    `rules` says what holds now."""
    BRAKE_HELD = "brake.held"
    """Alarm: many nodes went silent together, or control could not hear; nothing is evicted or rescheduled."""
    BRAKE_RELEASED = "brake.released"
    """The brake holds no more; `why` says what it held for."""
    INVITATION_CREATED = "invitation.created"
    """A person made a join code; `uses`, `expires_at`, `labels` and `approve` say what it gives."""
    INVITATION_REVOKED = "invitation.revoked"
    """A person took a join code back; `uses` says how many machines came with it."""
    KEY_CREATED = "key.created"
    """A key was made."""
    KEY_REVOKED = "key.revoked"
    """A key was revoked."""
    USER_CREATED = "user.created"
    """A person added a user."""
    USER_CHANGED = "user.changed"
    """A user got another role or password, or was disabled or enabled; `before` and `after` say what,
    `revoked_keys` which keys ended by it."""
    USER_DELETED = "user.deleted"
    """A person deleted a user; `revoked_keys` are the keys that ended by it."""
    SESSION_OPENED = "session.opened"
    """Somebody signed in to the web page, with the key that `key` names, or else with a password; `user` and `source`
    say who and from where."""
    SESSION_ENDED = "session.ended"
    """A session of the web page ended before its time; `why` says whether somebody signed out, signed in again, had too
    many, or had it ended by the actor. Those that expire, or end with their key or user, have no event of their own."""
    LOGIN_REFUSED = "login.refused"
    """Somebody signed in or logged in with a wrong key or password, as `how` says; `user` is set if the name was right.
    At most 20 a minute are written by each frontend; `unwritten` counts those that were left out before this one."""
    SECRETS_KEY_CHANGING = "secrets_key.changing"
    """A person began to change the secrets key; all frontends take part."""
    SECRETS_KEY_CHANGED = "secrets_key.changed"
    """The secrets key before opens nothing any more; `sealed` says how many secrets the next one was put on last."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    kind: EventKind
    at: datetime
    actor: str
    """Who: the name of a key, `USER (KEY)` for a key of a user, `USER (session)` for one who signed in with a password,
    `worker`, `control`, `auto-approve`, `anonymous`, or a fleet rule."""
    node_id: NodeId | None = None
    data: Mapping[str, object] = msgspec.field(default_factory=dict)
    """Plain JSON values: before, after, why."""


_NAMING: Final = ("model", "operation", "backend", "name", "id", "replica", "gallery", "for")
"""Fields of an event's data that name what it is about."""
_LISTING: Final = ("added", "changed", "removed")
"""Fields that list such names."""
LONGEST_SUBJECT: Final = 200
_MOST_SUBJECTS: Final = 100


def subjects_of(event: Event) -> list[str]:
    """What an event is about, by which people look for it: names of models and backends, ids of operations."""
    texts: list[object] = [event.data.get(name) for name in _NAMING]
    for name in _LISTING:
        listed = event.data.get(name)
        texts += listed if isinstance(listed, list) else []
    subjects = dict.fromkeys(text[:LONGEST_SUBJECT] for text in texts if isinstance(text, str) and text)
    return list(subjects)[:_MOST_SUBJECTS]


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which events are meant; what is empty says nothing."""

    node: str = ""
    """The id of a node, or the beginning of one."""
    kinds: frozenset[EventKind] = frozenset()
    actor: str = ""
    """Who did it: a name, with all keys of a user."""
    subject: str = ""
    text: str = ""
    """Occurs in the kind, the actor or the data."""


class StoredEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event with its place in the order that every frontend agrees on."""

    sequence: int
    event: Event
