"""Turns what a caller presents, in headers or otherwise, into a principal: a named holder of scopes."""

from collections.abc import Mapping, Sequence
from hmac import compare_digest

import msgspec

from corral.base.clock import Clock
from corral.base.ids import NodeId
from corral.base.values import PartlyPrinted
from corral.frontend.access.decide import SET_KEYS, Permission, Session, actor_of, permits
from corral.frontend.access.keys import KeyUse
from corral.frontend.access.store.keys import Keys
from corral.frontend.access.store.sessions import SessionStore
from corral.wire.keys import API_KEY_HEADERS, IMPLIED, ApiKey, Scope, bearer, hash_secret, same
from corral.wire.sessions import csrf_of, hash_token, tokens_in


class Principal(PartlyPrinted, frozen=True, kw_only=True):
    """Who calls. `node_id` is set when a node speaks with its own secret."""

    unprinted = ("csrf",)

    name: str
    """Who did it, for the record: the name of the key, with that of its user."""
    scopes: frozenset[Scope]
    key: ApiKey | None = None
    """None for keys that are not stored."""
    node_id: NodeId | None = None
    session: Session | None = None
    """Set when a browser calls with the cookie of a session; then `key` is the one that opened it."""
    csrf: str = ""
    """What such a browser must send along with every change."""

    @property
    def user_name(self) -> str:
        """Whose the key or the session is; empty for nobody in particular."""
        if self.session is not None:
            return self.session.user_name
        return "" if self.key is None else self.key.user_name

    def may(self, scope: Scope) -> bool:
        return any(scope in IMPLIED[held_scope] for held_scope in self.scopes)

    def may_ask(self, model: str) -> bool:
        """Whether the key is not limited to other models."""
        return self.key is None or self.key.models is None or model in self.key.models

    def can(self, permission: Permission) -> bool:
        return permits(self.scopes, permission)


class JoinToken(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of checking what a worker presented to join."""

    trusted: bool
    """Whether the join is approved at once."""


class Authenticator:
    """Checks API keys and registration tokens. Every comparison takes constant time."""

    def __init__(  # noqa: PLR0913 - each is a collaborator or a setting
        self,
        keys: Keys,
        sessions: SessionStore,
        clock: Clock,
        use: KeyUse,
        *,
        registration_token: str,
        trusted_token: str,
        gateway_key: str = "",
        admin_keys: Sequence[str] = (),
        joins_by_token: bool = True,
    ) -> None:
        """Without `joins_by_token` neither the registration token nor a key opens what is for workers."""
        self._keys = keys
        self._sessions = sessions
        self._clock = clock
        self._use = use
        self._registration_token = registration_token
        self._trusted_token = trusted_token
        self._gateway_key = gateway_key
        self._admin_keys = admin_keys
        self._joins_by_token = joins_by_token

    async def principal(self, presented: str) -> Principal | None:
        """The holder of an API key that is valid now; or one whose key is set, or a gateway of our own launcher: these
        need no database."""
        if self._gateway_key and same(presented, self._gateway_key):
            return Principal(name="gateway", scopes=frozenset({Scope.GATEWAY}))
        if any([same(presented, key) for key in self._admin_keys]):  # all of them, whichever it is
            return Principal(name=SET_KEYS, scopes=frozenset({Scope.ADMIN}))
        key = await self._keys.find_by_hash(hash_secret(presented))
        if key is None or not key.is_valid(self._clock.now()) or not await self._outlives(key):
            return None
        self._use.note([key.id])
        return Principal(name=actor_of(key), scopes=key.scopes, key=key)

    async def _outlives(self, key: ApiKey) -> bool:
        """Whether the session is valid that a key ends with; keys without one do not care."""
        if key.session_id is None:
            return True
        session = await self._sessions.get(key.session_id)
        return session is not None and session.is_valid(self._clock.now())

    async def by_session(self, tokens: Sequence[str]) -> Principal | None:
        """The holder of the only valid session among these tokens. Of two valid ones it is not known who calls, so
        neither counts: somebody may have planted the other one."""
        if not tokens:
            return None
        by_hash = {hash_token(token): token for token in tokens}
        now = self._clock.now()
        valid = [session for session in await self._sessions.find(list(by_hash)) if session.is_valid(now)]
        if len(valid) != 1:
            return None
        session = valid[0]
        return Principal(
            name=session.actor,
            scopes=session.scopes,
            key=session.key,
            session=session,
            csrf=csrf_of(by_hash[session.hash]),
        )

    async def join_token(self, presented: str) -> JoinToken | None:
        """What a token lets a worker do; None when it lets it do nothing."""
        trusted = bool(self._trusted_token) and same(presented, self._trusted_token)
        shared = same(presented, self._registration_token) and self._joins_by_token
        if trusted or shared:
            return JoinToken(trusted=trusted)
        if not self._joins_by_token:
            return None
        principal = await self.principal(presented)
        return JoinToken(trusted=False) if principal is not None and principal.may(Scope.NODE) else None


def presented_key(headers: Mapping[str, str]) -> str | None:
    """The key in `Authorization: Bearer`, or in a header of its own as some client libraries send it."""
    return bearer(headers.get("authorization")) or next(filter(None, map(headers.get, API_KEY_HEADERS)), None)


async def principal_of(headers: Mapping[str, str], authenticator: Authenticator) -> Principal | None:
    """By a key, or else by the cookie of a session, which may change things only if `cross_site.py` agrees."""
    presented = presented_key(headers)
    if presented is not None:
        return await authenticator.principal(presented)
    return await authenticator.by_session(tokens_in(headers.get("cookie", "")))


class NodeClaim(PartlyPrinted, frozen=True, kw_only=True):
    """A worker's bearer, held against the node it speaks for.

    A node with a secret of its own listens to that secret only; the shared token speaks for nodes without one.
    """

    unprinted = ("presented",)

    presented: str
    authenticator: Authenticator

    async def fits(self, secret_hash: str | None) -> bool:
        """Whether the bearer may speak for a node; `secret_hash` is None for a node without a secret."""
        if secret_hash is not None:
            return compare_digest(hash_secret(self.presented), secret_hash)
        return await self.authenticator.join_token(self.presented) is not None

    async def may_ask(self) -> bool:
        return await self.authenticator.join_token(self.presented) is not None
