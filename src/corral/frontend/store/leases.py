"""Leases in the database: one frontend at a time, for work that only one may do."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import and_, delete, or_, update

from corral.base.clock import Clock
from corral.base.ids import FrontendId, LeaseToken, new_lease_token
from corral.frontend.store.db import Database
from corral.frontend.store.dialect import insert_into
from corral.frontend.store.schema import intents, leases, load_jobs

_OWN: Final = ("pull", "staging")
"""The kinds of intents that frontends bring about themselves."""


async def free_all(database: Database, *, at: datetime) -> None:
    """Free all leases. Only for a process that is alone with the database, when all holders are dead.

    What nodes were asked for keeps its lease to the end: they may be about to finish it, and asked again at once they
    would do it twice. A pull or a staging was the frontend's own, and has ended with it.
    """
    is_ours = or_(intents.c.outstanding.is_(None), intents.c.kind.in_(_OWN))
    held = and_(intents.c.lease_token.is_not(None), is_ours)
    async with database.begin() as connection:
        await connection.execute(delete(leases))
        await connection.execute(update(intents).where(held).values(lease_token=None, lease_until=None))
        await connection.execute(update(load_jobs).where(load_jobs.c.lease_until > at).values(lease_until=at))


class Leases:
    def __init__(self, database: Database) -> None:
        self._db = database

    async def claim(self, name: str, token: LeaseToken, *, holder: str, now: datetime, until: datetime) -> bool:
        """Take a lease that is free or expired, or hold one's own for longer."""
        claim = {"token": token, "holder": holder, "claimed_at": now, "until": until}
        free = or_(leases.c.until <= now, leases.c.token == token)
        async with self._db.write() as connection:
            insert = insert_into(connection, leases).values(name=name, **claim)
            result = await connection.execute(
                insert.on_conflict_do_update(index_elements=[leases.c.name], set_=claim, where=free)
            )
        return result.rowcount == 1

    async def release(self, name: str, token: LeaseToken) -> bool:
        """Give it back. False: it was no longer ours."""
        async with self._db.write() as connection:
            result = await connection.execute(delete(leases).where(leases.c.name == name, leases.c.token == token))
        return result.rowcount == 1


class Leader:
    """Claims leases for this frontend."""

    def __init__(self, leases: Leases, clock: Clock, *, holder: FrontendId) -> None:
        self._leases = leases
        self._clock = clock
        self._holder = holder
        self._token = new_lease_token()
        self._held_until: dict[str, float] = {}
        """On the monotonic clock: a lease is not ours for longer because the other clock was set back."""

    async def holds(self, name: str, *, duration: timedelta, renew_below: timedelta = timedelta()) -> bool:
        """Claim or renew the lease; return whether it is ours. With `renew_below`, a lease that is ours for at least
        that much longer is not written again."""
        now, passed = self._clock.now(), self._clock.monotonic()
        if renew_below and passed + renew_below.total_seconds() <= self._held_until.get(name, passed):
            return True
        is_ours = await self._leases.claim(name, self._token, holder=self._holder, now=now, until=now + duration)
        self._held_until[name] = passed + duration.total_seconds() if is_ours else passed
        return is_ours

    @asynccontextmanager
    async def turn(self, name: str, *, duration: timedelta) -> AsyncIterator[bool]:
        """Whether the work inside is ours, also against others of this process. The lease is given back at the end."""
        now, token = self._clock.now(), new_lease_token()
        is_ours = await self._leases.claim(name, token, holder=self._holder, now=now, until=now + duration)
        try:
            yield is_ours
        finally:
            if is_ours:
                await self._leases.release(name, token)
