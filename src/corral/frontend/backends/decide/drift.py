"""Drift: what nodes do not have as it was asked for. Pure.

| intent of the backend            | the node's last report                | drift                                    |
|----------------------------------|---------------------------------------|------------------------------------------|
| satisfied                        | shows it, or is older than the proof  | none                                     |
| satisfied                        | shows something else                  | `changed`: somebody else has changed it  |
| blocked                          | any                                   | `blocked`                                |
| open, and the last attempt failed| any                                   | `failing`: tried again by itself         |
| open, and waits for its node     | any                                   | `waiting`                                |
| open, otherwise                  | any                                   | none: it is under way                    |
| none or cancelled                | lacks what a fleet rule demands       | `missing`: the rule asks for it by itself|
"""

from datetime import datetime
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from corral.frontend.backends.decide.backend import BackendEntry, Inventory, Wish, prove, wish_of
from corral.frontend.nodes.decide.node import SeenNode
from corral.frontend.operations.decide.intent import Intent, IntentState, Unproven, Verb
from corral.frontend.operations.decide.operation import TargetStatus, status_of
from corral.frontend.operations.decide.reasons import ReasonCode, sentence
from corral.galleries.build_uris import BackendRef
from corral.wire.go_json import parse_time

_DIGITS = len("sha256:") + 12
NOT_INSTALLED = "not installed"
_WAITS = "it waits for the node to come back"


class DriftKind(StrEnum):
    """Why something is not as it was asked for; `wire/state_words.py` has the words for people."""

    CHANGED = "changed"
    BLOCKED = "blocked"
    FAILING = "failing"
    WAITING = "waiting"
    MISSING = "missing"


class BackendFix(msgspec.Struct, frozen=True, kw_only=True):
    """The operation that would make a backend on its node what was asked for."""

    verb: Verb
    ref: BackendRef
    force: bool = False


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """A backend on one node that is not as it was asked for."""

    kind: DriftKind
    seen: SeenNode
    backend: str
    """The canonical name on the node."""
    wanted: str
    has: str
    since: datetime | None
    """None where nobody knows: a backend that is gone leaves no date."""
    why: str
    rule: str = ""
    """The fleet rule that demands it."""
    operation_id: str = ""
    """The operation that asked for it."""
    fix: BackendFix | None = None


def drift_of(intent: Intent, seen: SeenNode, inventory: Inventory | None, *, rule: str = "") -> Drift | None:
    """How what an intent of the kind `backend` wanted differs from what its node has; None when it does not. `rule` is
    the fleet rule that demands the backend there."""
    drift = _drift(intent, seen, inventory)
    return None if drift is None else replace(drift, rule=rule)


def _drift(intent: Intent, seen: SeenNode, inventory: Inventory | None) -> Drift | None:
    match intent.state:
        case IntentState.CANCELLED:
            return None
        case IntentState.SATISFIED:
            return _changed(intent, seen, inventory)
        case IntentState.BLOCKED:
            return _unreached(DriftKind.BLOCKED, intent, seen, inventory)
        case IntentState.OPEN if intent.waits_for_node:
            drift = _unreached(DriftKind.WAITING, intent, seen, inventory)
            return replace(drift, why=f"{_WAITS}; last: {drift.why}" if drift.why else _WAITS)
        case IntentState.OPEN if status_of(intent) is TargetStatus.ERROR:
            return _unreached(DriftKind.FAILING, intent, seen, inventory)
        case IntentState.OPEN:
            return None


def missing_drift(rule: str, backend: str, seen: SeenNode, inventory: Inventory | None) -> Drift:
    """A backend that a fleet rule demands, and that nobody has asked the node for yet."""
    entry = None if inventory is None else inventory.find(backend)
    return Drift(
        kind=DriftKind.MISSING,
        seen=seen,
        backend=backend,
        wanted="installed",
        has=has_text(entry, inventory),
        since=None,
        why="a fleet rule demands it, and has it installed by itself",
        rule=rule,
    )


def _changed(intent: Intent, seen: SeenNode, inventory: Inventory | None) -> Drift | None:
    """What was proven once and does not hold any more. A report that is older than the proof says nothing."""
    if inventory is None or inventory.seen_at <= intent.changed_at:
        return None
    wish = _lasting(wish_of(intent))
    proof = prove(wish, inventory, None)
    if not isinstance(proof, Unproven):
        return None
    entry = inventory.find(wish.key) or next(iter(inventory.among(wish.names)), None)
    return Drift(
        kind=DriftKind.CHANGED,
        seen=seen,
        backend=wish.key,
        wanted=wanted_text(wish),
        has=has_text(entry, inventory),
        since=_dated(entry, intent),
        why=_why(proof),
        operation_id=intent.operation_id,
        fix=_fix(wish, entry),
    )


def _unreached(kind: DriftKind, intent: Intent, seen: SeenNode, inventory: Inventory | None) -> Drift:
    wish = wish_of(intent)
    entry = None if inventory is None else inventory.find(wish.key)
    return Drift(
        kind=kind,
        seen=seen,
        backend=wish.key,
        wanted=wanted_text(wish),
        has=has_text(entry, inventory),
        since=intent.changed_at,
        why=sentence(intent.reason),
        operation_id=intent.operation_id,
    )


def _lasting(wish: Wish) -> Wish:
    """What holds for ever of what was asked for: that something was replaced then is of no interest any more."""
    verb = Verb.DELETE if wish.verb is Verb.DELETE else Verb.INSTALL
    return replace(wish, verb=verb, artefact=replace(wish.artefact, renewal=""))


def _why(proof: Unproven) -> str:
    missing = "it was there, and the node does not report it any more"
    again = "it was deleted, and the node reports it again"
    words = {ReasonCode.BACKEND_MISSING: missing, ReasonCode.BACKEND_LEFT: again}
    return words.get(proof.reason.code) or sentence(proof.reason)


def _dated(entry: BackendEntry | None, intent: Intent) -> datetime | None:
    """When the node got what it has, in its own words; a date before the proof is of another clock."""
    if entry is None or not entry.installed_at:
        return None
    try:
        at = parse_time(entry.installed_at)
    except ValueError:
        return None
    return at if at > intent.changed_at else None


def _fix(wish: Wish, entry: BackendEntry | None) -> BackendFix | None:
    if entry is not None and entry.is_system:
        return None
    artefact = wish.artefact
    if wish.verb is Verb.DELETE:
        return BackendFix(verb=Verb.DELETE, ref=BackendRef(backend=wish.key))
    ref = BackendRef(backend=artefact.backend, uri=artefact.uri, name=artefact.name, alias=artefact.alias)
    return BackendFix(verb=Verb.INSTALL, ref=ref, force=entry is not None)


def wanted_text(wish: Wish) -> str:
    """What was asked for, in a few words."""
    if wish.verb is Verb.DELETE:
        return NOT_INSTALLED
    artefact = wish.artefact
    digest = f"digest {min(artefact.digests)[:_DIGITS]}" if artefact.digests else ""
    return _described(artefact.version, digest, artefact.uri)


def has_text(entry: BackendEntry | None, inventory: Inventory | None) -> str:
    """What the node says to have, in a few words."""
    if inventory is None:
        return "not known"
    if entry is None:
        return NOT_INSTALLED
    digest = f"digest {entry.digest[:_DIGITS]}" if entry.digest else ""
    return _described(entry.version, digest, entry.uri)


def _described(version: str, digest: str, uri: str) -> str:
    words = (f"version {version}" if version else "", digest, f"from {uri}" if uri else "")
    return ", ".join(filter(None, words)) or "installed"
