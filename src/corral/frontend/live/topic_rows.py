"""What is on each topic, made of a picture of the fleet."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec
from msgspec.structs import replace

from corral.base.clock import Clock
from corral.base.errors import NotFound
from corral.base.ids import NodeId, OperationId
from corral.frontend.live.decide.attention import attention
from corral.frontend.live.decide.board import Board
from corral.frontend.live.decide.picture import FleetPicture, in_flight_of, node_kind, status_reason, status_since
from corral.frontend.live.decide.summary import summarise
from corral.frontend.live.decide.topics import Topic, TopicKind
from corral.frontend.live.pictures import Pictures
from corral.frontend.nodes.decide.liveness import LivenessPolicy, heartbeat_interval
from corral.frontend.nodes.decide.node import SUSPICIONS, Node, NodeLoad, NodeStatus, SeenNode
from corral.frontend.nodes.shapes import card_views, node_detail
from corral.frontend.operations.decide.operation import Operation, OperationState, Target, TargetStatus, waits
from corral.frontend.operations.decide.reasons import sentence
from corral.frontend.serving.decide.load_job import LoadJob, LoadProgress, LoadState, seconds_so_far
from corral.frontend.serving.decide.replica import Replica, ReplicaState
from corral.frontend.serving.room import ServingRoom
from corral.frontend.serving.shapes import drain_view, replica_views
from corral.wire.go_json import format_time
from corral.wire.live import (
    AttentionItem,
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
from corral.wire.nodes import DrainView
from corral.wire.operation_views import OperationView, TargetView
from corral.wire.replicas import ReplicaView

FLEET: Final = "fleet"
"""The key of the one item of the summary."""
_DRAIN_LASTS: Final = 2.0
"""Seconds that one look at a drain serves everybody."""
_WORST: Final = (
    TargetStatus.BLOCKED,
    TargetStatus.ERROR,
    TargetStatus.RUNNING_ON_WORKER,
    TargetStatus.DOWNLOADING,
    TargetStatus.QUEUED,
)


class TopicState(msgspec.Struct, frozen=True, kw_only=True):
    rows: Mapping[str, object] = msgspec.field(default_factory=dict)
    is_missing: bool = False


class TopicRows:
    def __init__(self, pictures: Pictures, serving: ServingRoom, clock: Clock, *, drain_within: timedelta) -> None:
        """`drain_within` is how long requests of a drained node may go on."""
        self._pictures = pictures
        self._serving = serving
        self._clock = clock
        self._drain_within = drain_within
        self._node_rows = NodeRows()
        self._attention_of: tuple[FleetPicture, Sequence[AttentionItem]] | None = None
        self._drains: dict[NodeId, tuple[float, DrainView]] = {}

    async def of(self, topic: Topic, picture: FleetPicture, board: Board | None) -> TopicState:
        """`board` is what was shown last, if anything was."""
        match topic.kind:
            case TopicKind.SUMMARY | TopicKind.ATTENTION:
                return self.of_fleet(topic, picture)
            case TopicKind.NODES:
                return TopicState(rows=self._node_rows.of(picture))
            case TopicKind.REPLICAS:
                return self._replicas(picture)
            case TopicKind.LOADS:
                return self._loads(picture)
            case TopicKind.OPERATIONS:
                operations = self._pictures.operations
                return TopicState(rows={each.view.id: operation_row(each.operation, each.view) for each in operations})
            case TopicKind.OPERATION:
                return await self._operation(OperationId(topic.id), board)
            case TopicKind.NODE:
                return await self._node(NodeId(topic.id), picture)
            case TopicKind.EVENTS:
                return TopicState()

    def of_fleet(self, topic: Topic, picture: FleetPicture) -> TopicState:
        items = self._attention(picture)
        if topic.kind is TopicKind.ATTENTION:
            return TopicState(rows={item.id: item for item in items})
        return TopicState(rows={FLEET: summarise(picture, items)})

    def _attention(self, picture: FleetPicture) -> Sequence[AttentionItem]:
        """Found once for the two topics that are made of it."""
        if self._attention_of is None or self._attention_of[0] is not picture:
            self._attention_of = picture, attention(picture)
        return self._attention_of[1]

    def _replicas(self, picture: FleetPicture) -> TopicState:
        views = replica_views(picture.replicas, self._serving.gateways, names_of(picture))
        return TopicState(rows={view.id: steady(view) for view in views})

    def _loads(self, picture: FleetPicture) -> TopicState:
        names, loads = names_of(picture), self._serving.loads
        return TopicState(
            rows={
                job.id: load_row(
                    job, loads.progress_of(job), node=names.get(job.node_id or NodeId(""), ""), now=picture.at
                )
                for job in picture.jobs
            }
        )

    async def _operation(self, id: OperationId, board: Board | None) -> TopicState:
        watched = await self._pictures.operation(id)
        if watched is None:
            return TopicState(is_missing=True)
        before = {} if board is None else {key: entry.value for key, entry in board.entries.items()}
        return TopicState(rows=all_forward(before, watched.view.targets))

    async def _node(self, id: NodeId, picture: FleetPicture) -> TopicState:
        seen = self._pictures.node(id)
        if seen is None:
            return TopicState(is_missing=True)
        replicas = [replica for replica in picture.replicas if replica.node_id == id]
        users: dict[str, list[str]] = {}
        for replica in replicas:
            for card in replica.cards:
                users.setdefault(card, []).append(replica.process_key)
        loads = NodeLoad(
            loaded=sum(replica.state is ReplicaState.LOADED for replica in replicas),
            in_flight=sum(picture.in_flight.get(replica.id, 0) for replica in replicas),
            is_known=picture.is_load_known,
        )
        watched = [(each.operation, each.view) for each in self._pictures.operations]
        rows: dict[str, object] = {
            "detail": node_detail(_as_heard(seen), loads, picture.policy),
            "cards": card_views(seen.node, users),
            "work": node_work(id, watched),
        }
        if seen.status is NodeStatus.DRAINING and (drain := await self._drain(id)) is not None:
            rows["drain"] = drain
        return TopicState(rows=rows)

    async def _drain(self, id: NodeId) -> DrainView | None:
        """How far a drain is, some seconds ago at most: to find out what can move where takes a while."""
        now = self._clock.monotonic()
        self._drains = {node: computed for node, computed in self._drains.items() if now - computed[0] < _DRAIN_LASTS}
        if id not in self._drains:
            try:
                seen, plan = await self._serving.draining.progress(id)
            except NotFound:  # it was removed a moment ago
                return None
            self._drains[id] = now, drain_view(seen, plan, within=self._drain_within)
        return self._drains[id][1]


def _as_heard(seen: SeenNode) -> SeenNode:
    """Without what grows with every second: readers have the time of the last heartbeat."""
    return SeenNode(node=seen.node, status=seen.status, silent_seconds=0.0, heard_seconds_ago=0.0)


_MOVING: Final = (TargetStatus.DOWNLOADING.value, TargetStatus.RUNNING_ON_WORKER.value)


def forward(before: TargetView | None, now: TargetView) -> TargetView:
    """The target as it is now, with the largest share that was shown of the same attempt.

    A frontend that hears of an attempt later than another one, or asks the node again, knows less of it for a moment.
    """
    if before is None or before.percentage <= now.percentage:
        return now
    is_same = before.status in _MOVING and now.status in _MOVING and before.attempts == now.attempts
    return replace(now, percentage=before.percentage) if is_same else now


def all_forward(before: Mapping[str, object], now: list[TargetView]) -> dict[str, TargetView]:
    """All targets of an operation by their nodes; `before` are those that were shown last."""
    targets = {key: value for key, value in before.items() if isinstance(value, TargetView)}
    return {target.node_id: forward(targets.get(target.node_id), target) for target in now}


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
