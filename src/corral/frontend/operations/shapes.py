"""Operations in the shapes of the admin API: Corral's own, and LocalAI's."""

from collections import Counter
from typing import Final

from msgspec import UNSET, to_builtins

from corral.frontend.operations.decide.intent import IntentKind
from corral.frontend.operations.decide.localai_status import (
    QUEUED,
    PeerOperation,
    Told,
    cache_key,
    operation_status,
    with_progress,
)
from corral.frontend.operations.decide.operation import (
    NO_PROGRESS,
    Operation,
    OperationState,
    Progress,
    Target,
    compat_status,
    overall,
    seconds_left,
    share_of,
    shown_progress,
    speed_of,
)
from corral.frontend.operations.decide.reasons import sentence
from corral.wire.broadcasts import OperationStatus, StagingStatus
from corral.wire.go_json import format_time
from corral.wire.operation_views import HistoryItem, JobStatus, OperationItem, OperationView, TargetView

_OUTCOMES: Final = {
    OperationState.DONE: "completed",
    OperationState.FAILED: "failed",
    OperationState.CANCELLED: "cancelled",
}


def operation_view(operation: Operation, told: Told, now: float) -> OperationView:
    """`now` is of the clock that progress was heard by."""
    targets = [
        _target_view(operation, one, shown_progress(one, told.get(one.node_id, NO_PROGRESS)), now)
        for one in operation.targets
    ]
    return OperationView(
        id=operation.id,
        verb=operation.verb.value,
        backend=operation.subject,
        uri=operation.payload.get("uri", ""),  # of all kinds only backends have one
        state=operation.state.value,
        progress=round(overall(with_progress(operation, told)), 1),
        asked_by=operation.asked_by,
        accepted_at=format_time(operation.accepted_at),
        changed_at=format_time(operation.changed_at),
        counts=dict(Counter(one.status.value for one in operation.targets)),
        current_bytes=sum(one.current_bytes for one in targets),
        total_bytes=sum(one.total_bytes for one in targets),
        bytes_per_second=sum(one.bytes_per_second for one in targets),
        seconds_left=max((one.seconds_left for one in targets if one.seconds_left is not None), default=None),
        targets=targets,
    )


def _target_view(operation: Operation, target: Target, progress: Progress, now: float) -> TargetView:
    left = seconds_left(progress, now)
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
        changed_at=format_time(target.changed_at),
        percentage=round(share_of(target, progress), 1),
        phase=progress.phase,
        file_name=progress.file_name,
        current_bytes=progress.current_bytes,
        total_bytes=progress.total_bytes,
        bytes_per_second=int(speed_of(progress, now)),
        seconds_left=None if left is None else round(left, 1),
    )


# LocalAI's.


def is_listed(operation: Operation) -> bool:
    """Whether LocalAI's list of current operations has it: until it is over, and failed ones until dismissed."""
    status = compat_status(operation)
    return not status.processed or bool(status.error)


def operation_item(operation: Operation, told: Told) -> OperationItem:
    """Named by the backend, also when it is about one node: that is told beside it."""
    status = operation_status(operation, told)
    return OperationItem(
        id=operation.subject,
        name=_bare(operation.subject),
        full_name=operation.subject,
        job_id=operation.id,
        progress=int(status.progress),
        task_type="deletion" if status.deletion else "Installation",
        is_deletion=status.deletion,
        is_backend=operation.kind is IntentKind.BACKEND,
        is_queued=status.phase == QUEUED,
        cancellable=status.cancellable,
        message=status.message,
        node_id=operation.node_id or "",
        phase=status.phase,
        current_bytes=status.current_bytes if status.phase else 0,  # as LocalAI does it, apart from broadcasts
        total_bytes=status.total_bytes if status.phase else 0,
        error=status.error,
        nodes=status.nodes,
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


def peer_item(peer: PeerOperation) -> OperationItem:
    """An operation of a LocalAI frontend, as it would list it itself."""
    status = peer.status or OperationStatus(message=QUEUED, phase=QUEUED)
    node, backend = _node_and_backend(peer.key)
    is_queued = status.phase == QUEUED
    kind = "deletion" if status.deletion else "Waiting" if is_queued else "Installation"
    return OperationItem(
        id=peer.key,
        name=backend.rpartition("@")[2],
        full_name=backend,
        job_id=peer.job_id,
        progress=int(status.progress),
        task_type=kind,
        is_deletion=status.deletion,
        is_backend=peer.is_backend,
        is_queued=is_queued,
        cancellable=status.cancellable,
        message=status.message,
        node_id=node,
        node_name=next((one.node_name for one in status.nodes if one.node_id == node), ""),
        phase=status.phase,
        current_bytes=status.current_bytes if status.phase else 0,  # as LocalAI does it, apart from broadcasts
        total_bytes=status.total_bytes if status.phase else 0,
        error=status.error,
        nodes=sorted(status.nodes, key=lambda one: one.node_name),
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


def _node_and_backend(key: str) -> tuple[str, str]:
    """`node:<id>:<backend>` is about one node."""
    if not key.startswith("node:"):
        return "", key
    _, node, backend = (key + "::").split(":", 2)
    return node, backend.rstrip(":")


def peer_job_status(status: OperationStatus) -> JobStatus:
    return JobStatus(
        progress=status.progress,
        message=status.message,
        gallery_element_name=status.gallery_element_name,
        processed=status.processed,
        deletion=status.deletion,
        error=status.error or UNSET,
        completed=(status.processed and not status.error and not status.cancelled) or UNSET,
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
