"""Whose turn it is: of those who wait for room, the one that waits longest is placed first. Pure.

A place that is free, or about to be, belongs to the longest waiting load that fits there. Others count it as taken.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final

import msgspec
from msgspec import structs
from msgspec.structs import replace

from corral.base.ids import NodeId, ReplicaId
from corral.frontend.models.decide.model import ModelSpec
from corral.frontend.serving.decide.load_job import MAY_END_OTHERS, LoadJob, LoadState
from corral.frontend.serving.decide.machine import given_back
from corral.frontend.serving.decide.placement import (
    CandidateNode,
    NodeVerdict,
    Placement,
    PlacementRefusal,
    PlacementRequest,
    judge,
    place,
    reservation,
)
from corral.frontend.serving.decide.replica import Replica, ReplicaState
from corral.frontend.serving.decide.snapshot import FleetSnapshot

ENDS_WITHIN: Final = timedelta(minutes=2)
"""A replica that is being ended for longer is not counted on to end."""
_MAKES_ROOM: Final = "makes room for "
_MOST_WAITING: Final = 100
"""How many waiting loads are considered, the longest waiting first."""
_MOST_PLACES: Final = 20
"""Nodes that are tried before a load waits, where others come first."""


def room_reason(model: str) -> str:
    """Why a replica is ended that another model needs the place of."""
    return f"{_MAKES_ROOM}{model}"


def room_made_for(replica: Replica) -> str:
    """The model for which it is being ended; empty when that is not why."""
    is_for_another = replica.state is ReplicaState.UNLOADING and replica.reason.startswith(_MAKES_ROOM)
    return replica.reason.removeprefix(_MAKES_ROOM) if is_for_another else ""


class WaitingLoad(msgspec.Struct, frozen=True, kw_only=True):
    """A load that has no place yet."""

    job: LoadJob
    spec: ModelSpec
    request: PlacementRequest
    room_at: frozenset[NodeId]
    """Where others are being ended for it."""


def waiting_before(snapshot: FleetSnapshot, job: LoadJob) -> tuple[WaitingLoad, ...]:
    """The loads that wait longer than this job and are still needed, the longest waiting first."""
    own_place = _in_line(job)
    older = [
        other
        for other in snapshot.jobs
        if other.state is not LoadState.FAILED
        and other.replica_id is None
        and other.why in MAY_END_OTHERS
        and other.model in snapshot.models
        and (_in_line(other) < own_place or job.why not in MAY_END_OTHERS)
        and other.id != job.id
    ]
    first = sorted(older, key=_in_line)[:_MOST_WAITING]
    made_at = _made_at(snapshot) if first else {}
    return tuple(_waiting(snapshot, other, made_at.get(other.model, ())) for other in first)


def _made_at(snapshot: FleetSnapshot) -> dict[str, list[NodeId]]:
    """Where replicas are being ended for which models."""
    made_at: dict[str, list[NodeId]] = {}
    for replica in snapshot.replicas:
        if model := room_made_for(replica):
            made_at.setdefault(model, []).append(replica.node_id)
    return made_at


def _in_line(job: LoadJob) -> tuple[object, ...]:
    return (job.created_at, job.model, job.ordinal)


def _waiting(snapshot: FleetSnapshot, job: LoadJob, room_at: Iterable[NodeId]) -> WaitingLoad:
    spec = snapshot.models[job.model]
    return WaitingLoad(
        job=job,
        spec=spec,
        request=snapshot.request(spec, prefer=job.preferred_node_id),
        room_at=frozenset(room_at),
    )


# Nodes as they will be.


def being_ended(candidate: CandidateNode, snapshot: FleetSnapshot) -> list[Replica]:
    """What is about to free its place there."""
    return [replica for replica in candidate.replicas if _is_ending(replica, snapshot)]


def is_machine_freed(candidate: CandidateNode, snapshot: FleetSnapshot) -> bool:
    """Whether something is about to free its place on the node or on a mate of it."""
    return any(_is_ending(replica, snapshot) for replica in (*candidate.replicas, *candidate.beside))


def _is_ending(replica: Replica, snapshot: FleetSnapshot) -> bool:
    return replica.state is ReplicaState.UNLOADING and replica.age(snapshot.at) <= ENDS_WITHIN


def without(candidate: CandidateNode, ended_ids: Collection[ReplicaId]) -> CandidateNode:
    """The node as it will be when these replicas of its, or places promised on its mates, are gone."""
    if not ended_ids:
        return candidate
    ended = [replica for replica in candidate.replicas if replica.id in ended_ids]
    remaining = tuple(replica for replica in candidate.replicas if replica.id not in ended_ids)
    beside = tuple(replica for replica in candidate.beside if replica.id not in ended_ids)
    return replace(candidate, node=given_back(candidate.node, ended), replicas=remaining, beside=beside)


def without_ending(candidate: CandidateNode, snapshot: FleetSnapshot) -> CandidateNode:
    return without(candidate, {replica.id for replica in being_ended(candidate, snapshot)})


def with_promised(candidate: CandidateNode, promised_replicas: Sequence[Replica]) -> CandidateNode:
    """The node as it will be when these replicas are on its machine: on the node itself, or on its mates."""
    if not promised_replicas:
        return candidate
    own = [replica for replica in promised_replicas if replica.node_id == candidate.node.id]
    of_mates = [replica for replica in promised_replicas if replica.node_id != candidate.node.id]
    return replace(
        candidate, replicas=(*candidate.replicas, *own), beside=(*candidate.beside, *of_mates), known_room=None
    )


def promised(snapshot: FleetSnapshot, node_id: NodeId, older: Sequence[WaitingLoad]) -> tuple[Replica, ...]:
    """What those who wait longer will take on the machine of a node, as soon as what is being ended there is gone.

    Nodes of one machine share its memory, so a place on a mate of the node counts too; each load is counted once.
    """
    machine = (node_id, *sorted(snapshot.mates.get(node_id, ())))
    promised_replicas: list[Replica] = []
    for waiting in older:
        if waiting.room_at and waiting.room_at.isdisjoint(machine):
            continue
        fitting = _fitting(snapshot, waiting, machine, promised_replicas)
        if fitting and (verdict := _place_among(snapshot, waiting, machine, fitting)) is not None:
            promised_replicas.append(_taking(waiting, verdict))
    return tuple(promised_replicas)


def _fitting(
    snapshot: FleetSnapshot, waiting: WaitingLoad, machine: Sequence[NodeId], promised_replicas: Sequence[Replica]
) -> dict[NodeId, NodeVerdict]:
    """The nodes of a machine that will have room for a load beside those promised before, in the order given."""
    fitting: dict[NodeId, NodeVerdict] = {}
    for id in machine:
        candidate = snapshot.candidate(id, waiting.spec)
        if candidate is None:
            continue
        verdict = judge(waiting.request, with_promised(without_ending(candidate, snapshot), promised_replicas))
        if verdict.fits:
            fitting[id] = verdict
    return fitting


def _place_among(
    snapshot: FleetSnapshot, waiting: WaitingLoad, machine: Sequence[NodeId], fitting: Mapping[NodeId, NodeVerdict]
) -> NodeVerdict | None:
    """Where a load will go on a machine. None: a node of another machine has room for it at this moment."""
    first = next(iter(fitting.values()))
    if waiting.room_at:
        return next((verdict for id, verdict in fitting.items() if id in waiting.room_at), first)
    choice = place(waiting.request, snapshot.candidates(waiting.spec))
    if not isinstance(choice, Placement):
        return first
    return fitting.get(choice.node.id, first) if choice.node.id in machine else None


def _taking(waiting: WaitingLoad, verdict: NodeVerdict) -> Replica:
    """A stand-in for the replica that the load will make, with an index that no real replica gets."""
    id, job = ReplicaId(f"promised {waiting.job.id}"), waiting.job
    return reservation(waiting.spec, verdict, -1, id=id, at=job.created_at, why=job.why)


# Placing.


def place_in_turn(
    request: PlacementRequest,
    candidates: Sequence[CandidateNode],
    snapshot: FleetSnapshot,
    older: Sequence[WaitingLoad],
) -> Placement | PlacementRefusal:
    """The best node where nobody is passed over who waits longer."""
    seen = {candidate.node.id: candidate for candidate in candidates}
    promised_by_node: dict[NodeId, tuple[Replica, ...]] = {}
    choice = place(request, seen.values())
    while older and isinstance(choice, Placement) and len(promised_by_node) < _MOST_PLACES:
        id = choice.node.id
        if id not in promised_by_node:
            promised_by_node[id] = promised(snapshot, id, older)
        elif promised_by_node[id]:
            break  # it fits beside them
        if not promised_by_node[id]:
            break
        seen[id] = with_promised(seen[id], promised_by_node[id])
        choice = place(request, seen.values())
    if isinstance(choice, Placement):
        return replace(choice, left_to_others=promised_by_node.get(choice.node.id, ()))
    return PlacementRefusal(verdicts=tuple(_told(verdict, promised_by_node) for verdict in choice.verdicts))


def _told(verdict: NodeVerdict, promised_by_node: dict[NodeId, tuple[Replica, ...]]) -> NodeVerdict:
    """The verdict, which names those whom a place is kept for."""
    models = ", ".join(sorted({replica.model for replica in promised_by_node.get(verdict.node_id, ())}))
    return structs.replace(verdict, why=f"keeps its room for {models}, which waits longer") if models else verdict
