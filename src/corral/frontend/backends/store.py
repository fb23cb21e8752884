"""Guarded writes and reads of inventories, of checks for upgrades and of policies. Rows stay here."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, Final

import msgspec
from sqlalchemy import Insert, Row, delete, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from corral.base.ids import NodeId
from corral.frontend.backends.decide.backend import BackendEntry, Inventory
from corral.frontend.backends.decide.policy import BackendPolicy
from corral.frontend.backends.decide.upgrades import Check
from corral.frontend.operations.decide.intent import Report
from corral.frontend.operations.store.intent_batches import document
from corral.frontend.record.decide import Event
from corral.frontend.record.store import append
from corral.frontend.store.access_schema import backend_policies
from corral.frontend.store.db import Database
from corral.frontend.store.dialect import POSTGRES, RowSet, among, insert_into
from corral.frontend.store.schema import backend_inventory, upgrade_check
from corral.wire.confinement import read_network

_REPORTS: Final = RowSet(*backend_inventory.c)


class Inventories:
    def __init__(self, database: Database) -> None:
        self._db = database

    async def of(self, ids: Sequence[NodeId]) -> dict[NodeId, Inventory]:
        async with self._db.look() as connection:
            on_nodes = among(connection, backend_inventory.c.node_id, ids)
            rows = await connection.execute(select(backend_inventory).where(on_nodes))
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
            on_nodes = among(connection, backend_inventory.c.node_id, ids)
            older = backend_inventory.c.seen_at < at
            await connection.execute(update(backend_inventory).where(on_nodes, older).values(seen_at=at))


def _inventory(row: Row[Any]) -> Inventory:
    return Inventory(entries=msgspec.convert(row.entries, tuple[BackendEntry, ...]), seen_at=row.seen_at)


async def write_reports(connection: AsyncConnection, reports: Mapping[NodeId, Report]) -> None:
    """Store the inventories among these reports; an older one never replaces a newer one."""
    rows = [
        {"node_id": node_id, "entries": document(report.entries), "seen_at": report.seen_at}
        for node_id, report in sorted(reports.items())
        if isinstance(report, Inventory)
    ]
    if rows:
        statement = _upsert_reports(connection.dialect.name)
        await connection.execute(statement, _REPORTS.parameters(connection, rows))


@cache
def _upsert_reports(dialect: str) -> Insert:
    reported = _REPORTS.table(dialect)
    names = [column.name for column in backend_inventory.c]
    rows = select(*(_REPORTS.value(reported, name, dialect) for name in names))
    into = postgresql.insert if dialect == POSTGRES else sqlite.insert
    # SQLite would read ON CONFLICT as a part of the SELECT, unless a WHERE ends it.
    new = into(backend_inventory).from_select(names, rows.where(reported.c.node_id.is_not(None)))
    newer = backend_inventory.c.seen_at <= new.excluded.seen_at
    values = {"entries": new.excluded.entries, "seen_at": new.excluded.seen_at}
    return new.on_conflict_do_update(index_elements=[backend_inventory.c.node_id], set_=values, where=newer)


_ROW: Final = 1


class UpgradeChecks:
    def __init__(self, database: Database) -> None:
        self._db = database

    async def last(self) -> Check | None:
        """None before the first one."""
        async with self._db.look() as connection:
            findings = (await connection.execute(select(upgrade_check.c.findings))).scalar_one_or_none()
        return None if findings is None else msgspec.convert(findings, Check)

    async def put(self, check: Check) -> bool:
        """Keep it in place of an older one. False: a newer one is there."""
        values = {"checked_at": check.at, "findings": document(check)}
        async with self._db.begin() as connection:
            row = insert_into(connection, upgrade_check).values(id=_ROW, **values)
            older = upgrade_check.c.checked_at <= check.at
            stored = await connection.execute(
                row.on_conflict_do_update(index_elements=[upgrade_check.c.id], set_=values, where=older)
            )
        return stored.rowcount == 1


class BackendPolicyStore:
    def __init__(self, database: Database) -> None:
        self._db = database

    async def all(self) -> list[BackendPolicy]:
        async with self._db.look() as connection:
            rows = await connection.execute(select(backend_policies).order_by(backend_policies.c.backend))
            return [_policy(row) for row in rows]

    async def get(self, backend: str) -> BackendPolicy | None:
        async with self._db.look() as connection:
            statement = select(backend_policies).where(backend_policies.c.backend == backend)
            row = (await connection.execute(statement)).one_or_none()
        return None if row is None else _policy(row)

    async def put(self, policy: BackendPolicy, *, events: Sequence[Event]) -> None:
        """Put it in place of an earlier one of the same backend."""
        values = {
            "network": policy.network or "",
            "is_confined": int(policy.is_confined),
            "reason": policy.reason,
            "changed_at": policy.changed_at,
            "changed_by": policy.changed_by,
        }
        async with self._db.begin() as connection:
            row = insert_into(connection, backend_policies).values(backend=policy.backend, **values)
            await connection.execute(row.on_conflict_do_update(index_elements=["backend"], set_=values))
            await append(connection, events)

    async def remove(self, backend: str, *, events: Sequence[Event]) -> bool:
        """False when there was none."""
        async with self._db.begin() as connection:
            statement = delete(backend_policies).where(backend_policies.c.backend == backend)
            was_there = (await connection.execute(statement)).rowcount == 1
            if was_there:
                await append(connection, events)
        return was_there


def _policy(row: Row[Any]) -> BackendPolicy:
    return BackendPolicy(
        backend=row.backend,
        network=read_network(row.network),
        is_confined=bool(row.is_confined),
        reason=row.reason,
        changed_at=row.changed_at,
        changed_by=row.changed_by,
    )
