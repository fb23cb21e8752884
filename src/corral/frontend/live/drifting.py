"""Which backends are not as they were asked for: what was proven once, held against the nodes' latest reports."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from corral.base.ids import NodeId
from corral.frontend.backends.decide.backend import Inventory, Wish, prove, wish_of
from corral.frontend.live.decide.picture import DriftedBackend
from corral.frontend.nodes.decide.node import SeenNode
from corral.frontend.operations.decide.intent import Intent, Unproven, Verb
from corral.frontend.operations.decide.reasons import sentence


def drifted(
    satisfied: Iterable[Intent], nodes: Iterable[SeenNode], known: Mapping[NodeId, Inventory]
) -> list[DriftedBackend]:
    """In the order of the nodes' names, then of the backends'."""
    names = {seen.node.id: seen.node.name for seen in nodes}
    found = []
    for intent in satisfied:
        inventory = known.get(intent.node_id)
        if inventory is None or intent.node_id not in names:
            continue
        wish = _lasting(wish_of(intent))
        proof = prove(wish, inventory, None)
        if isinstance(proof, Unproven):
            drift = DriftedBackend(
                node_id=intent.node_id,
                node_name=names[intent.node_id],
                backend=intent.subject,
                wanted=_wanted(wish),
                has=_has(inventory, intent.subject),
                since=max(inventory.seen_at, intent.changed_at),
                why=sentence(proof.reason),
            )
            found.append(drift)
    return sorted(found, key=lambda drift: (drift.node_name, drift.backend))


def _lasting(wish: Wish) -> Wish:
    """What must hold for ever of what was asked for: that it was replaced then is of no interest any more."""
    verb = wish.verb if wish.verb is Verb.DELETE else Verb.INSTALL
    return replace(wish, verb=verb, artefact=replace(wish.artefact, renewal=""))


def _wanted(wish: Wish) -> str:
    if wish.verb is Verb.DELETE:
        return "absent"
    return next(iter(sorted(wish.artefact.digests)), "") or wish.artefact.version or "present"


def _has(inventory: Inventory, backend: str) -> str:
    entry = inventory.find(backend)
    return "absent" if entry is None else entry.digest or entry.version or "present"
