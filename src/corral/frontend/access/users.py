"""Users: added, changed and deleted by administrators; logging in and changing their own passwords themselves."""

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec
from msgspec.structs import replace

from corral.base.clock import Clock
from corral.base.errors import Conflict, CorralError, InvalidInput, NotFound
from corral.base.ids import new_user_id
from corral.base.values import PartlyPrinted
from corral.base.words import format_duration
from corral.frontend.access.decide import (
    LOGIN,
    LoginPolicy,
    User,
    fold_name,
    is_user_name,
    normal_password,
    read_password,
    read_role,
    read_user_name,
)
from corral.frontend.access.keys import KeyOwner, KeyRing, NewKey, revoked_event
from corral.frontend.access.passwords import GuessLimits, PasswordHasher, TooManyLogins
from corral.frontend.access.refused_logins import RefusedLogins
from corral.frontend.access.store.rows import AccessWrite
from corral.frontend.access.store.users import Users
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.feed import Feed
from corral.wire.keys import ApiKey

log = logging.getLogger(__name__)


class LoginRefused(CorralError):
    """The name or the password is wrong, or the user may not log in."""

    code = "login_refused"


class UserWish(PartlyPrinted, frozen=True, kw_only=True):
    """What shall become of a user; None: it stays."""

    unprinted = ("password",)

    role: str | None = None
    password: str | None = None
    """Empty removes the password."""
    is_disabled: bool | None = None


class ChangedUser(msgspec.Struct, frozen=True, kw_only=True):
    user: User
    ended: Sequence[ApiKey] = ()
    unconfirmed: tuple[str, ...] = ()
    """Gateways that did not say in time that they refuse the keys that ended."""


class Guess(PartlyPrinted, frozen=True, kw_only=True):
    """A name with a password, and where it comes from."""

    unprinted = ("password",)

    name: str
    password: str
    source: str


_LONGEST_NAME: Final = 64


class UserAccounts:
    """Changes users, and gives them keys for their passwords. Each act is on the record."""

    def __init__(  # noqa: PLR0913 - each is a collaborator or a setting
        self,
        users: Users,
        key_ring: KeyRing,
        feed: Feed,
        clock: Clock,
        policy: LoginPolicy,
        *,
        guesses: GuessLimits,
        refused: RefusedLogins,
        has_set_admins: bool,
    ) -> None:
        """`has_set_admins`: keys of administrators come with the settings, so the last user may go."""
        self._users = users
        self._key_ring = key_ring
        self._feed = feed
        self._clock = clock
        self._policy = policy
        self._has_set_admins = has_set_admins
        self._hasher = PasswordHasher()
        self._guesses = guesses
        self._refused = refused

    async def list(self) -> list[tuple[User, int]]:
        """All users by name, each with the number of valid keys."""
        counts = await self._users.count_active_keys(self._clock.now())
        return [(user, counts.get(user.id, 0)) for user in await self._users.list()]

    async def get(self, name: str) -> User:
        user = await self._find(name)
        if user is None:
            raise NotFound(f"there is no user {name[:70]!r}; `corral users list` shows all")
        return user

    async def _find(self, name: str) -> User | None:
        """The database is not asked for what cannot be a name."""
        return await self._users.find(name) if is_user_name(name) else None

    async def create(self, name: str, role: str, password: str, *, by: str) -> User:
        """Add a user; one without a password has keys only."""
        name, now = read_user_name(name), self._clock.now()
        user = User(
            id=new_user_id(),
            name=name,
            role=read_role(role),
            password_hash=await self._hasher.hash(read_password(password, of=name)) if password else None,
            created_at=now,
            created_by=by,
            changed_at=now,
        )
        event = Event(kind=EventKind.USER_CREATED, at=now, actor=by, data={"name": user.name, **_facts(user)})
        if not await self._users.insert(user, events=[event]):
            raise Conflict(f"there is a user {name} already")
        await self._feed.announce()
        return user

    async def change(self, name: str, wish: UserWish, *, by: str) -> ChangedUser:
        """Give a user another role or password, disable or enable it. Keys that it may not have any more end."""
        before = await self.get(name)
        after = await self._wished(before, wish)
        if after == before:
            return ChangedUser(user=before)
        return await self._replace(before, replace(after, changed_at=self._later(before)), by=by)

    async def delete(self, name: str, *, by: str) -> ChangedUser:
        """Delete a user, and revoke all its keys."""
        return await self._replace(await self.get(name), None, by=by)

    async def login(self, guess: Guess, *, lifetime: timedelta | None) -> NewKey:
        """A short-lived key with the user's role, for name and password. LoginRefused says no more than that."""
        if lifetime is not None and not timedelta(0) < lifetime <= self._policy.lifetime:
            most = f"must be more than 0 and at most {format_duration(self._policy.lifetime)}"
            knob = "the setting frontend.login_lifetime (CORRAL_LOGIN_LIFETIME) allows more"
            raise InvalidInput("expires_in", f"{most}, and is {format_duration(lifetime)}; {knob}")
        user = await self.prove(guess)
        if user.role is None:
            raise LoginRefused
        return await self._key_ring.create(
            LOGIN,
            [user.role],
            by=f"{user.name} (password)",
            lifetime=lifetime or self._policy.lifetime,
            owner=KeyOwner(user=user),
        )

    async def change_password(self, guess: Guess, new_password: str) -> ChangedUser:
        """Let users change their own password, which they must know. Keys from earlier logins end."""
        user = await self.prove(guess)
        password = read_password(new_password, of=user.name, named="new_password")
        after = replace(user, password_hash=await self._hasher.hash(password), changed_at=self._later(user))
        return await self._replace(user, after, by=f"{user.name} (password)")

    async def prove(self, guess: Guess) -> User:
        """The user with this name and password. Unknown names, users without a password and disabled ones take as long,
        and are answered alike."""
        subject = {"name": fold_name(guess.name[:_LONGEST_NAME]), "source": guess.source}
        try:
            self._guesses.take(**subject, now=self._clock.monotonic())
        except TooManyLogins:
            log.warning("too many logins", extra={"event": "login.limited", "source": guess.source})
            raise
        user = await self._find(guess.name)
        hash = None if user is None or user.disabled_at is not None else user.password_hash
        if not await self._hasher.matches(hash, normal_password(guess.password)) or user is None:
            # What was typed as a name may well be a password.
            name = "" if user is None else user.name
            log.warning("login refused", extra={"event": "login.refused", "source": guess.source, "user": name})
            await self._refused.record(how="password", source=guess.source, user=name)
            raise LoginRefused
        self._guesses.give_back(**subject)
        return user

    async def _wished(self, user: User, wish: UserWish) -> User:
        if wish.role is not None:
            user = replace(user, role=read_role(wish.role))
        if wish.password is not None:
            password = wish.password and read_password(wish.password, of=user.name)
            user = replace(user, password_hash=await self._hasher.hash(password) if password else None)
        if wish.is_disabled is not None and wish.is_disabled != (user.disabled_at is not None):
            user = replace(user, disabled_at=self._clock.now() if wish.is_disabled else None)
        return user

    async def _replace(self, before: User, after: User | None, *, by: str) -> ChangedUser:
        now = self._clock.now()

        def events(ended: Sequence[ApiKey]) -> list[Event]:
            named = _without_session_keys(ended)
            revoked = [revoked_event(key, at=now, by=by) for key in named]
            return [*revoked, _changed_event(before, after, named, at=now, by=by)]

        outcome, ended = await self._users.replace(
            before, after, at=now, events=events, needs_admin=not self._has_set_admins
        )
        if outcome is AccessWrite.LAST_ADMIN:
            raise Conflict(
                f"nobody could administer without {before.name}, but for keys that expire; add another administrator"
                " with a password, or make a key of scope admin that does not expire, first"
            )
        if outcome is AccessWrite.STALE:
            raise Conflict(f"{before.name} was changed by somebody else just now; try again")
        await self._feed.announce()
        unconfirmed = await self._key_ring.ended(ended)
        return ChangedUser(user=after or before, ended=_without_session_keys(ended), unconfirmed=unconfirmed)

    def _later(self, user: User) -> datetime:
        """Now, and never the time of the change before: changes are guarded by it."""
        return max(self._clock.now(), user.changed_at + timedelta(microseconds=1))


def _without_session_keys(keys: Sequence[ApiKey]) -> list[ApiKey]:
    """The keys that people know of: those that the page gets for its sessions come and go unseen."""
    return [key for key in keys if key.session_id is None]


def _facts(user: User) -> dict[str, object]:
    return {
        "role": user.role,
        "has_password": user.password_hash is not None,
        "is_disabled": user.disabled_at is not None,
    }


def _changed_event(before: User, after: User | None, ended: Sequence[ApiKey], *, at: datetime, by: str) -> Event:
    data: dict[str, object] = {"name": before.name, "before": _facts(before)}
    if after is not None:
        data["after"] = _facts(after)
        data["is_new_password"] = after.password_hash != before.password_hash
    kind = EventKind.USER_DELETED if after is None else EventKind.USER_CHANGED
    return Event(kind=kind, at=at, actor=by, data={**data, "revoked_keys": [key.id for key in ended]})
