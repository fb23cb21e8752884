"""Invitations: stored by the hashes of their codes. A use is written in the transaction that admits the node."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from corral.base.ids import InvitationId
from corral.frontend.nodes.decide.invitations import Invitation, InvitationRefused
from corral.frontend.record.decide import Event
from corral.frontend.record.store import append
from corral.frontend.store.access_schema import invitations
from corral.frontend.store.db import Database


async def use(connection: AsyncConnection, id: InvitationId, at: datetime) -> None:
    """Count one use in the caller's transaction. InvitationRefused: it ended meanwhile, and the caller's transaction
    must not be committed."""
    is_open = _open(at) & (invitations.c.id == id)
    counted = await connection.execute(update(invitations).where(is_open).values(uses=invitations.c.uses + 1))
    if counted.rowcount != 1:
        raise InvitationRefused("the join code ended just now: somebody else used it, or it was revoked")


class InvitationStore:
    def __init__(self, database: Database) -> None:
        self._db = database

    async def insert(self, invitation: Invitation, *, events: Sequence[Event]) -> None:
        async with self._db.begin() as connection:
            await connection.execute(insert(invitations).values(_row(invitation)))
            await append(connection, events)

    async def list(self) -> list[Invitation]:
        """All invitations, the newest first."""
        newest = select(invitations).order_by(invitations.c.created_at.desc(), invitations.c.id)
        async with self._db.look() as connection:
            return [_invitation(row) for row in await connection.execute(newest)]

    async def count_open(self, now: datetime) -> int:
        async with self._db.look() as connection:
            counted: int = (await connection.execute(select(func.count()).where(_open(now)))).scalar_one()
        return counted

    async def find_by_hash(self, hash: str) -> Invitation | None:
        return await self._find(invitations.c.hash == hash)

    async def get(self, id: InvitationId) -> Invitation | None:
        return await self._find(invitations.c.id == id)

    async def revoke(self, id: InvitationId, *, at: datetime, events: Sequence[Event]) -> bool:
        """Revoke an invitation. False: it does not exist or was revoked before; then no event is written."""
        revoke = update(invitations).where(invitations.c.id == id, invitations.c.revoked_at.is_(None))
        async with self._db.begin() as connection:
            if (await connection.execute(revoke.values(revoked_at=at))).rowcount != 1:
                return False
            await append(connection, events)
        return True

    async def forget(self, *, expired_before: datetime) -> None:
        """Delete invitations that expired long ago."""
        async with self._db.write() as connection:
            await connection.execute(delete(invitations).where(invitations.c.expires_at < expired_before))

    async def _find(self, condition: ColumnElement[bool]) -> Invitation | None:
        async with self._db.look() as connection:
            row = (await connection.execute(select(invitations).where(condition))).one_or_none()
        return None if row is None else _invitation(row)


def _open(now: datetime) -> ColumnElement[bool]:
    is_unused: ColumnElement[bool] = invitations.c.uses < invitations.c.max_uses
    return is_unused & invitations.c.revoked_at.is_(None) & (invitations.c.expires_at > now)


def _row(invitation: Invitation) -> dict[str, object]:
    return {
        "id": invitation.id,
        "hash": invitation.hash,
        "labels": dict(invitation.labels),
        "auto_approve": int(invitation.auto_approve),
        "max_uses": invitation.max_uses,
        "uses": invitation.uses,
        "created_at": invitation.created_at,
        "created_by": invitation.created_by,
        "expires_at": invitation.expires_at,
        "revoked_at": invitation.revoked_at,
    }


def _invitation(row: Row[Any]) -> Invitation:
    return Invitation(
        id=InvitationId(row.id),
        hash=row.hash,
        labels=row.labels,
        auto_approve=bool(row.auto_approve),
        max_uses=row.max_uses,
        uses=row.uses,
        created_at=row.created_at,
        created_by=row.created_by,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
    )
