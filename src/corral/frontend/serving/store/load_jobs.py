"""Load jobs: opened for requests that wait for a model, and worked on by the frontend that holds the lease.

What the holder does to its replica is in the same transaction as what it does to its job, and counts only while it
holds the lease: a frontend that was wrongly taken for dead changes nothing any more.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from msgspec.structs import asdict, replace
from sqlalchemy import ColumnElement, Row, and_, delete, not_, or_, select, true, update
from sqlalchemy.ext.asyncio import AsyncConnection

from corral.base.ids import LeaseToken, NodeId, ReplicaId, new_load_job_id
from corral.frontend.operations.decide.intent import CLOCK_SKEW
from corral.frontend.record.decide import Event
from corral.frontend.record.store import append
from corral.frontend.serving.decide.load_job import (
    MAY_END_OTHERS,
    WAITS_FOR_ROOM,
    LoadJob,
    LoadState,
    LoadStep,
    LoadStepName,
    LoadWhy,
    furthest,
)
from corral.frontend.serving.decide.replica import Replica, ReplicaState
from corral.frontend.serving.store.replicas import (
    KeySealer,
    change_replica,
    insert_replica,
    is_loaded,
    loaded_ids,
    lock_living,
    lock_living_on,
    reach,
)
from corral.frontend.store.db import Database
from corral.frontend.store.dialect import insert_into
from corral.frontend.store.schema import load_jobs, restorations
from corral.frontend.store.secrets import Secrets
from corral.wire.models import LoadReason

Fits = Callable[[Sequence[Replica]], bool]
"""Whether a replica still has room beside these."""
TransactionStep = Callable[[AsyncConnection], Awaitable[None]]


class _Lost(Exception):
    """A part of the transaction did not win; none of it counts."""


class LoadJobs:
    def __init__(self, database: Database, secrets: Secrets) -> None:
        self._db = database
        self._sealer = KeySealer(secrets)

    async def all(self) -> list[LoadJob]:
        return await self._fetch(true())

    async def waiting(self) -> list[LoadJob]:
        """Jobs that are to be worked on now or later, the longest waiting first; not those that failed."""
        return await self._fetch(load_jobs.c.state.in_(_OPEN))

    async def open(self, job: LoadJob) -> LoadJob:
        """Join a job of the model that is under way, or create the one that all join, or start it again where it
        failed; returns what is stored.

        A failed one stays as it is during its cooldown, unless the model was changed meanwhile, or the load was only
        nice to have and this one is needed.
        """
        async with self._db.begin() as connection:
            under_way = await _join(connection, job)
            return under_way or await _open(connection, job)

    async def open_unless_loaded(self, job: LoadJob) -> LoadJob | None:
        """As `open`, but None when a replica with the configuration of the job is loaded: a load that ends after its
        caller has looked for such a replica is not followed by a second one."""
        async with self._db.begin() as connection:
            if (under_way := await _join(connection, job)) is not None:
                return under_way
            # After the jobs: what loaded it is gone from them in the transaction in which the replica is loaded.
            if await is_loaded(connection, job.model, job.revision):
                return None
            return await _open(connection, job)

    async def add(self, job: LoadJob, *, count: int, seen: Collection[ReplicaId] | None = None) -> int:
        """Have so many jobs of the model under way, in the lowest ordinals that are free; how many were begun.

        One that failed keeps its ordinal until its cooldown is over, as in `open`. `seen` are the loaded replicas that
        the count was decided on: none is begun if another one is loaded by now, whose load may have been counted.
        """
        async with self._db.begin() as connection:
            under_way = await _open_jobs(connection, job.model)
            # After the jobs: a load leaves them in the transaction in which its replica is loaded.
            if seen is not None and not await loaded_ids(connection, job.model) <= set(seen):
                return 0
            used_ordinals, begun = {other.ordinal for other in under_way}, 0
            for ordinal in range(len(used_ordinals) + count):
                if len(under_way) + begun >= count:
                    break
                if ordinal not in used_ordinals:
                    begun += await _start(connection, replace(job, id=new_load_job_id(), ordinal=ordinal))
            return begun

    async def take_back(self, job: LoadJob) -> bool:
        """Have no such load any more. False: somebody works on it, it is over, or it is wanted for another reason."""
        waits = and_(
            load_jobs.c.id == job.id,
            load_jobs.c.state == LoadState.PENDING.value,
            load_jobs.c.lease_token.is_(None),
            load_jobs.c.why == job.why.value,
        )
        async with self._db.begin() as connection:
            return (await connection.execute(delete(load_jobs).where(waits))).rowcount == 1

    async def claim(self, job: LoadJob, token: LeaseToken, *, now: datetime, until: datetime) -> bool:
        """Begin to work on it, or go on where another one went silent. False: somebody else was first."""
        free = and_(load_jobs.c.id == job.id, _claimable(now, until))
        values = {"state": LoadState.LOADING.value, "lease_token": token, "lease_until": until, "changed_at": now}
        return await self._update(free, values)

    async def hurry(self, *, now: datetime) -> bool:
        """Have all that wait for room look again at once; whether any does."""
        waits = and_(
            load_jobs.c.state == LoadState.PENDING.value,
            load_jobs.c.reason.in_(sorted(WAITS_FOR_ROOM)),
            load_jobs.c.retry_at > now,
        )
        async with self._db.write() as connection:
            return (await connection.execute(update(load_jobs).where(waits).values(retry_at=now))).rowcount > 0

    async def bring_forward(self, *, now: datetime, pause: timedelta) -> None:
        """Have all that found no node look again: at once, or so long after now if they have just looked."""
        waits = and_(load_jobs.c.state == LoadState.PENDING.value, load_jobs.c.reason == LoadReason.NO_PLACE.value)
        rested = load_jobs.c.changed_at <= now - pause
        async with self._db.begin() as connection:
            for condition, at in ((rested, now), (not_(rested), now + pause)):
                late = and_(waits, condition, load_jobs.c.retry_at > at)
                await connection.execute(update(load_jobs).where(late).values(retry_at=at))

    async def withdraw_all(self, model: str) -> None:
        """Nobody wants the model. A load that somebody works on goes on."""
        waits = and_(load_jobs.c.model == model, load_jobs.c.state == LoadState.PENDING.value)
        async with self._db.write() as connection:
            await connection.execute(delete(load_jobs).where(waits))

    async def withdraw(self, job: LoadJob) -> bool:
        """Nobody wants it any more. False: somebody works on it, or wants it for another reason by now."""
        waits = and_(
            load_jobs.c.id == job.id,
            load_jobs.c.state != LoadState.LOADING.value,
            load_jobs.c.why == job.why.value,
        )
        async with self._db.write() as connection:
            return (await connection.execute(delete(load_jobs).where(waits))).rowcount == 1

    async def extend(self, job: LoadJob, token: LeaseToken, *, until: datetime) -> bool:
        """Hold it longer. False: it was taken over, or is gone."""
        return await self._update(_held(job, token), {"lease_until": until})

    # What the holder of the lease does.

    async def reserve(
        self, job: LoadJob, token: LeaseToken, replica: Replica, *, fits: Fits, mates: Collection[NodeId] = ()
    ) -> bool:
        """Take a place on a node for it, if it still fits beside those that live by now there, and on its mates: the
        other nodes of the same machine.

        False: the place or its room is taken, or the job is no longer ours.
        """
        place = {"node_id": replica.node_id, "replica_id": replica.id, "changed_at": replica.created_at}
        values = {**_NOTHING_SAID, **place, "steps": _steps(job)}

        async def work(connection: AsyncConnection) -> None:
            _must(fits(await lock_living_on(connection, [replica.node_id, *mates])))
            _must(await insert_replica(connection, replica))
            _must(await _change(connection, _held(job, token), values))

        return await self._all_or_nothing(work)

    async def advance(
        self, job: LoadJob, token: LeaseToken, state: ReplicaState, *, at: datetime, asked_life: str | None = None
    ) -> bool:
        """Begin the last of the job's steps, for which its replica is to be in this state, or beyond it already.

        `asked_life` is the incarnation of the worker that the step asks for the backend; None for other steps. False:
        the replica was lost meanwhile, or the job is no longer ours.
        """
        if (replica_id := job.replica_id) is None:
            return False

        async def work(connection: AsyncConnection) -> None:
            _must(await _change(connection, _held(job, token), {"steps": _steps(job), "changed_at": at}))
            _must(await reach(connection, replica_id, state, at=at, asked_life=asked_life))

        return await self._all_or_nothing(work)

    async def abandon(
        self, job: LoadJob, token: LeaseToken, replica: Replica, *, is_answered: bool, at: datetime
    ) -> bool:
        """Give up the place, for the reason that the replica tells, and look for another one. `is_answered` tells
        whether the node is surely not installing anything for it any more."""

        async def work(connection: AsyncConnection) -> None:
            nowhere: dict[str, object] = {"node_id": None, "replica_id": None, "steps": []}
            values = {**nowhere, "message": replica.reason, "changed_at": at}
            _must(await _change(connection, _held(job, token), values))
            ended: dict[str, object] = {"reason": replica.reason, **({"asked_life": None} if is_answered else {})}
            await change_replica(connection, replica.id, ReplicaState.FAILED, at=at, values=ended)

        return await self._all_or_nothing(work)

    async def finish(self, job: LoadJob, token: LeaseToken, replica: Replica, *, events: Sequence[Event]) -> bool:
        """The replica is loaded, with the address, URL and key that it now has; the job is gone."""
        at = replica.changed_at
        values = {
            "address": replica.address,
            "url": replica.url,
            "sealed_key": self._sealer.seal(replica.id, replica.key, at),
            "sealed_token": self._sealer.seal_token(replica.id, replica.token, at),
            "routes": replica.routes,
            "front_port": replica.front_port,
            "models_path": replica.models_path,
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
            "steps": [],
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

    # Helpers.

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

    async def _fetch(self, condition: ColumnElement[bool]) -> list[LoadJob]:
        statement = select(load_jobs).where(condition).order_by(load_jobs.c.created_at, load_jobs.c.model)
        async with self._db.look() as connection:
            return [_job(row) for row in await connection.execute(statement)]


async def stop_serving(connection: AsyncConnection, model: str, *, reason: str, at: datetime) -> None:
    """Nothing loads the model any more, and its replicas leave service, in a transaction of the caller."""
    await connection.execute(delete(load_jobs).where(load_jobs.c.model == model))
    await connection.execute(delete(restorations).where(restorations.c.model == model))
    for replica in await lock_living(connection, [model]):
        state = ReplicaState.UNLOADING if replica.state is ReplicaState.LOADED else ReplicaState.FAILED
        await change_replica(connection, replica.id, state, at=at, values={"reason": reason})


async def _open_jobs(connection: AsyncConnection, model: str) -> list[LoadJob]:
    condition = and_(load_jobs.c.model == model, load_jobs.c.state.in_(_OPEN))
    return [_job(row) for row in await connection.execute(select(load_jobs).where(condition))]


async def _join(connection: AsyncConnection, job: LoadJob) -> LoadJob | None:
    """The job of the same model that is under way, which `job` joins."""
    under_way = furthest(await _open_jobs(connection, job.model))
    return None if under_way is None else await _joined(connection, under_way, job.why)


async def _open(connection: AsyncConnection, job: LoadJob) -> LoadJob:
    """Create it or start it again; the job that has its place then."""
    await _start(connection, job)
    place = and_(load_jobs.c.model == job.model, load_jobs.c.ordinal == job.ordinal)
    return _job((await connection.execute(select(load_jobs).where(place))).one())


async def _joined(connection: AsyncConnection, job: LoadJob, why: LoadWhy) -> LoadJob:
    """The job as it is when somebody joins it who has better reason to want it: others may have to make room now."""
    if why not in MAY_END_OTHERS or job.why in MAY_END_OTHERS:
        return job
    await _change(connection, load_jobs.c.id == job.id, {"why": why.value})
    return replace(job, why=why)


async def _start(connection: AsyncConnection, job: LoadJob) -> bool:
    """Create it in its place, or start the one there again that failed and may be tried."""
    row = {**asdict(job), **_reasons(job), "why": job.why.value, "steps": _steps(job)}
    inserted = insert_into(connection, load_jobs).values(row).on_conflict_do_nothing()
    if (await connection.execute(inserted)).rowcount == 1:
        return True
    again = {
        "state": LoadState.PENDING.value,
        **_NOTHING_SAID,
        "steps": [],
        "why": job.why.value,
        "preferred_node_id": job.preferred_node_id,
        "retry_at": job.retry_at,
        "changed_at": job.changed_at,
    }
    failed = and_(
        load_jobs.c.model == job.model,
        load_jobs.c.ordinal == job.ordinal,
        load_jobs.c.state == LoadState.FAILED.value,
    )
    changed = load_jobs.c.revision != job.revision
    if job.why in MAY_END_OTHERS:  # what only came beside others failed; that says little of one that is needed
        changed = or_(changed, load_jobs.c.why.not_in(sorted(MAY_END_OTHERS)))
    afresh = {**again, "revision": job.revision, "failures": 0}
    if await _change(connection, and_(failed, changed), afresh):
        return True
    # As `is_cooling` decides it.
    rested = or_(load_jobs.c.retry_at <= job.retry_at, load_jobs.c.changed_at > job.changed_at + CLOCK_SKEW)
    return await _change(connection, and_(failed, rested), again)


def _must(won: bool) -> None:
    if not won:
        raise _Lost


async def _change(connection: AsyncConnection, guard: ColumnElement[bool], values: Mapping[str, object]) -> bool:
    return (await connection.execute(update(load_jobs).where(guard).values(dict(values)))).rowcount == 1


def _held(job: LoadJob, token: LeaseToken) -> ColumnElement[bool]:
    return and_(load_jobs.c.id == job.id, load_jobs.c.lease_token == token)


def _claimable(now: datetime, until: datetime) -> ColumnElement[bool]:
    """Return the SQL condition for what `decide.load_job.may_claim` decides; a lease that is taken now ends at
    `until`."""
    lease_until = load_jobs.c.lease_until
    is_due = or_(load_jobs.c.retry_at <= now, load_jobs.c.changed_at > now + CLOCK_SKEW)
    is_free = or_(lease_until <= now, lease_until > until + CLOCK_SKEW)
    return or_(
        and_(load_jobs.c.state == LoadState.PENDING.value, is_due),
        and_(load_jobs.c.state == LoadState.LOADING.value, is_free),
    )


_OPEN: Final = (LoadState.PENDING.value, LoadState.LOADING.value)
_NOTHING_SAID: Final[Mapping[str, object]] = {"message": "", "reason": None, "engine_lines": None}


def _reasons(job: LoadJob) -> dict[str, object]:
    return {"message": job.message, "reason": job.reason, "engine_lines": list(job.engine_lines) or None}


def _steps(job: LoadJob) -> list[list[str]]:
    return [[step.name.value, step.began_at.isoformat()] for step in job.steps]


def _job(row: Row[Any]) -> LoadJob:
    return LoadJob(
        **{
            **row._mapping,
            "state": LoadState(row.state),
            "why": LoadWhy(row.why),
            "steps": tuple(LoadStep(LoadStepName(name), datetime.fromisoformat(began)) for name, began in row.steps),
            "reason": LoadReason(row.reason) if row.reason in set(LoadReason) else None,
            "engine_lines": tuple(row.engine_lines or ()),
        }
    )
