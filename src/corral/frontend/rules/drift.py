"""Finds what nodes do not have as it was asked for, by people or by fleet rules. Reads only."""

import asyncio
from typing import Final

from corral.base.ids import NodeId
from corral.frontend.backends.decide.drift import Drift, drift_of, missing_drift
from corral.frontend.backends.inventory import InventoryKeeper
from corral.frontend.nodes.decide.node import SeenNode
from corral.frontend.operations.decide.intent import IntentKind
from corral.frontend.operations.store.intents import Intents
from corral.frontend.rules.decide import FleetRule
from corral.frontend.rules.enforcer import RulePlace, RulePlaces
from corral.frontend.rules.store import FleetRuleStore

_BATCH: Final = 200
"""Nodes that are looked at without letting others take their turn."""


class DriftFinder:
    def __init__(self, rules: FleetRuleStore, places: RulePlaces, intents: Intents, inventory: InventoryKeeper) -> None:
        self._rules = rules
        self._places = places
        self._intents = intents
        self._inventory = inventory

    async def find(self) -> list[Drift]:
        """All of it, by the names of nodes and backends."""
        rules, nodes = await self._rules.all(), await self._places.nodes()
        drifts: list[Drift] = []
        for start in range(0, len(nodes), _BATCH):
            drifts += await self._of(nodes[start : start + _BATCH], rules)
            await asyncio.sleep(0)
        return sorted(drifts, key=lambda drift: (drift.seen.node.name, drift.seen.node.id, drift.backend))

    async def _of(self, nodes: list[SeenNode], rules: list[FleetRule]) -> list[Drift]:
        ids = [seen.node.id for seen in nodes]
        places = await self._places.of(rules, ids) if rules else []
        demanded = {place.spot: place.rule.name for place in places}
        reports = await self._inventory.known(ids)
        seen_by_id = {seen.node.id: seen for seen in nodes}
        drifts: dict[tuple[NodeId, str], Drift] = {}
        for intent in await self._intents.of_nodes(IntentKind.BACKEND, ids):
            rule = demanded.get((intent.node_id, intent.subject), "")
            drift = drift_of(intent, seen_by_id[intent.node_id], reports.get(intent.node_id), rule=rule)
            if drift is not None:
                drifts[intent.node_id, intent.subject] = drift
        for place in places:
            if place.is_missing and place.spot not in drifts:
                drifts[place.spot] = _missing(place)
        return list(drifts.values())


def _missing(place: RulePlace) -> Drift:
    return missing_drift(place.rule.name, place.key, place.seen, place.inventory)
