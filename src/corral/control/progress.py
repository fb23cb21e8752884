"""How far nodes are with operations, as far as they say. Kept in memory: what is true is in the database."""

import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from corral.base.errors import CorralError, InvalidInput
from corral.base.ids import NodeId, OperationId
from corral.bus.port import Bus, Message, Subscription
from corral.domain.operation import NO_PROGRESS, Progress, merge
from corral.protocol import go_json, subjects
from corral.protocol.progress import InstallProgress

log = logging.getLogger(__name__)

_MOST_KEPT: Final = 200
"""Operations whose last words are kept."""


class ProgressBoard:
    """Listens to the nodes of an operation while one of its requests is open, and at no other time."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._known: OrderedDict[OperationId, dict[NodeId, Progress]] = OrderedDict()
        self._followers: dict[OperationId, int] = {}
        self._subscriptions: dict[OperationId, Subscription] = {}

    def of(self, operation: OperationId) -> Mapping[NodeId, Progress]:
        return self._known.get(operation, {})

    @asynccontextmanager
    async def followed(self, operation: OperationId) -> AsyncIterator[None]:
        """While inside, what nodes say of the operation is heard. That it cannot be heard hinders nobody."""
        self._followers[operation] = self._followers.get(operation, 0) + 1
        try:
            if self._followers[operation] == 1:
                await self._listen(operation)
            yield
        finally:
            self._followers[operation] -= 1
            if self._followers[operation] == 0:
                del self._followers[operation]
                if (subscription := self._subscriptions.pop(operation, None)) is not None:
                    await subscription.close()

    def begin_anew(self, operation: OperationId, node_id: NodeId) -> None:
        """A new attempt counts from nothing."""
        self._of(operation).pop(node_id, None)

    async def _listen(self, operation: OperationId) -> None:
        async def on_message(message: Message) -> None:
            self._take(operation, message)

        subject = subjects.install_progress_of_all(operation)
        try:
            self._subscriptions[operation] = await self._bus.subscribe(subject, on_message)
        except CorralError as error:
            log.info("progress is not heard: %s", error, extra={"event": "progress.unheard", "operation": operation})

    def _take(self, operation: OperationId, message: Message) -> None:
        try:
            told = go_json.decode(message.data, InstallProgress)
        except InvalidInput as error:
            log.debug("progress ignored: %s", error, extra={"event": "progress.ignored"})
            return
        nodes = self._of(operation)
        node_id = subjects.node_of(message.subject)
        nodes[node_id] = merge(nodes.get(node_id, NO_PROGRESS), _progress(told))

    def _of(self, operation: OperationId) -> dict[NodeId, Progress]:
        nodes = self._known.setdefault(operation, {})
        self._known.move_to_end(operation)
        while len(self._known) > _MOST_KEPT:
            self._known.popitem(last=False)
        return nodes


def _progress(told: InstallProgress) -> Progress:
    numbers = told.corral
    return Progress(
        sequence=0 if numbers is None else numbers.sequence,
        percentage=told.percentage,
        phase=told.phase,
        file_name=told.file_name,
        current=told.current,
        total=told.total,
        current_bytes=0 if numbers is None else numbers.current,
        total_bytes=0 if numbers is None else numbers.total,
    )
