"""Brings models to as many replicas as their rules and their load want: looks at the fleet, plans, and does it.

One frontend at a time does this. Loading itself is the business of the load jobs, ending that of `unloading.py`.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Hashable, Mapping
from datetime import timedelta
from typing import Final

from corral.base.clock import Clock
from corral.base.errors import Conflict
from corral.base.ids import NodeId
from corral.frontend.models.catalogue import Models
from corral.frontend.models.decide.model import ModelSpec
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.feed import Feed
from corral.frontend.record.store import Events
from corral.frontend.serving.decide.load_job import LoadState, LoadStatus, LoadWhy
from corral.frontend.serving.decide.placement import judge
from corral.frontend.serving.decide.replica import Replica, ReplicaState
from corral.frontend.serving.decide.scaling import (
    LoadMore,
    ReplicaCounts,
    ScaleAction,
    ScalingPlan,
    TakeBack,
    UnloadOne,
    plan,
)
from corral.frontend.serving.decide.scaling_state import ScalingMemory, ScalingPolicy, remember
from corral.frontend.serving.decide.scheduling import in_words
from corral.frontend.serving.decide.snapshot import FleetSnapshot
from corral.frontend.serving.gateways.reports import GatewayReports
from corral.frontend.serving.loading.load_jobs import Loads
from corral.frontend.serving.loading.placing import LoadStores
from corral.frontend.serving.snapshots import Snapshots
from corral.frontend.store.leases import Leader

log = logging.getLogger(__name__)

PERIOD: Final = timedelta(seconds=2)
_BY: Final = "scaling"
_OPEN: Final = frozenset({LoadState.PENDING, LoadState.LOADING})


class Scaling:
    """Owns no state that must last: a frontend that takes over finds it again within a minute."""

    def __init__(  # noqa: PLR0913 - each is a collaborator
        self,
        snapshots: Snapshots,
        models: Models,
        stores: LoadStores,
        loads: Loads,
        gateways: GatewayReports,
        events: Events,
        leader: Leader,
        feed: Feed,
        clock: Clock,
        *,
        policy: ScalingPolicy,
    ) -> None:
        self._snapshots = snapshots
        self._models = models
        self._stores = stores
        self._loads = loads
        self._gateways = gateways
        self._events = events
        self._leader = leader
        self._feed = feed
        self._clock = clock
        self._policy = policy
        self._memory = ScalingMemory()
        self._problems: Mapping[str, str] = {}
        self._elastic: frozenset[str] = frozenset()
        """Replicas of models whose number follows the load."""

    def mark(self) -> Hashable:
        """Changes with what no event tells, and what may call for more or fewer replicas."""
        busy = self._gateways.in_flight()
        is_queued = bool(self._gateways.waiting())
        return self._snapshots.is_braked, is_queued, frozenset(id for id in self._elastic if busy[id])

    async def sweep(self) -> bool:
        """Look, plan and act once; whether something is left under way."""
        if not await self._leader.holds("scaling", duration=PERIOD * 30, renew_below=PERIOD * 10):
            self._memory, self._elastic = ScalingMemory(), frozenset()
            return False
        if await self._snapshots.is_empty():  # galleries, which may be away, are not asked for nothing
            return False
        snapshot = await self._snapshots.take()
        self._memory = remember(self._memory, snapshot, self._policy)
        planned = await asyncio.to_thread(plan, snapshot, self._memory, self._policy)  # a large fleet takes its time
        counted = {name for name, rule in snapshot.rules.items() if rule.has_counts}
        self._elastic = frozenset(replica.id for replica in snapshot.replicas if replica.model in counted)
        await self._tell(planned, snapshot)
        await self._act(planned, snapshot)
        is_due_soon = bool(counted & self._memory.busy_since.keys()) or self._is_settling(snapshot)
        return bool(planned.actions or snapshot.restorations) or is_due_soon

    def _is_settling(self, snapshot: FleetSnapshot) -> bool:
        """Whether a model was changed just now: what follows from that comes without an event."""
        changed = {
            replica.model
            for replica in snapshot.replicas
            if replica.model in snapshot.models and replica.revision != snapshot.models[replica.model].revision
        }
        return any(model in changed and model not in self._memory.rolling for model in self._memory.revisions)

    async def counts(self) -> Mapping[str, ReplicaCounts]:
        """How far the fleet is with every model that has a replica, a load or a rule."""
        snapshot = await self._snapshots.take()
        memory = remember(self._memory, snapshot, self._policy)
        return (await asyncio.to_thread(plan, snapshot, memory, self._policy)).counts

    # What is done.

    async def _act(self, planned: ScalingPlan, snapshot: FleetSnapshot) -> None:
        under_way = Counter(job.model for job in snapshot.jobs if job.state in _OPEN)
        has_acted = False
        for action in planned.actions:
            has_acted |= await self._do(action, snapshot, under_way)
        if has_acted:
            await self._feed.announce()

    async def _do(self, action: ScaleAction, snapshot: FleetSnapshot, under_way: Counter[str]) -> bool:
        """Whether it was done: not so when somebody else was faster."""
        match action:
            case TakeBack(job=job):
                under_way[job.model] -= 1
                return await self._stores.jobs.take_back(job)
            case UnloadOne(replica=replica, why=why):
                return await self._unload(replica, why)
            case LoadMore(model=model):
                under_way[model] += 1
                return await self._load(action, snapshot, under_way[model])

    async def _unload(self, replica: Replica, why: str) -> bool:
        now = self._clock.now()
        data = {"replica": replica.id, "model": replica.model, "why": why}
        event = Event(kind=EventKind.REPLICA_UNLOADING, at=now, actor=_BY, node_id=replica.node_id, data=data)
        is_done = await self._stores.replicas.unload(replica.id, reason=why, at=now, events=[event])
        if is_done:
            details = {"event": "replica.unloading", "model": replica.model, "node": replica.node_id, "why": why}
            log.info("replica is being ended", extra=details)
        return is_done

    async def _load(self, action: LoadMore, snapshot: FleetSnapshot, count: int) -> bool:
        """Have one load more under way than there were: `count` in all."""
        spec = snapshot.models[action.model]
        begun = await self._loads.add(spec, why=action.why, count=count, prefer=action.prefer, seen=snapshot)
        if not begun:
            return False
        log.info("one more replica", extra={"event": "model.scaling", "model": spec.name, "why": action.why.value})
        data = {"model": spec.name, "why": action.why.value, "node": action.prefer or ""}
        event = Event(kind=EventKind.MODEL_SCALING, at=self._clock.now(), actor=_BY, data=data)
        await self._events.record([event])
        return True

    async def _tell(self, planned: ScalingPlan, snapshot: FleetSnapshot) -> None:
        """Write an event for each rule that cannot be satisfied, once."""
        problems = {name: planned.counts[name].problem for name in snapshot.rules if name in planned.counts}
        problems = {name: problem for name, problem in problems.items() if problem}
        new = problems.keys() - self._problems.keys()
        self._problems = problems
        events = [
            Event(kind=EventKind.MODEL_SHORT, at=snapshot.at, actor=_BY, data={"model": name, "why": problems[name]})
            for name in sorted(new)
        ]
        for name in sorted(new):
            details = {"event": "model.short", "model": name}
            log.warning("a rule of scheduling cannot be satisfied: %s", problems[name], extra=details)
        if events:
            await self._events.record(events)

    # For people.

    async def load(self, name: str, node_id: NodeId | None) -> LoadStatus:
        """Have the model loaded, on this node if one is named. Conflict says why that cannot be."""
        if node_id is None:
            return await self._loads.ensure(name)
        spec, snapshot = self._models.find(name), await self._snapshots.take()
        on_node = [replica for replica in snapshot.of_model(spec.name) if replica.node_id == node_id]
        ending_states = (ReplicaState.UNLOADING,)
        if not any(replica.revision == spec.revision and replica.state not in ending_states for replica in on_node):
            self._refuse_load(spec, node_id, snapshot)
            under_way = sum(job.model == spec.name and job.state in _OPEN for job in snapshot.jobs)
            await self._loads.add(spec, why=LoadWhy.PERSON, count=under_way + 1, prefer=node_id)
        status = await self._loads.status_of(spec.name)
        return await self._loads.ensure(name) if status is None else status

    def _refuse_load(self, spec: ModelSpec, node_id: NodeId, snapshot: FleetSnapshot) -> None:
        rule = snapshot.rules.get(spec.name)
        living = [replica for replica in snapshot.of_model(spec.name) if replica.state is not ReplicaState.UNLOADING]
        if rule is not None and 0 < rule.max_replicas <= len(living):
            raise Conflict(f"the rule of {spec.name} allows no more replicas: {in_words(rule)}")
        for candidate in snapshot.candidates(spec):
            verdict = judge(snapshot.request(spec), candidate)
            if candidate.node.id == node_id and not verdict.fits:
                raise Conflict(f"{candidate.node.name} cannot take {spec.name}: it {verdict.why}")

    async def demand(self, model: str) -> str:
        """What a rule says that would have the model loaded again; empty when none would."""
        rule = (await self._snapshots.rules()).get(model)
        return in_words(rule) if rule is not None and (rule.min_replicas or rule.spread_all) else ""
