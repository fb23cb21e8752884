"""HTTP/2 pings: they notice a peer that is silent because it hangs or because the network lost it.

TCP's own keepalive does not see a process that hangs: its kernel still answers. A ping is answered by the process.

Servers punish clients that ping too often. gRPC's own servers (C++, Go and Java alike) allow by default one ping every
five minutes while they send no data, and close the connection at the third ping that comes earlier ("too_many_pings").
Any headers or data that the server sends start that account again. `Keepalive` stays within these limits.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

_LATE_SECONDS: Final = 1.0
"""A timer that fires this late shows that our own event loop was held up: the answer may be there, not yet read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keepalive:
    """When to ping a silent peer, and how long to wait for its answer.

    A peer that hangs while it streams is noticed `interval_seconds + timeout_seconds` after its last byte. In a call
    that has been silent for long it takes up to `slow_interval_seconds + timeout_seconds`. Without open calls there
    are no pings.
    """

    interval_seconds: float = 30.0
    """Silence before a ping. Long enough to be rare beside any traffic, short enough for people who wait."""
    timeout_seconds: float = 20.0
    """How long the peer may take to send anything at all after a ping. gRPC's own default."""
    pings_without_data: int = 3
    """How many pings may follow each other at the short interval while the peer sends no headers or data: the first is
    within the limits of gRPC's servers, and they forgive two more."""
    slow_interval_seconds: float = 330.0
    """Between later pings in the same silence: five minutes and a reserve for delays on the way."""


NO_KEEPALIVE: Final = Keepalive(interval_seconds=math.inf)
"""Never ping."""


class Pinger:
    """Sends pings on one connection, and reports a peer that does not react to one."""

    def __init__(
        self,
        keepalive: Keepalive,
        *,
        is_needed: Callable[[], bool],
        ping: Callable[[], None],
        fail: Callable[[str], None],
    ) -> None:
        self._keepalive = keepalive
        self._is_needed = is_needed
        self._ping = ping
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.has_heard_data = False
        """Set when the peer sends headers or data, after which it accepts pings again. Not a method: it is for every
        frame."""
        self._heard_at = self._loop.time()
        self._pinged_at = -math.inf
        self._pings_left = keepalive.pings_without_data

    def start(self) -> None:
        """A first call begins: silence counts from now on. The timer stops by itself when no call is left."""
        self._heard_at = self._loop.time()
        if self._timer is None:
            self._check_at(self._heard_at + self._keepalive.interval_seconds)

    def stop(self) -> None:
        """Stop pinging, because the connection is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def hear(self) -> None:
        """The peer sent something, whatever it was."""
        self._heard_at = self._loop.time()

    def _check_at(self, moment: float) -> None:
        self._timer = self._loop.call_at(moment, self._check) if moment < math.inf else None

    def _check(self) -> None:
        self._timer = None
        if not self._is_needed():
            return
        now, limits = self._loop.time(), self._keepalive
        if self.has_heard_data:
            self.has_heard_data, self._pings_left = False, limits.pings_without_data
        if self._pinged_at > self._heard_at:  # nothing has come since the last ping
            due = self._pinged_at + limits.timeout_seconds
            if now < due:
                self._check_at(due)
            elif now - due > _LATE_SECONDS:
                self._pinged_at = now - limits.timeout_seconds + _LATE_SECONDS
                self._check_at(now + _LATE_SECONDS)
            else:
                self._fail(f"no answer to a ping within {limits.timeout_seconds:g} s")
            return
        due = self._heard_at + limits.interval_seconds
        if not self._pings_left:
            due = max(due, self._pinged_at + limits.slow_interval_seconds)
        if now >= due:
            self._pinged_at = now
            self._pings_left = max(self._pings_left - 1, 0)
            self._ping()
            self._check_at(now + limits.timeout_seconds)
        else:  # not later: data may come that allows an earlier ping
            self._check_at(min(due, now + limits.interval_seconds))
