"""Which backends are not as they were asked for: what was proven once, held against the nodes' latest reports."""

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from corral.base.ids import NodeId
from corral.frontend.backends.decide.backend import Inventory, Wish, prove, wish_of
from corral.frontend.live.decide.picture import DriftedBackend
from corral.frontend.nodes.decide.node import SeenNode
from corral.frontend.operations.decide.intent import Intent, IntentKind, Unproven, Verb
from corral.frontend.operations.decide.reasons import sentence
from corral.frontend.operations.store.intents import Intents


class ProvenBackends:
    """Backends that were proven once, by the intents that asked for them."""

    def __init__(self, intents: Intents) -> None:
        self._intents = intents

    async def drifted(
        self, nodes: Sequence[SeenNode], inventories: Mapping[NodeId, Inventory]
    ) -> Sequence[DriftedBackend]:
        """Return the proven backends that the nodes' last reports no longer show."""
        return drifted(await self._intents.satisfied(IntentKind.BACKEND), nodes, inventories)


def drifted(
    satisfied: Iterable[Intent], nodes: Iterable[SeenNode], inventories: Mapping[NodeId, Inventory]
) -> list[DriftedBackend]:
    """In the order of the nodes' names, then of the backends'."""
    names = {seen.node.id: seen.node.name for seen in nodes}
    backends = []
    for intent in satisfied:
        inventory = inventories.get(intent.node_id)
        if inventory is None or intent.node_id not in names or inventory.seen_at <= intent.changed_at:
            continue  # a report that is older than the proof says nothing
        wish = _lasting(wish_of(intent))
        proof = prove(wish, inventory, None)
        if isinstance(proof, Unproven):
            drift = DriftedBackend(
                node_id=intent.node_id,
                node_name=names[intent.node_id],
                backend=intent.subject,
                wanted=_wanted(wish),
                has=_has(inventory, intent.subject),
                since=None,
                why=sentence(proof.reason),
            )
            backends.append(drift)
    return sorted(backends, key=lambda drift: (drift.node_name, drift.backend))


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
