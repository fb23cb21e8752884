"""Builds the models' room: configurations of models, what galleries offer, and the removal of models."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from corral.frontend.backends.catalogue import Lookups
from corral.frontend.models import catalogue, offers, removal
from corral.frontend.models.catalogue import Models
from corral.frontend.models.changes import ModelChanges, ReplicaRevisions
from corral.frontend.models.measures import FileMeasures
from corral.frontend.models.offers import ModelOffers
from corral.frontend.models.removal import ModelRemoval
from corral.frontend.models.store.galleries import AddedGalleries
from corral.frontend.models.store.models import StoredModels
from corral.frontend.models.store.removals import ModelRemovals
from corral.frontend.models.store.stores import ModelStores
from corral.frontend.nodes.room import NodesRoom
from corral.frontend.operations.room import OperationsRoom
from corral.frontend.record.room import Foundation, Loop, RecordRoom


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsRoom:
    catalogue: Models
    changes: ModelChanges
    stores: ModelStores
    removal: ModelRemoval
    galleries: ModelOffers

    @classmethod
    async def build(  # noqa: PLR0913 - each is a collaborator
        cls,
        foundation: Foundation,
        record: RecordRoom,
        nodes: NodesRoom,
        operations: OperationsRoom,
        directory: Path,
        *,
        removals: ModelRemovals,
        is_served: Callable[[str], Awaitable[bool]],
        replicas: ReplicaRevisions,
        lookups: Lookups,
    ) -> Self:
        """Reads all models and hides the removed ones: the first view would otherwise take all models away from the
        gateways, or show what was removed."""
        models = Models(directory)
        models.scan()
        remover = ModelRemoval(
            removals,
            operations.service,
            operations.stores.operations,
            models,
            nodes.fleet,
            record.feed,
            foundation.clock,
            is_served=is_served,
        )
        await remover.sweep()
        operations.peers.on_changed_models.append(models.poke.ring)
        measures = FileMeasures(lookups.hub, foundation.clock)
        added = AddedGalleries(foundation.database)
        offered = ModelOffers(lookups.models, nodes.fleet, foundation.clock, added=added, measures=measures)
        changes = ModelChanges(StoredModels(foundation.database), record.feed, foundation.clock, replicas=replicas)
        stores = ModelStores(foundation.database)
        return cls(catalogue=models, removal=remover, changes=changes, stores=stores, galleries=offered)

    def loops(self, record: RecordRoom) -> dict[str, Loop]:
        async def look() -> None:
            before = self.catalogue.catalogue
            await self.catalogue.look()
            if self.catalogue.catalogue is not before:
                record.feed.ring()  # what follows from a model's file looks at it at once

        return {
            "models": record.every(catalogue.PERIOD, self.catalogue.poke, look, "models"),
            "model galleries": record.every(offers.PERIOD, self.galleries.poke, self.galleries.look, "galleries"),
            "removals": record.follow(removal.PERIOD, record.when_new(self.removal.sweep), "removed models"),
        }
