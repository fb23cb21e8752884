"""Galleries of models that people added, for all frontends."""

from datetime import datetime

from sqlalchemy import delete, func, select

from corral.frontend.record.decide import Event
from corral.frontend.record.store import append
from corral.frontend.store.db import Database
from corral.frontend.store.dialect import insert_into
from corral.frontend.store.schema import model_galleries
from corral.galleries.gallery import GallerySource


class AddedGalleries:
    def __init__(self, database: Database) -> None:
        self._db = database

    async def all(self) -> list[GallerySource]:
        """In the order in which they were added."""
        table = model_galleries
        async with self._db.look() as connection:
            rows = await connection.execute(select(table).order_by(table.c.added_at, table.c.name))
            return [GallerySource(name=row.name, url=row.url, mirrors=tuple(row.mirrors)) for row in rows]

    async def add(self, source: GallerySource, *, at: datetime, by: str, event: Event) -> bool:
        """False: there is one of this name, whatever its letter case."""
        table = model_galleries
        same = select(table.c.name).where(func.lower(table.c.name) == source.name.lower())
        values = {"url": source.url, "mirrors": list(source.mirrors), "added_at": at, "added_by": by}
        async with self._db.begin() as connection:
            if (await connection.execute(same)).first() is not None:
                return False
            statement = insert_into(connection, table).values(name=source.name, **values)
            if (await connection.execute(statement.on_conflict_do_nothing())).rowcount != 1:
                return False
            await append(connection, [event])
        return True

    async def remove(self, name: str, *, event: Event) -> bool:
        """False: nobody added one of this name."""
        same_name = func.lower(model_galleries.c.name) == name.lower()
        async with self._db.begin() as connection:
            was_there = (await connection.execute(delete(model_galleries).where(same_name))).rowcount > 0
            if was_there:
                await append(connection, [event])
        return was_there
