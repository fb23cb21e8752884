"""API keys, stored by their hash, revoked and, except old ones from logins, never deleted."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import ColumnElement, bindparam, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from corral.base.ids import KeyId, NodeId
from corral.frontend.access.decide import LOGIN, MOST_LOGINS, User, administration
from corral.frontend.access.store.rows import (
    KEYS,
    UNREVOKED,
    AccessWrite,
    EndingEvents,
    is_unchanged,
    is_unexpired,
    key_of,
    key_row,
    lock_access,
    revoke_where,
)
from corral.frontend.record.decide import Event
from corral.frontend.record.store import append
from corral.frontend.store.db import Database
from corral.frontend.store.dialect import UtcTime, Words, insert_into
from corral.frontend.store.schema import api_keys, marks, nodes
from corral.wire.keys import ApiKey, Scope

_ADMIN_EXISTED: Final = "an administrator key was created"
_AGENT: Final = "agent"


async def revoke_keys_of(connection: AsyncConnection, node_id: NodeId, at: datetime) -> None:
    """Revoke what was issued to a node, in the transaction that removes it."""
    await revoke_where(connection, api_keys.c.node_id == node_id, at)


class Keys:
    def __init__(self, database: Database) -> None:
        self._db = database

    async def insert(self, key: ApiKey, *, events: Sequence[Event]) -> None:
        """Store a key of nobody in particular."""
        async with self._db.begin() as connection:
            await _insert_key(connection, key, events)

    async def insert_of(self, owner: User, key: ApiKey, *, events: EndingEvents) -> bool:
        """Store a key of a user; one from a login ends the oldest of too many. False: the user was changed meanwhile,
        and nothing is stored."""
        async with self._db.begin() as connection:
            if not await is_unchanged(connection, owner):
                return False
            ended = await _excess_logins(connection, owner, key.created_at) if key.name == LOGIN else []
            await revoke_where(connection, api_keys.c.id.in_([old.id for old in ended]), key.created_at)
            await _insert_key(connection, key, events(ended))
        return True

    async def note_uses(self, uses: Mapping[KeyId, datetime]) -> None:
        """Keep when keys were used, unless a later time is known. In one order, as all who lock keys have it."""
        at, id = bindparam("at", type_=UtcTime), bindparam("key_id", type_=Words)
        is_earlier = api_keys.c.used_at.is_(None) | (api_keys.c.used_at < at)
        note = update(api_keys).where(api_keys.c.id == id, is_earlier).values(used_at=at)
        async with self._db.begin() as connection:
            await connection.execute(note, [{"key_id": key_id, "at": uses[key_id]} for key_id in sorted(uses)])

    async def uses(self) -> dict[KeyId, datetime]:
        """When keys were used last; without those that never were."""
        used = select(api_keys.c.id, api_keys.c.used_at).where(api_keys.c.used_at.is_not(None))
        async with self._db.read() as connection:
            return {KeyId(row.id): row.used_at for row in await connection.execute(used)}

    async def trim_logins(self, before: datetime) -> int:
        """Delete keys from logins that ended before this; the record says who had them. Returns how many."""
        is_over = (api_keys.c.expires_at < before) | (api_keys.c.revoked_at < before)
        old = delete(api_keys).where(api_keys.c.name == LOGIN, api_keys.c.user_id.is_not(None), is_over)
        async with self._db.begin() as connection:
            return (await connection.execute(old)).rowcount

    async def insert_first_admin(self, key: ApiKey, *, events: Sequence[Event]) -> bool:
        """Create the key unless an administrator key was ever created: of several frontends exactly one wins."""
        async with self._db.begin() as connection:
            if not await _mark_admin(connection, key.created_at):
                return False
            await connection.execute(insert(api_keys).values(key_row(key)))
            await append(connection, events)
        return True

    async def insert_for_agent(self, key: ApiKey, *, events: Sequence[Event]) -> bool:
        """Store the only key of an agent node; those that it had are revoked. False: the node is not approved any
        more, or is no agent: then neither happens."""
        agent = select(nodes.c.id).where(
            nodes.c.id == key.node_id, nodes.c.type == _AGENT, nodes.c.approved_at.is_not(None)
        )
        async with self._db.begin() as connection:
            if (await connection.execute(agent.with_for_update())).first() is None:
                return False
            await revoke_where(connection, api_keys.c.node_id == key.node_id, key.created_at)
            await connection.execute(insert(api_keys).values(key_row(key)))
            await append(connection, events)
        return True

    async def get(self, id: KeyId) -> ApiKey | None:
        return await self._find(api_keys.c.id == id)

    async def find_by_hash(self, hash: str) -> ApiKey | None:
        """Revoked and expired ones too: ask `ApiKey.is_valid`."""
        return await self._find(api_keys.c.hash == hash)

    async def valid(self, at: datetime) -> list[ApiKey]:
        """All that may be presented now; those that are over are not even read."""
        async with self._db.look() as connection:
            return [key_of(row) for row in await connection.execute(UNREVOKED.where(is_unexpired(at)))]

    async def list(self, *, include_revoked: bool = True) -> list[ApiKey]:
        """All API keys, the oldest first."""
        statement = KEYS.order_by(api_keys.c.created_at, api_keys.c.id)
        if not include_revoked:
            statement = statement.where(api_keys.c.revoked_at.is_(None))
        async with self._db.look() as connection:
            return [key_of(row) for row in await connection.execute(statement)]

    async def revoke(self, id: KeyId, *, at: datetime, events: Sequence[Event]) -> AccessWrite:
        """Stale: there is no such key, or it was revoked before; then no event is written either."""
        async with self._db.begin() as connection:
            revoked = await revoke_where(connection, api_keys.c.id == id, at)
            if revoked:
                await append(connection, events)
        return AccessWrite.DONE if revoked else AccessWrite.STALE

    async def revoke_unless_last_admin(self, id: KeyId, *, at: datetime, events: Sequence[Event]) -> AccessWrite:
        """Revoke a key, unless nobody could administer without it, or only with keys that expire.

        Of two that are revoked at the same moment, the second sees that the first is gone.
        """
        async with self._db.begin() as connection:
            people, keys = await lock_access(connection, at)
            remaining_keys = [key for key in keys if key.id != id]
            if administration(remaining_keys, people, at) < administration(keys, people, at):
                return AccessWrite.LAST_ADMIN
            revoked = await revoke_where(connection, api_keys.c.id == id, at)
            if revoked:
                await append(connection, events)
        return AccessWrite.DONE if revoked else AccessWrite.STALE

    async def _find(self, condition: ColumnElement[bool]) -> ApiKey | None:
        async with self._db.look() as connection:
            row = (await connection.execute(KEYS.where(condition))).one_or_none()
        return None if row is None else key_of(row)


async def _insert_key(connection: AsyncConnection, key: ApiKey, events: Sequence[Event]) -> None:
    if Scope.ADMIN in key.scopes:
        await _mark_admin(connection, key.created_at)
    await connection.execute(insert(api_keys).values(key_row(key)))
    await append(connection, events)


async def _excess_logins(connection: AsyncConnection, owner: User, at: datetime) -> list[ApiKey]:
    """The oldest valid keys from logins of a user that have to end before there is one more."""
    login_keys = UNREVOKED.where(api_keys.c.user_id == owner.id, api_keys.c.name == LOGIN, is_unexpired(at))
    newest_first = login_keys.order_by(None).order_by(api_keys.c.created_at.desc(), api_keys.c.id.desc())
    return [key_of(row) for row in await connection.execute(newest_first.offset(MOST_LOGINS - 1))]


async def _mark_admin(connection: AsyncConnection, at: datetime) -> bool:
    """Set the mark that there was an administrator key; True when this is the first."""
    mark = insert_into(connection, marks).values(name=_ADMIN_EXISTED, made_at=at)
    return (await connection.execute(mark.on_conflict_do_nothing())).rowcount == 1
