"""Sessions of the web page: opened with a key or a password, ended by people; and the short-lived keys for its chat."""

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec
from msgspec.structs import replace

from corral.base.clock import Clock
from corral.base.errors import AccessDenied, Conflict, NotFound
from corral.base.ids import SessionId, new_session_id
from corral.base.values import PartlyPrinted
from corral.frontend.access.decide import (
    CHAT,
    CHAT_KEY_LIFETIME,
    LoginPolicy,
    Permission,
    Session,
    permits,
    shortened_agent,
)
from corral.frontend.access.keys import KeyAudience, KeyOwner, NewKey, mint
from corral.frontend.access.passwords import GuessLimits, TooManyLogins
from corral.frontend.access.principals import Authenticator, Principal
from corral.frontend.access.refused_logins import RefusedLogins
from corral.frontend.access.store.sessions import SessionStore
from corral.frontend.access.users import Guess, LoginRefused, UserAccounts
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.feed import Feed
from corral.wire.go_json import format_time
from corral.wire.keys import ROLES, Scope, hash_secret
from corral.wire.sessions import hash_token, new_token

log = logging.getLogger(__name__)


class Visit(msgspec.Struct, frozen=True, kw_only=True):
    """Where somebody signs in from."""

    source: str
    agent: str
    session: Session | None = None
    """The one that the browser has until now. It ends when the next one begins."""


class NewSession(PartlyPrinted, frozen=True, kw_only=True):
    """A session together with its token; the only moment at which both exist."""

    unprinted = ("token",)

    token: str
    session: Session
    unconfirmed: tuple[str, ...] = ()
    """Gateways that did not say in time that they know it."""


class KeyGuesses:
    """Finds out who presents a key to sign in. Wrong ones count as wrong passwords do; a right one is never refused for
    the guesses of others, since nobody guesses a key."""

    def __init__(
        self, authenticator: Authenticator, guesses: GuessLimits, refused: RefusedLogins, clock: Clock
    ) -> None:
        self._authenticator = authenticator
        self._guesses = guesses
        self._refused = refused
        self._clock = clock

    async def prove(self, key: str, source: str) -> Principal:
        """Raise LoginRefused for a key that is not valid, and TooManyLogins when too many of those came."""
        principal = await self._authenticator.principal(key)
        if principal is not None:
            return principal
        try:
            self._guesses.take(name=f"key {hash_secret(key)}", source=source, now=self._clock.monotonic())
        except TooManyLogins:
            log.warning("too many logins", extra={"event": "login.limited", "source": source})
            raise
        log.warning("login refused", extra={"event": "login.refused", "source": source, "user": ""})
        await self._refused.record(how="key", source=source)
        raise LoginRefused("this key is not valid, or not valid any more")


class Sessions:
    """Opens and ends sessions. Each act is on the record."""

    def __init__(  # noqa: PLR0913 - each is a collaborator
        self,
        store: SessionStore,
        accounts: UserAccounts,
        key_guesses: KeyGuesses,
        feed: Feed,
        clock: Clock,
        *,
        audience: KeyAudience,
        policy: LoginPolicy,
    ) -> None:
        self._store = store
        self._accounts = accounts
        self._key_guesses = key_guesses
        self._feed = feed
        self._clock = clock
        self._audience = audience
        self._policy = policy

    async def open_by_password(self, guess: Guess, visit: Visit) -> NewSession:
        """LoginRefused says no more than that name or password are wrong."""
        user = await self._accounts.prove(guess)
        if user.role is None:
            raise LoginRefused
        token, now = new_token(), self._clock.now()
        session = Session(
            id=new_session_id(),
            hash=hash_token(token),
            user=user,
            created_at=now,
            expires_at=now + self._policy.lifetime,
            source=visit.source,
            agent=shortened_agent(visit.agent),
        )
        return await self._open(NewSession(token=token, session=session), visit)

    async def open_by_key(self, key: str, visit: Visit) -> NewSession:
        """Keys of processes open none; neither do keys that a session was given."""
        principal = await self._key_guesses.prove(key, visit.source)
        stored = principal.key
        if not permits(principal.scopes, Permission.SELF) or (stored is not None and stored.session_id is not None):
            raise AccessDenied(f"this key is not for people; the page takes keys of scope {', '.join(ROLES)}")
        token, now = new_token(), self._clock.now()
        expires_at = now + self._policy.lifetime
        if stored is not None and stored.expires_at is not None:
            expires_at = min(expires_at, stored.expires_at)
        session = Session(
            id=new_session_id(),
            hash=hash_token(token),
            key=stored,
            set_key_hash=hash_secret(key) if stored is None else None,
            created_at=now,
            expires_at=expires_at,
            source=visit.source,
            agent=shortened_agent(visit.agent),
        )
        return await self._open(NewSession(token=token, session=session), visit)

    async def _open(self, new: NewSession, visit: Visit) -> NewSession:
        """Answers when the gateways know the session, or after a bounded wait."""
        at, actor = new.session.created_at, new.session.actor

        def events(ended: Sequence[Session]) -> list[Event]:
            over = [ended_event(old, at=at, by=actor, why="too many sessions") for old in ended]
            return [*over, _opened_event(new.session)]

        await self._store.insert(new.session, events=events)
        if visit.session is not None:
            event = ended_event(visit.session, at=at, by=actor, why="signed in again")
            await self._store.end(visit.session.id, at=at, events=[event])
        return replace(new, unconfirmed=await self._spread(new.session.hash, is_valid=True))

    async def active(self) -> Sequence[Session]:
        """All that are valid, the newest first."""
        return await self._store.valid(self._clock.now())

    async def newest(self, limit: int) -> Sequence[Session]:
        """The newest first, also those that are over."""
        return await self._store.newest(limit)

    async def sign_out(self, session: Session) -> tuple[str, ...]:
        """Answers when the gateways refuse the session; returns those that did not say so in time."""
        return await self._end(session, by=session.actor, why="signed out")

    async def end(self, id: SessionId, *, by: str) -> tuple[str, ...]:
        """End somebody's session. Answers as `sign_out` does."""
        session = await self._store.get(id)
        if session is None:
            raise NotFound(f"no session has the id {id}")
        if not session.is_valid(self._clock.now()):
            raise Conflict(f"session {id} is over already")
        return await self._end(session, by=by, why="ended")

    async def _end(self, session: Session, *, by: str, why: str) -> tuple[str, ...]:
        now = self._clock.now()
        if not await self._store.end(session.id, at=now, events=[ended_event(session, at=now, by=by, why=why)]):
            raise Conflict(f"session {session.id} is over already")
        return await self._spread(session.hash, is_valid=False)

    async def issue_key(self, session: Session) -> NewKey:
        """A short-lived key to ask models with, as far as the session may. It is not on the record: the page renews it
        all the time, and it gives nothing that the session does not."""
        now = self._clock.now()
        lifetime: timedelta = min(CHAT_KEY_LIFETIME, session.expires_at - now)
        new = mint(
            CHAT, [Scope.INFERENCE], at=now, by=session.actor, lifetime=lifetime, owner=KeyOwner(models=session.models)
        )
        record = replace(new.record, session_id=session.id, user_id=session.user_id, user_name=session.user_name)
        if not await self._store.insert_key(record):
            raise Conflict("this session is over already")
        return NewKey(key=new.key, record=record, unconfirmed=await self._spread(record.hash, is_valid=True))

    async def _spread(self, hash: str, *, is_valid: bool) -> tuple[str, ...]:
        await self._feed.announce()
        return await self._audience.reach(hash, is_valid=is_valid)


def _opened_event(session: Session) -> Event:
    data = {**_facts(session), "expires_at": format_time(session.expires_at)}
    return Event(kind=EventKind.SESSION_OPENED, at=session.created_at, actor=session.actor, data=data)


def ended_event(session: Session, *, at: datetime, by: str, why: str) -> Event:
    return Event(kind=EventKind.SESSION_ENDED, at=at, actor=by, data={**_facts(session), "why": why})


def _facts(session: Session) -> dict[str, object]:
    return {"id": session.id, "user": session.user_name, "key": session.key_name, "source": session.source}
