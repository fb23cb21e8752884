"""The last look at what galleries and registries offer, shared by all frontends."""

from typing import Final

import msgspec
from sqlalchemy import select

from corral.frontend.backends.decide.upgrades import Check
from corral.frontend.operations.store.intent_rows import document
from corral.frontend.store.db import Database
from corral.frontend.store.dialect import insert_into
from corral.frontend.store.schema import upgrade_check

_ROW: Final = 1


class UpgradeChecks:
    def __init__(self, database: Database) -> None:
        self._db = database

    async def last(self) -> Check | None:
        """None before the first one."""
        async with self._db.look() as connection:
            found = (await connection.execute(select(upgrade_check.c.findings))).scalar_one_or_none()
        return None if found is None else msgspec.convert(found, Check)

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
