"""The node's own subjects: subscribed under the id a frontend gave us, and moved when it gives us another."""

import logging
from collections.abc import Callable, Mapping
from typing import Final

from corral.base.ids import NodeId
from corral.bus.port import Bus, Handler, Subscription
from corral.wire import subjects
from corral.wire.registration import Feature
from corral.worker.membership.presence import AcceptedRegistration

log = logging.getLogger(__name__)

Subject = Callable[[NodeId], str]

AT_ONCE: Final = 1000
"""Messages of one subject that are handled concurrently. Most only wait for a process to become ready, and must not
wait behind the slow start of another backend."""
EXTENSIONS: Final[Mapping[Subject, str]] = {subjects.backend_rollback: Feature.BACKEND_ROLLBACK}
"""Subjects that only a frontend with that feature uses. NATS users of other fleets need not be allowed to listen."""


class NodeSubscriptions:
    """Answers on the subjects of one node id at a time."""

    def __init__(self, bus: Bus, handlers: Mapping[Subject, Handler]) -> None:
        self._bus = bus
        self._handlers = dict(handlers)
        self._open: dict[str, Subscription] = {}

    async def follow(self, member: AcceptedRegistration) -> None:
        """Listen as this member, and as no other. BusPermissionDenied when the NATS user may not."""
        wanted = {
            subject(member.node_id): handler
            for subject, handler in self._handlers.items()
            if subject not in EXTENSIONS or EXTENSIONS[subject] in member.features
        }
        if wanted.keys() == self._open.keys():
            return
        for name, handler in wanted.items():
            if name not in self._open:
                self._open[name] = await self._bus.subscribe(name, handler, concurrency=AT_ONCE)
        for name in self._open.keys() - wanted.keys():
            await self._open.pop(name).close()
        log.info("listening for commands", extra={"event": "node.listening", "node": member.node_id})
