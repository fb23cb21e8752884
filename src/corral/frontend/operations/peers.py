"""What other frontends broadcast. Nothing that is heard here is broadcast again.

Operations of LocalAI's frontends, and the files of models that they bring to nodes, are kept in memory and shown beside
ours, as those frontends do it with each other. Of Corral's only the progress is news: the rest is in the database.
"""

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Final, TypeVar

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from corral.base.clock import Clock
from corral.base.errors import InvalidInput
from corral.base.ids import FrontendId, OperationId
from corral.bus.port import Handler, Message
from corral.frontend.operations.progress import ProgressBoard
from corral.frontend.operations.service import Operations
from corral.wire import go_json, subjects
from corral.wire.broadcasts import (
    Invalidation,
    OperationCancel,
    OperationMark,
    OperationProgress,
    OperationStatus,
    StagingProgress,
    StagingStatus,
)

log = logging.getLogger(__name__)

_OPERATION_STALE: Final = timedelta(minutes=30)
"""Without a word, after which LocalAI's frontends too take an operation for dead."""
_STAGING_STALE: Final = timedelta(seconds=60)
"""Without a word, after which they take files that are brought to a node for staged."""
_MOST_KEPT: Final = 500
_ANOTHER: Final = "another frontend"

T = TypeVar("T", bound=msgspec.Struct)


class PeerOperation(msgspec.Struct, frozen=True, kw_only=True):
    """An operation that a LocalAI frontend works on."""

    job_id: str
    key: str = ""
    """What it is about; empty while only its progress was heard of, and then it is not listed."""
    is_backend: bool = False
    status: OperationStatus | None = None
    heard_at: float


class PeerOperations:
    def __init__(self, operations: Operations, progress: ProgressBoard, clock: Clock, *, frontend: FrontendId) -> None:
        self._operations = operations
        self._progress = progress
        self._clock = clock
        self._frontend = frontend
        self.on_changed_models: list[Callable[[], None]] = []
        """Called when a frontend of LocalAI changed models: the files of a directory that we may share."""
        self.on_changed_backends: list[Callable[[], None]] = []
        """Called when a frontend of LocalAI changed backends, on nodes that we may share or in galleries."""
        self._jobs: OrderedDict[str, PeerOperation] = OrderedDict()
        self._staged: OrderedDict[str, tuple[StagingStatus, float]] = OrderedDict()

    def handlers(self) -> dict[str, Handler]:
        """Which subject goes to which handler."""
        return {
            subjects.OPERATION_START: understood(OperationMark, self._on_start),
            subjects.OPERATION_END: understood(OperationMark, self._on_end),
            subjects.OPERATIONS_PROGRESS: understood(OperationProgress, self._on_progress),
            subjects.OPERATIONS_CANCEL: understood(OperationCancel, self._on_cancel),
            subjects.INVALIDATE_MODELS: understood(Invalidation, partial(_on_change, self.on_changed_models)),
            subjects.INVALIDATE_BACKENDS: understood(Invalidation, partial(_on_change, self.on_changed_backends)),
            subjects.STAGINGS_PROGRESS: understood(StagingProgress, self._on_staging),
        }

    def find(self, job_id: str) -> PeerOperation | None:
        return self._jobs.get(job_id)

    def listed(self) -> list[PeerOperation]:
        """Return the peers' operations that are under way, and failed ones until somebody dismisses them."""
        now = self._clock.monotonic()
        for job_id, peer_job in list(self._jobs.items()):
            is_over = peer_job.status is not None and peer_job.status.processed
            if not is_over and now - peer_job.heard_at > _OPERATION_STALE.total_seconds():
                del self._jobs[job_id]
        return [operation for operation in self._jobs.values() if operation.key and _is_shown(operation.status)]

    def staged(self) -> dict[str, StagingStatus]:
        """The files that are on their way to nodes, by model."""
        heard_since = self._clock.monotonic() - _STAGING_STALE.total_seconds()
        for model, (_, heard_at) in list(self._staged.items()):
            if heard_at < heard_since:
                del self._staged[model]
        return {model: status for model, (status, _) in self._staged.items()}

    async def _on_start(self, mark: OperationMark) -> None:
        if mark.corral is UNSET and mark.job_id:
            self._keep(replace(self._of(mark.job_id), key=mark.cache_key, is_backend=mark.is_backend))

    async def _on_end(self, mark: OperationMark) -> None:
        """Somebody dismissed it, or saw that it is over."""
        is_theirs = self._jobs.pop(mark.job_id, None) is not None
        if mark.corral is UNSET and not is_theirs:
            await self._operations.dismiss_quietly(OperationId(mark.job_id))

    async def _on_progress(self, message: OperationProgress) -> None:
        if message.status is None:
            return
        if message.corral is UNSET:
            peer_job = self._of(message.job_id)
            nodes = message.status.nodes or ([] if peer_job.status is None else peer_job.status.nodes)
            self._keep(replace(peer_job, status=msgspec.structs.replace(message.status, nodes=nodes)))
        elif message.corral.frontend != self._frontend:
            self._progress.hear_of(OperationId(message.job_id), message.status.nodes, message.corral.nodes)

    async def _on_cancel(self, cancel: OperationCancel) -> None:
        """Cancel an operation of ours that was cancelled at a frontend of LocalAI. If several Corral frontends get the
        message, the first one acts."""
        if cancel.corral is UNSET and cancel.id not in self._jobs:
            await self._operations.take_back(OperationId(cancel.id), by=_ANOTHER)

    async def _on_staging(self, progress: StagingProgress) -> None:
        self._staged.pop(progress.model_id, None)
        if progress.done or progress.status is UNSET or not progress.model_id:
            return
        self._staged[progress.model_id] = (progress.status, self._clock.monotonic())
        while len(self._staged) > _MOST_KEPT:
            self._staged.popitem(last=False)

    def _of(self, job_id: str) -> PeerOperation:
        now = self._clock.monotonic()
        peer_job = self._jobs.get(job_id)
        return PeerOperation(job_id=job_id, heard_at=now) if peer_job is None else replace(peer_job, heard_at=now)

    def _keep(self, operation: PeerOperation) -> None:
        self._jobs[operation.job_id] = operation
        self._jobs.move_to_end(operation.job_id)
        while len(self._jobs) > _MOST_KEPT:
            self._jobs.popitem(last=False)


async def _on_change(listeners: Sequence[Callable[[], None]], change: Invalidation) -> None:
    if change.corral is UNSET:  # Corral's frontends tell each other by their feed
        for listener in listeners:
            listener()


def _is_shown(status: OperationStatus | None) -> bool:
    return status is None or not status.processed or (bool(status.error) and not status.cancelled)


def understood(kind: type[T], handle: Callable[[T], Awaitable[None]]) -> Handler:
    """A handler of messages of this kind; one that cannot be read is ignored."""

    async def on_message(message: Message) -> None:
        try:
            struct = go_json.decode(message.data, kind)
        except InvalidInput as error:
            log.warning("a broadcast is ignored: %s", error, extra={"event": "broadcast.ignored"})
            return
        await handle(struct)

    return on_message
