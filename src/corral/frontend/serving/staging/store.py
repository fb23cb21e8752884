"""What was brought to nodes: every column of `staged_models` is read and written here."""

from collections.abc import Collection
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Row, Text, and_, case, cast, delete, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from corral.base.ids import NodeId
from corral.frontend.serving.staging.decide.staged import StagedFile, StagedModel, StagedSummary
from corral.frontend.store.db import Database
from corral.frontend.store.dialect import insert_into
from corral.frontend.store.schema import scheduling, staged_models


async def forget_staged_of(connection: AsyncConnection, node_id: NodeId, *, reason: str, at: datetime) -> None:
    """A node is removed: what it has is nobody's business any more. In a transaction of the caller."""
    await connection.execute(delete(staged_models).where(staged_models.c.node_id == node_id))


async def forget_staged_model(connection: AsyncConnection, model: str, *, reason: str, at: datetime) -> None:
    """A model is removed: nodes are told to delete its files. In a transaction of the caller."""
    await connection.execute(delete(staged_models).where(staged_models.c.model == model))


class StagedModels:
    def __init__(self, database: Database) -> None:
        self._db = database

    async def record(self, staged: StagedModel) -> None:
        """These files are on the node now."""
        row = {
            "node_id": staged.node_id,
            "model": staged.model,
            "revision": staged.revision,
            "bytes": staged.bytes,
            "files": msgspec.to_builtins(staged.files),
            "staged_at": staged.staged_at,
            "used_at": staged.used_at,
        }
        changed = {name: value for name, value in row.items() if name not in ("node_id", "model")}
        async with self._db.begin() as connection:
            statement = insert_into(connection, staged_models).values(row)
            await connection.execute(statement.on_conflict_do_update(index_elements=["node_id", "model"], set_=changed))

    async def touch(self, node_id: NodeId, model: str, *, at: datetime) -> None:
        """The files were needed just now. Without such files, nothing changes."""
        place = and_(staged_models.c.node_id == node_id, staged_models.c.model == model)
        async with self._db.begin() as connection:
            await connection.execute(update(staged_models).where(place).values(used_at=at))

    async def forget(self, node_id: NodeId, model: str) -> None:
        """Delete the record of a model's files on a node, after the files were deleted there."""
        place = and_(staged_models.c.node_id == node_id, staged_models.c.model == model)
        async with self._db.begin() as connection:
            await connection.execute(delete(staged_models).where(place))

    async def get(self, node_id: NodeId, model: str) -> StagedModel | None:
        place = and_(staged_models.c.node_id == node_id, staged_models.c.model == model)
        async with self._db.look() as connection:
            row = (await connection.execute(select(staged_models).where(place))).one_or_none()
        return None if row is None else _staged_of(row)

    async def on_node(self, node_id: NodeId) -> list[StagedModel]:
        """All that was brought to a node, the longest unused first."""
        statement = select(staged_models).where(staged_models.c.node_id == node_id)
        async with self._db.look() as connection:
            rows = (await connection.execute(statement.order_by(staged_models.c.used_at))).all()
        return [_staged_of(row) for row in rows]

    async def of_model(self, model: str) -> list[StagedModel]:
        """Where the files of a model were brought to."""
        statement = select(staged_models).where(staged_models.c.model == model)
        async with self._db.look() as connection:
            rows = (await connection.execute(statement.order_by(staged_models.c.node_id))).all()
        return [_staged_of(row) for row in rows]

    async def summaries(self) -> list[StagedSummary]:
        """Which node has the files of which model. The lists of files, which may be long, are not read."""
        columns = staged_models.c
        has_none = cast(columns.files, Text) == "[]"
        deletable = case((has_none, 0), else_=columns.bytes).label("deletable_bytes")
        brought_at = case((columns.bytes > 0, columns.staged_at)).label("brought_at")
        statement = select(columns.node_id, columns.model, columns.revision, deletable, brought_at)
        async with self._db.look() as connection:
            return [StagedSummary(**row._mapping) for row in await connection.execute(statement)]

    async def wanted_models(self) -> Collection[str]:
        """Names, of models or aliases, that rules want replicas of, whether anybody asks for them or not."""
        has_rule = (scheduling.c.min_replicas > 0) | (scheduling.c.spread_all > 0)
        async with self._db.look() as connection:
            return {row.model for row in await connection.execute(select(scheduling.c.model).where(has_rule))}


def _staged_of(row: Row[Any]) -> StagedModel:
    files = msgspec.convert(row.files or [], tuple[StagedFile, ...])
    return StagedModel(**{**row._mapping, "files": files})
