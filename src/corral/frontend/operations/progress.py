"""How far nodes are with operations, as far as they say. Kept in memory: what is true is in the database.

A frontend listens to the nodes of an operation while it has a request of it open, while somebody follows it, and for
some seconds after somebody looked at it; at no other time.
"""

import logging
from collections import Counter, OrderedDict, defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Final

import msgspec

from corral.base.clock import Clock
from corral.base.errors import CorralError, InvalidInput
from corral.base.ids import NodeId, OperationId
from corral.base.tasks import Poke
from corral.bus.port import Bus, Message, Subscription
from corral.frontend.operations.decide.operation import (
    NO_PROGRESS,
    FileShare,
    Operation,
    OperationState,
    Progress,
    merge,
)
from corral.wire import go_json, subjects
from corral.wire.backends import FileBytes, InstallBytes, InstallProgress, size_of
from corral.wire.broadcasts import NodeProgress, NodeProgressStatus

log = logging.getLogger(__name__)

PERIOD: Final = timedelta(seconds=1)
_LOOK_LASTS: Final = 10.0
"""Seconds in which somebody who looked is expected to look again."""
_MOST_KEPT: Final = 200
"""Operations whose last words are kept."""

_MOVING: Final = (NodeProgressStatus.DOWNLOADING, NodeProgressStatus.RUNNING_ON_WORKER)
ALL: Final = None
"""A listener to every operation."""


class ProgressBoard:
    def __init__(self, bus: Bus, clock: Clock) -> None:
        self._bus = bus
        self._clock = clock
        self._by_operation: OrderedDict[OperationId, dict[NodeId, Progress]] = OrderedDict()
        self._followers: Counter[OperationId] = Counter()
        self._looked_until: dict[OperationId, float] = {}
        self._subscriptions: dict[OperationId, Subscription | None] = {}
        """None while a subscription is being made."""
        self._listeners: defaultdict[OperationId | None, set[Poke]] = defaultdict(set)
        self._changed: set[OperationId] = set()
        self.poke = Poke()

    # For those who look.

    def of(self, operation: OperationId) -> Mapping[NodeId, Progress]:
        return self._by_operation.get(operation, {})

    def look(self, operation: Operation) -> Mapping[NodeId, Progress]:
        """Return the progress per node, and subscribe to its nodes while it runs: the caller will look again."""
        if operation.state is OperationState.RUNNING:
            return self.watch(operation.id)
        return self.of(operation.id)

    def watch(self, operation: OperationId) -> Mapping[NodeId, Progress]:
        """Return the progress per node, and subscribe to its nodes: the caller will look again."""
        self._looked_until[operation] = self._clock.monotonic() + _LOOK_LASTS
        if operation not in self._subscriptions:
            self.poke.ring()
        return self.of(operation)

    @asynccontextmanager
    async def followed(self, operation: OperationId) -> AsyncIterator[None]:
        """While inside, what nodes say of the operation is heard. That it cannot be heard hinders nobody."""
        self._followers[operation] += 1
        try:
            await self._listen(operation)
            yield
        finally:
            self._followers[operation] -= 1
            await self._stop_listening(operation)

    @contextmanager
    def rings(self, poke: Poke, operation: OperationId | None) -> Iterator[None]:
        """Have the bell rung whenever something of the operation changed here, or of any."""
        self._listeners[operation].add(poke)
        try:
            yield
        finally:
            self._listeners[operation].discard(poke)
            if not self._listeners[operation]:
                del self._listeners[operation]

    def ring(self) -> None:
        """Wake all listeners, whichever operation they follow."""
        for poke in [listener for listeners in self._listeners.values() for listener in listeners]:
            poke.ring()

    # For those who change something.

    def begin_anew(self, operation: OperationId, node_id: NodeId) -> None:
        """A new attempt counts from nothing."""
        self._of(operation).pop(node_id, None)
        self.changed(operation)

    def changed(self, operation: OperationId) -> None:
        """Something of the operation is stored that was not there before."""
        self._changed.add(operation)
        self._ring(operation)

    def take_changed(self) -> set[OperationId]:
        """The operations that changed here since the last call, to be broadcast."""
        changed, self._changed = self._changed, set()
        return changed

    def hear_of(
        self, operation: OperationId, rows: Iterable[NodeProgress], numbers: Mapping[str, InstallBytes]
    ) -> None:
        """Take over the progress that another frontend knows, unless we listen to the nodes ourselves."""
        if operation in self._subscriptions:
            return
        for row in rows:
            node_id = NodeId(row.node_id)
            if row.status in _MOVING:
                self._merge(operation, node_id, _progress(row, numbers.get(node_id)))
            else:
                self._of(operation).pop(node_id, None)  # the next attempt starts from zero
        self._ring(operation)

    def _ring(self, operation: OperationId) -> None:
        for poke in (*self._listeners.get(operation, ()), *self._listeners.get(ALL, ())):
            poke.ring()

    async def report(self, operation: OperationId, node_id: NodeId, report: InstallProgress) -> None:
        """Take over what this frontend does itself, and tell those who listen to nodes. A lost word costs a moment."""
        if self._merge(operation, node_id, _progress(report, report.corral)):
            self.changed(operation)
        try:
            await self._bus.publish(subjects.install_progress(node_id, operation), msgspec.json.encode(report))
        except CorralError as error:
            log.debug(
                "the progress could not be broadcast: %s",
                error,
                extra={"event": "progress.untold", "operation": operation},
            )

    # Listening.

    async def tend(self) -> None:
        """Listen where somebody looks, and no longer where nobody has for a while."""
        now = self._clock.monotonic()
        for operation, until in list(self._looked_until.items()):
            if until > now:
                await self._listen(operation)
            else:
                del self._looked_until[operation]
                await self._stop_listening(operation)

    async def _listen(self, operation: OperationId) -> None:
        if operation in self._subscriptions:
            return

        async def on_message(message: Message) -> None:
            try:
                report = go_json.decode(message.data, InstallProgress)
            except InvalidInput as error:
                log.debug("progress ignored: %s", error, extra={"event": "progress.ignored"})
                return
            if self._merge(operation, subjects.node_of(message.subject), _progress(report, report.corral)):
                self.changed(operation)

        self._subscriptions[operation] = None
        subscription: Subscription | None = None
        try:
            subscription = await self._bus.subscribe(subjects.install_progress_of_all(operation), on_message)
        except CorralError as error:
            log.info("progress is not heard: %s", error, extra={"event": "progress.unheard", "operation": operation})
        finally:
            del self._subscriptions[operation]
            if subscription is not None:
                self._subscriptions[operation] = subscription
        await self._stop_listening(operation)

    async def _stop_listening(self, operation: OperationId) -> None:
        if self._followers[operation] > 0 or operation in self._looked_until:
            return
        self._followers.pop(operation, None)
        if (subscription := self._subscriptions.get(operation)) is not None:
            del self._subscriptions[operation]
            await subscription.close()

    def _merge(self, operation: OperationId, node_id: NodeId, news: Progress) -> bool:
        nodes = self._of(operation)
        earlier = nodes.get(node_id, NO_PROGRESS)
        nodes[node_id] = merge(earlier, news, at=self._clock.monotonic())
        return nodes[node_id] is not earlier

    def _of(self, operation: OperationId) -> dict[NodeId, Progress]:
        nodes = self._by_operation.setdefault(operation, {})
        self._by_operation.move_to_end(operation)
        while len(self._by_operation) > _MOST_KEPT:
            self._by_operation.popitem(last=False)
        return nodes


def _share(file: FileBytes) -> FileShare:
    return FileShare(name=file.name, state=file.state, current_bytes=file.current, total_bytes=file.total)


def _progress(report: InstallProgress | NodeProgress, numbers: InstallBytes | None) -> Progress:
    """The progress that a node or another frontend reports. LocalAI's workers send no numbers: their words are read."""
    return Progress(
        attempt=0 if numbers is None else numbers.attempt,
        sequence=0 if numbers is None else numbers.sequence,
        percentage=report.percentage,
        phase=report.phase,
        file_name=report.file_name,
        current=report.current,
        total=report.total,
        current_bytes=size_of(report.current) if numbers is None else numbers.current,
        total_bytes=size_of(report.total) if numbers is None else numbers.total,
        files=() if numbers is None else tuple(_share(file) for file in numbers.files),
        file_index=0 if numbers is None else numbers.file_index,
        total_files=0 if numbers is None else numbers.total_files,
    )
