"""Tells other frontends about our operations, in LocalAI's words: so those of LocalAI on the same bus show them too,
and those of Corral know how far nodes are before they listen themselves.

Every frontend tells what it did or heard itself, at most twice a second. A lost broadcast costs a moment.
"""

import logging
from collections import OrderedDict
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

import msgspec

from corral.base.clock import Clock
from corral.base.errors import CorralError
from corral.base.ids import FrontendId, NodeId, OperationId
from corral.base.tasks import Poke, poke_or_period
from corral.bus.port import Bus
from corral.frontend.operations.decide.intent import IntentKind, Verb
from corral.frontend.operations.decide.operation import Operation, Progress
from corral.frontend.operations.progress import ALL, ProgressBoard
from corral.frontend.operations.shapes import cache_key, operation_status
from corral.frontend.operations.store.operations import OperationStore
from corral.wire import subjects
from corral.wire.backends import FileBytes, InstallBytes
from corral.wire.broadcasts import (
    Invalidation,
    OperationCancel,
    OperationMark,
    OperationNumbers,
    OperationProgress,
    OperationStatus,
    Sender,
)

log = logging.getLogger(__name__)

PERIOD: Final = timedelta(seconds=10)
"""How often changes are looked for when no ring came."""
_SPACING: Final = 0.4
"""Seconds between two rounds of broadcasts."""
_SPACING_PER_TARGET: Final = 0.001
"""Seconds added to the spacing for each target: messages about large operations are long."""
_MOST_KEPT: Final = 500
_LOCALAI_VERBS: Final = {Verb.REMOVE: Verb.DELETE, Verb.PULL: Verb.INSTALL, Verb.STAGE: Verb.INSTALL}
"""What LocalAI calls that of which it has no word."""


class Broadcasts:
    def __init__(
        self, bus: Bus, operations: OperationStore, progress: ProgressBoard, clock: Clock, *, frontend: FrontendId
    ) -> None:
        self._bus = bus
        self._operations = operations
        self._progress = progress
        self._clock = clock
        self._sender = Sender(frontend=frontend)
        self._last_sent: OrderedDict[OperationId, OperationStatus] = OrderedDict()

    async def accepted(self, operation: Operation) -> None:
        """There is a new operation; nothing is known of it yet."""
        await self._mark_start(operation)
        queued = OperationStatus(
            deletion=operation.verb.deletes,
            message="queued",
            phase="queued",
            gallery_element_name=operation.subject,
            cancellable=True,
        )
        await self._tell(operation, queued, {})

    async def cancelled(self, id: OperationId) -> None:
        """Also of an operation that we do not know: then it is another frontend's."""
        cancel = OperationCancel(id=id, corral=self._sender)
        await self._publish(subjects.operation_cancel(id), cancel)

    async def dismissed(self, id: OperationId) -> None:
        await self._publish(subjects.OPERATION_END, OperationMark(job_id=id, corral=self._sender))

    async def run(self) -> None:
        """Broadcast the progress of operations until cancelled."""
        poke = Poke()
        with self._progress.rings(poke, ALL):
            await poke_or_period(self._round, poke=poke, clock=self._clock, period=PERIOD, name="broadcasts")

    async def _round(self) -> None:
        if targets := await self.tell():
            await self._clock.sleep(max(_SPACING, targets * _SPACING_PER_TARGET))

    async def tell(self) -> int:
        """How everything is of which something changed here; returns how many targets that concerned."""
        targets = 0
        for id in sorted(self._progress.take_changed()):
            operation = await self._operations.get(id)
            if operation is not None:
                targets += len(operation.targets)
                await self._tell_of(operation)
        return targets

    async def _tell_of(self, operation: Operation) -> None:
        before = self._last_sent.get(operation.id)
        progress = self._progress.of(operation.id)
        status = operation_status(operation, progress)
        if status == before:
            return
        if before is not None and before.processed and not status.processed:
            await self._mark_start(operation)  # it goes on: a node is back, or somebody had it tried again
        await self._tell(operation, status, progress)
        if status.processed and (before is None or not before.processed):
            is_backend = operation.kind is IntentKind.BACKEND
            about = subjects.INVALIDATE_BACKENDS if is_backend else subjects.INVALIDATE_MODELS
            verb = _LOCALAI_VERBS.get(operation.verb, operation.verb)
            await self._publish(about, Invalidation(element=operation.subject, op=verb.value, corral=self._sender))
        if status.processed and not status.error:
            await self.dismissed(operation.id)

    async def _mark_start(self, operation: Operation) -> None:
        mark = OperationMark(
            job_id=operation.id,
            cache_key=cache_key(operation),
            is_backend=operation.kind is IntentKind.BACKEND,
            corral=self._sender,
        )
        await self._publish(subjects.OPERATION_START, mark)

    async def _tell(
        self, operation: Operation, status: OperationStatus, progress_by_node: Mapping[NodeId, Progress]
    ) -> None:
        self._last_sent[operation.id] = status
        self._last_sent.move_to_end(operation.id)
        while len(self._last_sent) > _MOST_KEPT:
            self._last_sent.popitem(last=False)
        numbers: dict[str, InstallBytes] = {
            node_id: InstallBytes(
                attempt=progress.attempt,
                sequence=progress.sequence,
                current=progress.current_bytes,
                total=progress.total_bytes,
                files=[
                    FileBytes(file.name, file.state, file.current_bytes, file.total_bytes) for file in progress.files
                ],
            )
            for node_id, progress in progress_by_node.items()
            if progress.sequence
        }
        corral = OperationNumbers(frontend=self._sender.frontend, nodes=numbers)
        message = OperationProgress(job_id=operation.id, status=status, corral=corral)
        await self._publish(subjects.operation_progress(operation.id), message)

    async def _publish(self, subject: str, message: msgspec.Struct) -> None:
        try:
            await self._bus.publish(subject, msgspec.json.encode(message))
        except CorralError as error:
            log.debug(
                "other frontends could not be notified", extra={"event": "broadcast.unheard", "reason": str(error)}
            )
