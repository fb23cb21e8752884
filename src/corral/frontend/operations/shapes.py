"""Operations in the shapes that clients read: Corral's own, and LocalAI's, which has fewer words.

LocalAI's are also for its frontends on the same bus.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from msgspec import UNSET, to_builtins
from msgspec.structs import replace

from corral.base.ids import NodeId
from corral.frontend.operations.decide.intent import IntentKind
from corral.frontend.operations.decide.operation import (
    NO_PROGRESS,
    Operation,
    OperationState,
    Progress,
    Target,
    TargetStatus,
    compat_status,
    overall,
    seconds_left,
    seconds_left_of_all,
    share_of,
    shown_progress,
    speed_of,
    tried_again_at,
)
from corral.frontend.operations.decide.reasons import sentence
from corral.wire.broadcasts import NodeProgress, NodeProgressStatus, OperationStatus, StagingStatus
from corral.wire.go_json import format_time
from corral.wire.operation_views import FileShareView, HistoryItem, JobStatus, OperationItem, OperationView, TargetView

ProgressByNode = Mapping[NodeId, Progress]
_QUEUED: Final = "queued"
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
"""LocalAI has five statuses. For its clients a superseded target is done, and not an error."""
_OUTCOMES: Final = {
    OperationState.DONE: "completed",
    OperationState.FAILED: "failed",
    OperationState.CANCELLED: "cancelled",
}


def _uri(operation: Operation) -> str:
    """Where its subject comes from: the URI of a backend, or what was asked for by a pull."""
    origin = operation.payload.get("origin")
    reference = origin.get("reference", "") if isinstance(origin, Mapping) else ""
    return str(operation.payload.get("uri", "") or reference)


def operation_view(operation: Operation, progress: ProgressByNode, now: float) -> OperationView:
    """`now` is of the clock that progress was heard by."""
    shares = [
        (target, shown_progress(target, progress.get(target.node_id, NO_PROGRESS))) for target in operation.targets
    ]
    targets = [_target_view(operation, target, share, now) for target, share in shares]
    left = seconds_left_of_all(shares, now)
    return OperationView(
        id=operation.id,
        verb=operation.verb.value,
        backend=operation.subject,
        uri=_uri(operation),
        state=operation.state.value,
        progress=round(_overall(operation, progress), 1),
        asked_by=operation.asked_by,
        accepted_at=format_time(operation.accepted_at),
        changed_at=format_time(operation.changed_at),
        counts=dict(Counter(target.status.value for target in operation.targets)),
        current_bytes=sum(target.current_bytes for target in targets),
        total_bytes=sum(target.total_bytes for target in targets),
        bytes_per_second=sum(target.bytes_per_second for target in targets),
        seconds_left=None if left is None else round(left, 1),
        notes=list(operation.payload.get("notes", ())),
        targets=targets,
    )


def _target_view(operation: Operation, target: Target, progress: Progress, now: float) -> TargetView:
    remaining_seconds, again = seconds_left(progress, now), tried_again_at(target)
    return TargetView(
        node_id=target.node_id,
        node_name=target.node_name,
        backend=target.subject if operation.kind is IntentKind.BACKEND else f"models/{target.subject}",
        status=target.status.value,
        waits_for_node=target.waits_for_node,
        message=sentence(target.reason),
        reason_code="" if target.reason is None else target.reason.code.value,
        reason_fields={} if target.reason is None else to_builtins(target.reason.fields),
        attempts=target.attempts,
        next_try_at=None if again is None else format_time(again),
        changed_at=format_time(target.changed_at),
        percentage=round(share_of(target, progress), 1),
        phase=progress.phase,
        file_name=progress.file_name,
        current_bytes=progress.current_bytes,
        total_bytes=progress.total_bytes,
        bytes_per_second=int(speed_of(progress, now)),
        seconds_left=None if remaining_seconds is None else round(remaining_seconds, 1),
        files=[
            FileShareView(
                name=file.name, state=file.state, current_bytes=file.current_bytes, total_bytes=file.total_bytes
            )
            for file in progress.files
        ],
    )


def _overall(operation: Operation, progress: ProgressByNode) -> float:
    return overall([(target, progress.get(target.node_id, NO_PROGRESS)) for target in operation.targets])


# LocalAI's.


def operation_status(operation: Operation, progress: ProgressByNode) -> OperationStatus:
    """LocalAI's whole status of an operation; its other forms are made of it."""
    status, is_deletion = compat_status(operation), operation.verb.deletes
    busy = [
        progress[target.node_id]
        for target in operation.targets
        if target.status is TargetStatus.DOWNLOADING and target.node_id in progress
    ]
    current = max(busy, key=lambda node: node.percentage, default=NO_PROGRESS)
    return OperationStatus(
        deletion=is_deletion,
        file_name=current.file_name,
        error=status.error,
        processed=status.processed,
        message=status.message if status.processed else current.phase or status.message,
        progress=100 if status.completed else _whole(_overall(operation, progress)),
        phase=_QUEUED if status.is_queued else "",
        current_bytes=current.current_bytes,
        total_bytes=current.total_bytes,
        file_size=current.total,
        downloaded_size=current.current,
        gallery_element_name=operation.subject if status.completed or status.is_queued else "",
        cancelled=status.cancelled,
        cancellable=not status.processed and not is_deletion,
        nodes=node_rows(operation, progress),
    )


def cache_key(operation: Operation) -> str:
    """What LocalAI files an operation under: one of a single node does not meet those of the fleet."""
    return f"node:{operation.node_id}:{operation.subject}" if operation.node_id else operation.subject


def node_rows(operation: Operation, progress: ProgressByNode) -> list[NodeProgress]:
    """By the names of the nodes. What is over shows no share, as LocalAI's do not."""
    rows = []
    for target in operation.targets:
        status = _COMPAT[target.status]
        is_moving = status is NodeProgressStatus.DOWNLOADING
        current = progress.get(target.node_id, NO_PROGRESS) if is_moving else NO_PROGRESS
        row = NodeProgress(
            node_id=target.node_id,
            node_name=target.node_name,
            status=status.value,
            file_name=current.file_name,
            current=current.current,
            total=current.total,
            percentage=_whole(current.percentage),
            phase=current.phase,
            error=sentence(target.reason) if status is NodeProgressStatus.ERROR else "",
        )
        rows.append(row)
    return rows


def _whole(share: float) -> float:
    """A whole number is written without a fraction, as Go does it."""
    return int(share) if share.is_integer() else share


def is_listed(operation: Operation) -> bool:
    """Whether LocalAI's list of current operations has it: until it is over, and failed ones until dismissed."""
    status = compat_status(operation)
    return not status.processed or bool(status.error)


def operation_item(operation: Operation, progress: ProgressByNode) -> OperationItem:
    """Its id is the backend, also for an operation on one node: the node has a field of its own."""
    status = operation_status(operation, progress)
    return replace(
        _item(status),
        id=operation.subject,
        name=_bare(operation.subject),
        full_name=operation.subject,
        job_id=operation.id,
        task_type="deletion" if status.deletion else "Installation",
        is_backend=operation.kind is IntentKind.BACKEND,
        node_id=operation.node_id or "",
        nodes=status.nodes,
    )


def peer_item(job_id: str, key: str, status: OperationStatus | None, *, is_backend: bool) -> OperationItem:
    """An operation of a LocalAI frontend, as it would list it itself. Its key says what it is about."""
    status = status or OperationStatus(message=_QUEUED, phase=_QUEUED)
    node, backend = "", key
    if key.startswith("node:"):  # `node:<id>:<backend>` is about one node
        _, node, backend = (key + "::").split(":", 2)
        backend = backend.rstrip(":")
    waiting = "Waiting" if status.phase == _QUEUED else "Installation"
    return replace(
        _item(status),
        id=key,
        name=_bare(backend),
        full_name=backend,
        job_id=job_id,
        task_type="deletion" if status.deletion else waiting,
        is_backend=is_backend,
        node_id=node,
        node_name=next((row.node_name for row in status.nodes if row.node_id == node), ""),
        nodes=sorted(status.nodes, key=lambda row: row.node_name),
    )


def _item(status: OperationStatus) -> OperationItem:
    return OperationItem(
        progress=int(status.progress),
        is_deletion=status.deletion,
        is_queued=status.phase == _QUEUED,
        cancellable=status.cancellable,
        message=status.message,
        phase=status.phase,
        current_bytes=status.current_bytes if status.phase else 0,  # as LocalAI does it, apart from broadcasts
        total_bytes=status.total_bytes if status.phase else 0,
        error=status.error,
    )


def staging_item(model: str, status: StagingStatus) -> OperationItem:
    """Files that a LocalAI frontend brings to a node."""
    return OperationItem(
        id=f"staging:{model}",
        name=model,
        full_name=model,
        job_id=f"staging:{model}",
        progress=int(status.progress),
        task_type="staging",
        message=status.message,
        node_name=status.node_name,
        current_bytes=status.bytes_sent,
        total_bytes=status.total_bytes,
    )


UNKNOWN_JOB: Final = JobStatus(message="Operation queued", queued=True)
"""LocalAI answers this for an unknown id: another frontend may be about to broadcast it."""


def job_status(status: OperationStatus, *, is_completed: bool) -> JobStatus:
    return JobStatus(
        progress=status.progress,
        message=status.message,
        gallery_element_name=status.gallery_element_name,
        processed=status.processed,
        deletion=status.deletion,
        error=status.error or UNSET,
        completed=is_completed or UNSET,
    )


def history_item(operation: Operation) -> HistoryItem | None:
    """None while it is not over."""
    outcome, status = _OUTCOMES.get(operation.state), compat_status(operation)
    if outcome is None:
        return None
    return HistoryItem(
        id=cache_key(operation),
        name=_bare(operation.subject),
        job_id=operation.id,
        is_backend=operation.kind is IntentKind.BACKEND,
        node_id=operation.node_id or "",
        task_type="deletion" if operation.verb.deletes else "installation",
        outcome=_OUTCOMES[OperationState.CANCELLED] if status.cancelled else outcome,
        error=status.error,
        started_at=format_time(operation.accepted_at),
        finished_at=format_time(operation.changed_at),
    )


def _bare(backend: str) -> str:
    return backend.rpartition("@")[2]
