"""Builds the room of engines that somebody else runs, and names the loop that looks at them."""

from collections.abc import Collection
from typing import Self

import msgspec

from corral.frontend.engines import watch
from corral.frontend.engines.addresses import EngineAddresses, Places
from corral.frontend.engines.service import ExternalEngines
from corral.frontend.engines.store import ExternalEngineStore
from corral.frontend.engines.watch import EngineLooks, EngineWatch
from corral.frontend.models.room import ModelsRoom
from corral.frontend.record.room import Foundation, Loop, RecordRoom


class EnginesRoom(msgspec.Struct, frozen=True, kw_only=True):
    service: ExternalEngines
    watch: EngineWatch

    @classmethod
    def build(
        cls,
        foundation: Foundation,
        record: RecordRoom,
        models: ModelsRoom,
        *,
        fleet: Places,
        own_ports: Collection[int],
    ) -> Self:
        """`fleet` tells the hosts and ports of nodes and replicas, `own_ports` those that this frontend listens on."""
        addresses = EngineAddresses(fleet, foundation.clock, own_ports=own_ports)

        def alias_target(name: str) -> str:
            spec = models.catalogue.catalogue.models.get(name)
            return "" if spec is None else spec.alias_of

        store = ExternalEngineStore(foundation.database, foundation.secrets)
        service = ExternalEngines(store, addresses, record.feed, foundation.clock, alias_target=alias_target)
        looks = EngineLooks(addresses)
        return cls(service=service, watch=EngineWatch(service, looks, record.feed, foundation.clock))

    def loops(self, record: RecordRoom) -> dict[str, Loop]:
        return {"engines": record.every(watch.PERIOD, self.service.poke, self.watch.sweep, "engines")}
