"""Rows of topics, made of a picture of the fleet."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from msgspec.structs import replace

from corral.base.ids import NodeId
from corral.frontend.live.decide.picture import FleetPicture, in_flight_of, node_kind, status_reason, status_since
from corral.frontend.nodes.decide.liveness import LivenessPolicy, heartbeat_interval
from corral.frontend.nodes.decide.node import SUSPICIONS, Node, NodeStatus, SeenNode
from corral.frontend.operations.decide.operation import Operation, OperationState, Target, TargetStatus, waits
from corral.frontend.operations.decide.reasons import sentence
from corral.frontend.serving.decide.load_job import LoadJob, LoadProgress, LoadState, seconds_so_far
from corral.frontend.serving.decide.replica import Replica
from corral.wire.go_json import format_time
from corral.wire.live import (
    DiskUse,
    LoadRow,
    LoadStepRow,
    MemoryUse,
    NodeReplica,
    NodeRow,
    NodeWork,
    OperationRow,
    WorstTarget,
)
from corral.wire.operation_views import OperationView, TargetView
from corral.wire.replicas import ReplicaView

_WORST: Final = (
    TargetStatus.BLOCKED,
    TargetStatus.ERROR,
    TargetStatus.RUNNING_ON_WORKER,
    TargetStatus.DOWNLOADING,
    TargetStatus.QUEUED,
)


# Nodes.


class NodeRows:
    """Rows of nodes, made again only for those of which something changed: there may be thousands."""

    def __init__(self) -> None:
        self._made: dict[NodeId, tuple[Node, NodeStatus, tuple[NodeReplica, ...], tuple[int, int], NodeRow]] = {}

    def of(self, picture: FleetPicture) -> dict[str, NodeRow]:
        by_node: dict[NodeId, list[Replica]] = {}
        for replica in picture.replicas:
            by_node.setdefault(replica.node_id, []).append(replica)
        made = {seen.node.id: self._row(seen, by_node.get(seen.node.id, ()), picture) for seen in picture.nodes}
        self._made = made
        return {id: row for id, (*_, row) in made.items()}

    def _row(
        self, seen: SeenNode, node_replicas: Sequence[Replica], picture: FleetPicture
    ) -> tuple[Node, NodeStatus, tuple[NodeReplica, ...], tuple[int, int], NodeRow]:
        earlier = self._made.get(seen.node.id)
        if (
            not node_replicas
            and earlier is not None
            and earlier[0] is seen.node
            and earlier[1] is seen.status
            and not earlier[2]
        ):
            return earlier  # of most nodes in a large fleet nothing changed
        replicas = tuple(
            NodeReplica(model=replica.model, state=replica.state.value, in_flight=in_flight_of(replica, picture))
            for replica in node_replicas
        )
        reserved = sum(replica.vram for replica in node_replicas), sum(replica.ram for replica in node_replicas)
        if earlier is not None and earlier[0] is seen.node and earlier[1:4] == (seen.status, replicas, reserved):
            return earlier
        row = node_row(seen, replicas, reserved, picture.policy)
        return seen.node, seen.status, replicas, reserved, row


def node_row(
    seen: SeenNode, replicas: Sequence[NodeReplica], reserved: tuple[int, int], policy: LivenessPolicy
) -> NodeRow:
    """`reserved` are the bytes that the replicas count with: of video memory and of memory."""
    node, facts = seen.node, seen.node.facts
    suspicions = [] if facts.suspicion is None else [SUSPICIONS[facts.suspicion]]
    counts = [replica.in_flight for replica in replicas]
    return NodeRow(
        id=node.id,
        name=node.name,
        kind=node_kind(seen),
        version="" if node.peer is None else node.peer.version,
        status=seen.status.value,
        reason=status_reason(seen, policy),
        since=format_time(status_since(seen, policy)),
        heard_at=format_time(facts.last_heartbeat),
        address=node.address,
        labels=node.labels.effective,
        capability=node.capability,
        vram=_vram(node, reserved[0]),
        ram=_ram(node, reserved[1]),
        disk=_disk(node),
        gpus=_gpus(node),
        slots=node.max_replicas_per_model,
        replicas=list(replicas),
        in_flight=None if None in counts else sum(count or 0 for count in counts),
        problems=[*suspicions, *node.problems],
        pending_since=format_time(node.created_at) if seen.status is NodeStatus.PENDING else None,
        fingerprint=node.fingerprint,
        draining_by=facts.draining_by,
        heartbeat_seconds=heartbeat_interval(facts, policy).total_seconds(),
    )


def _vram(node: Node, reserved: int) -> MemoryUse:
    """A machine without GPUs has none, and says so; one that tells nothing of GPUs at all may have any."""
    capacity = node.capacity
    if not capacity.total_vram and node.peer is None and not node.capability:
        return MemoryUse(reserved=reserved)
    used = max(capacity.total_vram - capacity.available_vram, 0)
    return MemoryUse(total=capacity.total_vram, used=used, reserved=reserved)


def _ram(node: Node, reserved: int) -> MemoryUse:
    capacity = node.capacity
    if not capacity.total_ram:
        return MemoryUse(reserved=reserved)
    return MemoryUse(
        total=capacity.total_ram, used=max(capacity.total_ram - capacity.available_ram, 0), reserved=reserved
    )


def _disk(node: Node) -> DiskUse:
    capacity = node.capacity
    return DiskUse(total=capacity.total_disk, free=capacity.available_disk) if capacity.total_disk else DiskUse()


def _gpus(node: Node) -> int | None:
    if node.cards:
        return len(node.cards)
    return None if node.capacity.total_vram else 0


# Replicas.


def steady(view: ReplicaView) -> ReplicaView:
    """A replica without what only says again that it is busy: while requests are under way it is used all the time."""
    return replace(view, last_used_at=None) if view.in_flight else view


# Loads.


def load_row(job: LoadJob, progress: LoadProgress, *, node: str, now: datetime) -> LoadRow:
    """A load as a row. Times are whole seconds, so the row changes once a second at most."""
    is_known = job.state is LoadState.LOADING
    retry = max(round((job.retry_at - now).total_seconds()), 0)
    return LoadRow(
        id=job.id,
        model=job.model,
        node=node,
        node_id=job.node_id or "",
        phase=(progress.phase or job.step or job.state.value) if is_known else job.state.value,
        since=format_time(job.created_at),
        steps=_steps(job, now),
        bytes=progress.current_bytes,
        total_bytes=progress.total_bytes,
        bytes_per_second=progress.bytes_per_second,
        seconds_left=progress.eta_seconds,
        message=job.message,
        is_permanent=job.is_permanent,
        retry_in_seconds=retry if job.state is LoadState.FAILED and not job.is_permanent else None,
        why=job.why.value,
        reason=job.reason or "",
        engine_lines=list(job.engine_lines),
    )


def _steps(job: LoadJob, now: datetime) -> list[LoadStepRow]:
    last = {LoadState.LOADING: "running", LoadState.FAILED: "failed", LoadState.PENDING: "waiting"}[job.state]
    return [
        LoadStepRow(step=name, seconds=int(seconds), state=last if name == job.step else "done")
        for name, seconds in seconds_so_far(job, now).items()
    ]


# Operations.


def operation_row(operation: Operation, view: OperationView) -> OperationRow:
    return OperationRow(
        id=view.id,
        verb=view.verb,
        backend=view.backend,
        uri=view.uri,
        state=view.state,
        progress=view.progress,
        asked_by=view.asked_by,
        accepted_at=view.accepted_at,
        changed_at=view.changed_at,
        counts=view.counts,
        current_bytes=view.current_bytes,
        total_bytes=view.total_bytes,
        bytes_per_second=view.bytes_per_second,
        seconds_left=view.seconds_left,
        notes=view.notes,
        worst=_worst(operation.targets),
    )


def _worst(targets: Sequence[Target]) -> WorstTarget | None:
    """The target that needs somebody most, of those that are not over; among equals the one that stands longest."""
    open_targets = [target for target in targets if target.status in _WORST]
    if not open_targets:
        return None
    worst = min(open_targets, key=lambda target: (_WORST.index(target.status), waits(target), target.changed_at))
    return WorstTarget(node=worst.node_name, status=worst.status.value, message=sentence(worst.reason))


def node_work(node_id: NodeId, operations: Sequence[tuple[Operation, OperationView]]) -> list[NodeWork]:
    """What operations that are not over want of a node, the newest first."""
    work: list[NodeWork] = []
    for operation, view in operations:
        if operation.state in (OperationState.DONE, OperationState.CANCELLED):
            continue
        work += [_work(operation, target) for target in view.targets if target.node_id == node_id]
    return work


def _work(operation: Operation, target: TargetView) -> NodeWork:
    return NodeWork(
        operation_id=operation.id,
        verb=operation.verb.value,
        backend=target.backend,
        status=target.status,
        message=target.message,
        percentage=target.percentage,
        waits_for_node=target.waits_for_node,
    )


def names_of(picture: FleetPicture) -> Mapping[NodeId, str]:
    return {seen.node.id: seen.node.name for seen in picture.nodes}
