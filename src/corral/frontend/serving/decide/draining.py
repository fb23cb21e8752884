"""Emptying a node: what moves, what just ends, and what must stay because nothing else can take it. Pure.

Each model with a replica on the node has to be served elsewhere first: by as many as its rule wants at least, and by
one. What is served so already is unloaded. Otherwise others are loaded where they fit, without ending anything for
them. What fits nowhere stays, with the reasons of all nodes, until somebody forces it or room is found.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from corral.base.ids import NodeId
from corral.frontend.models.decide.model import ModelSpec
from corral.frontend.nodes.decide.node import NodeStatus
from corral.frontend.serving.decide.load_job import LoadJob, LoadState, LoadWhy, is_cooling
from corral.frontend.serving.decide.placement import PlacementRefusal, place
from corral.frontend.serving.decide.replica import LIVE, Replica, ReplicaState
from corral.frontend.serving.decide.snapshot import FleetSnapshot

NODE_DRAINED: Final = "its node is drained"
"""Why replicas are ended there; how long their requests may go on depends on it."""
NOT_READ: Final = "its configuration is gone or cannot be read now"
SETTLED_AFTER: Final = timedelta(seconds=2)
"""Until every gateway that is connected knows a replica that was just loaded."""


class DrainStep(StrEnum):
    """What becomes of a replica on a node that is drained."""

    LOADS = "loads"
    """The replica is still being loaded on the node, and moves afterwards."""
    MOVES = "moves"
    """Another one is loaded elsewhere first."""
    ENDS = "ends"
    """The replica gets no more requests; those under way finish."""
    STAYS = "stays"
    """Nothing else can serve its model, as far as is known."""


class DrainedReplica(msgspec.Struct, frozen=True, kw_only=True):
    replica: Replica
    step: DrainStep
    why: str = ""
    reasons: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Why other nodes cannot take it, by their names."""
    in_flight: int | None = 0
    """None while a gateway is silent."""


class WantedLoads(NamedTuple):
    """So many loads of the model are to be under way."""

    spec: ModelSpec
    loads: int


class DrainPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How far the drain of a node is, and what is to be done next."""

    replicas: tuple[DrainedReplica, ...] = ()
    """All living replicas of the node."""
    loads: tuple[WantedLoads, ...] = ()
    unload: tuple[Replica, ...] = ()

    @property
    def is_done(self) -> bool:
        return not self.replicas

    @property
    def staying(self) -> tuple[Replica, ...]:
        """What nothing else can serve for."""
        return tuple(each.replica for each in self.replicas if each.step is DrainStep.STAYS)

    @property
    def requests_left(self) -> int | None:
        """None when that is not known."""
        counts = [each.in_flight for each in self.replicas]
        return None if None in counts else sum(count for count in counts if count is not None)


def plan_drain(snapshot: FleetSnapshot, node_id: NodeId) -> DrainPlan:
    living = [replica for replica in snapshot.replicas_by_node.get(node_id, ()) if replica.state in LIVE]
    plans = [_of_model(snapshot, model, replicas) for model, replicas in sorted(_by_model(living).items())]
    return DrainPlan(
        replicas=tuple(each for plan in plans for each in plan.replicas),
        loads=tuple(load for plan in plans for load in plan.loads),
        unload=tuple(replica for plan in plans for replica in plan.unload),
    )


def as_drained(snapshot: FleetSnapshot, node_id: NodeId) -> FleetSnapshot:
    """The fleet as it is when this node is drained."""
    nodes = (replace(seen, status=NodeStatus.DRAINING) if seen.node.id == node_id else seen for seen in snapshot.nodes)
    return replace(snapshot, nodes=tuple(nodes))


def left_over(snapshot: FleetSnapshot) -> list[LoadJob]:
    """Loads that wait to take over from a node which nobody drains any more."""
    draining = {seen.node.id for seen in snapshot.nodes if seen.status is NodeStatus.DRAINING}
    moving = {replica.model for replica in snapshot.replicas if replica.node_id in draining}
    return [
        job
        for job in snapshot.jobs
        if job.why is LoadWhy.DRAIN and job.state is not LoadState.LOADING and job.model not in moving
    ]


def _by_model(replicas: Iterable[Replica]) -> dict[str, list[Replica]]:
    by_model: dict[str, list[Replica]] = {}
    for replica in replicas:
        by_model.setdefault(replica.model, []).append(replica)
    return by_model


def _of_model(snapshot: FleetSnapshot, model: str, on_node: Sequence[Replica]) -> DrainPlan:
    loaded = [replica for replica in on_node if replica.state is ReplicaState.LOADED]
    incomplete = [_on_its_way(snapshot, replica) for replica in on_node if replica.state is not ReplicaState.LOADED]
    spec = snapshot.models.get(model)
    if spec is None:  # one that was deleted is ended in a moment anyway
        return DrainPlan(replicas=(*_all(snapshot, loaded, DrainStep.STAYS, NOT_READ), *incomplete))
    if not loaded:
        return DrainPlan(replicas=tuple(incomplete))
    plan = _moved(snapshot, spec, loaded)
    return DrainPlan(replicas=(*plan.replicas, *incomplete), loads=plan.loads, unload=plan.unload)


def _moved(snapshot: FleetSnapshot, spec: ModelSpec, replicas: Sequence[Replica]) -> DrainPlan:
    """What becomes of the loaded replicas of a model that is still there."""
    needed = max(snapshot.least.get(spec.name, 0), 1)
    elsewhere = _serving_elsewhere(snapshot, spec.name)
    settled = [replica for replica in elsewhere if replica.age(snapshot.at) >= SETTLED_AFTER]
    if len(settled) >= needed:
        drained = tuple(_shown(snapshot, replica, DrainStep.ENDS, "others serve its model") for replica in replicas)
        return DrainPlan(replicas=drained, unload=tuple(replicas))
    missing = needed - len(elsewhere)
    jobs = [job for job in snapshot.jobs if job.model == spec.name]
    coming = [job for job in jobs if job.state is not LoadState.FAILED and not _leads_nowhere(snapshot, job)]
    if len(coming) >= missing and not all(job.reason for job in coming):
        return DrainPlan(replicas=_all(snapshot, replicas, DrainStep.MOVES, "another one is being loaded elsewhere"))
    if missing <= 0:
        return DrainPlan(replicas=_all(snapshot, replicas, DrainStep.MOVES, "another one was just loaded elsewhere"))
    cooling = next((job for job in jobs if is_cooling(job, snapshot.at)), None)
    if cooling is not None and not coming:
        why = f"it could not be loaded elsewhere: {cooling.message}"
        return DrainPlan(replicas=_all(snapshot, replicas, DrainStep.STAYS, why))
    choice = place(snapshot.request(spec), snapshot.candidates(spec))
    if isinstance(choice, PlacementRefusal):
        return _stuck(snapshot, replicas, choice, spare=len(settled) + len(replicas) - needed)
    drained = _all(
        snapshot, replicas, DrainStep.MOVES, f"another one is to be loaded, on {choice.node.name} or elsewhere"
    )
    return DrainPlan(replicas=drained, loads=(WantedLoads(spec, missing),))


def _stuck(snapshot: FleetSnapshot, replicas: Sequence[Replica], refusal: PlacementRefusal, *, spare: int) -> DrainPlan:
    """No node can take one more: those go that are more than is wanted."""
    going = sorted(replicas, key=lambda replica: (snapshot.in_flight.get(replica.id, 0), -replica.index))[
        : max(spare, 0)
    ]
    drained = [
        _shown(snapshot, replica, DrainStep.ENDS, "enough others serve its model")
        if replica in going
        else _shown(snapshot, replica, DrainStep.STAYS, "no other node can take its model", refusal.reasons)
        for replica in replicas
    ]
    return DrainPlan(replicas=tuple(drained), unload=tuple(going))


def _serving_elsewhere(snapshot: FleetSnapshot, model: str) -> list[Replica]:
    healthy = {seen.node.id for seen in snapshot.nodes if seen.status is NodeStatus.HEALTHY}
    loaded = [replica for replica in snapshot.of_model(model) if replica.state is ReplicaState.LOADED]
    return [replica for replica in loaded if replica.node_id in healthy]


def _leads_nowhere(snapshot: FleetSnapshot, job: LoadJob) -> bool:
    """Whether it loads on a node that is not to be used."""
    seen = None if job.node_id is None else snapshot.nodes_by_id.get(job.node_id)
    return seen is not None and seen.status is not NodeStatus.HEALTHY


def _on_its_way(snapshot: FleetSnapshot, replica: Replica) -> DrainedReplica:
    if replica.state is ReplicaState.UNLOADING:
        return _shown(snapshot, replica, DrainStep.ENDS, replica.reason)
    return _shown(snapshot, replica, DrainStep.LOADS, "it is being loaded, and moves afterwards")


def _all(snapshot: FleetSnapshot, replicas: Sequence[Replica], step: DrainStep, why: str) -> tuple[DrainedReplica, ...]:
    return tuple(_shown(snapshot, replica, step, why) for replica in replicas)


def _shown(
    snapshot: FleetSnapshot, replica: Replica, step: DrainStep, why: str, reasons: Mapping[str, str] | None = None
) -> DrainedReplica:
    in_flight = snapshot.in_flight.get(replica.id, 0) if snapshot.is_load_known else None
    return DrainedReplica(replica=replica, step=step, why=why, reasons=reasons or {}, in_flight=in_flight)
