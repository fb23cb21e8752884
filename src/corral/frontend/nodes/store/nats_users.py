"""Users of NATS that nodes were given: stored with a registration, revoked with the node, forgotten at their end."""

from collections.abc import Collection
from datetime import datetime

import msgspec
from sqlalchemy import and_, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from corral.base.ids import NodeId
from corral.frontend.nodes.decide.nats_users import KnownUser
from corral.frontend.store.access_schema import nats_users
from corral.frontend.store.db import Database
from corral.frontend.store.dialect import among, insert_into


async def keep_user(connection: AsyncConnection, node_id: NodeId, user: KnownUser) -> None:
    """Store a user that a node is given, in the transaction of what it is given for; a longer one replaces it."""
    row = {
        "public_key": user.public_key,
        "node_id": node_id,
        "issued_at": user.issued_at,
        "expires_at": user.expires_at,
    }
    insert = insert_into(connection, nats_users).values(row)
    new = insert.excluded
    later = {"issued_at": new.issued_at, "expires_at": new.expires_at}
    await connection.execute(
        insert.on_conflict_do_update(
            index_elements=["public_key"], set_=later, where=nats_users.c.expires_at < new.expires_at
        )
    )


async def revoke_users_of(connection: AsyncConnection, node_id: NodeId, /, *, reason: str, at: datetime) -> None:
    """The node is removed or suspected: its users end before they expire."""
    living = and_(nats_users.c.node_id == node_id, nats_users.c.revoked_at.is_(None), nats_users.c.expires_at > at)
    await connection.execute(update(nats_users).where(living).values(revoked_at=at))


class RevokedUser(msgspec.Struct, frozen=True, kw_only=True):
    public_key: str
    expires_at: datetime


class NatsUsers:
    def __init__(self, database: Database) -> None:
        self._db = database

    async def revoked(self) -> list[RevokedUser]:
        """All that were revoked, also those that expired since and were not forgotten yet."""
        columns = select(nats_users.c.public_key, nats_users.c.expires_at)
        async with self._db.look() as connection:
            rows = await connection.execute(columns.where(nats_users.c.revoked_at.is_not(None)))
            return [RevokedUser(public_key=row.public_key, expires_at=row.expires_at) for row in rows]

    async def forget(self, public_keys: Collection[str]) -> None:
        async with self._db.begin() as connection:
            await connection.execute(
                delete(nats_users).where(among(connection, nats_users.c.public_key, [*public_keys]))
            )

    async def forget_expired(self, *, at: datetime) -> int:
        """Delete those that ended by themselves; returns how many."""
        over = and_(nats_users.c.revoked_at.is_(None), nats_users.c.expires_at < at)
        async with self._db.begin() as connection:
            return (await connection.execute(delete(nats_users).where(over))).rowcount

    async def count(self) -> int:
        async with self._db.look() as connection:
            return int((await connection.execute(select(func.count()).select_from(nats_users))).scalar_one())
