"""Load jobs: opened by whoever waits for a model, worked on by whoever holds the lease.

What the holder does to its replica is in the same transaction as what it does to its job, and counts only while the
lease is its own: whoever was taken for dead and was not changes nothing any more.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, Row, and_, delete, or_, select, true, update
from sqlalchemy.ext.asyncio import AsyncConnection

from corral.base.ids import LeaseToken
from corral.frontend.record.decide import Event
from corral.frontend.record.store import append
from corral.frontend.serving.decide.load_job import LoadJob, LoadState
from corral.frontend.serving.decide.replica import Replica, ReplicaState
from corral.frontend.serving.store.replicas import KeySealer, change_replica, insert_replica, lock_living
from corral.frontend.store.db import Database
from corral.frontend.store.dialect import insert_into
from corral.frontend.store.schema import load_jobs, restorations
from corral.frontend.store.secrets import Secrets
from corral.wire.models import LoadReason

TransactionStep = Callable[[AsyncConnection], Awaitable[None]]


class _Lost(Exception):
    """A part of the transaction did not win; none of it counts."""


class LoadJobs:
    def __init__(self, database: Database, secrets: Secrets) -> None:
        self._db = database
        self._sealer = KeySealer(secrets)

    async def get(self, model: str) -> LoadJob | None:
        return next(iter(await self._fetch(load_jobs.c.model == model)), None)

    async def all(self) -> list[LoadJob]:
        return await self._fetch(true())

    async def due(self, now: datetime) -> list[LoadJob]:
        """Jobs that may be claimed, the longest waiting first."""
        return await self._fetch(_claimable(now))

    async def waiting(self) -> list[LoadJob]:
        """Jobs that are to be worked on now or later, the longest waiting first; not those that failed."""
        return await self._fetch(load_jobs.c.state.in_([LoadState.PENDING.value, LoadState.LOADING.value]))

    async def open(self, job: LoadJob) -> LoadJob:
        """Create the job of a model, join the one that is there, or start a failed one again; returns what is stored.

        A failed one stays as it is during its cooldown, unless the model was changed meanwhile.
        """
        failed = and_(load_jobs.c.model == job.model, load_jobs.c.state == LoadState.FAILED.value)
        changed = load_jobs.c.revision != job.revision
        again = {
            "state": LoadState.PENDING.value,
            **_NOTHING_SAID,
            "preferred_node_id": job.preferred_node_id,
            "retry_at": job.retry_at,
            "changed_at": job.changed_at,
        }
        async with self._db.begin() as connection:
            row = {**asdict(job), **_reasons(job)}
            await connection.execute(insert_into(connection, load_jobs).values(row).on_conflict_do_nothing())
            afresh = {**again, "revision": job.revision, "failures": 0}
            await connection.execute(update(load_jobs).where(failed, changed).values(afresh))
            cooled = load_jobs.c.retry_at <= job.retry_at
            await connection.execute(update(load_jobs).where(failed, cooled).values(again))
            return _job((await connection.execute(select(load_jobs).where(load_jobs.c.model == job.model))).one())

    async def claim(self, job: LoadJob, token: LeaseToken, *, now: datetime, until: datetime) -> bool:
        """Begin to work on it, or go on where another one went silent. False: somebody else was first."""
        free = and_(load_jobs.c.id == job.id, _claimable(now))
        values = {"state": LoadState.LOADING.value, "lease_token": token, "lease_until": until, "changed_at": now}
        return await self._update(free, values)

    async def extend(self, job: LoadJob, token: LeaseToken, *, until: datetime) -> bool:
        """Hold it longer. False: it was taken over, or is gone."""
        return await self._update(_held(job, token), {"lease_until": until})

    # What the holder of the lease does.

    async def reserve(self, job: LoadJob, token: LeaseToken, replica: Replica) -> bool:
        """Take a place on a node for it. False: the place is taken, or the job is no longer ours."""
        place = {"node_id": replica.node_id, "replica_id": replica.id, "changed_at": replica.created_at}
        values = {**_NOTHING_SAID, **place}

        async def work(connection: AsyncConnection) -> None:
            _must(await insert_replica(connection, replica))
            _must(await _change(connection, _held(job, token), values))

        return await self._all_or_nothing(work)

    async def begin(self, job: LoadJob, token: LeaseToken, replica: Replica, *, at: datetime) -> bool:
        """The node is about to be asked. False: the replica was lost meanwhile, or the job is no longer ours."""

        async def work(connection: AsyncConnection) -> None:
            _must(await _change(connection, _held(job, token), {"changed_at": at}))
            _must(await change_replica(connection, replica.id, ReplicaState.LOADING, at=at))

        return await self._all_or_nothing(work)

    async def abandon(self, job: LoadJob, token: LeaseToken, replica: Replica, *, at: datetime) -> bool:
        """Give up the place, for the reason that the replica tells, and look for another one."""

        async def work(connection: AsyncConnection) -> None:
            values = {"node_id": None, "replica_id": None, "message": replica.reason, "changed_at": at}
            _must(await _change(connection, _held(job, token), values))
            reason = {"reason": replica.reason}
            await change_replica(connection, replica.id, ReplicaState.FAILED, at=at, values=reason)

        return await self._all_or_nothing(work)

    async def finish(self, job: LoadJob, token: LeaseToken, replica: Replica, *, events: Sequence[Event]) -> bool:
        """The replica is loaded, with the address, URL and key that it now has; the job is gone."""
        at = replica.changed_at
        values = {
            "address": replica.address,
            "url": replica.url,
            "sealed_key": self._sealer.seal(replica.id, replica.key, at),
            "routes": replica.routes,
            "front_port": replica.front_port,
        }

        async def work(connection: AsyncConnection) -> None:
            _must((await connection.execute(delete(load_jobs).where(_held(job, token)))).rowcount == 1)
            _must(await change_replica(connection, replica.id, ReplicaState.LOADED, at=at, values=values))
            await append(connection, events)

        return await self._all_or_nothing(work)

    async def give_back(self, job: LoadJob, token: LeaseToken, *, at: datetime, events: Sequence[Event]) -> bool:
        """End the work on it, for the reasons that the given job tells, in its `state` and until its `retry_at`.

        The place that it had is free again.
        """
        values = {
            "state": job.state.value,
            **_reasons(job),
            "failures": job.failures,
            "retry_at": job.retry_at,
            "node_id": None,
            "replica_id": None,
            "lease_token": None,
            "lease_until": None,
            "changed_at": at,
        }

        async def work(connection: AsyncConnection) -> None:
            _must(await _change(connection, _held(job, token), values))
            if job.replica_id is not None:
                reason = {"reason": job.message}
                await change_replica(connection, job.replica_id, ReplicaState.FAILED, at=at, values=reason)
            await append(connection, events)

        return await self._all_or_nothing(work)

    async def drop(self, job: LoadJob, token: LeaseToken, *, at: datetime) -> bool:
        """There is nothing to load any more. The place that it had is free again."""

        async def work(connection: AsyncConnection) -> None:
            _must((await connection.execute(delete(load_jobs).where(_held(job, token)))).rowcount == 1)
            if job.replica_id is not None:
                reason = {"reason": "its model is gone"}
                await change_replica(connection, job.replica_id, ReplicaState.FAILED, at=at, values=reason)

        return await self._all_or_nothing(work)

    # How.

    async def _all_or_nothing(self, work: TransactionStep) -> bool:
        try:
            async with self._db.begin() as connection:
                await work(connection)
        except _Lost:
            return False
        return True

    async def _update(self, guard: ColumnElement[bool], values: Mapping[str, object]) -> bool:
        async with self._db.begin() as connection:
            return await _change(connection, guard, values)

    async def _fetch(self, which: ColumnElement[bool]) -> list[LoadJob]:
        statement = select(load_jobs).where(which).order_by(load_jobs.c.created_at, load_jobs.c.model)
        async with self._db.look() as connection:
            return [_job(row) for row in await connection.execute(statement)]


async def stop_serving(connection: AsyncConnection, model: str, *, reason: str, at: datetime) -> None:
    """Nothing loads the model any more, and its replicas leave service, in a transaction of the caller."""
    await connection.execute(delete(load_jobs).where(load_jobs.c.model == model))
    await connection.execute(delete(restorations).where(restorations.c.model == model))
    for replica in await lock_living(connection, [model]):
        state = ReplicaState.UNLOADING if replica.state is ReplicaState.LOADED else ReplicaState.FAILED
        await change_replica(connection, replica.id, state, at=at, values={"reason": reason})


def _must(won: bool) -> None:
    if not won:
        raise _Lost


async def _change(connection: AsyncConnection, guard: ColumnElement[bool], values: Mapping[str, object]) -> bool:
    return (await connection.execute(update(load_jobs).where(guard).values(dict(values)))).rowcount == 1


def _held(job: LoadJob, token: LeaseToken) -> ColumnElement[bool]:
    return and_(load_jobs.c.id == job.id, load_jobs.c.lease_token == token)


def _claimable(now: datetime) -> ColumnElement[bool]:
    """Return the SQL condition for what `decide.load_job.may_claim` decides."""
    return or_(
        and_(load_jobs.c.state == LoadState.PENDING.value, load_jobs.c.retry_at <= now),
        and_(load_jobs.c.state == LoadState.LOADING.value, load_jobs.c.lease_until <= now),
    )


_NOTHING_SAID: Final[Mapping[str, object]] = {"message": "", "reason": None, "engine_lines": None}


def _reasons(job: LoadJob) -> dict[str, object]:
    return {"message": job.message, "reason": job.reason, "engine_lines": list(job.engine_lines) or None}


def _job(row: Row[Any]) -> LoadJob:
    return LoadJob(
        **{
            **row._mapping,
            "state": LoadState(row.state),
            "reason": LoadReason(row.reason) if row.reason in set(LoadReason) else None,
            "engine_lines": tuple(row.engine_lines or ()),
        }
    )
