"""Removes what nobody needs any more. One frontend at a time: whoever gets the lease."""

import logging
from datetime import timedelta
from typing import Final

from corral.base.clock import Clock
from corral.base.ids import FrontendId, new_lease_token
from corral.state.events import Events
from corral.state.leases import Leases

log = logging.getLogger(__name__)

PERIOD: Final = timedelta(hours=1)
_LEASE: Final = "housekeeping"
_LEASE_TIME: Final = timedelta(minutes=5)
_KEPT_EVENTS: Final = 10_000


class Housekeeping:
    def __init__(
        self, events: Events, leases: Leases, clock: Clock, *, holder: FrontendId, event_retention: timedelta
    ) -> None:
        self._events = events
        self._leases = leases
        self._clock = clock
        self._holder = holder
        self._event_retention = event_retention

    async def tidy(self) -> None:
        now = self._clock.now()
        token = new_lease_token()
        if not await self._leases.claim(_LEASE, token, holder=self._holder, now=now, until=now + _LEASE_TIME):
            return
        try:
            removed = await self._events.trim(now - self._event_retention, keep_at_least=_KEPT_EVENTS)
        finally:
            await self._leases.release(_LEASE, token)
        if removed:
            log.info("old events removed", extra={"event": "events.trimmed", "count": removed})
