"""Builds the models' room: configurations, offers of galleries, removals; and `PullRoom`, which downloads models."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Self

import msgspec

from corral.frontend.backends.catalogue import Lookups
from corral.frontend.models import offers, removal, stores, watch
from corral.frontend.models.catalogue import Models
from corral.frontend.models.changes import ModelChanges, ReplicaRevisions
from corral.frontend.models.decide.pulling import PullPolicy
from corral.frontend.models.measures import FileMeasures
from corral.frontend.models.offers import ModelOffers
from corral.frontend.models.pull import DownloadTokens, ModelPulls, PullKind, PullPlanner, PullTools
from corral.frontend.models.pull_planning import ReferencePlanner
from corral.frontend.models.removal import ModelRemoval
from corral.frontend.models.storage import ModelStorage, pulls_under_way
from corral.frontend.models.store.galleries import AddedGalleries
from corral.frontend.models.store.models import ModelRemovals, StoredModels
from corral.frontend.models.store.stores import ModelImports, ModelStores
from corral.frontend.models.stores import StoreKeeper, place_of
from corral.frontend.models.watch import ModelsWatch
from corral.frontend.nodes.room import NodesRoom
from corral.frontend.operations.decide.intent import IntentKind
from corral.frontend.operations.room import OperationsRoom
from corral.frontend.record.room import Foundation, Loop, RecordRoom
from corral.hubs.access import HubAccess
from corral.hubs.plans import PlannedFile
from corral.oci.limits import Network


class ModelsRoom(msgspec.Struct, frozen=True, kw_only=True):
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


class NoTokens:
    """Credentials for downloads of a frontend that asks no hubs: there are none."""

    async def authorization(self, planned: PlannedFile) -> str:
        return ""

    def advice(self, planned: PlannedFile) -> str:
        return ""


class DownloadSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the process that downloads files is started with."""

    policy: PullPolicy
    network: Network
    may_redirect_inside: bool = False
    """Whether a public host may redirect downloads to the own network."""
    environment: Mapping[str, str]
    private: Path
    """Directory of the frontend's own secrets."""


class PullRoom(msgspec.Struct, frozen=True, kw_only=True):
    service: ModelPulls
    storage: ModelStorage
    stores: StoreKeeper
    operations: OperationsRoom

    @classmethod
    def build(
        cls,
        foundation: Foundation,
        operations: OperationsRoom,
        models: ModelsRoom,
        keeper: StoreKeeper,
        settings: DownloadSettings,
        *,
        hub: HubAccess | None,
    ) -> Self:
        stored = StoredModels(foundation.database)
        tools = PullTools(
            stores=keeper,
            models=stored,
            intents=operations.stores.intents,
            operations=operations.stores.operations,
            policy=settings.policy,
            may_redirect_inside=settings.may_redirect_inside,
            clock=foundation.clock,
        )
        tokens: DownloadTokens = NoTokens() if hub is None else hub
        planner: PullPlanner = ReferencePlanner(
            models.galleries, hub, directory=keeper.directory, private=settings.private
        )
        kind = PullKind(
            tools,
            models.changes,
            tokens,
            operations.progress,
            network=settings.network,
            environment=settings.environment,
        )
        operations.dispatcher.handle(IntentKind.PULL, kind)
        return cls(
            service=ModelPulls(tools, operations.service, planner),
            storage=ModelStorage(keeper, stored, operations.stores.intents),
            stores=keeper,
            operations=operations,
        )

    async def look(self) -> None:
        """Look at the stores. What waited for one that this frontend has now goes on at once."""
        before = self.stores.announced_id
        await self.stores.look()
        store = self.stores.own
        if store is not None and before != store.id:
            place = place_of(store.id)
            if await self.operations.stores.intents.wake([place], at=store.seen_at):
                self.operations.dispatcher.poke.ring()

    def loops(self, record: RecordRoom) -> dict[str, Loop]:
        return {"stores": record.every(stores.PERIOD, self.stores.poke, self.look, "stores")}
