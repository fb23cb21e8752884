"""Models that were removed. The removal is one transaction: from then on the model is gone, and the rest follows."""

from collections.abc import Sequence

from sqlalchemy import delete, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from corral.frontend.models.decide.removal import REASON, RemovedModel
from corral.frontend.models.decide.stored import ModelRevision
from corral.frontend.models.store.models import remove_model
from corral.frontend.operations.decide.intent import Intent
from corral.frontend.operations.decide.operation import Operation
from corral.frontend.operations.store.operations import OperationStore
from corral.frontend.record.decide import Event
from corral.frontend.record.store import append
from corral.frontend.store.db import Database, ForgetStep
from corral.frontend.store.dialect import insert_into
from corral.frontend.store.schema import removed_models


class ModelRemovals:
    def __init__(
        self, database: Database, operations: OperationStore, *, on_removal: Sequence[ForgetStep[str]]
    ) -> None:
        """`on_removal` is what other rooms do when a model is removed."""
        self._db = database
        self._operations = operations
        self._on_removal = on_removal

    async def start(
        self,
        removed: RemovedModel,
        last: ModelRevision,
        operation: Operation,
        intents: Sequence[Intent],
        *,
        events: Sequence[Event],
    ) -> Operation:
        """Remove the model in one transaction: other rooms stop using it, and nodes are asked to delete its files.

        `last` is the end of its history. Overwritten when the model was changed meanwhile: then nothing is written.
        """

        async def beside(connection: AsyncConnection) -> None:
            await remove_model(connection, last)
            values = {"removed_at": removed.removed_at, "operation_id": removed.operation_id, "cleared": {}}
            statement = insert_into(connection, removed_models).values(name=removed.name, **values)
            await connection.execute(statement.on_conflict_do_update(index_elements=["name"], set_=values))
            for forget in self._on_removal:
                await forget(connection, removed.name, reason=REASON, at=operation.accepted_at)

        return await self._operations.start(operation, intents, events=events, beside=beside)

    async def all(self) -> list[RemovedModel]:
        async with self._db.look() as connection:
            rows = await connection.execute(select(removed_models).order_by(removed_models.c.name))
            return [RemovedModel(**{**row._mapping, "cleared": row.cleared or {}}) for row in rows]

    async def clear(self, removed: RemovedModel, store_id: str, kept: Sequence[str]) -> bool:
        """Nothing is left to delete in a store. False: the model was added or removed again."""
        same = (removed_models.c.name == removed.name) & (removed_models.c.operation_id == removed.operation_id)
        async with self._db.begin() as connection:
            row = (
                await connection.execute(select(removed_models.c.cleared).where(same).with_for_update())
            ).one_or_none()
            if row is None:
                return False
            cleared = {**(row.cleared or {}), store_id: list(kept)}
            await connection.execute(update(removed_models).where(same).values(cleared=cleared))
        return True

    async def forget(self, removed: RemovedModel, *, events: Sequence[Event]) -> bool:
        """It was added again. False: somebody removed it once more, or was first."""
        same = (removed_models.c.name == removed.name) & (removed_models.c.operation_id == removed.operation_id)
        async with self._db.begin() as connection:
            won = (await connection.execute(delete(removed_models).where(same))).rowcount == 1
            if won:
                await append(connection, events)
        return won
