"""Builds the backends' room: what is installed where, installing it, and upgrades."""

from typing import Self

import msgspec

from corral.bus.port import Handler
from corral.frontend.backends import inventory, upgrades
from corral.frontend.backends.catalogue import CatalogueSource, Lookups
from corral.frontend.backends.decide.upgrades import UpgradePolicy
from corral.frontend.backends.inventory import InventoryKeeper
from corral.frontend.backends.operations import BackendOperations, WishGuard
from corral.frontend.backends.policies import BackendPolicies
from corral.frontend.backends.store import BackendPolicyStore, Inventories, UpgradeChecks
from corral.frontend.backends.upgrades import Upgrades
from corral.frontend.nodes.room import NodesRoom
from corral.frontend.operations.room import OperationsRoom
from corral.frontend.record.feed import Feed
from corral.frontend.record.room import Foundation, Loop, RecordRoom
from corral.wire.subjects import INVENTORIES


class BackendsRoom(msgspec.Struct, frozen=True, kw_only=True):
    galleries: CatalogueSource
    inventory: InventoryKeeper
    operations: BackendOperations
    upgrades: Upgrades
    policies: BackendPolicies

    @classmethod
    def build(  # noqa: PLR0913 - what it is built on
        cls,
        foundation: Foundation,
        nodes: NodesRoom,
        operations: OperationsRoom,
        lookups: Lookups,
        *,
        guard: WishGuard,
        policy: UpgradePolicy,
        feed: Feed,
    ) -> Self:
        database, clock, fleet = foundation.database, foundation.clock, nodes.fleet
        keeper = InventoryKeeper(
            Inventories(database),
            operations.stores.intents,
            fleet,
            nodes.client,
            clock,
            dispatcher=operations.dispatcher.poke,
            feed=feed,
        )
        acts = BackendOperations(operations.service, fleet, keeper, lookups, clock, guard=guard)
        checks = UpgradeChecks(database)
        upgrader = Upgrades(checks, foundation.leader, fleet, keeper, lookups, acts, clock, policy=policy)
        operations.peers.on_changed_backends += (keeper.poke.ring, upgrader.ask)
        policies = BackendPolicies(BackendPolicyStore(database), feed, clock)
        return cls(galleries=lookups.galleries, inventory=keeper, operations=acts, upgrades=upgrader, policies=policies)

    def subscriptions(self) -> dict[str, Handler]:
        return {INVENTORIES: self.inventory.on_message}

    def loops(self, record: RecordRoom) -> dict[str, Loop]:
        keeper, upgrader = self.inventory, self.upgrades
        return {
            "upgrades": record.every(upgrades.PERIOD, upgrader.poke, upgrader.tick, "upgrades"),
            "inventory": record.every(inventory.PERIOD, keeper.poke, keeper.sweep, "inventory"),
            "reports": record.every(inventory.PERIOD, keeper.news, keeper.take_news, "reports"),
        }
