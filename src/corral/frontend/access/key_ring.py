"""API keys: made, listed, revoked. The key itself is shown once and never stored."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol

from corral.base.clock import Clock
from corral.base.errors import Conflict, NotFound
from corral.base.ids import KeyId, NodeId, new_key_id
from corral.frontend.access.store import Keys
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.feed import Feed
from corral.wire.keys import ApiKey, Scope, hash_secret, new_key


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A key together with its record; the only moment at which both exist."""

    key: str = field(repr=False)
    record: ApiKey
    unconfirmed: tuple[str, ...] = ()
    """Gateways that did not say in time that they know it."""


def mint(
    name: str,
    scopes: Iterable[Scope],
    *,
    at: datetime,
    by: str,
    lifetime: timedelta | None = None,
    node_id: NodeId | None = None,
) -> NewKey:
    """Make a key that nobody has stored yet."""
    key = new_key()
    record = ApiKey(
        id=new_key_id(),
        name=name,
        hash=hash_secret(key),
        scopes=frozenset(scopes),
        created_at=at,
        created_by=by,
        expires_at=at + lifetime if lifetime is not None else None,
        node_id=node_id,
    )
    return NewKey(key=key, record=record)


def created_event(record: ApiKey) -> Event:
    return Event(
        kind=EventKind.KEY_CREATED,
        at=record.created_at,
        actor=record.created_by,
        node_id=record.node_id,
        data={"id": record.id, "name": record.name, "scopes": sorted(record.scopes)},
    )


def revoked_event(record: ApiKey, *, at: datetime, by: str) -> Event:
    return Event(
        kind=EventKind.KEY_REVOKED,
        at=at,
        actor=by,
        node_id=record.node_id,
        data={"id": record.id, "name": record.name},
    )


class KeyAudience(Protocol):
    """The gateways, which check keys by the view instead of asking control."""

    async def reach(self, hash: str, *, is_valid: bool) -> tuple[str, ...]:
        """Wait until all know that a key is valid, or is not; returns who did not confirm in time."""


class KeyRing:
    """Creates and revokes keys. Each act is on the record."""

    def __init__(self, keys: Keys, feed: Feed, clock: Clock, *, audience: KeyAudience, has_set_admins: bool) -> None:
        """`has_set_admins`: keys of administrators come with the settings, beside those that are stored."""
        self._keys = keys
        self._audience = audience
        self._has_set_admins = has_set_admins
        self._feed = feed
        self._clock = clock

    async def create(self, name: str, scopes: Iterable[Scope], *, by: str, lifetime: timedelta | None) -> NewKey:
        """Answers when the gateways know the key, or after a bounded wait."""
        new = mint(name, scopes, at=self._clock.now(), by=by, lifetime=lifetime)
        return replace(new, unconfirmed=await self._store(new))

    async def list(self) -> list[ApiKey]:
        return await self._keys.list()

    async def revoke(self, key_id: KeyId, *, by: str) -> tuple[str, ...]:
        """Answers when the gateways refuse the key; returns those that did not say so in time."""
        record = await self._keys.get(key_id)
        if record is None:
            raise NotFound(f"no key has the id {key_id}")
        now = self._clock.now()
        revoke = self._keys.revoke if self._has_set_admins else self._keys.revoke_unless_last_admin
        is_revoked = await revoke(key_id, at=now, events=[revoked_event(record, at=now, by=by)])
        if is_revoked is None:
            raise Conflict(
                f"key {key_id} ({record.name}) is the last administrator key; make another one first"
                " (corral keys create NAME --scope admin, or POST /api/v1/keys), then revoke this one with that"
            )
        if not is_revoked:
            raise Conflict(f"key {key_id} is already revoked")
        await self._feed.announce()
        return await self._audience.reach(record.hash, is_valid=False)

    async def issue_to_agent(self, node_id: NodeId, node_name: str) -> str:
        """A new inference key for an approved agent node; the key that it had before stops working."""
        now = self._clock.now()
        new = mint(f"agent {node_name}", [Scope.INFERENCE], at=now, by="control", node_id=node_id)
        await self._keys.revoke_of_node(node_id, at=now)
        await self._store(new)
        return new.key

    async def _store(self, new: NewKey) -> tuple[str, ...]:
        await self._keys.insert(new.record, events=[created_event(new.record)])
        await self._feed.announce()
        return await self._audience.reach(new.record.hash, is_valid=True)
