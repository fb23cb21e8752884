"""API keys: stored by their hash, revoked and never deleted."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, Row, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from corral.base.ids import KeyId, NodeId
from corral.frontend.record.decide import Event
from corral.frontend.record.store import append
from corral.frontend.store.db import Database
from corral.frontend.store.dialect import insert_into
from corral.frontend.store.schema import api_keys, marks
from corral.wire.keys import ApiKey, Scope

_ADMIN_EXISTED: Final = "an administrator key was created"
_KNOWN_SCOPES: Final = frozenset(scope.value for scope in Scope)


async def revoke_keys_of(connection: AsyncConnection, node_id: NodeId, at: datetime) -> None:
    """Revoke what was issued to a node, in the transaction that removes it."""
    await _revoke(connection, api_keys.c.node_id == node_id, at)


class Keys:
    def __init__(self, database: Database) -> None:
        self._db = database

    async def insert(self, key: ApiKey, *, events: Sequence[Event]) -> None:
        async with self._db.begin() as connection:
            if Scope.ADMIN in key.scopes:
                await _mark_admin(connection, key.created_at)
            await connection.execute(insert(api_keys).values(_row(key)))
            await append(connection, events)

    async def insert_first_admin(self, key: ApiKey, *, events: Sequence[Event]) -> bool:
        """Create the key unless an administrator key was ever created: of several frontends exactly one wins."""
        async with self._db.begin() as connection:
            if not await _mark_admin(connection, key.created_at):
                return False
            await connection.execute(insert(api_keys).values(_row(key)))
            await append(connection, events)
        return True

    async def get(self, id: KeyId) -> ApiKey | None:
        return await self._find(api_keys.c.id == id)

    async def find_by_hash(self, hash: str) -> ApiKey | None:
        """Revoked and expired ones too: ask `ApiKey.is_valid`."""
        return await self._find(api_keys.c.hash == hash)

    async def list(self, *, include_revoked: bool = True) -> list[ApiKey]:
        """Oldest first."""
        statement = select(api_keys).order_by(api_keys.c.created_at, api_keys.c.id)
        if not include_revoked:
            statement = statement.where(api_keys.c.revoked_at.is_(None))
        async with self._db.look() as connection:
            return [_key(row) for row in await connection.execute(statement)]

    async def revoke(self, id: KeyId, *, at: datetime, events: Sequence[Event]) -> bool:
        """False: there is no such key, or it was revoked before; then no event is written either."""
        async with self._db.begin() as connection:
            revoked = await _revoke(connection, api_keys.c.id == id, at)
            if revoked:
                await append(connection, events)
        return bool(revoked)

    async def revoke_unless_last_admin(self, id: KeyId, *, at: datetime, events: Sequence[Event]) -> bool | None:
        """Revoke a key. None: it is the only one that lets anybody administer, and stays.

        Of two that are revoked at the same moment, the second sees that the first is gone.
        """
        unrevoked = select(api_keys).where(api_keys.c.revoked_at.is_(None)).order_by(api_keys.c.id)
        async with self._db.begin() as connection:
            keys = [_key(row) for row in await connection.execute(unrevoked.with_for_update())]
            if any(key.id == id and key.is_the_last_admin(keys, at) for key in keys):
                return None
            revoked = await _revoke(connection, api_keys.c.id == id, at)
            if revoked:
                await append(connection, events)
        return bool(revoked)

    async def revoke_of_node(self, node_id: NodeId, *, at: datetime) -> tuple[KeyId, ...]:
        """Revoke every key that was issued to the node; returns which."""
        async with self._db.write() as connection:
            return await _revoke(connection, api_keys.c.node_id == node_id, at)

    async def _find(self, which: ColumnElement[bool]) -> ApiKey | None:
        async with self._db.look() as connection:
            row = (await connection.execute(select(api_keys).where(which))).one_or_none()
        return None if row is None else _key(row)


async def _mark_admin(connection: AsyncConnection, at: datetime) -> bool:
    """Set the mark that there was an administrator key; True when this is the first."""
    mark = insert_into(connection, marks).values(name=_ADMIN_EXISTED, made_at=at)
    return (await connection.execute(mark.on_conflict_do_nothing())).rowcount == 1


async def _revoke(connection: AsyncConnection, which: ColumnElement[bool], at: datetime) -> tuple[KeyId, ...]:
    revoke = update(api_keys).where(which, api_keys.c.revoked_at.is_(None)).values(revoked_at=at)
    return tuple(sorted((await connection.execute(revoke.returning(api_keys.c.id))).scalars()))


def _row(key: ApiKey) -> dict[str, object]:
    return {
        "id": key.id,
        "name": key.name,
        "hash": key.hash,
        "scopes": sorted(key.scopes),
        "created_at": key.created_at,
        "created_by": key.created_by,
        "expires_at": key.expires_at,
        "node_id": key.node_id,
        "revoked_at": key.revoked_at,
    }


def _key(row: Row[Any]) -> ApiKey:
    return ApiKey(
        id=row.id,
        name=row.name,
        hash=row.hash,
        # A scope of a newer version opens nothing here.
        scopes=frozenset(Scope(scope) for scope in row.scopes if scope in _KNOWN_SCOPES),
        created_at=row.created_at,
        created_by=row.created_by,
        expires_at=row.expires_at,
        node_id=row.node_id,
        revoked_at=row.revoked_at,
    )
