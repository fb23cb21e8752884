"""The node's own subjects: subscribed under the id a frontend gave us, and moved when it gives us another."""

import logging
from collections.abc import Callable, Mapping
from typing import Final

from corral.base.ids import NodeId
from corral.bus.port import Bus, Handler, Subscription

log = logging.getLogger(__name__)

Subject = Callable[[NodeId], str]

AT_ONCE: Final = 1000
"""Messages of one subject that are worked on at a time. Most only wait for a process to become ready, and nobody shall
wait behind the slow start of another backend."""


class NodeSubscriptions:
    """Answers on the subjects of one node id at a time."""

    def __init__(self, bus: Bus, handlers: Mapping[Subject, Handler]) -> None:
        self._bus = bus
        self._handlers = dict(handlers)
        self._node_id: NodeId | None = None
        self._open: list[Subscription] = []

    async def follow(self, node_id: NodeId) -> None:
        """Listen under this id, and under no other. BusPermissionDenied when the NATS user may not."""
        if node_id == self._node_id:
            return
        old, self._open = self._open, []
        for subject, handler in self._handlers.items():
            self._open.append(await self._bus.subscribe(subject(node_id), handler, concurrency=AT_ONCE))
        for subscription in old:
            await subscription.close()
        self._node_id = node_id
        log.info("listening for commands", extra={"event": "node.listening", "node": node_id})
