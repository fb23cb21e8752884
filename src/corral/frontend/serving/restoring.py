"""Has loaded again what went with a replaced backend: on the same node, once that is done, whoever sent the request.

What is to be loaded again is in the database before anything ends, so a frontend that dies in between loses nothing.
"""

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from corral.base.clock import Clock
from corral.base.ids import NodeId
from corral.frontend.models.catalogue import Models
from corral.frontend.models.decide.model import ModelSpec
from corral.frontend.nodes.decide.node import Node, NodeStatus
from corral.frontend.nodes.fleet import Fleet
from corral.frontend.nodes.store.nodes import Nodes
from corral.frontend.operations.decide.intent import IntentKind
from corral.frontend.operations.store.intents import Intents
from corral.frontend.serving.decide.rollout import Aftermath, Restoration, Restore, restore
from corral.frontend.serving.load_jobs import Loads
from corral.frontend.serving.store.replicas import ReplicaStore
from corral.frontend.serving.store.restorations import Restorations

log = logging.getLogger(__name__)

PERIOD: Final = timedelta(seconds=1)


class Restoring:
    def __init__(  # noqa: PLR0913 - each is a collaborator
        self,
        restorations: Restorations,
        replicas: ReplicaStore,
        intents: Intents,
        nodes: Nodes,
        fleet: Fleet,
        models: Models,
        loads: Loads,
        clock: Clock,
    ) -> None:
        self._restorations = restorations
        self._replicas = replicas
        self._intents = intents
        self._nodes = nodes
        self._fleet = fleet
        self._models = models
        self._loads = loads
        self._clock = clock

    async def sweep(self) -> bool:
        """Look at all that is noted; whether there was anything."""
        noted = await self._restorations.all()
        if not noted:
            return False
        now = self._clock.now()
        done = []
        for one, seen in await self._seen(noted):
            match restore(one, seen, now):
                case Restore.FORGET:
                    done.append(one.replica_id)
                case Restore.LOAD if (spec := self._spec(one.model)) is not None:
                    shown = {"event": "replica.restoring", "model": one.model, "node": one.node_id}
                    log.info("a replica is loaded again", extra=shown)
                    await self._loads.restore(spec, one.node_id)
        if done:
            await self._restorations.forget(done)
        return True

    async def _seen(self, noted: list[Restoration]) -> list[tuple[Restoration, Aftermath]]:
        living, jobs = await self._replicas.living(), await self._loads.jobs()
        nodes = await self._nodes.load_many({one.node_id for one in noted})
        ids = frozenset(one.replica_id for one in noted)
        return [
            (
                one,
                Aftermath(
                    intent=await self._intents.get((one.node_id, IntentKind.BACKEND, one.backend)),
                    replicas=[replica for replica in living if replica.model == one.model],
                    noted=ids,
                    job=jobs.get(one.model),
                    has_model=self._may_exist(one.model),
                    node_is_there=one.node_id in nodes,
                    node_is_healthy=self._is_healthy(nodes, one.node_id),
                ),
            )
            for one in noted
        ]

    def _is_healthy(self, nodes: Mapping[NodeId, Node], node_id: NodeId) -> bool:
        return node_id in nodes and self._fleet.see(nodes[node_id]).status is NodeStatus.HEALTHY

    def _may_exist(self, model: str) -> bool:
        """Not deleted for certain: a file that cannot be read now may hold it."""
        return self._spec(model) is not None or not self._models.is_readable or self._models.catalogue.may_hide(model)

    def _spec(self, model: str) -> ModelSpec | None:
        spec = self._models.catalogue.models.get(model)
        return None if spec is None or spec.alias_of else spec
