"""Builds what pulls models: the stores, the service that accepts pulls, the kind of intents, and what is in a store."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from corral.frontend.models import stores
from corral.frontend.models.decide.pulling import PullPolicy
from corral.frontend.models.pull import DownloadTokens, ModelPulls, PullKind, PullPlanner, PullTools
from corral.frontend.models.pull_planning import ReferencePlanner
from corral.frontend.models.room import ModelsRoom
from corral.frontend.models.storage import ModelStorage
from corral.frontend.models.store.models import StoredModels
from corral.frontend.models.stores import StoreKeeper, place_of
from corral.frontend.operations.decide.intent import IntentKind
from corral.frontend.operations.room import OperationsRoom
from corral.frontend.record.room import Foundation, Loop, RecordRoom
from corral.hubs.access import HubAccess
from corral.hubs.plans import PlannedFile
from corral.oci.limits import Network


class NoTokens:
    """Where no hubs are asked."""

    async def authorization(self, planned: PlannedFile) -> str:
        return ""

    def advice(self, planned: PlannedFile) -> str:
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadSettings:
    """How downloads are started."""

    policy: PullPolicy
    network: Network
    may_redirect_inside: bool = False
    """Whether a public host may redirect downloads to the own network."""
    environment: Mapping[str, str]
    private: Path
    """Directory of the frontend's own secrets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRoom:
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
        before = self.stores.told
        await self.stores.look()
        own = self.stores.own
        if own is not None and before != own.id:
            place = place_of(own.id)
            if await self.operations.stores.intents.wake([place], at=own.seen_at):
                self.operations.dispatcher.poke.ring()

    def loops(self, record: RecordRoom) -> dict[str, Loop]:
        return {"stores": record.every(stores.PERIOD, self.stores.poke, self.look, "stores")}
