"""Removes what nobody needs any more. One frontend at a time: whoever gets the lease."""

import logging
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from corral.base.clock import Clock
from corral.frontend.nodes.registry import NodeRegistry
from corral.frontend.operations.store.operations import OperationStore
from corral.frontend.record.store import Events
from corral.frontend.store.leader_lease import Leader

log = logging.getLogger(__name__)

PERIOD: Final = timedelta(hours=1)
_LEASE_TIME: Final = timedelta(minutes=5)
_KEPT_EVENTS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long what is kept."""

    events: timedelta
    operations: timedelta


class Housekeeping:
    def __init__(
        self,
        events: Events,
        operations: OperationStore,
        leader: Leader,
        registry: NodeRegistry,
        clock: Clock,
        *,
        retention: Retention,
    ) -> None:
        self._events = events
        self._operations = operations
        self._leader = leader
        self._registry = registry
        self._clock = clock
        self._retention = retention

    async def tidy(self) -> None:
        now = self._clock.now()
        async with self._leader.turn("housekeeping", lasts=_LEASE_TIME) as is_ours:
            if not is_ours:
                return
            events = await self._events.trim(now - self._retention.events, keep_at_least=_KEPT_EVENTS)
            operations = await self._operations.trim(now - self._retention.operations)
            await self._registry.expire_pending()
        if events:
            log.info("old events removed", extra={"event": "events.trimmed", "count": events})
        if operations:
            log.info("old operations removed", extra={"event": "operations.trimmed", "count": operations})
