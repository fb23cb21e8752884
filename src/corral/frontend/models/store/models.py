"""Models and their history. A change is one transaction that wins or writes nothing: the number of a change is its
place in the history, and nobody else can have taken it."""

from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from sqlalchemy import Row, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from corral.frontend.models.decide.removal import REASON, RemovedModel
from corral.frontend.models.decide.stored import (
    LastChange,
    ModelChangeKind,
    ModelRevision,
    ModelSource,
    StoredModel,
    WeightFile,
    revision_row,
)
from corral.frontend.operations.decide.intent import Intent
from corral.frontend.operations.decide.operation import Operation
from corral.frontend.operations.store.operations import OperationStore
from corral.frontend.record.decide import Event
from corral.frontend.record.store import append
from corral.frontend.store.db import Database, ForgetStep
from corral.frontend.store.dialect import among, insert_into
from corral.frontend.store.schema import model_revisions, models, removed_models
from corral.hubs.plans import ModelOrigin

MOST_REVISIONS: Final = 200
"""Changes of one model that are kept."""


class ModelMark(NamedTuple):
    """Tells whether a model is the one that was read before, without reading its text."""

    number: int
    files: tuple[WeightFile, ...]


class Overwritten(Exception):
    """Somebody else changed the model at the same moment."""


class StoredModels:
    def __init__(self, database: Database) -> None:
        self._db = database

    async def marks(self) -> dict[str, ModelMark]:
        """All models, without what is long."""
        async with self._db.look() as connection:
            rows = await connection.execute(select(models.c.name, models.c.number, models.c.files))
            return {row.name: ModelMark(row.number, _files(row.files)) for row in rows}

    async def load(self, names: Collection[str]) -> list[StoredModel]:
        """Return those of the named models that exist."""
        async with self._db.look() as connection:
            rows = await connection.execute(select(models).where(among(connection, models.c.name, list(names))))
            return [_model(row) for row in rows]

    async def get(self, name: str) -> StoredModel | None:
        return next(iter(await self.load([name])), None)

    async def last_changes(self, names: Collection[str]) -> dict[str, LastChange]:
        """The last change of each, also of models that were removed. Without those that never were."""
        table = model_revisions.c
        last = select(table.name, func.max(table.number).label("number"), func.max(table.changed_at).label("at"))
        async with self._db.look() as connection:
            condition = among(connection, table.name, list(names))
            rows = await connection.execute(last.where(condition).group_by(table.name))
            return {row.name: LastChange(row.number, row.at) for row in rows}

    async def history(self, name: str, *, limit: int = MOST_REVISIONS) -> list[ModelRevision]:
        """What the model was after each change, the newest first; empty for one that never was."""
        newest = select(model_revisions).where(model_revisions.c.name == name)
        newest = newest.order_by(model_revisions.c.number.desc()).limit(limit)
        async with self._db.look() as connection:
            return [_revision(row) for row in await connection.execute(newest)]

    async def at(self, name: str, number: int) -> ModelRevision | None:
        """What the model was after this change."""
        is_revision = (model_revisions.c.name == name) & (model_revisions.c.number == number)
        async with self._db.look() as connection:
            row = (await connection.execute(select(model_revisions).where(is_revision))).one_or_none()
            return None if row is None else _revision(row)

    async def write(self, model: StoredModel, change: ModelChangeKind, *, events: Sequence[Event]) -> bool:
        """Make the model this. False: there is a change of that number already, and nothing was written."""
        try:
            async with self._db.begin() as connection:
                await write_model(connection, model, change)
                await append(connection, events)
        except Overwritten:
            return False
        return True

    async def measure(self, measured: Sequence[tuple[StoredModel, Sequence[WeightFile]]]) -> None:
        """Note what models are loaded from; not of those that were changed meanwhile."""
        async with self._db.begin() as connection:
            for model, files in measured:
                same = (models.c.name == model.name) & (models.c.number == model.number)
                await connection.execute(update(models).where(same).values(files=_written(files)))


async def write_model(connection: AsyncConnection, model: StoredModel, change: ModelChangeKind) -> None:
    """Make the model this, in the caller's transaction. Overwritten when there is a change of that number already."""
    await _write_revision(connection, revision_row(model, change))
    values = {
        "number": model.number,
        "revision": model.revision,
        "text": model.text,
        "source": model.source.value,
        "origin": _origin(model.origin),
        "files": _written(model.files),
        "is_disabled": int(model.is_disabled),
        "is_pinned": int(model.is_pinned),
        "changed_at": model.changed_at,
        "changed_by": model.changed_by,
    }
    statement = insert_into(connection, models).values(name=model.name, **values)
    await connection.execute(statement.on_conflict_do_update(index_elements=["name"], set_=values))


async def remove_model(connection: AsyncConnection, last: ModelRevision) -> None:
    """End the model with this entry of its history. Overwritten when there is a change of that number already."""
    await _write_revision(connection, last)
    await connection.execute(delete(models).where(models.c.name == last.name))


async def _write_revision(connection: AsyncConnection, revision: ModelRevision) -> None:
    values = {
        "name": revision.name,
        "number": revision.number,
        "revision": revision.revision,
        "text": revision.text,
        "origin": _origin(revision.origin),
        "files": _written(revision.files),
        "change": revision.change.value,
        "changed_at": revision.changed_at,
        "changed_by": revision.changed_by,
    }
    statement = insert_into(connection, model_revisions).values(**values).on_conflict_do_nothing()
    if (await connection.execute(statement)).rowcount != 1:
        raise Overwritten
    if revision.number <= MOST_REVISIONS:
        return
    table = model_revisions.c
    old = (table.name == revision.name) & (table.number <= revision.number - MOST_REVISIONS)
    await connection.execute(delete(model_revisions).where(old))


def _model(row: Row[Any]) -> StoredModel:
    return StoredModel(
        name=row.name,
        number=row.number,
        revision=row.revision,
        text=row.text,
        source=ModelSource(row.source),
        origin=_read_origin(row.origin),
        files=_files(row.files),
        is_disabled=bool(row.is_disabled),
        is_pinned=bool(row.is_pinned),
        changed_at=row.changed_at,
        changed_by=row.changed_by,
    )


def _revision(row: Row[Any]) -> ModelRevision:
    return ModelRevision(
        name=row.name,
        number=row.number,
        revision=row.revision,
        text=row.text,
        origin=_read_origin(row.origin),
        files=_files(row.files),
        change=ModelChangeKind(row.change),
        changed_at=row.changed_at,
        changed_by=row.changed_by,
    )


def _origin(origin: ModelOrigin | None) -> object:
    return None if origin is None else msgspec.to_builtins(origin)


def _read_origin(value: object) -> ModelOrigin | None:
    return None if value is None else msgspec.convert(value, ModelOrigin)


def _written(files: Sequence[WeightFile]) -> object:
    return [msgspec.to_builtins(file) for file in files]


def _files(value: object) -> tuple[WeightFile, ...]:
    return msgspec.convert(value, tuple[WeightFile, ...])


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

    async def clear(self, removed: RemovedModel, store_id: str, kept_reasons: Sequence[str]) -> bool:
        """Nothing is left to delete in a store. False: the model was added or removed again."""
        same = (removed_models.c.name == removed.name) & (removed_models.c.operation_id == removed.operation_id)
        async with self._db.begin() as connection:
            row = (
                await connection.execute(select(removed_models.c.cleared).where(same).with_for_update())
            ).one_or_none()
            if row is None:
                return False
            cleared = {**(row.cleared or {}), store_id: list(kept_reasons)}
            await connection.execute(update(removed_models).where(same).values(cleared=cleared))
        return True

    async def forget(self, removed: RemovedModel, *, events: Sequence[Event]) -> bool:
        """Forget a removal because the model was added again. False: it was removed once more, or another frontend was
        first."""
        same = (removed_models.c.name == removed.name) & (removed_models.c.operation_id == removed.operation_id)
        async with self._db.begin() as connection:
            won = (await connection.execute(delete(removed_models).where(same))).rowcount == 1
            if won:
                await append(connection, events)
        return won
