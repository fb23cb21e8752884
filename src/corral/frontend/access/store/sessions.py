"""Sessions of the web page, stored by the hash of their token, and the keys that end with them.

Whether a session is valid is read from the key or the user that opened it, so no other writer can forget to end it.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import ColumnElement, Row, Select, delete, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from corral.base.ids import KeyId, SessionId, UserId
from corral.frontend.access.decide import MOST_CHAT_KEYS, MOST_SESSIONS, Session, User
from corral.frontend.access.store.rows import KEYS, key_of, key_row, user_of
from corral.frontend.record.decide import Event
from corral.frontend.record.store import append
from corral.frontend.store.access_schema import sessions, users
from corral.frontend.store.db import Database
from corral.frontend.store.schema import api_keys
from corral.wire.keys import ApiKey

_OPENERS: Final = ("key_id", "set_key_hash", "user_id")
"""The columns of which exactly one is set."""
SessionEvents = Callable[[Sequence[Session]], Sequence[Event]]
"""What is written about a new session that ended these."""


class SessionStore:
    def __init__(self, database: Database, *, set_keys: Collection[str] = ()) -> None:
        """`set_keys`: hashes of the keys of administrators that come with the settings."""
        self._db = database
        self._set_keys = frozenset(set_keys)

    async def insert(self, session: Session, *, events: SessionEvents) -> None:
        """Store a session; the oldest of too many by the same key or user end."""
        async with self._db.begin() as connection:
            excess = await self._excess(connection, session)
            await _end(connection, sessions.c.id.in_([old.id for old in excess]), session.created_at)
            await connection.execute(insert(sessions).values(_row(session)))
            await append(connection, events(excess))

    async def valid(self, at: datetime) -> list[Session]:
        """All that may be presented now, the newest first."""
        is_open = sessions.c.ended_at.is_(None) & (sessions.c.expires_at > at)
        statement = select(sessions).where(is_open).order_by(sessions.c.created_at.desc(), sessions.c.id)
        return [session for session in await self._fetch(statement) if session.is_valid(at)]

    async def newest(self, limit: int) -> list[Session]:
        """The newest first, also those that are over."""
        newest_first = select(sessions).order_by(sessions.c.created_at.desc(), sessions.c.id)
        return await self._fetch(newest_first.limit(limit))

    async def get(self, id: SessionId) -> Session | None:
        """Also one that is over: ask `Session.is_valid`."""
        return next(iter(await self._fetch(select(sessions).where(sessions.c.id == id))), None)

    async def find(self, hashes: Sequence[str]) -> list[Session]:
        """The sessions with these hashes; also those that are over."""
        return await self._fetch(select(sessions).where(sessions.c.hash.in_(hashes)))

    async def end(self, id: SessionId, *, at: datetime, events: Sequence[Event]) -> bool:
        """End a session and its keys. False: there is no such session, or it was ended before."""
        async with self._db.begin() as connection:
            is_ended = await _end(connection, sessions.c.id == id, at) == 1
            if is_ended:
                await append(connection, events)
        return is_ended

    async def insert_key(self, key: ApiKey) -> bool:
        """Store a key of a session; the oldest of too many are deleted, and those of all sessions that have expired.
        False: the session was ended meanwhile, and nothing is stored."""
        unended = select(sessions.c.id).where(sessions.c.id == key.session_id, sessions.c.ended_at.is_(None))
        session_keys: Select[tuple[str]] = select(api_keys.c.id).where(api_keys.c.session_id == key.session_id)
        async with self._db.begin() as connection:
            if (await connection.execute(unended.with_for_update())).first() is None:
                return False
            await connection.execute(_expired_keys(key.created_at))
            newest_first = session_keys.order_by(api_keys.c.created_at.desc(), api_keys.c.id.desc())
            excess = (await connection.execute(newest_first.offset(MOST_CHAT_KEYS - 1))).scalars().all()
            await connection.execute(delete(api_keys).where(api_keys.c.id.in_(excess)))
            await connection.execute(insert(api_keys).values(key_row(key)))
        return True

    async def trim(self, *, now: datetime, before: datetime) -> int:
        """Delete keys of sessions that have expired, and sessions that were over before a time; the record says who had
        them. Returns how many sessions."""
        is_over = (sessions.c.expires_at < before) | (sessions.c.ended_at < before)
        async with self._db.begin() as connection:
            await connection.execute(_expired_keys(now))
            return (await connection.execute(delete(sessions).where(is_over))).rowcount

    async def _excess(self, connection: AsyncConnection, new: Session) -> Sequence[Session]:
        """The oldest valid sessions of the same key or user that have to end before there is one more."""
        row = _row(new)
        same = [sessions.c[name] == row[name] for name in _OPENERS if row[name] is not None]
        is_open = sessions.c.ended_at.is_(None) & (sessions.c.expires_at > new.created_at)
        newest_first = select(sessions).where(is_open, *same).order_by(sessions.c.created_at.desc(), sessions.c.id)
        return await self._read(connection, newest_first.offset(MOST_SESSIONS - 1))

    async def _fetch(self, statement: Select[Any]) -> list[Session]:
        async with self._db.look() as connection:
            return await self._read(connection, statement)

    async def _read(self, connection: AsyncConnection, statement: Select[Any]) -> list[Session]:
        rows = (await connection.execute(statement)).all()
        keys = await _keys(connection, {row.key_id for row in rows if row.key_id is not None})
        people = await _users(connection, {row.user_id for row in rows if row.user_id is not None})
        return [self._session(row, keys.get(row.key_id), people.get(row.user_id)) for row in rows]

    def _session(self, row: Row[Any], key: ApiKey | None, user: User | None) -> Session:
        """A session whose key or user is gone, or whose user was changed, has ended, whatever the row says."""
        ended_at, expires_at = row.ended_at, row.expires_at
        if row.key_id is not None:
            ended_at = ended_at or (row.created_at if key is None else key.revoked_at)
            if key is not None and key.expires_at is not None:
                expires_at = min(expires_at, key.expires_at)
        elif row.user_id is not None:
            is_unchanged = user is not None and user.changed_at == row.user_changed_at and user.disabled_at is None
            ended_at = ended_at or (None if is_unchanged else row.created_at)
        elif row.set_key_hash not in self._set_keys:
            ended_at = ended_at or row.created_at
        return Session(
            id=row.id,
            hash=row.hash,
            key=key,
            set_key_hash=row.set_key_hash,
            user=user,
            created_at=row.created_at,
            expires_at=expires_at,
            source=row.source,
            agent=row.agent,
            ended_at=ended_at,
        )


async def _keys(connection: AsyncConnection, ids: Collection[KeyId]) -> dict[KeyId, ApiKey]:
    if not ids:
        return {}
    return {row.id: key_of(row) for row in await connection.execute(KEYS.where(api_keys.c.id.in_(ids)))}


async def _users(connection: AsyncConnection, ids: Collection[UserId]) -> dict[UserId, User]:
    if not ids:
        return {}
    return {row.id: user_of(row) for row in await connection.execute(select(users).where(users.c.id.in_(ids)))}


async def _end(connection: AsyncConnection, condition: ColumnElement[bool], at: datetime) -> int:
    """End sessions, and delete their keys, which nobody needs to remember. Returns how many sessions."""
    end = update(sessions).where(condition, sessions.c.ended_at.is_(None)).values(ended_at=at)
    ended = (await connection.execute(end.returning(sessions.c.id))).scalars().all()
    await connection.execute(delete(api_keys).where(api_keys.c.session_id.in_(ended)))
    return len(ended)


def _expired_keys(now: datetime) -> Any:
    return delete(api_keys).where(api_keys.c.session_id.is_not(None), api_keys.c.expires_at <= now)


def _row(session: Session) -> dict[str, object]:
    return {
        "id": session.id,
        "hash": session.hash,
        "key_id": None if session.key is None else session.key.id,
        "set_key_hash": session.set_key_hash,
        "user_id": None if session.user is None else session.user.id,
        "user_changed_at": None if session.user is None else session.user.changed_at,
        "created_at": session.created_at,
        "expires_at": session.expires_at,
        "source": session.source,
        "agent": session.agent,
        "ended_at": session.ended_at,
    }
