"""Rows of keys and users as values, and the reads and writes that both stores share."""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import ColumnElement, Row, Select, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from corral.base.ids import KeyId
from corral.frontend.access.decide import User, fold_name, scopes_of_role
from corral.frontend.record.decide import Event
from corral.frontend.store.access_schema import users
from corral.frontend.store.schema import api_keys
from corral.wire.keys import LIMITED_INFERENCE, ROLES, ApiKey, Scope

_KNOWN_SCOPES: Final = frozenset(scope.value for scope in Scope)
KEYS: Final = select(
    api_keys,
    users.c.name.label("user_name"),
    users.c.role.label("user_role"),
    users.c.disabled_at.label("user_disabled_at"),
).outerjoin_from(api_keys, users, users.c.id == api_keys.c.user_id)
UNREVOKED: Final = KEYS.where(api_keys.c.revoked_at.is_(None)).order_by(api_keys.c.id)
EndingEvents = Callable[[Sequence[ApiKey]], Sequence[Event]]
"""What is written about a change that ended these keys."""


class AccessWrite(StrEnum):
    """The outcome of a guarded write."""

    DONE = "done"
    LAST_ADMIN = "last admin"
    """Refused: nobody could administer any more."""
    STALE = "stale"
    """Refused: the key was revoked, or the user was changed, by somebody else meanwhile."""


def is_unexpired(at: datetime) -> ColumnElement[bool]:
    return api_keys.c.expires_at.is_(None) | (api_keys.c.expires_at > at)


async def lock_access(connection: AsyncConnection, at: datetime) -> tuple[list[User], list[ApiKey]]:
    """All users and valid keys, locked in one order, so that of two changes the second sees the first."""
    people = select(users).order_by(users.c.id).with_for_update()
    locked = UNREVOKED.where(is_unexpired(at)).with_for_update(of=api_keys)
    return (
        [user_of(row) for row in await connection.execute(people)],
        [key_of(row) for row in await connection.execute(locked)],
    )


async def is_unchanged(connection: AsyncConnection, user: User) -> bool:
    """Whether the user is still as it was read; it stays so until the end of the transaction."""
    same: Select[tuple[str]] = select(users.c.id).where(users.c.id == user.id, users.c.changed_at == user.changed_at)
    return (await connection.execute(same.with_for_update())).one_or_none() is not None


async def revoke_where(connection: AsyncConnection, condition: ColumnElement[bool], at: datetime) -> tuple[KeyId, ...]:
    revoke = update(api_keys).where(condition, api_keys.c.revoked_at.is_(None)).values(revoked_at=at)
    return tuple(sorted((await connection.execute(revoke.returning(api_keys.c.id))).scalars()))


def key_row(key: ApiKey) -> dict[str, object]:
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
        "session_id": key.session_id,
    }


def key_of(row: Row[Any]) -> ApiKey:
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
        session_id=row.session_id,
    )


def _names(stored: Iterable[object]) -> frozenset[str]:
    return frozenset(name for name in stored if isinstance(name, str))


def user_row(user: User) -> dict[str, object]:
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


def user_of(row: Row[Any]) -> User:
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
