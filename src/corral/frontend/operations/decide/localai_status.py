"""An operation in LocalAI's words, which are fewer than ours: for its clients, and its frontends on the same bus."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from corral.base.ids import NodeId
from corral.frontend.operations.decide.operation import (
    NO_PROGRESS,
    Operation,
    Progress,
    Target,
    TargetStatus,
    compat_status,
    overall,
)
from corral.frontend.operations.decide.reasons import sentence
from corral.wire.broadcasts import NodeProgress, NodeProgressStatus, OperationStatus

Told = Mapping[NodeId, Progress]

QUEUED: Final = "queued"
_COMPAT: Final = {
    TargetStatus.QUEUED: NodeProgressStatus.QUEUED,
    TargetStatus.DOWNLOADING: NodeProgressStatus.DOWNLOADING,
    TargetStatus.RUNNING_ON_WORKER: NodeProgressStatus.RUNNING_ON_WORKER,
    TargetStatus.SUCCESS: NodeProgressStatus.SUCCESS,
    TargetStatus.ERROR: NodeProgressStatus.ERROR,
    TargetStatus.BLOCKED: NodeProgressStatus.ERROR,
    TargetStatus.SUPERSEDED: NodeProgressStatus.SUCCESS,
    TargetStatus.CANCELLED: NodeProgressStatus.ERROR,
}
"""LocalAI knows five words. Superseded is none of its errors, and nothing of it is left to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerOperation:
    """An operation that a LocalAI frontend works on."""

    job_id: str
    key: str = ""
    """What it is about; empty while only its progress was heard of, and then it is not listed."""
    is_backend: bool = False
    status: OperationStatus | None = None
    heard_at: float


def operation_status(operation: Operation, told: Told) -> OperationStatus:
    """LocalAI's whole status of an operation; its other forms are made of it."""
    status = compat_status(operation)
    current = _latest(operation.targets, told)
    is_deletion = operation.verb.deletes
    return OperationStatus(
        deletion=is_deletion,
        file_name=current.file_name,
        error=status.error,
        processed=status.processed,
        message=status.message if status.processed else current.phase or status.message,
        progress=100 if status.completed else _whole(overall(with_progress(operation, told))),
        phase=QUEUED if status.is_queued else "",
        current_bytes=current.current_bytes,
        total_bytes=current.total_bytes,
        file_size=current.total,
        downloaded_size=current.current,
        gallery_element_name=operation.subject if status.completed or status.is_queued else "",
        cancelled=status.cancelled,
        cancellable=not status.processed and not is_deletion,
        nodes=node_rows(operation, told),
    )


def cache_key(operation: Operation) -> str:
    """What LocalAI files an operation under: one of a single node does not meet those of the fleet."""
    return f"node:{operation.node_id}:{operation.subject}" if operation.node_id else operation.subject


def with_progress(operation: Operation, told: Told) -> list[tuple[Target, Progress]]:
    return [(one, told.get(one.node_id, NO_PROGRESS)) for one in operation.targets]


def _latest(targets: Sequence[Target], told: Told) -> Progress:
    """What the furthest of the nodes at work says."""
    busy = [told[one.node_id] for one in targets if one.status is TargetStatus.DOWNLOADING and one.node_id in told]
    return max(busy, key=lambda one: one.percentage, default=NO_PROGRESS)


def node_rows(operation: Operation, told: Told) -> list[NodeProgress]:
    """By the names of the nodes. What is over shows no share, as LocalAI's do not."""
    return [_node_row(one, told.get(one.node_id, NO_PROGRESS)) for one in operation.targets]


def _node_row(target: Target, progress: Progress) -> NodeProgress:
    status = _COMPAT[target.status]
    is_moving = status is NodeProgressStatus.DOWNLOADING
    shown = progress if is_moving else NO_PROGRESS
    return NodeProgress(
        node_id=target.node_id,
        node_name=target.node_name,
        status=status.value,
        file_name=shown.file_name,
        current=shown.current,
        total=shown.total,
        percentage=_whole(shown.percentage),
        phase=shown.phase,
        error=sentence(target.reason) if status is NodeProgressStatus.ERROR else "",
    )


def _whole(share: float) -> float:
    """A whole number is written without a fraction, as Go does it."""
    return int(share) if share.is_integer() else share
