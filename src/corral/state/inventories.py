"""What each node last reported to have on its disk, and when."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Row, select, update

from corral.base.ids import NodeId
from corral.domain.backend import BackendEntry, Inventory
from corral.state.db import Database
from corral.state.dialect import among
from corral.state.intent_batches import write_reports
from corral.state.schema import backend_inventory


class Inventories:
    def __init__(self, database: Database) -> None:
        self._db = database

    async def get(self, node_id: NodeId) -> Inventory | None:
        async with self._db.look() as connection:
            row = (
                await connection.execute(select(backend_inventory).where(backend_inventory.c.node_id == node_id))
            ).one_or_none()
        return None if row is None else _inventory(row)

    async def of(self, ids: Sequence[NodeId]) -> dict[NodeId, Inventory]:
        async with self._db.look() as connection:
            there = among(connection, backend_inventory.c.node_id, ids)
            rows = await connection.execute(select(backend_inventory).where(there))
            return {NodeId(row.node_id): _inventory(row) for row in rows}

    async def put(self, reports: Mapping[NodeId, Inventory]) -> None:
        """Store what nodes said; an older report never replaces a newer one."""
        if not reports:
            return
        async with self._db.begin() as connection:
            await write_reports(connection, reports)

    async def confirm(self, ids: Sequence[NodeId], *, at: datetime) -> None:
        """What these nodes said before is still so."""
        if not ids:
            return
        async with self._db.begin() as connection:
            here = among(connection, backend_inventory.c.node_id, ids)
            older = backend_inventory.c.seen_at < at
            await connection.execute(update(backend_inventory).where(here, older).values(seen_at=at))


def _inventory(row: Row[Any]) -> Inventory:
    return Inventory(entries=msgspec.convert(row.entries, tuple[BackendEntry, ...]), seen_at=row.seen_at)
