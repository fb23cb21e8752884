"""Fleet rules: one set, changed as a whole or by one rule, together with the operations that follow from that."""

from collections.abc import Sequence

from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from corral.frontend.backends.decide.backend import artefact_of, payload_of, with_alias_kept
from corral.frontend.operations.decide.intent import Intent
from corral.frontend.operations.decide.operation import Operation
from corral.frontend.operations.store.operations import write_operations
from corral.frontend.record.decide import Event
from corral.frontend.record.store import append
from corral.frontend.rules.decide import FleetRule, revision_of
from corral.frontend.store.db import Database
from corral.frontend.store.dialect import wait_for_fleet_rules_lock
from corral.frontend.store.schema import fleet_rules


class FleetRuleStore:
    def __init__(self, database: Database) -> None:
        self._db = database

    async def all(self) -> list[FleetRule]:
        """All fleet rules, in the order of their names."""
        async with self._db.look() as connection:
            return await _read(connection)

    async def replace(
        self,
        rules: Sequence[FleetRule],
        *,
        revision: str,
        started: Sequence[tuple[Operation, Sequence[Intent]]] = (),
        events: Sequence[Event],
    ) -> bool:
        """Put these in place of the set of this revision, and start what was decided on it. False: it has changed.

        ConstraintViolated when something else was started at the same moment: then try again.
        """
        async with self._db.begin() as connection:
            await wait_for_fleet_rules_lock(connection)
            if revision_of(await _read(connection)) != revision:
                return False
            await connection.execute(delete(fleet_rules))
            if rules:
                rows = [
                    {
                        "id": rule.name,
                        "artefact": payload_of(rule.artefact),
                        "selector": dict(rule.selector),
                        "made_by": rule.made_by,
                        "made_at": rule.made_at,
                    }
                    for rule in rules
                ]
                await connection.execute(insert(fleet_rules), rows)
            intents = [intent for _, intents in started for intent in intents]
            await write_operations(connection, [operation for operation, _ in started], intents, with_alias_kept)
            await append(connection, events)
        return True


async def _read(connection: AsyncConnection) -> list[FleetRule]:
    rows = await connection.execute(select(fleet_rules).order_by(fleet_rules.c.id))
    return [
        FleetRule(
            name=row.id,
            artefact=artefact_of(row.artefact),
            selector=row.selector,
            made_by=row.made_by,
            made_at=row.made_at,
        )
        for row in rows
    ]
