"""Replacing replicas during an upgrade without loss, and restoring what an upgrade ended."""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from corral.base.clock import Clock
from corral.base.errors import CorralError
from corral.base.ids import NodeId, ReplicaId
from corral.frontend.backends.catalogue import CatalogueSource
from corral.frontend.backends.decide.backend import Wish, traits_of, wish_of
from corral.frontend.models.catalogue import Models
from corral.frontend.models.decide.model import ModelSpec
from corral.frontend.nodes.decide.node import Node, NodeStatus
from corral.frontend.nodes.fleet import Fleet
from corral.frontend.nodes.store.nodes import Nodes
from corral.frontend.operations.decide.intent import Intent, IntentKind, Verb
from corral.frontend.operations.decide.reasons import Reason
from corral.frontend.operations.store.intents import Intents
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.feed import Feed
from corral.frontend.serving.decide.replica import Replica, ReplicaState
from corral.frontend.serving.decide.rollout import (
    Aftermath,
    Preparation,
    Restoration,
    Restore,
    Seen,
    before_removal,
    note,
    prepare,
    restore,
)
from corral.frontend.serving.gateway_reports import GatewayReports
from corral.frontend.serving.load_jobs import Loads
from corral.frontend.serving.replica_health import ReplicaHealth
from corral.frontend.serving.store.replicas import ReplicaStore, Restorations

log = logging.getLogger(__name__)

RESTORING_PERIOD: Final = timedelta(seconds=1)


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


REPLACED: Final = "its backend is replaced"
DELETED: Final = "its backend is deleted"
_HAD_SERVED: Final = frozenset({ReplicaState.LOADED, ReplicaState.UNLOADING})


class Rollout:
    def __init__(  # noqa: PLR0913 - each is a collaborator
        self,
        restorations: Restorations,
        replicas: ReplicaStore,
        fleet: Fleet,
        galleries: CatalogueSource,
        gateways: GatewayReports,
        health: ReplicaHealth,
        feed: Feed,
        clock: Clock,
    ) -> None:
        self._restorations = restorations
        self._replicas = replicas
        self._fleet = fleet
        self._galleries = galleries
        self._gateways = gateways
        self._health = health
        self._feed = feed
        self._clock = clock

    async def before_removal(self, model: str, node: Node) -> Reason | None:
        """Why the node may not delete a model's files yet; None when it may."""
        there = await self._replicas.on_node(node.id)
        return before_removal([one for one in there if one.model == model], self._clock.now())

    async def before(self, intent: Intent, node: Node) -> Reason | None:
        """Why the backend of an intent may not be replaced on a node yet; None when it may.

        By then each replica that ends with it is noted, and those that others can serve for are out of service.
        """
        mine = await self._ended_with(wish_of(intent), node)
        if not mine:
            return None
        now = self._clock.now()
        healthy = await self._healthy()

        def decide(replicas: Sequence[Replica], restorations: Sequence[Restoration]) -> Preparation:
            seen = Seen(replicas=replicas, restorations=restorations, healthy=healthy, busy=self._busy(replicas))
            return prepare({one.id for one in mine}, intent.subject, seen, now)

        models = sorted({one.model for one in mine})
        prepared = await self._restorations.prepare(models, decide, reason=REPLACED, at=now, tell=_unloading)
        if prepared.notes:
            self._feed.ring()  # restoring looks at them from now on
        if prepared.unload:
            shown = {"event": "rollout.draining", "node": node.id, "replicas": len(prepared.unload)}
            log.info("replicas make way for %s", intent.subject, extra=shown)
            await self._feed.announce()
        return prepared.hold

    async def after(self, intent: Intent, stopped: Sequence[str], *, is_corral: bool) -> None:
        """The node is done, or failed, and tells which processes ended for it; not all of them may have been foreseen,
        and not every worker tells them all."""
        if is_corral and not stopped:
            return
        try:
            await self._take_out(intent, frozenset(stopped))
        except CorralError as error:
            shown = {"event": "rollout.unstored", "node": intent.node_id}
            log.warning("processes that ended are looked at later: %s", error, extra=shown)
        self._health.poke.ring()

    async def _ended_with(self, wish: Wish, node: Node) -> list[Replica]:
        """Those on the node that the backend runs, whatever name their model calls it by."""
        there = await self._replicas.on_node(node.id)
        if all(_bare(one.backend) in wish.names for one in there):
            return there
        catalogue = await self._galleries.catalogue()
        capability = traits_of(node).effective_capability

        def runs(replica: Replica) -> bool:
            name = _bare(replica.backend)
            return name in wish.names or (catalogue is not None and catalogue.key_of(name, capability) == wish.key)

        return [one for one in there if runs(one)]

    async def _healthy(self) -> set[NodeId]:
        """Of the nodes that serve, or are about to serve again."""
        serving = {one.node_id for one in await self._replicas.living()}
        return await self._fleet.healthy(serving | {one.node_id for one in await self._restorations.all()})

    async def _take_out(self, intent: Intent, stopped: Collection[str]) -> None:
        there = await self._replicas.on_node(intent.node_id) if stopped else []
        ended = [one for one in there if one.process_key in stopped and one.state in _HAD_SERVED]
        if not ended:
            return
        if intent.verb is not Verb.DELETE:
            living, now = await self._replicas.living(), self._clock.now()
            await self._restorations.note([note(one, intent.subject, living, now) for one in ended])
        await self._health.lose(ended, DELETED if intent.verb is Verb.DELETE else REPLACED)

    def _busy(self, replicas: Iterable[Replica]) -> frozenset[ReplicaId]:
        """What a silent gateway has under way is not known."""
        under_way = self._gateways.in_flight()
        return frozenset(one.id for one in replicas if under_way[one.id] or self._gateways.silent())


def _bare(backend: str) -> str:
    return backend.rpartition("@")[2]


def _unloading(replica: Replica, at: datetime) -> Event:
    data = {"replica": replica.id, "model": replica.model, "why": REPLACED}
    return Event(kind=EventKind.REPLICA_UNLOADING, at=at, actor="control", node_id=replica.node_id, data=data)
