"""Replicas, and the restorations of those that an upgrade ends: every column of theirs is read and written here.

Every change is guarded by the state before it, as `decide.replica.NEXT` allows. The keys and tokens of replicas are
sealed with the secrets key: without them a control that is restarted could not tell its gateways what already serves.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from msgspec.structs import asdict, replace
from sqlalchemy import ColumnElement, Row, and_, delete, exists, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from corral.base.errors import SecretsKeyMismatch
from corral.base.ids import NodeId, ReplicaId
from corral.frontend.nodes.decide.node import Node
from corral.frontend.nodes.decide.reports import ReportedProcess, moved
from corral.frontend.record.decide import Event
from corral.frontend.record.store import append
from corral.frontend.serving.decide.load_job import LoadWhy
from corral.frontend.serving.decide.replica import FINAL, LIVE, ON_THE_WAY, Replica, ReplicaState, before
from corral.frontend.serving.decide.rollout import Preparation, Restoration
from corral.frontend.store.db import Database
from corral.frontend.store.dialect import among, insert_into
from corral.frontend.store.schema import nodes, replicas, restorations
from corral.frontend.store.secrets import Secrets, replica_key_name, replica_token_name

log = logging.getLogger(__name__)

_LIVE: Final = sorted(LIVE)
_FINAL: Final = sorted(FINAL)


class KeySealer:
    """Turns a replica's key and token into what is stored, and back. Neither opens in the place of the other."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets

    def seal(self, id: ReplicaId, key: str, at: datetime) -> bytes | None:
        return self._secrets.seal(replica_key_name(id), key, at=at).sealed if key else None

    def unseal(self, id: ReplicaId, sealed: bytes | None) -> str:
        return "" if sealed is None else self._secrets.unseal(replica_key_name(id), sealed)

    def seal_token(self, id: ReplicaId, token: str, at: datetime) -> bytes | None:
        return self._secrets.seal(replica_token_name(id), token, at=at).sealed if token else None

    def unseal_token(self, id: ReplicaId, sealed: bytes | None) -> str:
        return "" if sealed is None else self._secrets.unseal(replica_token_name(id), sealed)


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
        "sealed_token": None,
        "routes": None,
        "front_port": 0,
        "vram": replica.vram,
        "ram": replica.ram,
        "cards": list(replica.cards),
        "why": replica.why.value,
        "asked_life": None,
        "models_path": "",
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


async def reach(
    connection: AsyncConnection, id: ReplicaId, state: ReplicaState, *, at: datetime, asked_life: str | None
) -> bool:
    """Be in this state of a load, or beyond it, with the worker that is asked for the backend from now on, or with
    None as all that was asked is answered. False: the load of the replica is over."""
    now_in = (await connection.execute(select(replicas.c.state).where(replicas.c.id == id))).scalar_one_or_none()
    if now_in not in ON_THE_WAY:
        return False
    asked = {"asked_life": asked_life}
    if ON_THE_WAY.index(ReplicaState(now_in)) < ON_THE_WAY.index(state):
        return await change_replica(connection, id, state, at=at, values=asked)
    same = and_(replicas.c.id == id, replicas.c.state == now_in)
    return (await connection.execute(update(replicas).where(same).values(asked))).rowcount == 1


async def is_loaded(connection: AsyncConnection, model: str, revision: str) -> bool:
    """Whether a replica of the model with this configuration is loaded."""
    loaded = and_(
        replicas.c.model == model, replicas.c.revision == revision, replicas.c.state == ReplicaState.LOADED.value
    )
    return bool((await connection.execute(select(exists().where(loaded)))).scalar_one())


async def loaded_ids(connection: AsyncConnection, model: str) -> set[ReplicaId]:
    """The replicas of the model that are loaded, with any configuration."""
    loaded = and_(replicas.c.model == model, replicas.c.state == ReplicaState.LOADED.value)
    return set((await connection.execute(select(replicas.c.id).where(loaded))).scalars())


async def lock_living(connection: AsyncConnection, models: Sequence[str]) -> list[Replica]:
    """All living replicas of these models, without their keys; nobody else changes them during this transaction."""
    condition = and_(among(connection, replicas.c.model, models), replicas.c.state.in_(_LIVE))
    rows = await connection.execute(select(replicas).where(condition).order_by(replicas.c.id).with_for_update())
    return [_replica_of(row) for row in rows]


async def lock_living_on(connection: AsyncConnection, node_ids: Sequence[NodeId]) -> list[Replica]:
    """All living replicas of these nodes, without their keys; nobody else takes room there during this transaction."""
    locked = select(nodes.c.id).where(among(connection, nodes.c.id, node_ids)).order_by(nodes.c.id)
    await connection.execute(locked.with_for_update())
    condition = and_(among(connection, replicas.c.node_id, node_ids), replicas.c.state.in_(_LIVE))
    return [
        _replica_of(row) for row in await connection.execute(select(replicas).where(condition).order_by(replicas.c.id))
    ]


async def lose_replicas_of(connection: AsyncConnection, node_id: NodeId, *, reason: str, at: datetime) -> None:
    """All living replicas of a node are lost, in a transaction of the caller."""
    living = and_(replicas.c.node_id == node_id, replicas.c.state.in_(_LIVE))
    lost = {"state": ReplicaState.LOST.value, "reason": reason, "changed_at": at}
    await connection.execute(update(replicas).where(living).values(lost))


async def move_replicas_of(connection: AsyncConnection, before: Node, after: Node) -> None:
    """The living replicas of a node are reached at its new host, in the transaction that moves it; ports stay."""
    living = and_(replicas.c.node_id == after.id, replicas.c.state.in_(_LIVE))
    statement = select(replicas.c.id, replicas.c.address, replicas.c.url).where(living)
    for row in (await connection.execute(statement)).all():
        new_place = {"address": moved(row.address, before, after), "url": moved(row.url, before, after)}
        await connection.execute(update(replicas).where(replicas.c.id == row.id, living).values(new_place))


class ReplicaPlace(NamedTuple):
    """A living replica without what only its users need: keys are not unsealed for it."""

    id: ReplicaId
    node_id: NodeId
    state: ReplicaState


class ReplicaStore:
    def __init__(self, database: Database, secrets: Secrets) -> None:
        self._db = database
        self._sealer = KeySealer(secrets)
        self._unreadable: set[ReplicaId] = set()

    async def get(self, id: ReplicaId) -> Replica | None:
        return next(iter(await self._fetch(replicas.c.id == id)), None)

    async def living(self) -> list[Replica]:
        """All replicas that are not in a final state, oldest first."""
        return await self._fetch(replicas.c.state.in_(_LIVE))

    async def asked(self, *, ended_after: datetime) -> list[Replica]:
        """The replicas whose node was asked to have their backend there and has not answered: those that live, and
        those that ended after this time. Without their keys and tokens."""
        may_count = or_(replicas.c.state.in_(_LIVE), replicas.c.changed_at > ended_after)
        statement = select(replicas).where(replicas.c.asked_life.is_not(None), may_count).order_by(replicas.c.id)
        async with self._db.look() as connection:
            rows = (await connection.execute(statement)).all()
        return [_replica_of(row) for row in rows]

    async def answered(self, ids: Sequence[ReplicaId]) -> None:
        """Note that what their node was asked for these is over."""
        async with self._db.write() as connection:
            await connection.execute(update(replicas).where(replicas.c.id.in_(ids)).values(asked_life=None))

    async def outlines(self) -> list[Replica]:
        """All replicas that are not in a final state, oldest first, without their keys and tokens."""
        statement = select(replicas).where(replicas.c.state.in_(_LIVE)).order_by(replicas.c.created_at, replicas.c.id)
        async with self._db.look() as connection:
            rows = (await connection.execute(statement)).all()
        return [_replica_of(row) for row in rows]

    async def ended_since(self, at: datetime) -> list[Replica]:
        """The replicas that were ended on purpose since then."""
        idle = replicas.c.state == ReplicaState.IDLE.value
        return await self._fetch(and_(idle, replicas.c.changed_at >= at))

    async def places(self) -> list[ReplicaPlace]:
        """Where all living replicas are."""
        statement = select(replicas.c.id, replicas.c.node_id, replicas.c.state).where(replicas.c.state.in_(_LIVE))
        async with self._db.look() as connection:
            rows = await connection.execute(statement)
            return [ReplicaPlace(id, node_id, ReplicaState(state)) for id, node_id, state in rows]

    async def of_model(self, model: str) -> list[Replica]:
        """All replicas of a model, those that are gone too, for people to see why."""
        return await self._fetch(replicas.c.model == model)

    async def last_changes(self, node_id: NodeId) -> dict[str, datetime]:
        """When the last replica of each model on the node changed; those that are gone count too."""
        last = func.max(replicas.c.changed_at)
        statement = select(replicas.c.model, last).where(replicas.c.node_id == node_id).group_by(replicas.c.model)
        async with self._db.look() as connection:
            return {model: at for model, at in await connection.execute(statement)}

    async def place_free_since(self, place: Replica) -> datetime | None:
        """When the last replica ended that had the place of this one; None when there was none."""
        ended = replicas.c.state.in_(_FINAL)
        there = and_(
            replicas.c.node_id == place.node_id, replicas.c.model == place.model, replicas.c.index == place.index
        )
        statement = select(func.max(replicas.c.changed_at)).where(there, ended)
        async with self._db.look() as connection:
            at: datetime | None = (await connection.execute(statement)).scalar_one()
        return at

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
        """Mark replicas as lost; returns those that this call changed. If it changed none, no event is written."""
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

    async def evict(
        self,
        victims: Sequence[Replica],
        *,
        least: Mapping[str, int],
        reason: str,
        at: datetime,
        events: Sequence[Event],
    ) -> bool:
        """Take all of these out of service, or none of them. False: one of them is not loaded any more, or its model
        would be left with fewer than the least."""
        ending = Counter(victim.model for victim in victims)
        async with self._db.begin() as connection:
            living = await lock_living(connection, sorted(ending))
            loaded = {replica.id: replica.model for replica in living if replica.state is ReplicaState.LOADED}
            counts = Counter(loaded.values())
            are_enough = all(counts[model] - ends >= least.get(model, 0) for model, ends in ending.items())
            if not are_enough or not loaded.keys() >= {victim.id for victim in victims}:
                return False
            for victim in victims:
                values = {"reason": reason}
                await change_replica(connection, victim.id, ReplicaState.UNLOADING, at=at, values=values)
            await append(connection, events)
        return True

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
            "sealed_token": self._sealer.seal_token(replica.id, process.token, at),
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

    async def _fetch(self, condition: ColumnElement[bool]) -> list[Replica]:
        statement = select(replicas).where(condition).order_by(replicas.c.created_at, replicas.c.id)
        async with self._db.look() as connection:
            rows = (await connection.execute(statement)).all()
        return [self._opened(row) for row in rows]

    def _opened(self, row: Row[Any]) -> Replica:
        """One that does not open keeps nobody from the others: it cannot be reached until its node tells its reach."""
        try:
            key = self._sealer.unseal(row.id, row.sealed_key)
            token = self._sealer.unseal_token(row.id, row.sealed_token)
        except SecretsKeyMismatch as error:
            if row.id not in self._unreadable:
                self._unreadable.add(row.id)
                about = {"event": "replica.unreadable", "replica": row.id, "secret": error.fields.get("secret")}
                log.warning("a replica of %s cannot be reached: its key does not open", row.model, extra=about)
            return replace(_replica_of(row), url="", is_unreadable=True)
        self._unreadable.discard(row.id)
        return _replica_of(row, key=key, token=token)


def _replica_of(row: Row[Any], *, key: str = "", token: str = "") -> Replica:
    columns = {name: value for name, value in row._mapping.items() if not name.startswith("sealed_")}
    return Replica(
        **{
            **columns,
            "key": key,
            "token": token,
            "state": ReplicaState(row.state),
            "routes": None if row.routes is None else tuple(row.routes),
            "front_port": row.front_port or 0,
            "vram": row.vram or 0,
            "ram": row.ram or 0,
            "models_path": row.models_path or "",
            "cards": tuple(row.cards or ()),
            "why": LoadWhy(row.why) if row.why in set(LoadWhy) else LoadWhy.ASKED,
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
