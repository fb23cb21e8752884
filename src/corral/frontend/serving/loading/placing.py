"""Where a load goes: chooses a node, reserves the place there, and makes room when no node has any."""

import logging
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from corral.base.clock import Clock
from corral.base.ids import LoadJobId, NodeId, new_replica_id
from corral.frontend.nodes.decide.node import Node
from corral.frontend.nodes.store.nodes import Nodes
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.feed import Feed
from corral.frontend.serving.decide.eviction import AwaitEnd, EndReplicas, RoomPolicy, make_room
from corral.frontend.serving.decide.load_job import (
    MAY_END_OTHERS,
    HeldJob,
    LoadJob,
    LoadPolicy,
    LoadWhy,
)
from corral.frontend.serving.decide.placement import (
    CandidateNode,
    NodeVerdict,
    Placement,
    PlacementRefusal,
    PlacementRequest,
    VerdictCode,
    reservation,
    still_fits,
)
from corral.frontend.serving.decide.replica import LIVE, Replica
from corral.frontend.serving.decide.snapshot import FleetSnapshot
from corral.frontend.serving.decide.turns import place_in_turn, room_reason, waiting_before
from corral.frontend.serving.snapshots import Snapshots
from corral.frontend.serving.staging.shared_directories import SharedDirectories
from corral.frontend.serving.store.load_jobs import LoadJobs
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
    """Makes room for loads that fit nowhere: takes idle replicas out of service, which `Unloading` then ends."""

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


class LoadStores(msgspec.Struct, frozen=True, kw_only=True):
    jobs: LoadJobs
    replicas: ReplicaStore
    nodes: Nodes


class Placed(NamedTuple):
    """A place that is reserved for a load."""

    replica: Replica
    node: Node
    held: HeldJob
    """The job, which knows its place now."""


class NoPlace(Enum):
    """Why a load need not look for a place any longer."""

    NO_OTHER_NODE = auto()
    """It failed on some nodes, and no other one can take it."""
    UNWANTED = auto()
    """The requests that it was for ended long ago."""


class Placing:
    """Chooses and reserves places. What becomes of a job that gets none is decided by its caller."""

    def __init__(
        self,
        stores: LoadStores,
        snapshots: Snapshots,
        clock: Clock,
        policy: LoadPolicy,
        *,
        evicting: Evicting,
        shared: SharedDirectories,
    ) -> None:
        self._stores = stores
        self._snapshots = snapshots
        self._clock = clock
        self._policy = policy
        self._evicting = evicting
        self._shared = shared
        self._unasked_since: dict[LoadJobId, float] = {}
        """Loads for requests that nobody was seen to wait for, on the clock that never jumps."""

    async def taken_over(self, held: HeldJob) -> Placed | None:
        """The replica that the job's earlier holder reserved, with its node, if it still exists."""
        if held.job.replica_id is None:
            return None
        replica = await self._stores.replicas.get(held.job.replica_id)
        node = None if replica is None else await self._stores.nodes.get(replica.node_id)
        if replica is None or node is None or replica.state not in LIVE:
            return None
        return Placed(replica, node, held)

    async def reserve(self, held: HeldJob, tried: Mapping[NodeId, str]) -> Placed | WaitingFor | NoPlace:
        """Reserve a place on a node that was not tried. Begins to make room when no node has any."""
        exclude = {id: f"failed just now: {why.partition(': ')[2]}" for id, why in tried.items()}
        for _ in range(self._policy.attempts):
            snapshot = await self._snapshots.take()
            request = snapshot.request(held.spec, exclude=exclude, prefer=held.job.preferred_node_id)
            candidates: Sequence[CandidateNode] = snapshot.candidates(held.spec)
            older = waiting_before(snapshot, held.job)
            choice = place_in_turn(request, candidates, snapshot, older)
            if isinstance(choice, PlacementRefusal):
                candidates = await self._with_shared_files(choice, candidates)
                choice = place_in_turn(request, candidates, snapshot, older)
            if isinstance(choice, PlacementRefusal):
                if tried:
                    return NoPlace.NO_OTHER_NODE
                if self._is_unwanted(held.job, snapshot):
                    return NoPlace.UNWANTED
                return await self._evicting.make_room(held.job, request, choice, candidates, snapshot)
            if (placed := await self._try_to_reserve(held, request, choice, candidates)) is not None:
                return placed
        return WaitingFor("the fleet changes faster than a place can be reserved", is_brief=True)

    def asked_for(self, job: LoadJob) -> None:
        """Somebody waits for it at this moment."""
        self._unasked_since.pop(job.id, None)

    def _is_unwanted(self, job: LoadJob, snapshot: FleetSnapshot) -> bool:
        """Whether the load is for requests that ended long ago, as far as this frontend knows."""
        passed, job_ids = self._clock.monotonic(), {other.id for other in snapshot.jobs}
        self._unasked_since = {id: since for id, since in self._unasked_since.items() if id in job_ids}
        if job.why is not LoadWhy.ASKED or snapshot.waiting.get(job.model) or not snapshot.is_load_known:
            self.asked_for(job)
            return False
        since = self._unasked_since.setdefault(job.id, passed)
        return passed - since >= self._policy.unwanted_after.total_seconds()

    async def _try_to_reserve(
        self, held: HeldJob, request: PlacementRequest, choice: Placement, candidates: Sequence[CandidateNode]
    ) -> Placed | None:
        """Take the place that was chosen; None when it, or its room, is taken meanwhile."""
        id, now = new_replica_id(), self._clock.now()
        replica = reservation(held.spec, choice.verdict, choice.index, id=id, at=now, why=held.job.why)
        chosen = next(candidate for candidate in candidates if candidate.node.id == choice.node.id)

        def fits(on_machine: Sequence[Replica]) -> bool:
            return _may_take(replica, still_fits(request, chosen, (*on_machine, *choice.left_to_others)))

        placed = replace(held, job=replace(held.job, node_id=choice.node.id, replica_id=replica.id))
        if not await self._stores.jobs.reserve(placed.job, held.token, replica, fits=fits, mates=chosen.mates):
            return None
        return Placed(replica, choice.node, placed)

    async def _with_shared_files(
        self, refusal: PlacementRefusal, candidates: Sequence[CandidateNode]
    ) -> Sequence[CandidateNode]:
        """The candidates, where those whose disks are too full were asked whether they have the files already."""
        full = {verdict.node_id for verdict in refusal.verdicts if verdict.code is VerdictCode.NO_DISK}
        await self._shared.look(full)
        sharing = full & self._shared.nodes
        return [replace(each, has_files=True) if each.node.id in sharing else each for each in candidates]


def _may_take(replica: Replica, verdict: NodeVerdict) -> bool:
    """Whether a reservation that was decided on an earlier look still stands."""
    return verdict.fits and (replica.vram, replica.ram, replica.cards) == (verdict.vram, verdict.ram, verdict.cards)
