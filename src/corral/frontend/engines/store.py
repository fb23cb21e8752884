"""Engines that somebody else runs, as rows: every column of theirs is read and written here.

A change is guarded by the moment of the last one. Keys are sealed with the secrets key, and bound to the engine's id.
"""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, and_, delete, insert, select, update

from corral.base.errors import SecretsKeyMismatch
from corral.frontend.engines.decide import ExternalEngine
from corral.frontend.record.decide import Event
from corral.frontend.record.store import append
from corral.frontend.store.db import Database
from corral.frontend.store.schema import external_engines
from corral.frontend.store.secrets import Secrets, engine_key_name

log = logging.getLogger(__name__)


class ExternalEngineStore:
    def __init__(self, database: Database, secrets: Secrets) -> None:
        self._db = database
        self._secrets = secrets
        self._unreadable: set[str] = set()

    async def all(self) -> list[ExternalEngine]:
        """All engines with their keys, by model, order and name."""
        table = external_engines
        statement = select(table).order_by(table.c.model, table.c.fallback_order, table.c.name)
        async with self._db.look() as connection:
            rows = (await connection.execute(statement)).all()
        return [self._engine_of(row) for row in rows]

    async def get(self, id: str) -> ExternalEngine | None:
        async with self._db.look() as connection:
            row = (await connection.execute(select(external_engines).where(external_engines.c.id == id))).first()
        return None if row is None else self._engine_of(row)

    async def insert(self, engine: ExternalEngine, *, events: Sequence[Event]) -> None:
        """ConstraintViolated when the model has an engine of this name."""
        async with self._db.begin() as connection:
            await connection.execute(insert(external_engines).values(self._values_of(engine)))
            await append(connection, events)

    async def replace(self, engine: ExternalEngine, *, seen: datetime, events: Sequence[Event]) -> bool:
        """Write the engine over what it was at its change `seen`. False: it was changed or removed since then.

        ConstraintViolated when the model has another engine of this name.
        """
        unchanged = and_(external_engines.c.id == engine.id, external_engines.c.changed_at == seen)
        async with self._db.begin() as connection:
            statement = update(external_engines).where(unchanged).values(self._values_of(engine))
            won = (await connection.execute(statement)).rowcount == 1
            if won:
                await append(connection, events)
        return won

    async def remove(self, id: str, *, events: Sequence[Event]) -> bool:
        """Remove an engine. False when none has this id."""
        async with self._db.begin() as connection:
            statement = delete(external_engines).where(external_engines.c.id == id)
            was_there = (await connection.execute(statement)).rowcount == 1
            if was_there:
                await append(connection, events)
        return was_there

    def _values_of(self, engine: ExternalEngine) -> Mapping[str, object]:
        name = engine_key_name(engine.id)
        return {
            "id": engine.id,
            "model": engine.model,
            "name": engine.name,
            "url": engine.url,
            "remote_model": engine.remote_model,
            "uses": list(engine.uses),
            "sealed_key": self._secrets.seal(name, engine.key, at=engine.changed_at).sealed if engine.key else None,
            "ca": engine.ca,
            "health_path": engine.health_path,
            "max_concurrent": engine.max_concurrent,
            "weight": engine.weight,
            "fallback_order": engine.fallback_order,
            "is_enabled": int(engine.is_enabled),
            "created_at": engine.created_at,
            "created_by": engine.created_by,
            "changed_at": engine.changed_at,
            "changed_by": engine.changed_by,
        }

    def _engine_of(self, row: Row[Any]) -> ExternalEngine:
        columns = {name: value for name, value in row._mapping.items() if name != "sealed_key"}
        key = "" if row.sealed_key is None else self._key_of(row)
        return ExternalEngine(
            **{**columns, "key": key, "uses": tuple(row.uses), "ca": row.ca or "", "is_enabled": bool(row.is_enabled)}
        )

    def _key_of(self, row: Row[Any]) -> str:
        """Empty when it does not open: the engine refuses requests then, and all others are served."""
        try:
            return self._secrets.unseal(engine_key_name(row.id), row.sealed_key)
        except SecretsKeyMismatch:
            if row.id not in self._unreadable:
                self._unreadable.add(row.id)
                about = {"event": "engine.unreadable", "engine": row.id}
                log.warning("the key of engine %s does not open; set it again", row.name, extra=about)
            return ""
