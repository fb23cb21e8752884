"""The directories with files of models, and what their YAML files said when they were last taken over."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from msgspec.structs import asdict
from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from corral.frontend.models.decide.stored import ImportedFile, KnownStore, ModelChangeKind, ModelRevision, StoredModel
from corral.frontend.models.store.models import Overwritten, remove_model, write_model
from corral.frontend.record.decide import Event
from corral.frontend.record.store import append
from corral.frontend.store.db import Database
from corral.frontend.store.dialect import among, insert_into
from corral.frontend.store.schema import model_imports, model_stores


class ModelStores:
    def __init__(self, database: Database) -> None:
        self._db = database

    async def see(self, store: KnownStore) -> None:
        """A frontend has seen it."""
        values = asdict(store)
        async with self._db.write() as connection:
            statement = insert_into(connection, model_stores).values(**values)
            await connection.execute(statement.on_conflict_do_update(index_elements=["id"], set_=values))

    async def all(self) -> list[KnownStore]:
        async with self._db.look() as connection:
            rows = await connection.execute(select(model_stores).order_by(model_stores.c.name, model_stores.c.id))
            return [KnownStore(**row._mapping) for row in rows]

    async def get(self, id: str) -> KnownStore | None:
        async with self._db.look() as connection:
            rows = await connection.execute(select(model_stores).where(model_stores.c.id == id))
            return next((KnownStore(**row._mapping) for row in rows), None)


class TakenOver(NamedTuple):
    """What files of a store say now, and what follows for models: all of it is written, or nothing."""

    files: Sequence[ImportedFile] = ()
    forgotten: Collection[str] = ()
    """Paths of files that are gone."""
    models: Sequence[StoredModel] = ()
    removed: Sequence[ModelRevision] = ()
    """The last entries of models that no file holds any more."""
    events: Sequence[Event] = ()


class ModelImports:
    def __init__(self, database: Database) -> None:
        self._db = database

    async def of(self, store_id: str) -> dict[str, ImportedFile]:
        """What each file of a store said, by its path."""
        statement = select(model_imports).where(model_imports.c.store_id == store_id)
        async with self._db.look() as connection:
            rows = await connection.execute(statement)
            return {row.path: ImportedFile(path=row.path, digest=row.digest, names=row.names) for row in rows}

    async def take_over(self, store_id: str, changes: TakenOver) -> bool:
        """Write it all. False: somebody changed one of the models at the same moment, and nothing was written."""
        try:
            async with self._db.begin() as connection:
                for model in changes.models:
                    await write_model(connection, model, ModelChangeKind.FILE)
                for last in changes.removed:
                    await remove_model(connection, last)
                await self._note(connection, store_id, changes)
                await append(connection, changes.events)
        except Overwritten:
            return False
        return True

    async def _note(self, connection: AsyncConnection, store_id: str, changes: TakenOver) -> None:
        in_store = model_imports.c.store_id == store_id
        if changes.forgotten:
            forgotten = in_store & among(connection, model_imports.c.path, list(changes.forgotten))
            await connection.execute(delete(model_imports).where(forgotten))
        for file in changes.files:
            values = {"digest": file.digest, "names": dict(file.names)}
            statement = insert_into(connection, model_imports).values(store_id=store_id, path=file.path, **values)
            update = statement.on_conflict_do_update(index_elements=["store_id", "path"], set_=values)
            await connection.execute(update)
