"""Work that one frontend at a time does: whoever holds the lease of that name. The others try again with their next
round."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

from corral.base.clock import Clock
from corral.base.ids import FrontendId, new_lease_token
from corral.frontend.store.leases import Leases

_NONE: Final = timedelta()


class Leader:
    """Claims leases for this frontend."""

    def __init__(self, leases: Leases, clock: Clock, *, holder: FrontendId) -> None:
        self._leases = leases
        self._clock = clock
        self._holder = holder
        self._token = new_lease_token()
        self._held_until: dict[str, float] = {}
        """On the monotonic clock: a lease is not ours for longer because the other clock was set back."""

    async def holds(self, name: str, *, lasts: timedelta, left: timedelta = _NONE) -> bool:
        """Claim the lease, or hold it longer. One that lasts for `left` anyway, if given, is not written again."""
        now, passed = self._clock.now(), self._clock.monotonic()
        if left and passed + left.total_seconds() <= self._held_until.get(name, passed):
            return True
        is_ours = await self._leases.claim(name, self._token, holder=self._holder, now=now, until=now + lasts)
        self._held_until[name] = passed + lasts.total_seconds() if is_ours else passed
        return is_ours

    @asynccontextmanager
    async def turn(self, name: str, *, lasts: timedelta) -> AsyncIterator[bool]:
        """Whether the work inside is ours, also against others of this process. The lease is given back at the end."""
        now, token = self._clock.now(), new_lease_token()
        is_ours = await self._leases.claim(name, token, holder=self._holder, now=now, until=now + lasts)
        try:
            yield is_ours
        finally:
            if is_ours:
                await self._leases.release(name, token)
