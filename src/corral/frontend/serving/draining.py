"""Empties nodes that are drained: has their models loaded elsewhere, takes their replicas out of service, and tells how
far that is. One frontend at a time does this.
"""

import logging
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from corral.base.clock import Clock
from corral.base.errors import Conflict
from corral.base.ids import NodeId
from corral.frontend.nodes.decide.node import NodeStatus, SeenNode
from corral.frontend.nodes.fleet import Fleet
from corral.frontend.nodes.liveness import Brake
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.feed import Feed
from corral.frontend.record.store import Events
from corral.frontend.serving.decide.draining import NODE_DRAINED, DrainPlan, as_drained, left_over, plan_drain
from corral.frontend.serving.decide.load_job import LoadWhy
from corral.frontend.serving.decide.replica import Replica
from corral.frontend.serving.decide.snapshot import FleetSnapshot
from corral.frontend.serving.loading.load_jobs import Loads
from corral.frontend.serving.snapshots import Snapshots
from corral.frontend.serving.store.replicas import ReplicaStore
from corral.frontend.store.leases import Leader

log = logging.getLogger(__name__)

DRAINING_PERIOD: Final = timedelta(seconds=1)
_BY: Final = "control"


class Draining:
    def __init__(  # noqa: PLR0913 - each is a collaborator
        self,
        replicas: ReplicaStore,
        snapshots: Snapshots,
        loads: Loads,
        fleet: Fleet,
        events: Events,
        leader: Leader,
        feed: Feed,
        clock: Clock,
        *,
        brake: Brake,
    ) -> None:
        self._replicas = replicas
        self._snapshots = snapshots
        self._loads = loads
        self._fleet = fleet
        self._events = events
        self._leader = leader
        self._feed = feed
        self._clock = clock
        self._brake = brake
        self._since = clock.now()
        self._is_reported: dict[NodeId, bool] = {}
        """Whether the end of its drain was recorded, for each drained node."""

    async def sweep(self) -> bool:
        """Go on with all drains; whether anything is under way that this frontend goes on with."""
        draining = await self._fleet.draining()
        waiting = any(job.why is LoadWhy.DRAIN for job in await self._loads.jobs())
        if not draining and not waiting:
            self._is_reported.clear()
            return False
        if self._brake.holds:
            return True
        if not await self._leader.holds("drains", duration=DRAINING_PERIOD * 12, renew_below=DRAINING_PERIOD * 4):
            return False
        snapshot = await self._snapshots.take()
        for job in left_over(snapshot):
            await self._loads.withdraw(job)
        self._is_reported = {seen.node.id: self._is_reported.get(seen.node.id, self._is_old(seen)) for seen in draining}
        plans = [(seen, plan_drain(snapshot, seen.node.id)) for seen in draining]
        for seen, plan in plans:
            await self._go_on(seen, plan, snapshot)
        return any(len(plan.staying) < len(plan.replicas) for _, plan in plans)

    def _is_old(self, seen: SeenNode) -> bool:
        """Whether the node's drain began before this process did: then another process recorded its end."""
        since = seen.node.facts.draining_since
        return since is not None and since < self._since

    async def _go_on(self, seen: SeenNode, plan: DrainPlan, snapshot: FleetSnapshot) -> None:
        for spec, count in plan.loads:
            if await self._loads.add(spec, why=LoadWhy.DRAIN, count=count, seen=snapshot):
                details = {"event": "drain.moving", "model": spec.name, "node": seen.node.name}
                log.info("a model is loaded elsewhere, because its node is drained", extra=details)
        await self._unload(seen, plan.unload, by=_BY)
        if not plan.is_done:
            self._is_reported[seen.node.id] = False
        elif not self._is_reported[seen.node.id]:
            self._is_reported[seen.node.id] = True
            data = {"name": seen.node.name, "by": seen.node.facts.draining_by}
            now = self._clock.now()
            event = Event(kind=EventKind.NODE_DRAINED, at=now, actor=_BY, node_id=seen.node.id, data=data)
            await self._events.record([event])
            await self._feed.announce()

    async def _unload(self, seen: SeenNode, replicas: Iterable[Replica], *, by: str) -> None:
        now, has_begun = self._clock.now(), False
        for replica in replicas:
            data = {"replica": replica.id, "model": replica.model, "why": NODE_DRAINED}
            event = Event(kind=EventKind.REPLICA_UNLOADING, at=now, actor=by, node_id=seen.node.id, data=data)
            has_begun |= await self._replicas.unload(replica.id, reason=NODE_DRAINED, at=now, events=[event])
        if has_begun:
            await self._feed.announce()

    # For people.

    async def progress(self, node_id: NodeId) -> tuple[SeenNode, DrainPlan]:
        """How far the drain of a node is, or what its drain would mean. NotFound for an unknown node."""
        seen = await self._fleet.get(node_id)
        return seen, plan_drain(as_drained(await self._snapshots.take(), node_id), node_id)

    async def force(self, node_id: NodeId, *, by: str) -> None:
        """Unload what nothing else can serve for. Conflict when nobody drains the node."""
        seen, plan = await self.progress(node_id)
        if seen.status is not NodeStatus.DRAINING:
            raise Conflict(f"{seen.node.name} is {seen.status} and not draining; drain it first")
        await self._unload(seen, plan.staying, by=by)
