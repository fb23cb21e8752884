"""What would become of the fleet: the functions that place models, on a snapshot in which something is changed. Pure.

Places are taken one after the other, as loads take them, and nothing is promised twice. Models that would have no
replica left come first, large ones before small ones; so the answer does not depend on the order in which the fleet is
listed. Nothing is evicted: what fits only if something else ends is marked as such.
"""

from collections.abc import Callable, Iterable
from enum import StrEnum

import msgspec
from msgspec.structs import replace

from corral.base.ids import NodeId, ReplicaId
from corral.frontend.models.decide.model import ModelSpec
from corral.frontend.nodes.decide.node import NodeStatus
from corral.frontend.serving.decide.machine import given_back
from corral.frontend.serving.decide.placement import (
    CURABLE,
    NodeVerdict,
    Placement,
    PlacementRefusal,
    VerdictCode,
    place,
    reservation,
)
from corral.frontend.serving.decide.replica import Replica, ReplicaState
from corral.frontend.serving.decide.snapshot import FleetSnapshot


class Fate(StrEnum):
    """What becomes of one replica."""

    MOVES = "moves"
    """It ends where it is, and is loaded elsewhere."""
    ADDED = "added"
    """One more is loaded."""
    ENDED = "ended"
    """One fewer is wanted."""
    STAYS = "stays"
    """It has no place elsewhere, and ends only by force."""
    REPLICA_LOST = "replica_lost"
    """It has no place elsewhere; others of the model go on."""
    SERVICE_LOST = "service_lost"
    """It has no place elsewhere, and there is no other."""
    NOT_ADDED = "not_added"
    """One more has no place."""


class Consequence(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of one replica, or of one that is wanted."""

    model: str
    fate: Fate
    on: NodeId | None = None
    """The node where the replica is."""
    to: NodeId | None = None
    """The node that the replica would move to."""
    why: str = ""
    """A sentence for people; empty where there is nothing to explain."""
    is_interrupted: bool = False
    """No other replica answers until it is loaded elsewhere."""
    is_curable: bool = False
    """Whether there would be a place if something else ended."""
    verdicts: tuple[NodeVerdict, ...] = ()
    """What speaks for and against each node; the chosen node comes first."""


class NodeDown(msgspec.Struct, frozen=True, kw_only=True):
    """A node is gone, with all that it runs."""

    node_id: NodeId


class NodeDrained(msgspec.Struct, frozen=True, kw_only=True):
    """A node is to be emptied: what it runs goes on until it is loaded elsewhere."""

    node_id: NodeId


class ModelScaled(msgspec.Struct, frozen=True, kw_only=True):
    """A model has so many replicas."""

    model: str
    count: int


class BackendDeleted(msgspec.Struct, frozen=True, kw_only=True):
    """No node has a backend any more."""

    backend: str


Change = NodeDown | NodeDrained | ModelScaled | BackendDeleted


def consequences(snapshot: FleetSnapshot, change: Change) -> tuple[Consequence, ...]:
    """What a change would do, in the order in which it would be done. Empty when it changes nothing."""
    match change:
        case NodeDown(node_id=id):
            return _emptied(snapshot, id, NodeStatus.OFFLINE)
        case NodeDrained(node_id=id):
            return _emptied(snapshot, id, NodeStatus.DRAINING)
        case ModelScaled(model=model, count=count):
            return _scaled(snapshot, model, count)
        case BackendDeleted(backend=backend):
            return _without_backend(snapshot, backend)


def _emptied(snapshot: FleetSnapshot, node_id: NodeId, status: NodeStatus) -> tuple[Consequence, ...]:
    ending = [replica for replica in snapshot.replicas_by_node.get(node_id, ()) if _counts(replica)]
    is_down = status is NodeStatus.OFFLINE
    ending_ids = {replica.id for replica in ending} if is_down else set[ReplicaId]()
    after = replace(
        snapshot,
        nodes=tuple(replace(seen, status=status) if seen.node.id == node_id else seen for seen in snapshot.nodes),
        replicas=tuple(replica for replica in snapshot.replicas if replica.id not in ending_ids),
    )
    staying = [replica for replica in snapshot.replicas if replica.node_id != node_id]
    if is_down:
        return _Moves(after, staying, _lost).all_of(ending)
    moves = _Moves(after, staying, lambda _: Fate.STAYS).all_of(ending)
    return tuple(replace(each, is_interrupted=False) for each in moves)


def _lost(other_replicas: int) -> Fate:
    return Fate.REPLICA_LOST if other_replicas else Fate.SERVICE_LOST


def _without_backend(snapshot: FleetSnapshot, backend: str) -> tuple[Consequence, ...]:
    """What happens to models when their backend is deleted on all nodes. The next request for a model loads it again,
    which installs the backend again."""
    users = {name for name, spec in snapshot.models.items() if spec.backend == backend}
    ending = [
        replica
        for replica in snapshot.replicas
        if _counts(replica) and (replica.backend == backend or replica.model in users)
    ]
    ending_ids = {replica.id for replica in ending}
    staying = [replica for replica in snapshot.replicas if replica.id not in ending_ids]
    nodes = tuple(replace(seen, node=given_back(seen.node, ending)) for seen in snapshot.nodes)
    after = replace(snapshot, nodes=nodes, replicas=tuple(staying), backends=_Without(snapshot, backend))
    moves = _Moves(after, staying, _lost).all_of(ending)
    why = "its backend is deleted, and installed again as soon as somebody asks for the model"
    return tuple(replace(each, why=why) if each.fate is Fate.MOVES else each for each in moves)


class _Without:
    """What is known of backends, but for one that is nowhere."""

    def __init__(self, snapshot: FleetSnapshot, backend: str) -> None:
        self._backends = snapshot.backends
        self._backend = backend

    def is_there(self, node_id: NodeId, backend: str) -> bool:
        return backend != self._backend and self._backends.is_there(node_id, backend)

    def unfit(self, node_id: NodeId, backend: str) -> str:
        return self._backends.unfit(node_id, backend)


def _scaled(snapshot: FleetSnapshot, model: str, count: int) -> tuple[Consequence, ...]:
    counted = [replica for replica in snapshot.of_model(model) if _counts(replica)]
    if len(counted) > count:
        used = sorted(counted, key=lambda replica: _by_use(snapshot, replica))
        return tuple(
            Consequence(model=model, fate=Fate.ENDED, on=replica.node_id) for replica in used[: len(counted) - count]
        )
    spec = snapshot.models.get(model)
    if spec is None:
        return ()
    consequences: list[Consequence] = []
    for _ in range(count - len(counted)):
        choice = place(snapshot.request(spec), snapshot.candidates(spec))
        if isinstance(choice, PlacementRefusal):
            consequences.append(_refused(model, Fate.NOT_ADDED, None, choice))
            break  # the next one would hear the same
        consequences.append(Consequence(model=model, fate=Fate.ADDED, to=choice.node.id, verdicts=choice.verdicts))
        snapshot = snapshot.with_replica(_reserved(spec, choice, snapshot))
    return tuple(consequences)


def _by_use(snapshot: FleetSnapshot, replica: Replica) -> tuple[bool, int, str, str]:
    """A sort key that puts the replicas first that may end: not loaded yet, idle, used long ago."""
    used = snapshot.last_used.get(replica.id)
    is_loaded = replica.state is ReplicaState.LOADED
    when = "" if used is None else used.isoformat()
    return is_loaded, snapshot.in_flight.get(replica.id, 0), when, replica.id


class _Moves:
    """Finds places for replicas that end where they are, one after the other."""

    def __init__(self, snapshot: FleetSnapshot, staying: Iterable[Replica], stranded: Callable[[int], Fate]) -> None:
        """`stranded` says what becomes of one that has no place, given how many others of its model go on."""
        self._snapshot = snapshot
        self._stranded = stranded
        self._remaining: dict[str, int] = {}
        self._answering: dict[str, int] = {}
        for replica in staying:
            self._remaining[replica.model] = self._remaining.get(replica.model, 0) + _counts(replica)
            is_loaded = replica.state is ReplicaState.LOADED
            self._answering[replica.model] = self._answering.get(replica.model, 0) + is_loaded

    def all_of(self, ending: Iterable[Replica]) -> tuple[Consequence, ...]:
        return tuple(self._moved(replica) for replica in sorted(ending, key=self._urgency))

    def _urgency(self, replica: Replica) -> tuple[bool, int, str, int, str]:
        needs = self._snapshot.needs_of(replica.model)
        largest = max(needs.vram, needs.ram, replica.vram, replica.ram)
        return self._remaining.get(replica.model, 0) > 0, -largest, replica.model, replica.index, replica.id

    def _moved(self, replica: Replica) -> Consequence:
        spec = self._snapshot.models.get(replica.model)
        if spec is None:
            why = "the model does not exist any more"
            return Consequence(model=replica.model, fate=Fate.ENDED, on=replica.node_id, why=why)
        choice = place(self._snapshot.request(spec), self._snapshot.candidates(spec))
        if isinstance(choice, PlacementRefusal):
            fate = self._stranded(self._remaining.get(replica.model, 0))
            return _refused(replica.model, fate, replica.node_id, choice)
        self._remaining[replica.model] = self._remaining.get(replica.model, 0) + 1
        self._snapshot = self._snapshot.with_replica(_reserved(spec, choice, self._snapshot))
        return Consequence(
            model=replica.model,
            fate=Fate.MOVES,
            on=replica.node_id,
            to=choice.node.id,
            is_interrupted=not self._answering.get(replica.model),
            verdicts=choice.verdicts,
        )


def _refused(model: str, fate: Fate, on: NodeId | None, choice: PlacementRefusal) -> Consequence:
    return Consequence(
        model=model, fate=fate, on=on, why=choice.message, is_curable=has_cure(choice), verdicts=choice.verdicts
    )


def has_cure(choice: PlacementRefusal) -> bool:
    """Whether the end of another model's replicas would make a place."""
    return any(verdict.code in CURABLE and verdict.code is not VerdictCode.NO_SLOT for verdict in choice.verdicts)


def _counts(replica: Replica) -> bool:
    """Whether the model would be one replica short without it: what is being unloaded is on its way out already."""
    return replica.state is not ReplicaState.UNLOADING


def _reserved(spec: ModelSpec, choice: Placement, snapshot: FleetSnapshot) -> Replica:
    """The replica that a load would reserve a place for."""
    id = ReplicaId(f"what-if-{len(snapshot.replicas)}")
    return reservation(spec, choice.verdict, choice.index, id=id, at=snapshot.at)
