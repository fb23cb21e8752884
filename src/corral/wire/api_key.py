"""API keys: what one may do, and until when. The key itself is never stored, only its hash."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from corral.base.ids import KeyId, NodeId


class Scope(StrEnum):
    """What a key opens."""

    ADMIN = "admin"
    INFERENCE = "inference"
    NODE = "node"
    GATEWAY = "gateway"


IMPLIED: dict[Scope, frozenset[Scope]] = {
    Scope.ADMIN: frozenset({Scope.ADMIN, Scope.INFERENCE}),
    Scope.INFERENCE: frozenset({Scope.INFERENCE}),
    Scope.NODE: frozenset({Scope.NODE}),
    Scope.GATEWAY: frozenset({Scope.GATEWAY}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
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

    def is_valid(self, now: datetime) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    def is_the_last_admin(self, keys: "Iterable[ApiKey]", now: datetime) -> bool:
        """Whether no other one of these lets anybody administer, and this one does."""
        admins = {one.id for one in keys if Scope.ADMIN in one.scopes and one.is_valid(now)}
        return admins == {self.id}

    def allows(self, scope: Scope) -> bool:
        return any(scope in IMPLIED[own] for own in self.scopes)
