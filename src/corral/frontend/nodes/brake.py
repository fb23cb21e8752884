"""Looks every second whether the mass-failure brake must hold, and says so. Deciding is done in
`frontend/nodes/decide/brake.py`.

Every frontend looks for itself; the one that holds the lease writes it into the record of events.
"""

import logging
from collections.abc import Hashable
from datetime import timedelta
from typing import Final

from corral.base.clock import Clock
from corral.frontend.nodes.decide.brake import BrakePolicy, judge
from corral.frontend.nodes.hearing import HearingKeeper
from corral.frontend.nodes.store.nodes import Nodes
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.feed import Feed
from corral.frontend.record.store import Events
from corral.frontend.store.leases import Leader

log = logging.getLogger(__name__)

PERIOD: Final = timedelta(seconds=1)
_LEASE_TIME: Final = timedelta(seconds=30)


class Brake:
    def __init__(  # noqa: PLR0913 - each is a collaborator
        self,
        nodes: Nodes,
        events: Events,
        leader: Leader,
        hearing: HearingKeeper,
        feed: Feed,
        clock: Clock,
        *,
        policy: BrakePolicy,
    ) -> None:
        self._nodes = nodes
        self._events = events
        self._leader = leader
        self._hearing = hearing
        self._feed = feed
        self._clock = clock
        self._policy = policy
        self._reason = ""

    @property
    def reason(self) -> str:
        """Why it holds; empty when it does not."""
        return self._reason

    @property
    def holds(self) -> bool:
        return bool(self._reason)

    def mark(self) -> Hashable:
        """Changes with what no event tells: that this control went deaf, or hears again."""
        return self._is_deaf(), self._hearing.recovered_at

    def _is_deaf(self) -> bool:
        return self._clock.now() - self._hearing.current.until > 2 * PERIOD

    async def look(self) -> bool:
        """Judge now; True while only time will change the verdict."""
        now = self._clock.now()
        pulse = await self._nodes.pulse(silent_since=now - self._policy.window)
        recovered_at = self._hearing.recovered_at
        reason = judge(pulse, self._hearing.current, recovered_at=recovered_at, now=now, policy=self._policy)
        changed = bool(reason) is not self.holds
        before, self._reason = self._reason, reason
        if changed:
            await self._tell(reason, before)
        return self.holds or self._is_deaf()

    async def _tell(self, reason: str, before: str) -> None:
        if reason:
            shown = {"event": "brake.held", "why": reason}
            log.error("nothing is evicted or rescheduled: %s", reason, extra=shown)
        else:
            log.warning("the brake is released", extra={"event": "brake.released", "was": before})
        now = self._clock.now()
        if await self._leader.holds("brake", lasts=_LEASE_TIME):
            kind = EventKind.BRAKE_HELD if reason else EventKind.BRAKE_RELEASED
            await self._events.record([Event(kind=kind, at=now, actor="control", data={"why": reason or before})])
            await self._feed.announce()
