"""Makes room for loads that fit nowhere: takes idle replicas out of service, which `Unloading` then ends."""

import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

from corral.base.clock import Clock
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.feed import Feed
from corral.frontend.serving.decide.eviction import AwaitEnd, EndReplicas, RoomPolicy, make_room
from corral.frontend.serving.decide.load_job import MAY_END_OTHERS, LoadJob
from corral.frontend.serving.decide.placement import CandidateNode, PlacementRefusal, PlacementRequest
from corral.frontend.serving.decide.snapshot import FleetSnapshot
from corral.frontend.serving.decide.turns import room_reason, waiting_before
from corral.frontend.serving.store.replicas import ReplicaStore
from corral.wire.models import LoadReason

log = logging.getLogger(__name__)

_BY: Final = "control"


class WaitingFor(NamedTuple):
    """What a load waits for."""

    message: str
    reason: LoadReason = LoadReason.NO_PLACE
    is_brief: bool = False
    """The next look may find something else without any news."""


class Evicting:
    def __init__(self, replicas: ReplicaStore, feed: Feed, clock: Clock, policy: RoomPolicy) -> None:
        self._replicas = replicas
        self._feed = feed
        self._clock = clock
        self._policy = policy

    async def make_room(
        self,
        job: LoadJob,
        request: PlacementRequest,
        refusal: PlacementRefusal,
        candidates: Sequence[CandidateNode],
        snapshot: FleetSnapshot,
    ) -> WaitingFor:
        """Begin to make room for a load that was refused, where that is possible; what it waits for from now on."""
        may_end = job.why in MAY_END_OTHERS and not snapshot.is_braked
        plan = make_room(request, refusal, candidates, snapshot, self._policy, waiting_before(snapshot, job))
        if plan is None or not (may_end or isinstance(plan, AwaitEnd)):
            return WaitingFor(refusal.message)
        if isinstance(plan, EndReplicas) and not await self._end(plan, job, snapshot):
            return WaitingFor("the fleet changed just now; the next look decides", is_brief=True)
        return WaitingFor(plan.message, plan.reason)

    async def _end(self, plan: EndReplicas, job: LoadJob, snapshot: FleetSnapshot) -> bool:
        now, reason = self._clock.now(), room_reason(job.model)
        events = [
            Event(
                kind=EventKind.REPLICA_EVICTED,
                at=now,
                actor=_BY,
                node_id=plan.node.id,
                data={"replica": victim.id, "model": victim.model, "node": plan.node.name, "for": job.model},
            )
            for victim in plan.victims
        ]
        won = await self._replicas.evict(plan.victims, least=snapshot.least, reason=reason, at=now, events=events)
        if won:
            details = {"event": "replica.evicted", "model": job.model, "node": plan.node.name}
            log.info("room is made: %s", ", ".join(victim.process_key for victim in plan.victims), extra=details)
            await self._feed.announce()
        return won
