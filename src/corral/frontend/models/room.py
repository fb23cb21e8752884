"""Builds the models' room: configurations of models, what galleries offer, and the removal of models."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

from corral.frontend.backends.catalogue import Lookups
from corral.frontend.models import offers, removal, watch
from corral.frontend.models.catalogue import Models
from corral.frontend.models.changes import ModelChanges, ReplicaRevisions
from corral.frontend.models.measures import FileMeasures
from corral.frontend.models.offers import ModelOffers
from corral.frontend.models.removal import ModelRemoval
from corral.frontend.models.storage import pulls_under_way
from corral.frontend.models.store.galleries import AddedGalleries
from corral.frontend.models.store.models import StoredModels
from corral.frontend.models.store.removals import ModelRemovals
from corral.frontend.models.store.stores import ModelImports, ModelStores
from corral.frontend.models.watch import ModelsWatch
from corral.frontend.nodes.room import NodesRoom
from corral.frontend.operations.room import OperationsRoom
from corral.frontend.record.room import Foundation, Loop, RecordRoom


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsRoom:
    catalogue: Models
    watch: ModelsWatch
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
        store, stores = StoredModels(foundation.database), ModelStores(foundation.database)
        models = Models(directory, store)
        watcher = ModelsWatch(
            models,
            store,
            ModelImports(foundation.database),
            stores,
            removals,
            record.feed,
            foundation.clock,
            frontend_id=foundation.frontend_id,
        )
        await watcher.look()
        await models.refresh()
        remover = ModelRemoval(
            removals,
            operations.service,
            operations.stores.operations,
            models,
            watcher,
            nodes.fleet,
            record.feed,
            foundation.clock,
            is_served=is_served,
            pulls=partial(pulls_under_way, operations.stores.intents),
        )
        await remover.sweep()
        operations.peers.on_changed_models.append(models.poke.ring)
        measures = FileMeasures(lookups.hub, foundation.clock)
        added = AddedGalleries(foundation.database)
        offered = ModelOffers(lookups.models, nodes.fleet, foundation.clock, added=added, measures=measures)
        changes = ModelChanges(store, models.refresh, record.feed, foundation.clock, replicas=replicas)
        return cls(catalogue=models, watch=watcher, removal=remover, changes=changes, stores=stores, galleries=offered)

    def loops(self, record: RecordRoom) -> dict[str, Loop]:
        async def look() -> None:
            before = self.catalogue.catalogue
            await self.watch.look()
            if self.catalogue.catalogue is not before:
                record.feed.ring()  # what follows from a model's file looks at it at once

        async def refresh() -> bool:
            if await self.catalogue.refresh():
                record.feed.ring()
            return False

        return {
            "models": record.every(watch.PERIOD, self.catalogue.poke, look, "models"),
            "catalogue": record.follow(watch.PERIOD, record.when_new(refresh), "catalogue"),
            "model galleries": record.every(offers.PERIOD, self.galleries.poke, self.galleries.look, "galleries"),
            "removals": record.follow(removal.PERIOD, record.when_new(self.removal.sweep), "removed models"),
        }
