"""API keys, stored by their hash, revoked and, except old ones from logins, never deleted; and users, with what becomes
of their keys."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import ColumnElement, Row, Select, delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from corral.base.ids import KeyId, NodeId
from corral.frontend.access.decide import (
    LOGIN,
    MOST_LOGINS,
    User,
    ending_keys,
    fold_name,
    scopes_of_role,
    somebody_administers,
)
from corral.frontend.record.decide import Event
from corral.frontend.record.store import append
from corral.frontend.store.access_schema import users
from corral.frontend.store.db import Database
from corral.frontend.store.dialect import insert_into
from corral.frontend.store.schema import api_keys, marks, nodes
from corral.wire.keys import LIMITED_INFERENCE, ROLES, ApiKey, Scope

_ADMIN_EXISTED: Final = "an administrator key was created"
_AGENT: Final = "agent"
_KNOWN_SCOPES: Final = frozenset(scope.value for scope in Scope)
_KEYS: Final = select(
    api_keys,
    users.c.name.label("user_name"),
    users.c.role.label("user_role"),
    users.c.disabled_at.label("user_disabled_at"),
).outerjoin_from(api_keys, users, users.c.id == api_keys.c.user_id)
_UNREVOKED: Final = _KEYS.where(api_keys.c.revoked_at.is_(None)).order_by(api_keys.c.id)
EndingEvents = Callable[[Sequence[ApiKey]], Sequence[Event]]
"""What is written about a change that ended these keys."""


class AccessWrite(StrEnum):
    """The outcome of a guarded write."""

    DONE = "done"
    LAST_ADMIN = "last admin"
    """Refused: nobody could administer any more."""
    STALE = "stale"
    """Refused: the key was revoked, or the user was changed, by somebody else meanwhile."""


async def revoke_keys_of(connection: AsyncConnection, node_id: NodeId, at: datetime) -> None:
    """Revoke what was issued to a node, in the transaction that removes it."""
    await _revoke(connection, api_keys.c.node_id == node_id, at)


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
            if not await _is_unchanged(connection, owner):
                return False
            ended = await _excess_logins(connection, owner, key.created_at) if key.name == LOGIN else []
            await _revoke(connection, api_keys.c.id.in_([old.id for old in ended]), key.created_at)
            await _insert_key(connection, key, events(ended))
        return True

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
            await connection.execute(insert(api_keys).values(_row(key)))
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
            await _revoke(connection, api_keys.c.node_id == key.node_id, key.created_at)
            await connection.execute(insert(api_keys).values(_row(key)))
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
            return [_key(row) for row in await connection.execute(_UNREVOKED.where(_is_unexpired(at)))]

    async def list(self, *, include_revoked: bool = True) -> list[ApiKey]:
        """Oldest first."""
        statement = _KEYS.order_by(api_keys.c.created_at, api_keys.c.id)
        if not include_revoked:
            statement = statement.where(api_keys.c.revoked_at.is_(None))
        async with self._db.look() as connection:
            return [_key(row) for row in await connection.execute(statement)]

    async def revoke(self, id: KeyId, *, at: datetime, events: Sequence[Event]) -> AccessWrite:
        """Stale: there is no such key, or it was revoked before; then no event is written either."""
        async with self._db.begin() as connection:
            revoked = await _revoke(connection, api_keys.c.id == id, at)
            if revoked:
                await append(connection, events)
        return AccessWrite.DONE if revoked else AccessWrite.STALE

    async def revoke_unless_last_admin(self, id: KeyId, *, at: datetime, events: Sequence[Event]) -> AccessWrite:
        """Revoke a key, unless nobody could administer without it.

        Of two that are revoked at the same moment, the second sees that the first is gone.
        """
        async with self._db.begin() as connection:
            people, keys = await _lock_access(connection, at)
            left = [key for key in keys if key.id != id]
            if somebody_administers(keys, people, at) and not somebody_administers(left, people, at):
                return AccessWrite.LAST_ADMIN
            revoked = await _revoke(connection, api_keys.c.id == id, at)
            if revoked:
                await append(connection, events)
        return AccessWrite.DONE if revoked else AccessWrite.STALE

    async def _find(self, which: ColumnElement[bool]) -> ApiKey | None:
        async with self._db.look() as connection:
            row = (await connection.execute(_KEYS.where(which))).one_or_none()
        return None if row is None else _key(row)


class Users:
    """People and what they may do. A change ends the keys that the user may not have any more, in one transaction."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def insert(self, user: User, *, events: Sequence[Event]) -> bool:
        """False: somebody has this name, in whatever case."""
        async with self._db.begin() as connection:
            row = insert_into(connection, users).values(_user_row(user))
            is_new = (await connection.execute(row.on_conflict_do_nothing())).rowcount == 1
            if is_new:
                await append(connection, events)
        return is_new

    async def find(self, name: str) -> User | None:
        async with self._db.look() as connection:
            statement = select(users).where(users.c.folded_name == fold_name(name))
            row = (await connection.execute(statement)).one_or_none()
        return None if row is None else _user(row)

    async def list(self) -> list[User]:
        """By name."""
        async with self._db.look() as connection:
            return [_user(row) for row in await connection.execute(select(users).order_by(users.c.folded_name))]

    async def count_active_keys(self, at: datetime) -> dict[str, int]:
        """How many keys of each user, by id, are valid."""
        is_valid = api_keys.c.revoked_at.is_(None) & _is_unexpired(at)
        statement = (
            select(api_keys.c.user_id, func.count())
            .where(api_keys.c.user_id.is_not(None), is_valid)
            .group_by(api_keys.c.user_id)
        )
        async with self._db.look() as connection:
            return {row[0]: row[1] for row in await connection.execute(statement)}

    async def replace(
        self,
        before: User,
        after: User | None,
        *,
        at: datetime,
        events: EndingEvents,
        needs_admin: bool,
    ) -> tuple[AccessWrite, Sequence[ApiKey]]:
        """Change a user, or delete it, with the keys that end by that.

        `events` gets the keys that ended. With `needs_admin` the change is refused if nobody could administer after it.
        """
        async with self._db.begin() as connection:
            people, keys = await _lock_access(connection, at)
            if not await _is_unchanged(connection, before):
                return AccessWrite.STALE, []
            ended = ending_keys(keys, before, after)
            left = [key for key in keys if key not in ended]
            others = [user for user in people if user.id != before.id]
            people_left = others if after is None else [*others, after]
            had_admin = somebody_administers(keys, people, at)
            if needs_admin and had_admin and not somebody_administers(left, people_left, at):
                return AccessWrite.LAST_ADMIN, []
            if after is None:
                await connection.execute(delete(users).where(users.c.id == before.id))
            else:
                await connection.execute(update(users).where(users.c.id == before.id).values(_user_row(after)))
            # Those that expired end too, unread: else they would come back with a clock that is set back.
            is_expired = (api_keys.c.user_id == before.id) & (api_keys.c.expires_at <= at)
            await _revoke(connection, api_keys.c.id.in_([key.id for key in ended]) | is_expired, at)
            await append(connection, events(ended))
        return AccessWrite.DONE, ended


async def _insert_key(connection: AsyncConnection, key: ApiKey, events: Sequence[Event]) -> None:
    if Scope.ADMIN in key.scopes:
        await _mark_admin(connection, key.created_at)
    await connection.execute(insert(api_keys).values(_row(key)))
    await append(connection, events)


def _is_unexpired(at: datetime) -> ColumnElement[bool]:
    return api_keys.c.expires_at.is_(None) | (api_keys.c.expires_at > at)


async def _excess_logins(connection: AsyncConnection, owner: User, at: datetime) -> list[ApiKey]:
    """The oldest valid keys from logins of a user that have to end before there is one more."""
    own = _UNREVOKED.where(api_keys.c.user_id == owner.id, api_keys.c.name == LOGIN, _is_unexpired(at))
    newest_first = own.order_by(None).order_by(api_keys.c.created_at.desc(), api_keys.c.id.desc())
    return [_key(row) for row in await connection.execute(newest_first.offset(MOST_LOGINS - 1))]


async def _lock_access(connection: AsyncConnection, at: datetime) -> tuple[list[User], list[ApiKey]]:
    """All users and valid keys, locked in one order, so that of two changes the second sees the first."""
    people = select(users).order_by(users.c.id).with_for_update()
    locked = _UNREVOKED.where(_is_unexpired(at)).with_for_update(of=api_keys)
    return (
        [_user(row) for row in await connection.execute(people)],
        [_key(row) for row in await connection.execute(locked)],
    )


async def _is_unchanged(connection: AsyncConnection, user: User) -> bool:
    """Whether the user is still as it was read; it stays so until the end of the transaction."""
    same: Select[tuple[str]] = select(users.c.id).where(users.c.id == user.id, users.c.changed_at == user.changed_at)
    return (await connection.execute(same.with_for_update())).one_or_none() is not None


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
        "scopes": sorted(key.scopes) if key.models is None else [LIMITED_INFERENCE],
        "created_at": key.created_at,
        "created_by": key.created_by,
        "expires_at": key.expires_at,
        "node_id": key.node_id,
        "revoked_at": key.revoked_at,
        "user_id": key.user_id,
        "models": None if key.models is None else sorted(key.models),
    }


def _key(row: Row[Any]) -> ApiKey:
    # A scope of a newer version opens nothing here.
    scopes = frozenset(Scope(scope) for scope in row.scopes if scope in _KNOWN_SCOPES)
    if row.models is not None and LIMITED_INFERENCE in row.scopes:
        scopes |= {Scope.INFERENCE}
    revoked_at = row.revoked_at
    if row.user_id is not None:  # however the rows came to be, a key never outlives its user or exceeds the role
        scopes &= scopes_of_role(row.user_role)
        revoked_at = revoked_at or (row.created_at if row.user_name is None else row.user_disabled_at)
    return ApiKey(
        id=row.id,
        name=row.name,
        hash=row.hash,
        scopes=scopes,
        created_at=row.created_at,
        created_by=row.created_by,
        expires_at=row.expires_at,
        node_id=row.node_id,
        revoked_at=revoked_at,
        user_id=row.user_id,
        user_name=row.user_name or "",
        models=None if row.models is None else _names(row.models),
    )


def _names(stored: Iterable[object]) -> frozenset[str]:
    return frozenset(name for name in stored if isinstance(name, str))


def _user_row(user: User) -> dict[str, object]:
    return {
        "id": user.id,
        "name": user.name,
        "folded_name": fold_name(user.name),
        "role": "" if user.role is None else user.role.value,
        "password_hash": user.password_hash,
        "created_at": user.created_at,
        "created_by": user.created_by,
        "changed_at": user.changed_at,
        "disabled_at": user.disabled_at,
    }


def _user(row: Row[Any]) -> User:
    return User(
        id=row.id,
        name=row.name,
        role=Scope(row.role) if row.role in ROLES else None,
        password_hash=row.password_hash,
        created_at=row.created_at,
        created_by=row.created_by,
        changed_at=row.changed_at,
        disabled_at=row.disabled_at,
    )
