"""Gives nodes their users of NATS, and ends those of nodes that lost their approval or are gone.

With the operator's key the revocation reaches the server, which closes their connections; without it a user ends when
it expires.
"""

import logging
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Protocol

from corral.base.clock import Clock
from corral.base.errors import BusUnavailable
from corral.base.tasks import Poke
from corral.bus.credentials import UserJwt
from corral.bus.port import Bus
from corral.frontend.nodes.decide.nats_users import KnownUser
from corral.frontend.nodes.decide.node import Node
from corral.frontend.nodes.store.nats_users import NatsUsers
from corral.wire.registration import NatsOffer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping
    from datetime import datetime

    from corral.bus.minting import Minter

log = logging.getLogger(__name__)

REVOKING_PERIOD: Final = timedelta(seconds=30)
FORGET_EVERY: Final = timedelta(minutes=10)


class Revoking(Protocol):
    """Ends users at the server; `bus/revoking.py` does."""

    async def apply(
        self, read: "Callable[[], Awaitable[tuple[Mapping[str, datetime], Collection[str]]]]", *, now: "datetime"
    ) -> None: ...


class NatsIssuer:
    """Makes the users of nodes. Without an account's seed it makes none."""

    def __init__(self, minter: "Minter | None" = None, offer: "Callable[[], NatsOffer] | None" = None) -> None:
        self._minter = minter
        self._offer = offer if minter is not None else None

    @property
    def offer(self) -> NatsOffer | None:
        """Where Corral's workers find NATS at this moment; None where no users are made."""
        return None if self._offer is None else self._offer()

    @property
    def lifetime(self) -> timedelta | None:
        """How long a user lasts; None where none is made."""
        return None if self._minter is None else self._minter.lifetime

    def issue(self, node: Node, at: "datetime") -> tuple[KnownUser | None, UserJwt | None]:
        """Return a user for a node that was approved, as it is stored and as it is given away; else nothing."""
        if self._minter is None or node.facts.approved_at is None:
            return None, None
        issued = self._minter.mint(
            node.id,
            node_type=node.type.value,
            is_corral=node.peer is not None,
            approved_at=node.facts.approved_at,
            at=at,
        )
        user_record = KnownUser(public_key=issued.public_key, issued_at=issued.issued_at, expires_at=issued.expires_at)
        return user_record, issued.user


class NatsRevocations:
    """Has the server end revoked users: when poked, after every reconnect, and once per period."""

    def __init__(self, users: NatsUsers, revoking: Revoking | None, bus: Bus, clock: Clock) -> None:
        self._users = users
        self._revoking = revoking
        self._clock = clock
        self._forgotten_at = clock.monotonic()
        self.poke = Poke()
        self.problem = ""
        """Why the server does not have what was revoked; empty when it has."""
        bus.on_connection(lambda connected: self.poke.ring() if connected else None)

    @property
    def is_possible(self) -> bool:
        return self._revoking is not None

    async def step(self) -> None:
        """Bring the server's claims up to date, and forget users that ended."""
        now = self._clock.now()
        living, ended = await self._read(now)
        if self._revoking is not None and (living or ended):
            await self._apply(self._revoking, now)
        else:
            self.problem = ""  # another frontend has updated the server, or it is over
        if ended and not self.problem:
            await self._users.forget(ended)
        if self._clock.monotonic() - self._forgotten_at >= FORGET_EVERY.total_seconds():
            self._forgotten_at = self._clock.monotonic()
            await self._users.forget_expired(at=now)

    async def _read(self, now: "datetime") -> "tuple[Mapping[str, datetime], Collection[str]]":
        revoked = await self._users.revoked()
        living = {user.public_key: user.expires_at for user in revoked if user.expires_at > now}
        return living, [user.public_key for user in revoked if user.expires_at <= now]

    async def _apply(self, revoking: Revoking, now: "datetime") -> None:
        try:
            await revoking.apply(lambda: self._read(now), now=now)
        except BusUnavailable as error:
            if self.problem != error.message:
                log.warning("users of removed nodes still live on NATS: %s", error, extra={"event": "nats.not_revoked"})
            self.problem = error.message
            return
        self.problem = ""
