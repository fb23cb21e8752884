"""Builds the models' room: configurations of models, and their removal."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from corral.frontend.models import catalogue, removal
from corral.frontend.models.catalogue import Models
from corral.frontend.models.removal import ModelRemoval
from corral.frontend.models.store import ModelRemovals
from corral.frontend.nodes.room import NodesRoom
from corral.frontend.operations.room import OperationsRoom
from corral.frontend.record.room import Foundation, Loop, RecordRoom


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsRoom:
    catalogue: Models
    removal: ModelRemoval

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
        return cls(catalogue=models, removal=remover)

    def loops(self, record: RecordRoom) -> dict[str, Loop]:
        async def look() -> None:
            before = self.catalogue.catalogue
            await self.catalogue.look()
            if self.catalogue.catalogue is not before:
                record.feed.ring()  # what follows from a model's file looks at it at once

        return {
            "models": record.every(catalogue.PERIOD, self.catalogue.poke, look, "models"),
            "removals": record.follow(removal.PERIOD, record.when_new(self.removal.sweep), "removed models"),
        }
