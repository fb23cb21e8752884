"""A fleet in which models take turns, as a model of what control does: pure decisions, applied one by one."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from msgspec.structs import replace

from corral.base.ids import NodeId, ReplicaId
from corral.frontend.models.decide.model import ModelSpec
from corral.frontend.models.decide.needs import ModelNeeds
from corral.frontend.nodes.decide.node import Capacity, Node, NodeStatus, Peer, SeenNode, memory_pool_of
from corral.frontend.serving.decide.eviction import EndReplicas, RoomPlan, RoomPolicy, make_room
from corral.frontend.serving.decide.load_job import LoadJob, LoadState
from corral.frontend.serving.decide.placement import Placement, judge
from corral.frontend.serving.decide.replica import LIVE, Replica, ReplicaState
from corral.frontend.serving.decide.scheduling import SchedulingWish
from corral.frontend.serving.decide.snapshot import FleetSnapshot
from corral.frontend.serving.decide.turns import (
    place_in_turn,
    promised,
    room_reason,
    waiting_before,
    with_promised,
    without,
)
from tests.kit.clock import START
from tests.kit.samples import a_load_job, a_node, a_replica

GIB = 1024**3


@dataclass
class RoomModel:
    """Nodes with memory for a few models. Nodes report what is free when they are heard, and not before."""

    policy: RoomPolicy = field(default_factory=RoomPolicy)
    now: datetime = START
    nodes: dict[NodeId, Node] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    replicas: dict[ReplicaId, Replica] = field(default_factory=dict)
    jobs: dict[str, LoadJob] = field(default_factory=dict)
    in_flight: Counter[str] = field(default_factory=Counter)
    last_used: dict[str, datetime] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    least: dict[str, int] = field(default_factory=dict)
    plans: list[tuple[str, RoomPlan | None]] = field(default_factory=list)
    """What each refused load was told, with its model."""
    loads: list[str] = field(default_factory=list)
    """Models in the order in which they got a place."""
    waits: list[timedelta] = field(default_factory=list)
    """How long each of those had waited."""

    def add_node(self, gib: int, *, pool: str = "") -> NodeId:
        """Nodes of one size with the same `pool` are on one machine."""
        capacity = Capacity(total_ram=gib * GIB, available_ram=gib * GIB)
        peer = Peer(version="1", memory_pool=pool)
        node = a_node(name=f"n{len(self.nodes)}", capacity=capacity, peer=peer)
        self.nodes[node.id] = node
        return node.id

    def add_model(self, name: str, gib: int) -> None:
        self.sizes[name] = gib * GIB

    def machine_of(self, node: Node) -> frozenset[NodeId]:
        """The node, and the others on its machine."""
        pool = memory_pool_of(node)
        mates = (other.id for other in self.nodes.values() if pool is not None and memory_pool_of(other) == pool)
        return frozenset({node.id, *mates})

    def snapshot(self) -> FleetSnapshot:
        seen = (
            SeenNode(node=node, status=NodeStatus.HEALTHY, silent_seconds=0, heard_seconds_ago=0)
            for node in self.nodes.values()
        )
        return FleetSnapshot(
            at=self.now,
            nodes=tuple(seen),
            replicas=tuple(replica for replica in self.replicas.values() if replica.state in LIVE),
            ended=tuple(replica for replica in self.replicas.values() if replica.state is ReplicaState.IDLE),
            jobs=tuple(self.jobs.values()),
            models={name: ModelSpec(name=name, backend="echo", revision="r1") for name in self.sizes},
            needs={name: ModelNeeds(ram=size) for name, size in self.sizes.items()},
            in_flight=self.in_flight,
            last_used=self.last_used,
            kept=frozenset(self.kept),
            rules={name: SchedulingWish(model=name, min_replicas=count) for name, count in self.least.items()},
        )

    @property
    def waiting(self) -> list[str]:
        """Models that wait for a place, in no order."""
        return [model for model, job in self.jobs.items() if job.replica_id is None]

    # What happens.

    def loaded(self, model: str) -> Replica | None:
        there = (each for each in self.replicas.values() if each.model == model)
        return next((each for each in there if each.state is ReplicaState.LOADED), None)

    def ask(self, model: str) -> bool:
        """Whether a request finds a replica; it is under way then. Otherwise the model is to be loaded."""
        replica = self.loaded(model)
        if replica is None:
            job = a_load_job(model=model, created_at=self.now, changed_at=self.now, retry_at=self.now)
            self.jobs.setdefault(model, job)
            return False
        self.in_flight[replica.id] += 1
        self.last_used[replica.id] = self.now
        return True

    def finish(self) -> None:
        """All requests end."""
        self.last_used.update({id: self.now for id, count in self.in_flight.items() if count})
        self.in_flight.clear()

    def hear(self, node_id: NodeId) -> None:
        """The node reports what is free by now: what is loaded has its memory, and what is on the way does not yet."""
        node = self.nodes[node_id]
        machine = self.machine_of(node)
        used = sum(
            replica.ram
            for replica in self.replicas.values()
            if replica.node_id in machine and replica.state in (ReplicaState.LOADED, ReplicaState.UNLOADING)
        )
        capacity = replace(node.capacity, available_ram=node.capacity.total_ram - used)
        self.nodes[node_id] = replace(node, capacity=capacity, facts=replace(node.facts, last_heartbeat=self.now))

    def end(self) -> None:
        """What is being ended and has no more requests has ended."""
        self._change(ReplicaState.UNLOADING, ReplicaState.IDLE)

    def complete(self) -> None:
        """What is on its way is loaded."""
        self.jobs = {model: job for model, job in self.jobs.items() if job.replica_id is None}
        self._change(ReplicaState.RESERVED, ReplicaState.LOADED)

    def _change(self, before: ReplicaState, after: ReplicaState) -> None:
        for replica in list(self.replicas.values()):
            if replica.state is before and not self.in_flight[replica.id]:
                self.replicas[replica.id] = replace(replica, state=after, changed_at=self.now)

    def look(self, model: str) -> None:
        """The load of a model looks for a place, as `LoadWork.place` does."""
        job = self.jobs[model]
        snapshot = self.snapshot()
        spec = snapshot.models[model]
        request, candidates = snapshot.request(spec), snapshot.candidates(spec)
        older = waiting_before(snapshot, job)
        choice = place_in_turn(request, candidates, snapshot, older)
        if isinstance(choice, Placement):
            self._reserve(job, choice)
            return
        plan = make_room(request, choice, candidates, snapshot, self.policy, older)
        self.plans.append((model, plan))
        if isinstance(plan, EndReplicas):
            self._check_victims(plan)
            candidate = snapshot.candidate(plan.node.id, spec)
            assert candidate is not None
            taken = promised(snapshot, plan.node.id, older)
            candidate = with_promised(candidate, taken)
            for victim in plan.victims:
                others = {other.id for other in plan.victims if other is not victim}
                ending = {each.id for each in candidate.replicas if each.state is ReplicaState.UNLOADING}
                assert not judge(request, without(candidate, others | ending)).fits, "one more than enough"
            for victim in plan.victims:
                reason = room_reason(model)
                ended = replace(victim, state=ReplicaState.UNLOADING, changed_at=self.now, reason=reason)
                self.replicas[victim.id] = ended

    def _reserve(self, job: LoadJob, choice: Placement) -> None:
        replica = a_replica(
            node_id=choice.node.id,
            model=job.model,
            index=choice.index,
            state=ReplicaState.RESERVED,
            ram=choice.verdict.ram,
            created_at=self.now,
            changed_at=self.now,
        )
        self.replicas[replica.id] = replica
        self.loads.append(job.model)
        self.waits.append(self.now - job.created_at)
        self.jobs[job.model] = replace(job, state=LoadState.LOADING, node_id=choice.node.id, replica_id=replica.id)

    # What must hold.

    def _check_victims(self, plan: EndReplicas) -> None:
        assert plan.victims
        for victim in plan.victims:
            assert victim.node_id == plan.node.id
            assert self.replicas[victim.id].state is ReplicaState.LOADED
            assert not self.in_flight[victim.id], "it is busy"
            assert victim.model not in self.kept
            took = victim.changed_at - victim.created_at
            turn = min(self.policy.stay, max(2 * took, timedelta(seconds=5)))
            assert victim.age(self.now) >= turn, "it has not stayed long enough"
        ending = Counter(victim.model for victim in plan.victims)
        loaded = Counter(each.model for each in self.replicas.values() if each.state is ReplicaState.LOADED)
        assert all(loaded[model] - count >= self.least.get(model, 0) for model, count in ending.items())

    def check(self) -> None:
        """No machine has more than it can hold."""
        for node in self.nodes.values():
            machine = self.machine_of(node)
            there = [each for each in self.replicas.values() if each.node_id in machine and each.state in LIVE]
            assert sum(replica.ram for replica in there) <= node.capacity.total_ram
