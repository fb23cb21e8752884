"""Restorations: what an upgrade ends and is to be loaded again, noted together with what is taken out of service."""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, delete, insert, select

from corral.base.ids import ReplicaId
from corral.frontend.record.decide import Event
from corral.frontend.record.store import append
from corral.frontend.serving.decide.replica import Replica, ReplicaState
from corral.frontend.serving.decide.rollout import Preparation, Restoration
from corral.frontend.serving.store.replicas import change_replica, lock_living
from corral.frontend.store.db import Database
from corral.frontend.store.dialect import among, insert_into
from corral.frontend.store.schema import restorations

DecideRestorations = Callable[[Sequence[Replica], Sequence[Restoration]], Preparation]
Tell = Callable[[Replica, datetime], Event]


class Restorations:
    def __init__(self, database: Database) -> None:
        self._db = database

    async def all(self) -> list[Restoration]:
        """The longest noted first."""
        statement = select(restorations).order_by(restorations.c.noted_at, restorations.c.replica_id)
        async with self._db.look() as connection:
            return [_restoration(row) for row in await connection.execute(statement)]

    async def prepare(
        self, models: Sequence[str], decide: DecideRestorations, *, reason: str, at: datetime, tell: Tell
    ) -> Preparation:
        """Let `decide` say what becomes of the living replicas of these models, and do that.

        One after the other: two nodes never each rely on the other one's replica.
        """
        async with self._db.begin() as connection:
            living = await lock_living(connection, models)
            noted = select(restorations).where(among(connection, restorations.c.model, models))
            decided = decide(living, [_restoration(row) for row in await connection.execute(noted)])
            if decided.notes:
                await connection.execute(insert(restorations), [_row(one) for one in decided.notes])
            events = []
            for replica in living:
                if replica.id in decided.unload:
                    values = {"reason": reason}
                    await change_replica(connection, replica.id, ReplicaState.UNLOADING, at=at, values=values)
                    events.append(tell(replica, at))
            await append(connection, events)
        return decided

    async def note(self, ended: Sequence[Restoration]) -> None:
        """Those that are noted already stay as they are."""
        rows = [_row(one) for one in ended]
        async with self._db.begin() as connection:
            await connection.execute(insert_into(connection, restorations).values(rows).on_conflict_do_nothing())

    async def forget(self, ids: Collection[ReplicaId]) -> None:
        async with self._db.begin() as connection:
            await connection.execute(delete(restorations).where(restorations.c.replica_id.in_(sorted(ids))))


def _row(restoration: Restoration) -> dict[str, object]:
    return {
        "replica_id": restoration.replica_id,
        "node_id": restoration.node_id,
        "model": restoration.model,
        "index": restoration.index,
        "backend": restoration.backend,
        "replicas": restoration.replicas,
        "noted_at": restoration.noted_at,
    }


def _restoration(row: Row[Any]) -> Restoration:
    columns = row._mapping  # a tuple has a method of the name `index`
    return Restoration(
        replica_id=row.replica_id,
        node_id=row.node_id,
        model=row.model,
        index=columns["index"],
        backend=row.backend,
        replicas=row.replicas,
        noted_at=row.noted_at,
    )
