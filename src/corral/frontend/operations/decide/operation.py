"""An operation: one administrative act, with one target per node. Its state is computed from its targets.

| target              | when                                                                              |
|---------------------|-----------------------------------------------------------------------------------|
| `queued`            | nothing was sent yet, or its node is away                                         |
| `downloading`       | the node was asked                                                                |
| `running_on_worker` | no answer in time; the node may still be working                                  |
| `success`           | the node's own report proves it                                                   |
| `error`             | the last attempt failed; another one follows                                      |
| `blocked`           | cannot succeed, and says why; stays until somebody changes something              |
| `superseded`        | a newer operation wants something else of that subject there                      |
| `cancelled`         | a person took it back, or the node was removed                                    |

| operation   | when (the first line that holds)                                                          |
|-------------|-------------------------------------------------------------------------------------------|
| `running`   | some target is under way, or about to be                                                  |
| `failed`    | some target is `error` or `blocked`                                                       |
| `waiting`   | all that is left waits for absent nodes: not a failure                                    |
| `done`      | some target succeeded, or there was no node to do anything on                             |
| `cancelled` | all were cancelled or superseded                                                          |
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final

import msgspec
from msgspec.structs import replace

from corral.base.ids import NodeId, OperationId
from corral.base.values import PartlyPrinted
from corral.frontend.operations.decide.intent import RETRIES, Intent, IntentKind, IntentState, Payload, Verb
from corral.frontend.operations.decide.reasons import Reason, sentence


class TargetStatus(StrEnum):
    QUEUED = "queued"
    DOWNLOADING = "downloading"
    RUNNING_ON_WORKER = "running_on_worker"
    SUCCESS = "success"
    ERROR = "error"
    BLOCKED = "blocked"
    SUPERSEDED = "superseded"
    CANCELLED = "cancelled"


FINAL: Final = frozenset({TargetStatus.SUCCESS, TargetStatus.SUPERSEDED, TargetStatus.CANCELLED})
"""Nothing changes these any more. One that is blocked may be retried."""


class OperationState(StrEnum):
    RUNNING = "running"
    WAITING = "waiting"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Target(msgspec.Struct, frozen=True, kw_only=True):
    operation_id: OperationId
    node_id: NodeId
    node_name: str
    subject: str
    """The canonical name on that node."""
    status: TargetStatus = TargetStatus.QUEUED
    waits_for_node: bool = False
    reason: Reason | None = None
    attempts: int = 0
    changed_at: datetime


class Operation(PartlyPrinted, frozen=True, kw_only=True):
    unprinted = ("payload", "targets")

    id: OperationId
    verb: Verb
    subject: str
    """What it is about, as it was asked for."""
    payload: Payload = msgspec.field(default_factory=dict)
    asked_by: str
    accepted_at: datetime
    node_id: NodeId | None = None
    """Set when exactly one node was named."""
    idempotency_key: str = ""
    dismissed_at: datetime | None = None
    """Since then it is history."""
    targets: tuple[Target, ...] = ()
    """In the order of the names of their nodes."""

    @property
    def kind(self) -> IntentKind:
        return self.verb.kind

    @property
    def state(self) -> OperationState:
        return state_of(self.targets)

    @property
    def changed_at(self) -> datetime:
        return max((target.changed_at for target in self.targets), default=self.accepted_at)


def status_of(intent: Intent) -> TargetStatus:
    """How the target of the intent's own operation stands."""
    match intent.state:
        case IntentState.SATISFIED:
            return TargetStatus.SUCCESS
        case IntentState.BLOCKED:
            return TargetStatus.BLOCKED
        case IntentState.CANCELLED:
            return TargetStatus.CANCELLED
        case IntentState.OPEN if intent.outstanding is None or (
            intent.waits_for_node and not intent.outstanding.is_late
        ):
            return TargetStatus.ERROR if intent.attempts else TargetStatus.QUEUED
        case IntentState.OPEN:
            return TargetStatus.RUNNING_ON_WORKER if intent.outstanding.is_late else TargetStatus.DOWNLOADING


UNDER_WAY: Final = frozenset({TargetStatus.QUEUED, TargetStatus.DOWNLOADING, TargetStatus.RUNNING_ON_WORKER})
"""Something is still to come, be it only the node."""
_BAD: Final = frozenset({TargetStatus.ERROR, TargetStatus.BLOCKED})


def waits(target: Target) -> bool:
    """Whether it waits for a node that is away."""
    return target.waits_for_node and target.status not in FINAL


def tried_again_at(target: Target) -> datetime | None:
    """When what failed is tried again by itself; None for all else, and while its node is away."""
    if target.status is not TargetStatus.ERROR or waits(target):
        return None
    return target.changed_at + RETRIES.steady(target.attempts)


def state_of(targets: Iterable[Target]) -> OperationState:
    all_targets = list(targets)
    if any(target.status in UNDER_WAY and not waits(target) for target in all_targets):
        return OperationState.RUNNING
    if any(target.status in _BAD and not waits(target) for target in all_targets):
        return OperationState.FAILED
    if any(waits(target) for target in all_targets):
        return OperationState.WAITING
    if not all_targets or any(target.status is TargetStatus.SUCCESS for target in all_targets):
        return OperationState.DONE
    return OperationState.CANCELLED


def is_over(operation: Operation) -> bool:
    """Whether nothing changes it any more, be it a person's retry."""
    return all(target.status in FINAL for target in operation.targets)


class OperationFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which operations are meant; what is empty says nothing."""

    states: frozenset[OperationState] = frozenset()
    verbs: frozenset[Verb] = frozenset()
    subject: str = ""
    """What it is about, as it was asked for."""
    node: str = ""
    """The id of a node that is one of its targets, or the beginning of one."""
    asked_by: str = ""
    """A name, with all keys of a user."""
    text: str = ""
    """Occurs in the subject, the uri, who asked, or the id."""


def error_text(targets: Sequence[Target]) -> str:
    """All errors in one line, as LocalAI words it. That something is queued is not an error."""
    return "; ".join(f"{target.node_name}: {sentence(target.reason)}" for target in targets if target.status in _BAD)


# Progress.


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How fast bytes arrive, measured over the time between two events."""

    at: float | None = None
    """In seconds of a clock that nobody sets; None before the first."""
    bytes: int = 0
    per_second: float = 0.0


class FileShare(msgspec.Struct, frozen=True, kw_only=True):
    """How far one file of a target is."""

    name: str
    state: str
    current_bytes: int = 0
    total_bytes: int = 0
    """Bytes in all; 0 while unknown."""


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far one node is, as far as it says. Kept in memory only: the status is what is true."""

    attempt: int = 0
    """Larger each time that the node begins; 0 when it does not say."""
    sequence: int = 0
    percentage: float = 0.0
    phase: str = ""
    file_name: str = ""
    current: str = ""
    total: str = ""
    current_bytes: int = 0
    total_bytes: int = 0
    files: tuple[FileShare, ...] = ()
    """One by one, where the target tells that."""
    file_index: int = 0
    """Which of the files of a model it is, counted from 1, where they are brought to a node."""
    total_files: int = 0
    pace: Pace = Pace()


NO_PROGRESS: Final = Progress()
_MEASURED_OVER: Final = 0.2
"""Seconds that must lie between two events to measure a speed."""
_NEWER_COUNTS: Final = 0.5
"""Weight of a newly measured speed in the moving average."""
_STALLED_AFTER: Final = 5.0
"""Seconds without an event after which the speed counts as unknown."""


def merge(current: Progress, news: Progress, *, at: float = 0.0) -> Progress:
    """What is known after one event more. Late ones change nothing, and nothing ever goes back within an attempt.

    Events of LocalAI's workers have no numbers, and count from zero for each layer and again when they extract: then
    the last message is shown with the largest share so far.
    """
    if news.attempt > current.attempt:
        current = NO_PROGRESS
    elif news.sequence and (news.attempt, news.sequence) <= (current.attempt, current.sequence):
        return current
    share = news.percentage if news.percentage == news.percentage else 0.0
    return replace(
        news,
        attempt=max(news.attempt, current.attempt),
        sequence=news.sequence or current.sequence,
        percentage=min(max(current.percentage, share), 100.0),
        pace=_paced(current.pace, news.current_bytes, at),
    )


def _paced(pace: Pace, current: int, at: float) -> Pace:
    if pace.at is None or current < pace.bytes:
        return Pace(at=at, bytes=current)  # the first event, or a new attempt
    if at - pace.at < _MEASURED_OVER:
        return pace
    measured = (current - pace.bytes) / (at - pace.at)
    before = pace.per_second or measured
    return Pace(at=at, bytes=current, per_second=before + (measured - before) * _NEWER_COUNTS)


def speed_of(progress: Progress, now: float) -> float:
    """Bytes per second; 0 where nothing moves, or nobody says so."""
    pace = progress.pace
    return pace.per_second if pace.at is not None and now - pace.at < _STALLED_AFTER else 0.0


def seconds_left(progress: Progress, now: float) -> float | None:
    """Estimated seconds until all bytes are there; None when that is unknown."""
    remaining_bytes, speed = progress.total_bytes - progress.current_bytes, speed_of(progress, now)
    return remaining_bytes / speed if remaining_bytes > 0 and speed >= 1 else None


_MOVING: Final = frozenset({TargetStatus.DOWNLOADING, TargetStatus.RUNNING_ON_WORKER})


def shown_progress(target: Target, progress: Progress) -> Progress:
    """What a node said counts only while its target is under way: a late word changes nothing about an end."""
    return progress if target.status in _MOVING else NO_PROGRESS


def share_of(target: Target, progress: Progress = NO_PROGRESS) -> float:
    return 100.0 if target.status is TargetStatus.SUCCESS else shown_progress(target, progress).percentage


def overall(shares: Sequence[tuple[Target, Progress]]) -> float:
    """The mean over all targets that neither wait for a node nor were taken back."""
    taken_back = (TargetStatus.SUPERSEDED, TargetStatus.CANCELLED)
    counted = [
        share_of(target, progress)
        for target, progress in shares
        if not waits(target) and target.status not in taken_back
    ]
    return sum(counted) / len(counted) if counted else 0.0


def seconds_left_of_all(shares: Sequence[tuple[Target, Progress]], now: float) -> float | None:
    """Estimated seconds until the slowest target has all bytes; None where one is about to begin, or does not say."""
    longest = None
    for target, progress in shares:
        if target.status is TargetStatus.QUEUED and not waits(target):
            return None
        if target.status not in _MOVING or 0 < progress.total_bytes <= progress.current_bytes:
            continue
        left = seconds_left(progress, now)
        if left is None:
            return None
        longest = max(left, longest or 0.0)
    return longest


# LocalAI's view of an operation, which knows fewer words.


class CompatStatus(msgspec.Struct, frozen=True, kw_only=True):
    processed: bool
    message: str
    is_queued: bool = False
    """Accepted, and no node was asked yet."""
    error: str = ""
    cancelled: bool = False
    completed: bool = False


def compat_status(operation: Operation) -> CompatStatus:
    """An operation is over for LocalAI's clients as soon as nothing is left to wait for but time. One that was taken
    back on the way is `cancelled` for them, also when some nodes had done it by then."""
    targets = operation.targets
    busy = [target for target in targets if target.status is TargetStatus.RUNNING_ON_WORKER]
    if any(
        target.status in (TargetStatus.QUEUED, TargetStatus.DOWNLOADING) and not waits(target) for target in targets
    ):
        is_queued = all(target.status is TargetStatus.QUEUED for target in targets)
        message = "queued" if is_queued else f"processing {operation.kind.noun}: {operation.subject}"
        return CompatStatus(processed=False, message=message, is_queued=is_queued)
    if error := error_text(targets):
        return CompatStatus(processed=True, message=f"error: {error}", error=error)
    if busy:
        names = ", ".join(target.node_name for target in busy)
        message = f"still installing in background on {names}; the nodes' own reports will confirm it"
        return CompatStatus(processed=True, message=message)
    if away := [target for target in targets if waits(target)]:
        names = ", ".join(target.node_name for target in away)
        return CompatStatus(processed=True, message=f"waiting for {names} to come back")
    if operation.state is OperationState.CANCELLED or any(
        target.status is TargetStatus.CANCELLED for target in targets
    ):
        return CompatStatus(processed=True, message="cancelled", cancelled=True)
    return CompatStatus(processed=True, message="completed", completed=True)
