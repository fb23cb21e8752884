"""Who this worker is to NATS where its settings do not say: the user that the frontend makes for it at registration.

LocalAI's frontends make one with an end at each registration, for nodes that are approved. So it is asked for again by
registering again: well before its end, and whenever NATS does not let us in.
"""

import asyncio
import math
from typing import Final, Protocol

from corral.base.clock import Clock
from corral.base.retry import Backoff
from corral.base.tasks import first_done
from corral.bus.credentials import CredentialsProvider, UserJwt, lifetime_of
from corral.bus.problems import Problem, ProblemKind, Problems
from corral.worker.membership.presence import AcceptedRegistration

RENEWED_AFTER: Final = 0.75
"""The share of its life after which a user is replaced: LocalAI's."""
_SOON_SECONDS: Final = 300.0
"""A new request within this time means that the last credentials did not help."""


class BusStatus(Protocol):
    @property
    def connected(self) -> bool: ...

    @property
    def unauthorized(self) -> bool: ...

    @property
    def problems(self) -> Problems: ...

    def renew(self) -> None: ...


class NatsUser:
    """The user of this moment, and when another one is needed."""

    def __init__(self, clock: Clock, *, backoff: Backoff, is_wanted: bool = True) -> None:
        """Not wanted is it where the settings name a user."""
        self._clock = clock
        self._backoff = backoff
        self._is_wanted = is_wanted
        self._user: UserJwt | None = None
        self._member: AcceptedRegistration | None = None
        self._taken_at = 0.0
        self._asked_at = -math.inf
        self._repeated = 0
        self._link: BusStatus | None = None
        self._refused = asyncio.Event()

    @property
    def provider(self) -> CredentialsProvider | None:
        """For every new connection to NATS; None: as the settings say."""
        return self._provide if self._is_wanted else None

    def follow(self, link: BusStatus) -> None:
        """Once, before anything else: this is the connection."""
        self._link = link
        link.problems.listen(self._note)

    def take(self, member: AcceptedRegistration) -> None:
        """Be who this registration says. A user of the same node is used from the next connection on."""
        before, self._member = self._member, member
        is_same_node = before is not None and before.node_id == member.node_id
        if self._link is None or not self._is_wanted or (member.nats_user is None and is_same_node):
            return
        was_good = is_same_node and self._user is not None and self._link.connected
        had, self._user, self._taken_at = self._user, member.nats_user, self._clock.monotonic()
        if not was_good and had != self._user:
            self._refused.clear()
            self._link.renew()

    async def until_due(self) -> None:
        """Until the frontend should be asked for another one: less and less often while that does not help."""
        link, member = self._link, self._member
        if link is None or member is None or not self._is_wanted or (member.is_corral and self._user is None):
            await asyncio.Event().wait()
            return
        await first_done(self._until_refused(link), self._until_old())
        since = self._clock.monotonic() - self._asked_at
        self._repeated = self._repeated + 1 if since < _SOON_SECONDS else 0
        if self._repeated:
            await self._clock.sleep(self._backoff.delay(self._repeated).total_seconds() - since)
        self._asked_at = self._clock.monotonic()

    async def _provide(self) -> UserJwt | None:
        return self._user

    def _note(self, problem: Problem) -> None:
        if problem.kind is ProblemKind.UNAUTHORIZED:
            self._refused.set()

    async def _until_refused(self, link: BusStatus) -> None:
        """A moment later: perhaps the next connection works, with a user that is known already."""
        while True:
            await self._refused.wait()
            await self._clock.sleep(self._backoff.delay(1).total_seconds())
            if link.unauthorized:
                return
            self._refused.clear()

    async def _until_old(self) -> None:
        life = lifetime_of(self._user.jwt) if self._user is not None else None
        if life is None:
            await asyncio.Event().wait()
            return
        due = self._taken_at + life.total_seconds() * RENEWED_AFTER
        await self._clock.sleep(max(due - self._clock.monotonic(), 0))
