"""Users, and what becomes of their keys."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import delete, func, select, update

from corral.frontend.access.decide import User, administration, ending_keys, fold_name
from corral.frontend.access.store.rows import (
    AccessWrite,
    EndingEvents,
    is_unchanged,
    is_unexpired,
    lock_access,
    revoke_where,
    user_of,
    user_row,
)
from corral.frontend.record.decide import Event
from corral.frontend.record.store import append
from corral.frontend.store.access_schema import users
from corral.frontend.store.db import Database
from corral.frontend.store.dialect import insert_into
from corral.frontend.store.schema import api_keys
from corral.wire.keys import ApiKey


class Users:
    """People and what they may do. A change ends the keys that the user may not have any more, in one transaction."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def insert(self, user: User, *, events: Sequence[Event]) -> bool:
        """False: somebody has this name, in whatever case."""
        async with self._db.begin() as connection:
            row = insert_into(connection, users).values(user_row(user))
            is_new = (await connection.execute(row.on_conflict_do_nothing())).rowcount == 1
            if is_new:
                await append(connection, events)
        return is_new

    async def find(self, name: str) -> User | None:
        async with self._db.look() as connection:
            statement = select(users).where(users.c.folded_name == fold_name(name))
            row = (await connection.execute(statement)).one_or_none()
        return None if row is None else user_of(row)

    async def list(self) -> list[User]:
        """All users, in the order of their names."""
        async with self._db.look() as connection:
            return [user_of(row) for row in await connection.execute(select(users).order_by(users.c.folded_name))]

    async def count_active_keys(self, at: datetime) -> dict[str, int]:
        """How many keys of each user, by id, are valid; without those of sessions."""
        is_valid = api_keys.c.revoked_at.is_(None) & is_unexpired(at) & api_keys.c.session_id.is_(None)
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

        `events` gets the keys that ended. With `needs_admin` the change is refused if it leaves nobody who could
        administer, or nobody but keys that expire.
        """
        async with self._db.begin() as connection:
            people, keys = await lock_access(connection, at)
            if not await is_unchanged(connection, before):
                return AccessWrite.STALE, []
            ended = ending_keys(keys, before, after)
            remaining_keys = [key for key in keys if key not in ended]
            other_users = [user for user in people if user.id != before.id]
            people_left = other_users if after is None else [*other_users, after]
            if needs_admin and administration(remaining_keys, people_left, at) < administration(keys, people, at):
                return AccessWrite.LAST_ADMIN, []
            if after is None:
                await connection.execute(delete(users).where(users.c.id == before.id))
            else:
                await connection.execute(update(users).where(users.c.id == before.id).values(user_row(after)))
            # Those that expired end too, unread: else they would come back with a clock that is set back.
            is_expired = (api_keys.c.user_id == before.id) & (api_keys.c.expires_at <= at)
            await revoke_where(connection, api_keys.c.id.in_([key.id for key in ended]) | is_expired, at)
            await append(connection, events(ended))
        return AccessWrite.DONE, ended
