"""API keys: their form, their scopes, the routes that need none, and what administrators see of them."""

import hashlib
import hmac
import re
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Final
from urllib.parse import unquote_to_bytes

import msgspec

from corral.base.ids import KeyId, NodeId, SessionId, UserId, new_secret
from corral.wire.fleet_tls import LARGEST_REQUEST
from corral.wire.registration import MAX_BODY

PREFIX: Final = "corral_"
"""Makes a leaked key easy to find for people and scanners."""
API_KEY_HEADERS: Final = ("x-api-key", "api-key", "xi-api-key")
"""Headers in which client libraries send a key, beside `Authorization: Bearer`: Anthropic's, Azure's, ElevenLabs'."""
MIN_SECRET: Final = 32
MAX_SECRET: Final = 256


def new_key() -> str:
    return PREFIX + new_secret()


def hash_secret(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def same(secret: str, other: str) -> bool:
    """Compare in constant time, whatever the lengths."""
    return hmac.compare_digest(hashlib.sha256(secret.encode()).digest(), hashlib.sha256(other.encode()).digest())


def bearer(header: str | None) -> str | None:
    """The token of an `Authorization: Bearer …` header; None when there is none."""
    if header is None:
        return None
    scheme, _, token = header.partition(" ")
    token = token.strip()
    return token if scheme.lower() == "bearer" and token else None


class Scope(StrEnum):
    """What a key opens. `frontend/access/decide.py` says which permissions each gives."""

    ADMIN = "admin"
    OPERATOR = "operator"
    VIEWER = "viewer"
    INFERENCE = "inference"
    NODE = "node"
    GATEWAY = "gateway"


IMPLIED: dict[Scope, frozenset[Scope]] = {
    Scope.ADMIN: frozenset({Scope.ADMIN, Scope.OPERATOR, Scope.VIEWER, Scope.INFERENCE}),
    Scope.OPERATOR: frozenset({Scope.OPERATOR, Scope.VIEWER, Scope.INFERENCE}),
    Scope.VIEWER: frozenset({Scope.VIEWER}),
    Scope.INFERENCE: frozenset({Scope.INFERENCE}),
    Scope.NODE: frozenset({Scope.NODE}),
    Scope.GATEWAY: frozenset({Scope.GATEWAY}),
}


ROLES: Final = (Scope.ADMIN, Scope.OPERATOR, Scope.VIEWER, Scope.INFERENCE)
"""The scopes that are for people, the most powerful first."""
LIMITED_INFERENCE: Final = "inference of some models"
"""Replaces the scope `inference` in the database and in the view for gateways when a key is limited to some models.
Versions that know nothing of such limits then refuse the key."""


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    id: KeyId
    name: str
    hash: str
    scopes: frozenset[Scope]
    created_at: datetime
    created_by: str
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    node_id: NodeId | None = None
    """Set on a key that was issued to an agent node; it goes with the node."""
    user_id: UserId | None = None
    """Whose it is: it goes with the user, and gives no more than the user's role."""
    user_name: str = ""
    models: frozenset[str] | None = None
    """The only models that it may ask; None: all."""
    session_id: SessionId | None = None
    """The session of the web page that it was made for, and ends with."""

    def is_valid(self, now: datetime) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    def allows(self, scope: Scope) -> bool:
        return any(scope in IMPLIED[held_scope] for held_scope in self.scopes)


_WORKER_BODY: Final = 64 * 1024
"""More than any worker says in a heartbeat."""


class RequiredProof(StrEnum):
    """What a request without a valid API key has to show."""

    NOTHING = "nothing"
    """Anybody may call the route."""
    NOTHING_BY_SETTING = "nothing by setting"
    """Anybody, where `metrics_public` is set; otherwise a key is needed."""
    NODE = "node"
    """The registration token, or a node's own secret, as the bearer. Only control can check it."""
    UNCHECKED_KEY = "unchecked key"
    """A key that a gateway without a view can tell nothing about. Only control can check it."""


class KeylessRoute(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    path: str
    """As control's router writes it: with names in braces for what differs."""
    proof: RequiredProof = RequiredProof.NOTHING
    max_body: int = 0
    """Bytes; 0 where no body makes sense."""


_LOGIN_BODY: Final = 16 * 1024
"""More than a name and two of the longest passwords take."""
REGISTER: Final = KeylessRoute(method="POST", path="/api/node/register", proof=RequiredProof.NODE, max_body=MAX_BODY)
HEARTBEAT: Final = KeylessRoute(
    method="POST", path="/api/node/{id}/heartbeat", proof=RequiredProof.NODE, max_body=_WORKER_BODY
)
JOIN_CHECK: Final = KeylessRoute(
    method="POST", path="/api/v1/join-checks", proof=RequiredProof.NODE, max_body=_WORKER_BODY
)
UNCHECKED: Final = KeylessRoute(method="", path="", proof=RequiredProof.UNCHECKED_KEY, max_body=MAX_BODY)
"""Stands for any route, while a gateway has no view to look keys up in."""
_PAGES: Final = ("/", "/ui", "/ui/{path:path}", "/docs", "/openapi.json")
_VITALS: Final = ("/healthz", "/health", "/readyz", "/api/v1/ready", "/api/v1/fleet")
KEYLESS: Final = (
    *(KeylessRoute(method="GET", path=path) for path in (*_PAGES, *_VITALS)),
    KeylessRoute(method="POST", path="/api/v1/login", max_body=_LOGIN_BODY),
    KeylessRoute(method="POST", path="/api/v1/login/password", max_body=_LOGIN_BODY),
    KeylessRoute(method="POST", path="/api/v1/session", max_body=_LOGIN_BODY),
    KeylessRoute(method="GET", path="/metrics", proof=RequiredProof.NOTHING_BY_SETTING),
    REGISTER,
    HEARTBEAT,
    JOIN_CHECK,
    KeylessRoute(method="POST", path="/api/node/{id}/drain", proof=RequiredProof.NODE, max_body=_WORKER_BODY),
    KeylessRoute(method="POST", path="/api/node/{id}/resume", proof=RequiredProof.NODE, max_body=_WORKER_BODY),
    KeylessRoute(method="POST", path="/api/node/{id}/deregister", proof=RequiredProof.NODE, max_body=_WORKER_BODY),
    KeylessRoute(method="DELETE", path="/api/node/{id}", proof=RequiredProof.NODE, max_body=_WORKER_BODY),
    KeylessRoute(method="GET", path="/api/node/{id}/models", proof=RequiredProof.NODE),
    KeylessRoute(
        method="POST", path="/api/v1/nodes/{id}/certificate", proof=RequiredProof.NODE, max_body=LARGEST_REQUEST
    ),
)


_EXACT: Final[Mapping[tuple[bytes, bytes], KeylessRoute]] = {
    (route.method.encode(), route.path.encode()): route for route in KEYLESS if "{" not in route.path
}


def _pattern(path: str, part: bytes) -> re.Pattern[bytes]:
    """`part` is the pattern of one part of a path. The files of the page are the rest of the path, whatever it is."""
    any_rest = re.sub(rb"\\\{\w+:path\\\}", rb".*", re.escape(path.encode()))
    return re.compile(re.sub(rb"\\\{\w+\\\}", part, any_rest), re.DOTALL)


_PATTERNS: Final = [
    (route.method.encode(), _pattern(route.path, rb"[^/%]+"), route) for route in KEYLESS if "{" in route.path
]
_DECODED_PATTERNS: Final = [(route.method.encode(), _pattern(route.path, rb"[^/]+")) for route in KEYLESS]


def find_keyless(method: bytes, path: bytes) -> KeylessRoute | None:
    """The route that this request may reach without a key. A path that is written in another way is not found."""
    method = b"GET" if method == b"HEAD" else method
    route = _EXACT.get((method, path))
    if route is not None:
        return route
    return next(
        (route for route_method, pattern, route in _PATTERNS if route_method == method and pattern.fullmatch(path)),
        None,
    )


def is_respelled_keyless(method: bytes, path: bytes) -> bool:
    """Whether control would take this path for a route that needs no key, though it is not written as on the list.

    Control's router decodes a path once, and its patterns ignore a line break at the end.
    """
    if b"%" not in path or find_keyless(method, path) is not None:
        return False
    method = b"GET" if method == b"HEAD" else method
    decoded = unquote_to_bytes(path).removesuffix(b"\n")
    return any(route_method == method and pattern.fullmatch(decoded) for route_method, pattern in _DECODED_PATTERNS)


class KeyView(msgspec.Struct, kw_only=True):
    """An API key without its secret part."""

    id: str
    name: str
    scopes: list[str]
    created_at: str
    created_by: str
    expires_at: str | None
    revoked_at: str | None
    state: str
    """`active`, `expired` or `revoked`."""
    user: str = ""
    """The user that the key belongs to; empty for a key without a user."""
    models: list[str] | None = None
    """The only models that it may ask; null: all."""
    session: str = ""
    """The id of the session of the web page that it was made for, and ends with; empty for all other keys."""
    last_used_at: str | None = None
    """When it was accepted last, up to a minute ago; null: never, as far as is known."""


class CreatedKey(KeyView, kw_only=True):
    key: str
    """Shown this once; only its hash is stored."""
    unconfirmed_gateways: list[str] = []
    """Gateways that did not say within two seconds that they know it; it may not work there yet."""


class RevokedKey(msgspec.Struct, kw_only=True):
    """The answer to a revocation that some gateways did not confirm."""

    id: str
    unconfirmed_gateways: list[str]
    """Gateways that did not say within two seconds that they refuse it; it may still work there."""


class CreateKey(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Body of `POST /api/v1/keys`."""

    name: str
    scopes: list[str]
    expires_in: str = ""
    """A duration such as `30d`; empty for a key that never expires."""
    user: str | None = None
    """Whose it shall be: it goes with the user. Empty: nobody's in particular. Left out: of the user who asks, if the
    asking key is a user's."""
    models: list[str] = []
    """The only models that it may ask, by name or alias; none: all. Only for keys of scope inference."""
