"""Where fleet rules hold: for each rule and node what is wanted there, and what the node said to have.

Nodes are looked at in batches, each with two statements whatever the number of rules. In a fleet that has all it shall
have, no intent is among what is read.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from corral.base.ids import NodeId
from corral.frontend.backends.decide.backend import Inventory, traits_of
from corral.frontend.backends.inventory import InventoryKeeper
from corral.frontend.backends.planning import CatalogueSource, NoCatalogue
from corral.frontend.nodes.decide.node import NodeStatus, NodeType, SeenNode
from corral.frontend.nodes.fleet import Fleet
from corral.frontend.operations.decide.intent import Intent, IntentKey, IntentKind
from corral.frontend.operations.decide.operation import TargetStatus
from corral.frontend.operations.store.intents import Intents
from corral.frontend.rules.decide import FleetRule, NameResolver, is_met, is_missing, may_have, standing

_BATCH: Final = 200
"""Nodes that are looked at without letting others take their turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RulePlace:
    """One backend on one node, because of one rule."""

    rule: FleetRule
    seen: SeenNode
    key: str
    intent: Intent | None
    """Not always read where the backend is there as wanted."""
    inventory: Inventory | None
    is_missing: bool
    """Whether the node has to be told."""

    @property
    def spot(self) -> tuple[NodeId, str]:
        return self.seen.node.id, self.key

    @property
    def intent_key(self) -> IntentKey:
        return self.seen.node.id, IntentKind.BACKEND, self.key

    @property
    def standing(self) -> TargetStatus:
        return standing(self.rule, self.key, self.intent, self.inventory)

    @property
    def may_have(self) -> bool:
        return may_have(self.key, self.intent, self.inventory)

    @property
    def generation(self) -> int:
        return 0 if self.intent is None else self.intent.generation


class RulePlaces:
    """Reads only."""

    def __init__(self, fleet: Fleet, inventory: InventoryKeeper, intents: Intents, galleries: CatalogueSource) -> None:
        self._fleet = fleet
        self._inventory = inventory
        self._intents = intents
        self._galleries = galleries

    async def of(self, rules: Sequence[FleetRule], ids: Iterable[NodeId] | None = None) -> list[RulePlace]:
        """On these nodes or all. What a rule means on a node is left out while galleries cannot tell."""
        nodes, names = await self.nodes(ids), await self.names()
        places: list[RulePlace] = []
        for start in range(0, len(nodes), _BATCH):
            places += await self._places(_demands(rules, nodes[start : start + _BATCH], names))
        return places

    async def _places(self, demands: Sequence["_Demand"]) -> list[RulePlace]:
        if not demands:
            return []
        ids = sorted({seen.node.id for _, seen, _ in demands})
        reports = await self._inventory.known(ids)
        met = [is_met(rule, key, reports.get(seen.node.id)) for rule, seen, key in demands]
        lacking = {seen.node.id for (_, seen, _), there in zip(demands, met, strict=True) if not there}
        backends = sorted({key for _, _, key in demands})
        found = await self._intents.unsettled(IntentKind.BACKEND, ids, backends, whole=sorted(lacking))
        intents = {(one.node_id, one.subject): one for one in found}
        places = []
        for (rule, seen, key), there in zip(demands, met, strict=True):
            intent, report = intents.get((seen.node.id, key)), reports.get(seen.node.id)
            # Most are there, and nothing else is wanted: that needs no second look.
            missing = not (there and intent is None) and is_missing(rule, key, intent, report)
            places.append(RulePlace(rule=rule, seen=seen, key=key, intent=intent, inventory=report, is_missing=missing))
        return places

    async def nodes(self, ids: Iterable[NodeId] | None = None) -> list[SeenNode]:
        """Those that may have backends: never pending or agent nodes."""
        found = await self._fleet.all() if ids is None else (await self._fleet.some(ids)).values()
        return [one for one in found if one.node.type is NodeType.BACKEND and one.status is not NodeStatus.PENDING]

    async def names(self) -> NameResolver:
        catalogue = await self._galleries.catalogue()
        if isinstance(self._galleries, NoCatalogue):
            return NameResolver(catalogue=None)  # nothing will ever be looked up here: names are what they are
        is_complete = catalogue is not None and all(one.entries for one in catalogue.galleries)
        return NameResolver(catalogue=catalogue, is_complete=is_complete)

    async def doubts(self, rules: Iterable[FleetRule]) -> dict[str, str]:
        """Rules that perhaps nobody can satisfy because nobody knows their backend, by name, and why."""
        nodes, names = await self.nodes(), await self.names()
        reports = await self.inventories(nodes)
        held = {entry.name for one in reports.values() for entry in one.entries}
        found = {rule.name: names.doubt(rule.artefact, held) for rule in rules}
        return {name: doubt for name, doubt in found.items() if doubt}

    async def inventories(self, nodes: Iterable[SeenNode]) -> Mapping[NodeId, Inventory]:
        return await self._inventory.known([one.node.id for one in nodes])


_Demand = tuple[FleetRule, SeenNode, str]


def _demands(rules: Sequence[FleetRule], nodes: Iterable[SeenNode], names: NameResolver) -> list[_Demand]:
    demands: list[_Demand] = []
    for seen in nodes:
        labels, capability = seen.node.labels.effective, traits_of(seen.node).effective_capability
        for rule in rules:
            if rule.applies_to(labels) and (key := names.key(rule.artefact, capability)) is not None:
                demands.append((rule, seen, key))
    return demands
