"""Rules of scheduling: one for each model that has one, changed together with the event that tells of it."""

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Row, delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from corral.base.ids import NodeId
from corral.frontend.record.decide import Event
from corral.frontend.record.store import append
from corral.frontend.serving.decide.scheduling import RuleSource, RulesUpdate, SchedulingRule, SchedulingWish
from corral.frontend.store.db import Database
from corral.frontend.store.dialect import among, insert_into, wait_for_fleet_rules_lock
from corral.frontend.store.schema import scheduling

DecideUpdate = Callable[[Sequence[SchedulingRule]], tuple[RulesUpdate, Sequence[Event]]]


class SchedulingStore:
    def __init__(self, database: Database) -> None:
        self._db = database

    async def all(self) -> list[SchedulingRule]:
        """All rules, by the names of their models."""
        async with self._db.look() as connection:
            return await _read(connection)

    async def get(self, model: str) -> SchedulingRule | None:
        statement = select(scheduling).where(scheduling.c.model == model)
        async with self._db.look() as connection:
            row = (await connection.execute(statement)).first()
        return None if row is None else _rule(row)

    async def change(self, decide: DecideUpdate) -> RulesUpdate:
        """Let `decide` say what becomes of the rules, and write that. One change after the other, in all frontends."""
        async with self._db.begin() as connection:
            await wait_for_fleet_rules_lock(connection)
            update, events = decide(await _read(connection))
            if update.removed:
                removed_models = among(connection, scheduling.c.model, update.removed)
                await connection.execute(delete(scheduling).where(removed_models))
            for rule in update.write:
                row = _row(rule)
                statement = insert_into(connection, scheduling).values(row)
                await connection.execute(statement.on_conflict_do_update(index_elements=[scheduling.c.model], set_=row))
            await append(connection, events)
        return update


async def _read(connection: AsyncConnection) -> list[SchedulingRule]:
    return [_rule(row) for row in await connection.execute(select(scheduling).order_by(scheduling.c.model))]


def _row(rule: SchedulingRule) -> dict[str, object]:
    wish = rule.wish
    return {
        "model": wish.model,
        "id": rule.id,
        "node_selector": dict(wish.node_selector),
        "pinned_nodes": list(wish.pinned_nodes),
        "min_replicas": wish.min_replicas,
        "max_replicas": wish.max_replicas,
        "spread_all": int(wish.spread_all),
        "route_policy": wish.route_policy,
        "balance_abs_threshold": wish.balance_abs_threshold,
        "balance_rel_threshold": wish.balance_rel_threshold,
        "min_prefix_match": wish.min_prefix_match,
        "idle_seconds": wish.idle_seconds,
        "source": rule.source.value,
        "created_at": rule.created_at,
        "updated_at": rule.updated_at,
        "updated_by": rule.updated_by,
    }


def _rule(row: Row[Any]) -> SchedulingRule:
    return SchedulingRule(
        id=row.id,
        wish=SchedulingWish(
            model=row.model,
            node_selector=row.node_selector,
            pinned_nodes=tuple(NodeId(node) for node in row.pinned_nodes),
            min_replicas=row.min_replicas,
            max_replicas=row.max_replicas,
            spread_all=bool(row.spread_all),
            route_policy=row.route_policy,
            balance_abs_threshold=row.balance_abs_threshold,
            balance_rel_threshold=row.balance_rel_threshold,
            min_prefix_match=row.min_prefix_match,
            idle_seconds=row.idle_seconds,
        ),
        source=RuleSource(row.source),
        created_at=row.created_at,
        updated_at=row.updated_at,
        updated_by=row.updated_by,
    )
