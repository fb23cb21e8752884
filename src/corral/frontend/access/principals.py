"""Turns what a caller presents into a principal: a named holder of scopes."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from corral.base.clock import Clock
from corral.base.ids import KeyId, NodeId
from corral.wire.api_key import IMPLIED, ApiKey, Scope
from corral.wire.keys import hash_secret, same


class KeyFinder(Protocol):
    """Where keys are looked up."""

    async def find_by_hash(self, hash: str) -> ApiKey | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who calls. `node_id` is set when a node speaks with its own secret."""

    name: str
    scopes: frozenset[Scope]
    key_id: KeyId | None = None
    node_id: NodeId | None = None

    def may(self, scope: Scope) -> bool:
        return any(scope in IMPLIED[own] for own in self.scopes)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinToken:
    """The outcome of checking what a worker presented to join."""

    trusted: bool
    """Whether the join is approved at once."""


class Authenticator:
    """Checks API keys and registration tokens. Every comparison takes constant time."""

    def __init__(
        self,
        keys: KeyFinder,
        clock: Clock,
        *,
        registration_token: str,
        trusted_token: str,
        gateway_key: str = "",
        admin_keys: Sequence[str] = (),
    ) -> None:
        self._keys = keys
        self._clock = clock
        self._registration_token = registration_token
        self._trusted_token = trusted_token
        self._gateway_key = gateway_key
        self._admin_keys = admin_keys

    async def principal(self, presented: str) -> Principal | None:
        """The holder of an API key that is valid now; or one whose key is set, or a gateway of our own launcher: these
        need no database."""
        if self._gateway_key and same(presented, self._gateway_key):
            return Principal(name="gateway", scopes=frozenset({Scope.GATEWAY}))
        if any([same(presented, one) for one in self._admin_keys]):  # all of them, whichever it is
            return Principal(name="admin_keys", scopes=frozenset({Scope.ADMIN}))
        key = await self._keys.find_by_hash(hash_secret(presented))
        if key is None or not key.is_valid(self._now()):
            return None
        return Principal(name=key.name, scopes=key.scopes, key_id=key.id)

    async def join_token(self, presented: str) -> JoinToken | None:
        """What a token lets a worker do; None when it lets it do nothing."""
        trusted = bool(self._trusted_token) and same(presented, self._trusted_token)
        shared = same(presented, self._registration_token)
        if trusted or shared:
            return JoinToken(trusted=trusted)
        principal = await self.principal(presented)
        return JoinToken(trusted=False) if principal is not None and principal.may(Scope.NODE) else None

    def _now(self) -> datetime:
        return self._clock.now()
