"""A fleet of values, in which the plans of scaling are carried out: loads are placed, replicas end, time passes."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from corral.base.ids import NodeId, ReplicaId
from corral.frontend.models.decide.model import ModelSpec
from corral.frontend.models.decide.needs import ModelNeeds
from corral.frontend.nodes.decide.node import Node, NodeStatus, SeenNode
from corral.frontend.serving.decide.load_job import LoadJob, LoadState, LoadWhy
from corral.frontend.serving.decide.placement import Placement, place
from corral.frontend.serving.decide.replica import SERVING, Replica, ReplicaState
from corral.frontend.serving.decide.rollout import Restoration, note
from corral.frontend.serving.decide.scaling import LoadMore, ScalingPlan, TakeBack, UnloadOne, plan
from corral.frontend.serving.decide.scaling_state import ScalingMemory, ScalingPolicy, remember
from corral.frontend.serving.decide.scheduling import SchedulingWish
from corral.frontend.serving.decide.snapshot import FleetSnapshot
from corral.wire.labels import NodeLabels
from tests.kit.clock import START
from tests.kit.samples import a_load_job, a_node, a_replica

POLICY = ScalingPolicy(
    grow_after=timedelta(seconds=30), shrink_after=timedelta(minutes=5), unload_after=timedelta(minutes=15)
)


@dataclass
class ScaledFleet:
    policy: ScalingPolicy = POLICY
    now: datetime = START + timedelta(hours=1)
    nodes: dict[str, tuple[Node, NodeStatus]] = field(default_factory=dict)
    models: dict[str, ModelSpec] = field(default_factory=dict)
    rules: dict[str, SchedulingWish] = field(default_factory=dict)
    replicas: dict[ReplicaId, Replica] = field(default_factory=dict)
    jobs: list[LoadJob] = field(default_factory=list)
    restorations: list[Restoration] = field(default_factory=list)
    demand: dict[str, int] = field(default_factory=dict)
    """Requests that each replica of a model has all the time."""
    used_at: dict[str, datetime] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
    waiting: dict[str, int] = field(default_factory=dict)
    needs: dict[str, int] = field(default_factory=dict)
    """Bytes of memory that a replica takes, by model."""
    is_braked: bool = False
    is_load_known: bool = True
    memory: ScalingMemory = field(default_factory=ScalingMemory)

    # What there is.

    def add_node(self, name: str, *, slots: int = 1, labels: dict[str, str] | None = None, **fields: Any) -> NodeId:
        node = a_node(
            id=NodeId(name),
            name=name,
            reported_max_replicas=slots,
            labels=NodeLabels(reported=labels or {}),
            **fields,
        )
        self.nodes[name] = (node, NodeStatus.HEALTHY)
        return node.id

    def set_status(self, name: str, status: NodeStatus) -> None:
        self.nodes[name] = (self.nodes[name][0], status)

    def add_model(self, name: str, *, limit: int = 0, **rule: Any) -> None:
        self.models[name] = ModelSpec(name=name, backend="echo", revision="r1", max_concurrent=limit)
        if rule:
            self.rules[name] = SchedulingWish(model=name, **rule)

    def change(self, name: str) -> None:
        """Give the model another configuration."""
        spec = self.models[name]
        self.models[name] = replace(spec, revision=f"r{int(spec.revision[1:]) + 1}")

    def load(self, model: str, node: str, **fields: Any) -> Replica:
        there = [replica.index for replica in self.on(node) if replica.model == model]
        replica = a_replica(
            node_id=NodeId(node),
            model=model,
            index=next(index for index in range(len(there) + 1) if index not in there),
            revision=self.models[model].revision,
            created_at=self.now,
            changed_at=self.now,
            ram=self.needs.get(model, 0),
        )
        self.replicas[replica.id] = replace(replica, **fields)
        return self.replicas[replica.id]

    def on(self, node: str) -> list[Replica]:
        return [replica for replica in self.replicas.values() if replica.node_id == node]

    def loaded(self, model: str) -> list[Replica]:
        """Those that can answer and are of the current configuration."""
        revision = self.models[model].revision
        return [
            replica
            for replica in self.replicas.values()
            if (replica.model, replica.revision, replica.state) == (model, revision, ReplicaState.LOADED)
        ]

    def places(self, model: str) -> list[str]:
        """The nodes of those that can answer, sorted."""
        return sorted(
            replica.node_id
            for replica in self.replicas.values()
            if replica.model == model and replica.state is ReplicaState.LOADED
        )

    # What happens.

    def snapshot(self) -> FleetSnapshot:
        busy = {id: self.demand.get(replica.model, 0) for id, replica in self.replicas.items()}
        return FleetSnapshot(
            at=self.now,
            nodes=tuple(
                SeenNode(node=self._reported(node), status=status, silent_seconds=0.0, heard_seconds_ago=0.0)
                for node, status in self.nodes.values()
            ),
            replicas=tuple(self.replicas.values()),
            jobs=tuple(self.jobs),
            restorations=tuple(self.restorations),
            models=self.models,
            needs={name: ModelNeeds(ram=size) for name, size in self.needs.items()},
            rules={name: rule for name, rule in self.rules.items() if name in self.models},
            kept=frozenset(self.kept),
            in_flight={id: count for id, count in busy.items() if count},
            waiting={model: count for model, count in self.waiting.items() if count},
            last_used=self.used_at,
            is_load_known=self.is_load_known,
            is_braked=self.is_braked,
            counting_since=START,
        )

    def _reported(self, node: Node) -> Node:
        """The node as it reports itself at this moment: what was loaded just now is not in it yet."""
        there = [each for each in self.on(node.id) if each.state in SERVING or each.state is ReplicaState.UNLOADING]
        seen = [each for each in there if each.changed_at < self.now or each.state is ReplicaState.UNLOADING]
        free = max(node.capacity.total_ram - sum(each.ram for each in seen), 0)
        facts = replace(node.facts, last_heartbeat=self.now)
        return replace(node, facts=facts, capacity=replace(node.capacity, available_ram=free))

    def planned(self) -> ScalingPlan:
        snapshot = self.snapshot()
        self.memory = remember(self.memory, snapshot, self.policy)
        return plan(snapshot, self.memory, self.policy)

    def apply(self, planned: ScalingPlan) -> None:
        for action in planned.actions:
            match action:
                case LoadMore(model=model, why=why, prefer=prefer):
                    self.open_job(model, why, prefer)
                case UnloadOne(replica=replica):
                    self.replicas[replica.id] = replace(replica, state=ReplicaState.UNLOADING, changed_at=self.now)
                case TakeBack(job=job):
                    self.jobs.remove(job)

    def open_job(self, model: str, why: LoadWhy = LoadWhy.ASKED, prefer: NodeId | None = None) -> None:
        taken = {job.ordinal for job in self.jobs if job.model == model}
        self.jobs.append(
            a_load_job(
                model=model,
                ordinal=next(number for number in range(len(taken) + 1) if number not in taken),
                revision=self.models[model].revision,
                why=why,
                state=LoadState.PENDING,
                preferred_node_id=prefer,
                retry_at=self.now,
            )
        )

    def ask(self, model: str) -> None:
        """A request: opens or joins a load when nothing can answer."""
        if not self.loaded(model) and not any(job.model == model for job in self.jobs):
            self.open_job(model)
        for replica in self.loaded(model):
            self.used_at[replica.id] = self.now

    def work(self) -> None:
        """What was ended is gone, and loads that find a place are done."""
        ending = (ReplicaState.UNLOADING,)
        self.replicas = {id: each for id, each in self.replicas.items() if each.state not in ending}
        for job in list(self.jobs):
            spec, snapshot = self.models[job.model], self.snapshot()
            request = snapshot.request(spec, prefer=job.preferred_node_id)
            choice = place(request, snapshot.candidates(spec))
            self.jobs.remove(job)
            if not isinstance(choice, Placement):
                self.jobs.append(replace(job, message=choice.message))
                continue
            replica = self.load(job.model, choice.node.id, index=choice.index, ram=choice.verdict.ram, why=job.why)
            self.used_at[replica.id] = self.now

    def begin_upgrade(self, replica: Replica) -> None:
        """The replica makes way for another version of its backend, and is to be loaded again after it."""
        self.restorations.append(note(replica, replica.backend, self.replicas.values(), self.now, self.restorations))
        self.replicas[replica.id] = replace(replica, state=ReplicaState.UNLOADING, changed_at=self.now)

    def lose(self, name: str) -> None:
        """The node is gone, and what ran there."""
        self.nodes.pop(name)
        self.replicas = {id: each for id, each in self.replicas.items() if each.node_id != name}

    def pass_time(self, **time: float) -> None:
        self.now += timedelta(**time)
        for replica in self.replicas.values():
            if self.demand.get(replica.model, 0):
                self.used_at[replica.id] = self.now

    def round(self) -> ScalingPlan:
        """Plan, do it, let it happen, and a moment passes."""
        planned = self.planned()
        self.apply(planned)
        self.work()
        self.pass_time(seconds=10)
        return planned

    def settle(self, *, within: int = 200) -> int:
        """Rounds until nothing is left to do, also after a long time; AssertionError when that never comes."""
        for rounds in range(within):
            if self.round().actions:
                continue
            self.pass_time(minutes=20)
            if not self.round().actions and not self.round().actions:
                return rounds
        raise AssertionError(f"still {self.planned().actions} after {within} rounds")
