"""Operations in the shapes of the admin API: Corral's own, and LocalAI's."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import UNSET

from corral.base.ids import NodeId
from corral.domain.operation import (
    NO_PROGRESS,
    Operation,
    OperationState,
    Progress,
    Target,
    TargetStatus,
    compat_status,
    overall,
    share_of,
)
from corral.protocol.broadcasts import NodeProgress, NodeProgressStatus, OperationStatus
from corral.protocol.operation_views import HistoryItem, JobStatus, OperationItem, OperationView, TargetView
from corral.protocol.times import format_time

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
_QUEUED: Final = "queued"
_OUTCOMES: Final = {
    OperationState.DONE: "completed",
    OperationState.FAILED: "failed",
    OperationState.CANCELLED: "cancelled",
}


def operation_view(operation: Operation, told: Told) -> OperationView:
    return OperationView(
        id=operation.id,
        verb=operation.verb.value,
        backend=operation.backend,
        uri=operation.artefact.uri,
        state=operation.state.value,
        progress=round(overall(_with_progress(operation, told)), 1),
        asked_by=operation.asked_by,
        accepted_at=format_time(operation.accepted_at),
        changed_at=format_time(operation.changed_at),
        counts=dict(Counter(one.status.value for one in operation.targets)),
        targets=[_target_view(one, told.get(one.node_id, NO_PROGRESS)) for one in operation.targets],
    )


def _target_view(target: Target, progress: Progress) -> TargetView:
    return TargetView(
        node_id=target.node_id,
        node_name=target.node_name,
        backend=target.backend,
        status=target.status.value,
        waits_for_node=target.waits_for_node,
        message=target.message,
        attempts=target.attempts,
        changed_at=format_time(target.changed_at),
        percentage=round(share_of(target, progress), 1),
        phase=progress.phase,
        file_name=progress.file_name,
        current_bytes=progress.current_bytes,
        total_bytes=progress.total_bytes,
    )


def _with_progress(operation: Operation, told: Told) -> list[tuple[Target, Progress]]:
    return [(one, told.get(one.node_id, NO_PROGRESS)) for one in operation.targets]


# LocalAI's.


def is_listed(operation: Operation) -> bool:
    """Whether LocalAI's list of current operations has it: until it is over, and failed ones until dismissed."""
    status = compat_status(operation)
    return not status.processed or bool(status.error)


def operation_item(operation: Operation, told: Told) -> OperationItem:
    """Named by the backend, also when it is about one node: that is told beside it."""
    status = operation_status(operation, told)
    return OperationItem(
        id=operation.backend,
        name=_bare(operation.backend),
        full_name=operation.backend,
        job_id=operation.id,
        progress=int(status.progress),
        task_type="deletion" if status.deletion else "Installation",
        is_deletion=status.deletion,
        is_backend=operation.verb.is_about_backends,
        is_queued=status.phase == _QUEUED,
        cancellable=status.cancellable,
        message=status.message,
        node_id=operation.node_id or "",
        phase=status.phase,
        current_bytes=status.current_bytes,
        total_bytes=status.total_bytes,
        error=status.error,
        nodes=status.nodes,
    )


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
        progress=100 if status.completed else _whole(overall(_with_progress(operation, told))),
        phase=_QUEUED if status.is_queued else "",
        current_bytes=current.current_bytes,
        total_bytes=current.total_bytes,
        file_size=current.total,
        downloaded_size=current.current,
        gallery_element_name=operation.backend if status.completed or status.is_queued else "",
        cancelled=status.cancelled,
        cancellable=not status.processed and not is_deletion,
        nodes=node_rows(operation, told),
    )


def job_status(operation: Operation, told: Told) -> JobStatus:
    status = operation_status(operation, told)
    return JobStatus(
        progress=status.progress,
        message=status.message,
        gallery_element_name=status.gallery_element_name,
        processed=status.processed,
        deletion=status.deletion,
        error=status.error or UNSET,
        completed=compat_status(operation).completed or UNSET,
    )


UNKNOWN_JOB: Final = JobStatus(message="Operation queued", queued=True)
"""LocalAI takes an id that it does not know for one that another frontend is about to tell of."""


def history_item(operation: Operation) -> HistoryItem | None:
    """None while it is not over."""
    outcome = _OUTCOMES.get(operation.state)
    if outcome is None:
        return None
    return HistoryItem(
        id=cache_key(operation),
        name=_bare(operation.backend),
        job_id=operation.id,
        is_backend=operation.verb.is_about_backends,
        node_id=operation.node_id or "",
        task_type="deletion" if operation.verb.deletes else "installation",
        outcome=outcome,
        error=compat_status(operation).error,
        started_at=format_time(operation.accepted_at),
        finished_at=format_time(operation.changed_at),
    )


def cache_key(operation: Operation) -> str:
    """What LocalAI files an operation under: one of a single node does not meet those of the fleet."""
    return f"node:{operation.node_id}:{operation.backend}" if operation.node_id else operation.backend


def _bare(backend: str) -> str:
    return backend.rpartition("@")[2]


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
        error=target.message if status is NodeProgressStatus.ERROR else "",
    )


def _whole(share: float) -> float:
    """A whole number is written without a fraction, as Go does it."""
    return int(share) if share.is_integer() else share
