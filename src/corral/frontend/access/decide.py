"""What keys and users may do: every route names one permission, and this is the one table of who has which.

A key has scopes. Those of people are roles; the scopes `node` and `gateway` are for processes.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Final

import msgspec

from corral.base.errors import InvalidInput
from corral.base.ids import SessionId, UserId
from corral.base.setting_kinds import duration
from corral.base.settings import setting
from corral.base.values import PartlyPrinted
from corral.wire.keys import IMPLIED, ROLES, ApiKey, Scope


class Permission(StrEnum):
    """What a route lets its caller do. Each route needs exactly one."""

    SELF = "self"
    """See what one's own key may do, and log out."""
    INFERENCE = "inference"
    """Send requests to models."""
    MODELS_LIST = "models.list"
    """See which models may be asked, and how far their loads are."""
    FLEET_READ = "fleet.read"
    """See the version, what the doctor finds, and what is under way in general."""
    METRICS_READ = "metrics.read"
    """Read metrics, where the setting does not open them to everybody."""
    NODES_READ = "nodes.read"
    """See nodes with all facts."""
    NODES_ACT = "nodes.act"
    """Drain and resume nodes, change their labels and limits, take GPUs out of service."""
    NODES_ADMIT = "nodes.admit"
    """Decide which machines belong to the fleet: invite, approve, remove."""
    NODES_LOGS = "nodes.logs"
    """Read what engines print, which may quote requests."""
    BACKENDS_READ = "backends.read"
    """See which backends there are, where, and what is newer."""
    BACKENDS_ACT = "backends.act"
    """Install, upgrade and delete backends of the galleries."""
    BACKENDS_TRUST = "backends.trust"
    """Decide which code may run on nodes: backends from anywhere, and backends that are not confined."""
    OPERATIONS_READ = "operations.read"
    """See operations and follow them."""
    OPERATIONS_ACT = "operations.act"
    """Retry, cancel and dismiss operations."""
    RULES_READ = "rules.read"
    """See which backends the fleet shall have."""
    RULES_ACT = "rules.act"
    """Change which backends the fleet shall have."""
    MODELS_READ = "models.read"
    """See models with their configuration, files, replicas and places."""
    MODELS_ACT = "models.act"
    """Add, change, pull, load, unload and remove models."""
    SCHEDULING_READ = "scheduling.read"
    """See how many replicas models should have, and where."""
    SCHEDULING_ACT = "scheduling.act"
    """Change how many replicas models should have, and where."""
    MACHINE_READ = "machine.read"
    """Take files of the frontend's own machine into models: what is taken goes to nodes."""
    GALLERIES_MANAGE = "galleries.manage"
    """Decide which galleries of models are trusted."""
    ENGINES_READ = "engines.read"
    """See engines that somebody else runs, without their keys."""
    ENGINES_MANAGE = "engines.manage"
    """Decide which engines of others get requests."""
    AUDIT_READ = "audit.read"
    """Read what happened, and who did it."""
    KEYS_MANAGE = "keys.manage"
    """See, make and revoke API keys."""
    USERS_MANAGE = "users.manage"
    """See, add and change users."""
    GATEWAY_SERVE = "gateway.serve"
    """Carry requests: read the view with all keys and replicas, report what is under way."""


_VIEWER: Final = frozenset(
    {
        Permission.SELF,
        Permission.MODELS_LIST,
        Permission.FLEET_READ,
        Permission.METRICS_READ,
        Permission.NODES_READ,
        Permission.BACKENDS_READ,
        Permission.OPERATIONS_READ,
        Permission.RULES_READ,
        Permission.MODELS_READ,
        Permission.SCHEDULING_READ,
        Permission.ENGINES_READ,
        Permission.AUDIT_READ,
    }
)
_INFERENCE: Final = frozenset({Permission.SELF, Permission.INFERENCE, Permission.MODELS_LIST})
_OPERATOR: Final = (
    _VIEWER
    | _INFERENCE
    | {
        Permission.NODES_ACT,
        Permission.NODES_LOGS,
        Permission.BACKENDS_ACT,
        Permission.OPERATIONS_ACT,
        Permission.RULES_ACT,
        Permission.MODELS_ACT,
        Permission.SCHEDULING_ACT,
    }
)
_GATEWAY: Final = frozenset({Permission.GATEWAY_SERVE})

PERMISSIONS: Final[Mapping[Scope, frozenset[Permission]]] = {
    Scope.ADMIN: frozenset(Permission) - _GATEWAY,
    Scope.OPERATOR: _OPERATOR,
    Scope.VIEWER: _VIEWER,
    Scope.INFERENCE: _INFERENCE,
    Scope.NODE: frozenset(),
    Scope.GATEWAY: _GATEWAY,
}
"""Operators run what others decided to trust; administrators also decide whom and what to trust. Keys of scope `node`
open the routes of workers, which need no permission."""


def permits(scopes: Iterable[Scope], permission: Permission) -> bool:
    return any(permission in PERMISSIONS[scope] for scope in scopes)


def scopes_with(permission: Permission) -> tuple[Scope, ...]:
    """Return the scopes that give this permission, the least powerful first."""
    return tuple(sorted((scope for scope in Scope if permits([scope], permission)), key=lambda s: len(PERMISSIONS[s])))


LOGIN: Final = "login"
"""The name of keys that people get for their password; a user's other keys have other names."""
MOST_LOGINS: Final = 20
"""Valid keys of this name that a user has; the next login ends the oldest. Every gateway knows all valid keys, and a
right password may be given as often as somebody likes."""
MOST_SESSIONS: Final = 100
"""Valid sessions by one key, or by the password of one user; the next one ends the oldest. Every gateway knows all."""
CHAT: Final = "chat"
"""The name of keys that the web page gets for its session."""
MOST_CHAT_KEYS: Final = 10
"""Valid keys of one session; the next one ends the oldest."""
CHAT_KEY_LIFETIME: Final = timedelta(minutes=15)
SET_KEYS: Final = "admin_keys"
"""What keys of administrators are called that come with the settings."""
_LONGEST_AGENT: Final = 200
_USER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}")
_SHORTEST_PASSWORD: Final = 10
_LONGEST_PASSWORD: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginPolicy:
    """How long people stay logged in."""

    lifetime: timedelta = setting(
        duration("1m", "30d"),
        """How long the key lasts that a user gets for name and password, and a session of the web page. 12h: a working
        day, and one that was forgotten somewhere is of no use tomorrow.""",
        name="login_lifetime",
        default="12h",
    )


class User(PartlyPrinted, frozen=True, kw_only=True):
    """A person, or a program that is treated like one."""

    unprinted = ("password_hash",)

    id: UserId
    name: str
    role: Scope | None
    """None: a role of a newer version, which gives nothing here."""
    password_hash: str | None = None
    created_at: datetime
    created_by: str
    changed_at: datetime
    """When role, password or state last changed; changes are guarded by it."""
    disabled_at: datetime | None = None

    @property
    def can_administer(self) -> bool:
        """Whether the user can log in as an administrator."""
        return self.role is Scope.ADMIN and self.disabled_at is None and self.password_hash is not None

    def covers(self, scopes: Iterable[Scope]) -> bool:
        """Whether the role gives all that these scopes give."""
        return set(scopes) <= scopes_of_role(self.role)


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """What a browser may do after somebody signed in with it: as much as the key or the user that opened it, and never
    longer than these."""

    id: SessionId
    hash: str
    """The hash of the token that the browser has in its cookie."""
    key: ApiKey | None = None
    """The stored key that opened it."""
    set_key_hash: str | None = None
    """The hash of the key of the settings that opened it."""
    user: User | None = None
    """The user who opened the session with a password; None when a key did."""
    created_at: datetime
    expires_at: datetime
    source: str
    agent: str
    ended_at: datetime | None = None
    """When it was ended, or what opened it ended or changed."""

    def is_valid(self, now: datetime) -> bool:
        return self.ended_at is None and now < self.expires_at

    @property
    def scopes(self) -> frozenset[Scope]:
        if self.key is not None:
            return self.key.scopes
        if self.user is not None:
            return frozenset() if self.user.role is None else frozenset({self.user.role})
        return frozenset() if self.set_key_hash is None else frozenset({Scope.ADMIN})

    @property
    def user_name(self) -> str:
        if self.user is not None:
            return self.user.name
        return "" if self.key is None else self.key.user_name

    @property
    def user_id(self) -> UserId | None:
        if self.user is not None:
            return self.user.id
        return None if self.key is None else self.key.user_id

    @property
    def key_name(self) -> str:
        """Empty for a session by name and password."""
        if self.key is not None:
            return self.key.name
        return "" if self.set_key_hash is None else SET_KEYS

    @property
    def models(self) -> frozenset[str] | None:
        """The only models that it may ask; None: all."""
        return None if self.key is None else self.key.models

    @property
    def actor(self) -> str:
        """The name that the record shows for what is done in this session."""
        if self.user is not None:
            return f"{self.user.name} (session)"
        return self.key_name if self.key is None else actor_of(self.key)


def actor_of(key: ApiKey) -> str:
    """The name that the record shows for what is done with this key."""
    return f"{key.user_name} ({key.name})" if key.user_name else key.name


def shortened_agent(text: str) -> str:
    """What a browser calls itself, as far as it is shown: it may say anything."""
    return "".join(character for character in text[:_LONGEST_AGENT] if character.isprintable())


def scopes_of_role(role: str | None) -> frozenset[Scope]:
    """Return the scopes that keys of a user with this role may have; a role that is not known gives none."""
    return IMPLIED[Scope(role)] if role in ROLES else frozenset()


def fold_name(name: str) -> str:
    """Return the form by which names are compared: two users never differ only in case."""
    return name.casefold()


def is_user_name(text: str) -> bool:
    return _USER_NAME.fullmatch(text) is not None


def read_user_name(text: str) -> str:
    name = text.strip()
    if not is_user_name(name):
        raise InvalidInput(
            "name", f"is {name[:70]!r}; it takes 1 to 64 letters, digits and . _ @ + -, and starts with no sign"
        )
    return name


def read_role(text: str) -> Scope:
    if text not in ROLES:
        raise InvalidInput("role", f"is {text[:40]!r}; say one of {', '.join(ROLES)}")
    return Scope(text)


def read_password(text: str, *, of: str, named: str = "password") -> str:
    """Return the password in the form that is hashed, whichever way the keyboard composed its letters."""
    password = normal_password(text)
    if not _SHORTEST_PASSWORD <= len(password) <= _LONGEST_PASSWORD:
        bounds = f"{_SHORTEST_PASSWORD} to {_LONGEST_PASSWORD} characters"
        raise InvalidInput(named, f"must have {bounds}, and has {len(password)}")
    if fold_name(password) == fold_name(of):
        raise InvalidInput(named, "must not be the name")
    return password


def normal_password(text: str) -> str:
    return unicodedata.normalize("NFKC", text)


def ending_keys(keys: Iterable[ApiKey], before: User, after: User | None) -> list[ApiKey]:
    """Return which of a user's keys end when the user changes: all when the user is disabled or gone, those from logins
    when the password is another one, those that the role does not cover any more, and always those of sessions, which
    end with any change."""
    unrevoked = [key for key in keys if key.user_id == before.id and key.revoked_at is None]
    if after is None or after.disabled_at is not None:
        return unrevoked
    has_new_password = after.password_hash != before.password_hash
    return [
        key
        for key in unrevoked
        if not after.covers(key.scopes) or key.session_id is not None or (has_new_password and key.name == LOGIN)
    ]


class Administration(IntEnum):
    """Whether anybody can administer."""

    NOBODY = 0
    FOR_A_TIME = 1
    """Only with keys that expire."""
    LASTING = 2


def administration(keys: Iterable[ApiKey], users: Iterable[User], now: datetime) -> Administration:
    """The administrators: valid keys of scope admin, and users who can log in."""
    admin_keys = [key for key in keys if Scope.ADMIN in key.scopes and key.is_valid(now)]
    if any(key.expires_at is None for key in admin_keys) or any(user.can_administer for user in users):
        return Administration.LASTING
    return Administration.FOR_A_TIME if admin_keys else Administration.NOBODY
