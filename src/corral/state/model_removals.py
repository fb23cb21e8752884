"""Models that were removed. The removal is one transaction: from then on the model is gone, and the rest follows."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from corral.base.ids import OperationId
from corral.domain.event import Event
from corral.domain.intent import Intent
from corral.domain.model_removal import REASON, RemovedModel
from corral.domain.operation import Operation
from corral.domain.replica import ReplicaState
from corral.state.db import Database
from corral.state.dialect import insert_into
from corral.state.events import append
from corral.state.operations import Operations
from corral.state.replicas import change_replica, lock_living
from corral.state.schema import load_jobs, removed_models, restorations


class ModelRemovals:
    def __init__(self, database: Database, operations: Operations) -> None:
        self._db = database
        self._operations = operations

    async def start(
        self, removed: RemovedModel, operation: Operation, intents: Sequence[Intent], *, events: Sequence[Event]
    ) -> Operation:
        """The model is gone, its replicas leave service, its loads end, and nodes are to delete its files."""

        async def beside(connection: AsyncConnection) -> None:
            values = {"removed_at": removed.removed_at, "operation_id": removed.operation_id}
            statement = insert_into(connection, removed_models).values(name=removed.name, **values)
            await connection.execute(statement.on_conflict_do_update(index_elements=["name"], set_=values))
            await connection.execute(delete(load_jobs).where(load_jobs.c.model == removed.name))
            await connection.execute(delete(restorations).where(restorations.c.model == removed.name))
            await _end_replicas(connection, removed.name, at=operation.accepted_at)

        return await self._operations.start(operation, intents, events=events, beside=beside)

    async def all(self) -> list[RemovedModel]:
        async with self._db.look() as connection:
            rows = await connection.execute(select(removed_models).order_by(removed_models.c.name))
            return [
                RemovedModel(name=row.name, removed_at=row.removed_at, operation_id=OperationId(row.operation_id))
                for row in rows
            ]

    async def forget(self, removed: RemovedModel, *, events: Sequence[Event]) -> bool:
        """It was added again. False: somebody removed it once more, or was first."""
        same = (removed_models.c.name == removed.name) & (removed_models.c.operation_id == removed.operation_id)
        async with self._db.begin() as connection:
            won = (await connection.execute(delete(removed_models).where(same))).rowcount == 1
            if won:
                await append(connection, events)
        return won


async def _end_replicas(connection: AsyncConnection, model: str, *, at: datetime) -> None:
    values = {"reason": REASON}
    for replica in await lock_living(connection, [model]):
        state = ReplicaState.UNLOADING if replica.state is ReplicaState.LOADED else ReplicaState.FAILED
        await change_replica(connection, replica.id, state, at=at, values=values)
