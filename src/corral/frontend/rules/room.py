"""Builds the rules' room: what the fleet shall have for ever, and the loop that brings it about."""

from functools import partial
from typing import Self

import msgspec

from corral.base.tasks import Poke
from corral.frontend.backends.room import BackendsRoom
from corral.frontend.nodes.room import NodesRoom
from corral.frontend.operations.room import OperationsRoom
from corral.frontend.record.room import Foundation, Loop, RecordRoom
from corral.frontend.rules.drift import DriftFinder
from corral.frontend.rules.enforcer import NOTICE_PERIOD, RuleEnforcer, RulePlaces
from corral.frontend.rules.service import FleetRules, RuleGuard
from corral.frontend.rules.store import FleetRuleStore


class RulesRoom(msgspec.Struct, frozen=True, kw_only=True):
    service: FleetRules
    enforcer: RuleEnforcer
    drift: DriftFinder
    reported: Poke
    """Rung when a node reported its inventory."""

    @classmethod
    def build(
        cls,
        foundation: Foundation,
        record: RecordRoom,
        nodes: NodesRoom,
        operations: OperationsRoom,
        backends: BackendsRoom,
        *,
        guard: RuleGuard,
    ) -> Self:
        rules, clock = FleetRuleStore(foundation.database), foundation.clock
        places = RulePlaces(nodes.fleet, backends.inventory, operations.stores.intents, backends.galleries)
        service, acts = operations.service, backends.operations
        enforcer = RuleEnforcer(rules, places, service, acts, record.events, foundation.leader, clock)
        return cls(
            service=FleetRules(rules, places, enforcer, service, acts, guard, clock),
            enforcer=enforcer,
            drift=DriftFinder(rules, places, operations.stores.intents, backends.inventory),
            reported=backends.inventory.reported,
        )

    def loops(self, record: RecordRoom) -> dict[str, Loop]:
        return {
            "fleet rules": partial(self.enforcer.run, self.reported),
            "noticed by fleet rules": record.follow(NOTICE_PERIOD, self.enforcer.notice, "noticed by fleet rules"),
        }
