"""An operation in LocalAI's words, which are fewer than ours: for its clients, and its frontends on the same bus."""

from collections.abc import Mapping, Sequence
from typing import Final

from corral.base.ids import NodeId
from corral.domain.backend import Verb
from corral.domain.operation import (
    NO_PROGRESS,
    Operation,
    Progress,
    Target,
    TargetStatus,
    compat_status,
    overall,
)
from corral.protocol.broadcasts import NodeProgress, NodeProgressStatus, OperationStatus

Told = Mapping[NodeId, Progress]

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


def operation_status(operation: Operation, told: Told) -> OperationStatus:
    """LocalAI's whole status of an operation."""
    status = compat_status(operation)
    current = latest(operation.targets, told)
    return OperationStatus(
        deletion=operation.verb is Verb.DELETE,
        file_name=current.file_name,
        error=status.error,
        processed=status.processed,
        message=status.message,
        progress=100.0 if status.completed else overall(with_progress(operation, told)),
        phase=current.phase,
        current_bytes=current.current_bytes,
        total_bytes=current.total_bytes,
        file_size=current.total,
        downloaded_size=current.current,
        gallery_element_name=operation.backend,
        cancelled=status.cancelled,
        cancellable=not status.processed and operation.verb is not Verb.DELETE,
        nodes=node_rows(operation, told),
    )


def latest(targets: Sequence[Target], told: Told) -> Progress:
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
        percentage=shown.percentage,
        phase=shown.phase,
        error=target.message if status is NodeProgressStatus.ERROR else "",
    )


def with_progress(operation: Operation, told: Told) -> list[tuple[Target, Progress]]:
    return [(one, told.get(one.node_id, NO_PROGRESS)) for one in operation.targets]


def element_of(operation: Operation) -> str:
    """What an operation is about, as LocalAI's frontends call it."""
    return f"node:{operation.node_id}:{operation.backend}" if operation.node_id else operation.backend
