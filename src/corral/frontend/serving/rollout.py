"""Replacing replicas during an upgrade without loss, and restoring what an upgrade ended."""

import logging
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Final

from corral.base.clock import Clock
from corral.base.errors import CorralError
from corral.base.ids import NodeId
from corral.base.queues import Batches
from corral.frontend.backends.catalogue import CatalogueSource
from corral.frontend.backends.decide.backend import Wish, traits_of, wish_of
from corral.frontend.models.catalogue import Models
from corral.frontend.nodes.decide.node import Node, NodeStatus
from corral.frontend.nodes.fleet import Fleet
from corral.frontend.nodes.store.nodes import Nodes
from corral.frontend.operations.decide.intent import Intent, IntentKind, Verb
from corral.frontend.operations.decide.reasons import Reason, ReasonCode, because
from corral.frontend.operations.store.intents import Intents
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.feed import Feed
from corral.frontend.serving.decide.load_job import LoadPolicy
from corral.frontend.serving.decide.replica import FINAL, SERVING, Replica
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
from corral.frontend.serving.gateways.reports import GatewayReports
from corral.frontend.serving.loading.load_jobs import Loads
from corral.frontend.serving.replica_health import ReplicaHealth
from corral.frontend.serving.store.replicas import ReplicaStore, Restorations
from corral.galleries.catalogue import BackendCatalogue

log = logging.getLogger(__name__)

RESTORING_PERIOD: Final = timedelta(seconds=1)


class Restoring:
    """Loads again what an upgrade ended."""

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
        living, jobs, now = await self._replicas.living(), await self._loads.furthest_jobs(), self._clock.now()
        nodes = await self._nodes.load_many({restoration.node_id for restoration in noted})
        healthy = {id for id, node in nodes.items() if self._fleet.see(node).status is NodeStatus.HEALTHY}
        done = []
        for restoration in noted:
            model, node_id = restoration.model, restoration.node_id
            spec = self._models.catalogue.models.get(model)
            is_model = spec is not None and not spec.alias_of
            seen = Aftermath(
                intent=await self._intents.get((node_id, IntentKind.BACKEND, restoration.backend)),
                replicas=[replica for replica in living if replica.model == model],
                noted=frozenset(other.replica_id for other in noted),
                job=jobs.get(model),
                # A file that cannot be read now may hold a model that is not found.
                has_model=is_model or not self._models.is_readable or self._models.catalogue.may_hide(model),
                node_is_there=node_id in nodes,
                node_is_healthy=node_id in healthy,
            )
            match restore(restoration, seen, now):
                case Restore.FORGET:
                    done.append(restoration.replica_id)
                case Restore.LOAD if spec is not None and is_model:
                    details = {"event": "replica.restoring", "model": model, "node": node_id}
                    log.info("a replica is loaded again", extra=details)
                    await self._loads.restore(spec, node_id)
        if done:
            await self._restorations.forget(done)
        return True


INSTALLS_END_WITHIN: Final = 2 * LoadPolicy().install
"""After the end of a load, its install takes no effect later than this, as with the requests of operations."""
REPLACED: Final = "its backend is replaced"
DELETED: Final = "its backend is deleted"


class Rollout:
    """Takes replicas out of the way of a request that ends their processes, and notes them for `Restoring`."""

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
        self._asked: Batches[NodeId, list[Replica]] = Batches(self._read_asked, spacing_seconds=0)

    async def before_removal(self, model: str, node: Node) -> Reason | None:
        """Why the node may not delete a model's files yet; None when it may."""
        on_node = await self._replicas.on_node(node.id)
        return before_removal([replica for replica in on_node if replica.model == model], self._clock.now())

    async def installing(self, intent: Intent) -> Reason | None:
        """Why the node may still install the backend of an intent: a load asked for it and has no answer."""
        loads = await self._installed_for(intent)
        return because(ReasonCode.BEING_LOADED, model=loads[0].model) if loads else None

    async def _installed_for(self, intent: Intent) -> list[Replica]:
        """The replicas for which the present worker of the node was asked to install the backend of an intent, and has
        not answered. A load may be over before its answer comes, and the worker goes on."""
        asked = await self._asked.store(intent.node_id)
        seen = (await self._fleet.some([intent.node_id])).get(intent.node_id) if asked else None
        if seen is None:
            return []
        catalogue, life = await self._galleries.catalogue(), seen.node.facts.incarnation
        same_life = [replica for replica in asked if replica.asked_life == life]
        return [replica for replica in same_life if _runs(wish_of(intent), replica, seen.node, catalogue)]

    async def _read_asked(self, node_ids: Sequence[NodeId]) -> Sequence[list[Replica]]:
        """One read for all that ask at a time: a delete on a thousand nodes asks a thousand times."""
        by_node: dict[NodeId, list[Replica]] = {}
        for replica in await self._replicas.asked(ended_after=self._clock.now() - INSTALLS_END_WITHIN):
            by_node.setdefault(replica.node_id, []).append(replica)
        return [by_node.get(node_id, []) for node_id in node_ids]

    async def before(self, intent: Intent, node: Node) -> Reason | None:
        """Why the backend of an intent may not be replaced on a node yet; None when it may.

        By then each replica that ends with it is noted, and those that others can serve for are out of service.
        """
        affected = await self._ended_with(wish_of(intent), node)
        if not affected:
            return None
        now = self._clock.now()
        # Nodes that serve, or are about to serve again.
        serving = {replica.node_id for replica in await self._replicas.living()}
        healthy = await self._fleet.healthy(serving | {noted.node_id for noted in await self._restorations.all()})

        def decide(replicas: Sequence[Replica], restorations: Sequence[Restoration]) -> Preparation:
            under_way, silent = self._gateways.in_flight(), self._gateways.silent()
            # What a silent gateway has under way is not known.
            busy = frozenset(replica.id for replica in replicas if under_way[replica.id] or silent)
            seen = Seen(replicas=replicas, restorations=restorations, healthy=healthy, busy=busy)
            return prepare({replica.id for replica in affected}, intent.subject, seen, now)

        def tell(replica: Replica, at: datetime) -> Event:
            data = {"replica": replica.id, "model": replica.model, "why": REPLACED}
            return Event(kind=EventKind.REPLICA_UNLOADING, at=at, actor="control", node_id=replica.node_id, data=data)

        models = sorted({replica.model for replica in affected})
        prepared = await self._restorations.prepare(models, decide, reason=REPLACED, at=now, tell=tell)
        if prepared.notes:
            self._feed.ring()  # restoring looks at them from now on
        if prepared.unload:
            details = {"event": "rollout.draining", "node": node.id, "replicas": len(prepared.unload)}
            log.info("replicas make way for %s", intent.subject, extra=details)
            await self._feed.announce()
        return prepared.hold

    async def after(self, intent: Intent, stopped: Sequence[str], *, is_corral: bool) -> None:
        """Called when a node has answered, with the processes that ended for it: `before` need not have foreseen all of
        them, and not every worker tells them all."""
        try:
            was_there = intent.before is not None and intent.before.present
            if intent.verb is Verb.DELETE and (is_corral or was_there):
                await self._note_answers(intent)
            if is_corral and not stopped:
                return
            await self._take_out(intent, frozenset(stopped))
        except CorralError as error:
            details = {"event": "rollout.unstored", "node": intent.node_id}
            log.warning("processes that ended are looked at later: %s", error, extra=details)
        self._health.poke.ring()

    async def _note_answers(self, intent: Intent) -> None:
        """Note that installs for loads have ended: a Corral worker that answers a delete has finished what it was sent
        before, and what another one already had when it was asked is not installed later. A load that is not over may
        be about to send its install, and notes the answer to that itself."""
        ended = [replica.id for replica in await self._installed_for(intent) if replica.state in FINAL]
        if ended:
            await self._replicas.answered(ended)

    async def ending(self, wishes: Sequence[tuple[Node, Wish]]) -> list[tuple[Node, Replica]]:
        """The replicas that would end if these wishes were fulfilled, each with its node."""
        by_node: dict[NodeId, list[Replica]] = {}
        for replica in await self._replicas.living() if wishes else []:
            by_node.setdefault(replica.node_id, []).append(replica)
        if not any(node.id in by_node for node, _ in wishes):
            return []
        catalogue = await self._galleries.catalogue()
        return [
            (node, replica)
            for node, wish in wishes
            for replica in by_node.get(node.id, ())
            if _runs(wish, replica, node, catalogue)
        ]

    async def _ended_with(self, wish: Wish, node: Node) -> list[Replica]:
        """The replicas on the node that the backend runs, whatever name their model calls it by."""
        on_node = await self._replicas.on_node(node.id)
        if all(_bare(replica.backend) in wish.names for replica in on_node):
            return on_node
        catalogue = await self._galleries.catalogue()
        return [replica for replica in on_node if _runs(wish, replica, node, catalogue)]

    async def _take_out(self, intent: Intent, stopped: Collection[str]) -> None:
        on_node = await self._replicas.on_node(intent.node_id) if stopped else []
        ended = [replica for replica in on_node if replica.process_key in stopped and replica.state in SERVING]
        if not ended:
            return
        if intent.verb is not Verb.DELETE:
            living, now = await self._replicas.living(), self._clock.now()
            await self._restorations.note([note(replica, intent.subject, living, now) for replica in ended])
        await self._health.lose(ended, DELETED if intent.verb is Verb.DELETE else REPLACED)


def _runs(wish: Wish, replica: Replica, node: Node, catalogue: BackendCatalogue | None) -> bool:
    name = _bare(replica.backend)
    if name in wish.names or catalogue is None:
        return name in wish.names
    return catalogue.key_of(name, traits_of(node).effective_capability) == wish.key


def _bare(backend: str) -> str:
    """The name of a backend without its gallery."""
    return backend.rpartition("@")[2]
