"""Replicas, and the restorations of those that an upgrade ends: every column of theirs is read and written here.

Every change is guarded by the state before it, as `decide.replica.NEXT` allows. The keys of replicas are sealed with
the secrets key: without them a control that is restarted could not tell its gateways what already serves.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, Row, and_, delete, exists, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from corral.base.ids import NodeId, ReplicaId
from corral.frontend.nodes.decide.reports import ReportedProcess
from corral.frontend.record.decide import Event
from corral.frontend.record.store import append
from corral.frontend.serving.decide.replica import FINAL, LIVE, Replica, ReplicaState, before
from corral.frontend.serving.decide.rollout import Preparation, Restoration
from corral.frontend.store.db import Database
from corral.frontend.store.dialect import among, insert_into
from corral.frontend.store.schema import replicas, restorations
from corral.frontend.store.secrets import Secrets

_LIVE: Final = sorted(LIVE)
_FINAL: Final = sorted(FINAL)


class KeySealer:
    """Turns a replica's key into what is stored, and back."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets

    def seal(self, id: ReplicaId, key: str, at: datetime) -> bytes | None:
        return self._secrets.seal(f"replica/{id}", key, at=at).sealed if key else None

    def unseal(self, id: ReplicaId, sealed: bytes | None) -> str:
        return "" if sealed is None else self._secrets.unseal(f"replica/{id}", sealed)


# For those who have a transaction open.


async def insert_replica(connection: AsyncConnection, replica: Replica) -> bool:
    """Take a place. False: another replica lives there."""
    row = {
        "id": replica.id,
        "node_id": replica.node_id,
        "model": replica.model,
        "index": replica.index,
        "revision": replica.revision,
        "backend": replica.backend,
        "created_at": replica.created_at,
        "state": replica.state.value,
        "reason": "",
        "changed_at": replica.changed_at,
        "address": "",
        "url": "",
        "sealed_key": None,
        "routes": None,
        "front_port": 0,
    }
    statement = insert_into(connection, replicas).values(row).on_conflict_do_nothing()
    return (await connection.execute(statement)).rowcount == 1


async def change_replica(
    connection: AsyncConnection,
    id: ReplicaId,
    state: ReplicaState,
    *,
    at: datetime,
    values: Mapping[str, object] | None = None,
) -> bool:
    """Go on to a state. False: the replica is in none from which that is allowed."""
    allowed = and_(replicas.c.id == id, replicas.c.state.in_(sorted(before(state))))
    changed = {"state": state.value, "changed_at": at, **(values or {})}
    return (await connection.execute(update(replicas).where(allowed).values(changed))).rowcount == 1


async def lock_living(connection: AsyncConnection, models: Sequence[str]) -> list[Replica]:
    """All living replicas of these models, without their keys; nobody else changes them during this transaction."""
    there = and_(among(connection, replicas.c.model, models), replicas.c.state.in_(_LIVE))
    rows = await connection.execute(select(replicas).where(there).order_by(replicas.c.id).with_for_update())
    return [_replica_of(row) for row in rows]


async def lose_replicas_of(connection: AsyncConnection, node_id: NodeId, *, reason: str, at: datetime) -> None:
    """All living replicas of a node are lost, in a transaction of the caller."""
    living = and_(replicas.c.node_id == node_id, replicas.c.state.in_(_LIVE))
    lost = {"state": ReplicaState.LOST.value, "reason": reason, "changed_at": at}
    await connection.execute(update(replicas).where(living).values(lost))


class ReplicaPlace(NamedTuple):
    """A living replica without what only its users need: keys are not unsealed for it."""

    id: ReplicaId
    node_id: NodeId
    state: ReplicaState


class ReplicaStore:
    def __init__(self, database: Database, secrets: Secrets) -> None:
        self._db = database
        self._sealer = KeySealer(secrets)

    async def get(self, id: ReplicaId) -> Replica | None:
        return next(iter(await self._fetch(replicas.c.id == id)), None)

    async def living(self) -> list[Replica]:
        """All replicas that are not in a final state, oldest first."""
        return await self._fetch(replicas.c.state.in_(_LIVE))

    async def places(self) -> list[ReplicaPlace]:
        """Where all living replicas are."""
        statement = select(replicas.c.id, replicas.c.node_id, replicas.c.state).where(replicas.c.state.in_(_LIVE))
        async with self._db.look() as connection:
            rows = await connection.execute(statement)
            return [ReplicaPlace(id, node_id, ReplicaState(state)) for id, node_id, state in rows]

    async def of_model(self, model: str) -> list[Replica]:
        """All replicas of a model, those that are gone too, for people to see why."""
        return await self._fetch(replicas.c.model == model)

    async def serve(self, model: str) -> bool:
        """Whether any living replica has this model."""
        living = and_(replicas.c.model == model, replicas.c.state.in_(_LIVE))
        async with self._db.look() as connection:
            return bool((await connection.execute(select(exists().where(living)))).scalar_one())

    async def revisions_of(self, model: str) -> dict[str, str]:
        """The revisions of the model that its living replicas have, by the replicas' ids."""
        living = and_(replicas.c.model == model, replicas.c.state.in_(_LIVE))
        async with self._db.look() as connection:
            rows = await connection.execute(select(replicas.c.id, replicas.c.revision).where(living))
            return {row.id: row.revision for row in rows}

    async def on_node(self, node_id: NodeId) -> list[Replica]:
        """The living replicas of a node."""
        return await self._fetch(and_(replicas.c.node_id == node_id, replicas.c.state.in_(_LIVE)))

    async def count_by_state(self) -> dict[ReplicaState, int]:
        statement = select(replicas.c.state, func.count()).group_by(replicas.c.state)
        async with self._db.look() as connection:
            return {ReplicaState(state): count for state, count in await connection.execute(statement)}

    async def lose(
        self, ids: Iterable[ReplicaId], *, reason: str, at: datetime, events: Sequence[Event]
    ) -> list[ReplicaId]:
        """They are gone without our doing; returns which of them this call lost. Without any, no event is written."""
        async with self._db.begin() as connection:
            lost = []
            for id in sorted(ids):
                if await change_replica(connection, id, ReplicaState.LOST, at=at, values={"reason": reason}):
                    lost.append(id)
            if lost:
                await append(connection, events)
        return lost

    async def unload(self, id: ReplicaId, *, reason: str, at: datetime, events: Sequence[Event]) -> bool:
        """Take it out of service. False: it is not loaded any more."""
        return await self._change(id, ReplicaState.UNLOADING, at=at, values={"reason": reason}, events=events)

    async def end(self, id: ReplicaId, *, at: datetime, events: Sequence[Event]) -> bool:
        """Its process is gone, as was wanted; its place is free. False: it was not being unloaded."""
        return await self._change(id, ReplicaState.IDLE, at=at, values={}, events=events)

    async def _change(
        self,
        id: ReplicaId,
        state: ReplicaState,
        *,
        at: datetime,
        values: Mapping[str, object],
        events: Sequence[Event],
    ) -> bool:
        async with self._db.begin() as connection:
            won = await change_replica(connection, id, state, at=at, values=values)
            if won:
                await append(connection, events)
        return won

    async def learn(self, replica: Replica, process: ReportedProcess, *, at: datetime) -> bool:
        """Its node says where the very same process is reached. False: it is no longer loaded, or knows it already."""
        if process.reach == replica.reach:
            return False
        loaded = and_(replicas.c.id == replica.id, replicas.c.state == ReplicaState.LOADED.value)
        values = {
            "url": process.url,
            "sealed_key": self._sealer.seal(replica.id, process.key, at),
            "routes": process.routes,
            "front_port": process.front_port,
        }
        async with self._db.write() as connection:
            return (await connection.execute(update(replicas).where(loaded).values(values))).rowcount == 1

    async def trim(self, before: datetime) -> int:
        """Forget what has been in a final state for so long."""
        old = and_(replicas.c.state.in_(_FINAL), replicas.c.changed_at < before)
        async with self._db.write() as connection:
            return (await connection.execute(delete(replicas).where(old))).rowcount

    async def _fetch(self, which: ColumnElement[bool]) -> list[Replica]:
        statement = select(replicas).where(which).order_by(replicas.c.created_at, replicas.c.id)
        async with self._db.look() as connection:
            rows = (await connection.execute(statement)).all()
        return [_replica_of(row, key=self._sealer.unseal(row.id, row.sealed_key)) for row in rows]


def _replica_of(row: Row[Any], *, key: str = "") -> Replica:
    columns = {name: value for name, value in row._mapping.items() if name != "sealed_key"}
    return Replica(
        **{
            **columns,
            "key": key,
            "state": ReplicaState(row.state),
            "routes": None if row.routes is None else tuple(row.routes),
            "front_port": row.front_port or 0,
        }
    )


# Restorations.

DecideRestorations = Callable[[Sequence[Replica], Sequence[Restoration]], Preparation]
Tell = Callable[[Replica, datetime], Event]


class Restorations:
    def __init__(self, database: Database) -> None:
        self._db = database

    async def all(self) -> list[Restoration]:
        """All restorations, the longest noted first."""
        statement = select(restorations).order_by(restorations.c.noted_at, restorations.c.replica_id)
        async with self._db.look() as connection:
            return [Restoration(**row._mapping) for row in await connection.execute(statement)]

    async def prepare(
        self, models: Sequence[str], decide: DecideRestorations, *, reason: str, at: datetime, tell: Tell
    ) -> Preparation:
        """Let `decide` say what becomes of the living replicas of these models, and do that.

        One after the other: two nodes never each rely on the other one's replica.
        """
        async with self._db.begin() as connection:
            living = await lock_living(connection, models)
            noted = select(restorations).where(among(connection, restorations.c.model, models))
            decided = decide(living, [Restoration(**row._mapping) for row in await connection.execute(noted)])
            if decided.notes:
                await connection.execute(insert(restorations), [asdict(note) for note in decided.notes])
            events = []
            for replica in living:
                if replica.id in decided.unload:
                    values = {"reason": reason}
                    await change_replica(connection, replica.id, ReplicaState.UNLOADING, at=at, values=values)
                    events.append(tell(replica, at))
            await append(connection, events)
        return decided

    async def note(self, ended: Sequence[Restoration]) -> None:
        """Note these; those that are noted already stay as they are."""
        rows = [asdict(restoration) for restoration in ended]
        async with self._db.begin() as connection:
            await connection.execute(insert_into(connection, restorations).values(rows).on_conflict_do_nothing())

    async def forget(self, ids: Collection[ReplicaId]) -> None:
        async with self._db.begin() as connection:
            await connection.execute(delete(restorations).where(restorations.c.replica_id.in_(sorted(ids))))
