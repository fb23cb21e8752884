"""API keys: made, listed, revoked, the first ones of a fleet, and when each was used last. A key itself
is shown once and never stored."""

import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from corral.base.clock import Clock
from corral.base.errors import Conflict, CorralError, NotFound
from corral.base.ids import KeyId, NodeId, new_key_id, new_secret
from corral.base.private_files import read_private, write_private
from corral.base.tasks import Poke
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.base.values import PartlyPrinted
from corral.frontend.access.decide import User
from corral.frontend.access.store.keys import Keys
from corral.frontend.access.store.rows import AccessWrite
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.feed import Feed
from corral.frontend.record.room import Loop, RecordRoom
from corral.frontend.store.secrets import Secrets
from corral.wire.keys import ApiKey, Scope, hash_secret, new_key
from corral.wire.view import GatewayReport

REGISTRATION_TOKEN: Final = "registration-token"  # noqa: S105 - the name of the secret
ADMIN: Final = "admin"


class NewKey(PartlyPrinted, frozen=True, kw_only=True):
    """A key together with its record; the only moment at which both exist."""

    unprinted = ("key",)

    key: str
    record: ApiKey
    unconfirmed: tuple[str, ...] = ()
    """Gateways that did not say in time that they know it."""


class KeyOwner(msgspec.Struct, frozen=True, kw_only=True):
    """Whose a key is, and the models that it is limited to."""

    user: User | None = None
    node_id: NodeId | None = None
    models: frozenset[str] | None = None
    """The models that the key may use; None means all."""


NOBODY: Final = KeyOwner()


def mint(
    name: str,
    scopes: Iterable[Scope],
    *,
    at: datetime,
    by: str,
    lifetime: timedelta | None = None,
    owner: KeyOwner = NOBODY,
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
        node_id=owner.node_id,
        user_id=None if owner.user is None else owner.user.id,
        user_name="" if owner.user is None else owner.user.name,
        models=owner.models,
    )
    return NewKey(key=key, record=record)


def created_event(record: ApiKey) -> Event:
    return Event(
        kind=EventKind.KEY_CREATED,
        at=record.created_at,
        actor=record.created_by,
        node_id=record.node_id,
        data={"id": record.id, "name": record.name, "scopes": sorted(record.scopes), **_bounds(record)},
    )


def revoked_event(record: ApiKey, *, at: datetime, by: str) -> Event:
    return Event(
        kind=EventKind.KEY_REVOKED,
        at=at,
        actor=by,
        node_id=record.node_id,
        data={"id": record.id, "name": record.name, **_bounds(record)},
    )


def _bounds(record: ApiKey) -> dict[str, object]:
    user = {"user": record.user_name} if record.user_name else {}
    return {**user, **({} if record.models is None else {"models": sorted(record.models)})}


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

    async def create(
        self, name: str, scopes: Iterable[Scope], *, by: str, lifetime: timedelta | None, owner: KeyOwner = NOBODY
    ) -> NewKey:
        """Answers when the gateways know the key, or after a bounded wait."""
        new = mint(name, scopes, at=self._clock.now(), by=by, lifetime=lifetime, owner=owner)
        if owner.user is None:
            return replace(new, unconfirmed=await self._store(new))
        if not owner.user.covers(new.record.scopes) or owner.user.disabled_at is not None:
            raise Conflict(f"{owner.user.name} is disabled, or has a role that does not give all these scopes")

        def events(ended: Sequence[ApiKey]) -> list[Event]:
            revoked = [revoked_event(old, at=new.record.created_at, by=by) for old in ended]
            return [*revoked, created_event(new.record)]

        if not await self._keys.insert_of(owner.user, new.record, events=events):
            raise Conflict(f"{owner.user.name} was changed just now; try again")
        return replace(new, unconfirmed=await self._spread(new.record, is_valid=True))

    async def list(self) -> list[ApiKey]:
        return await self._keys.list()

    async def revoke(self, key_id: KeyId, *, by: str) -> tuple[str, ...]:
        """Answers when the gateways refuse the key; returns those that did not say so in time."""
        record = await self._keys.get(key_id)
        if record is None:
            raise NotFound(f"no key has the id {key_id}")
        now = self._clock.now()
        revoke = self._keys.revoke if self._has_set_admins else self._keys.revoke_unless_last_admin
        outcome = await revoke(key_id, at=now, events=[revoked_event(record, at=now, by=by)])
        if outcome is AccessWrite.LAST_ADMIN:
            raise Conflict(
                f"key {key_id} ({record.name}) is the last administrator key; make another one first"
                " that does not expire (corral keys create NAME --scope admin, or POST /api/v1/keys),"
                " then revoke this one with that"
            )
        if outcome is AccessWrite.STALE:
            raise Conflict(f"key {key_id} is already revoked")
        return await self._spread(record, is_valid=False)

    async def ended(self, records: Sequence[ApiKey]) -> tuple[str, ...]:
        """Answers when the gateways refuse keys that one transaction revoked; returns those that did not say so."""
        # A gateway that knows of one of them knows of all.
        return await self._spread(records[0], is_valid=False) if records else ()

    async def issue_to_agent(self, node_id: NodeId, node_name: str) -> str:
        """A new inference key for an approved agent node; the key that it had before stops working.

        Empty when it is no approved agent by the time the key would be stored: nothing is issued to a suspect.
        """
        now = self._clock.now()
        new = mint(f"agent {node_name}", [Scope.INFERENCE], at=now, by="control", owner=KeyOwner(node_id=node_id))
        if not await self._keys.insert_for_agent(new.record, events=[created_event(new.record)]):
            return ""
        await self._spread(new.record, is_valid=True)
        return new.key

    async def _store(self, new: NewKey) -> tuple[str, ...]:
        await self._keys.insert(new.record, events=[created_event(new.record)])
        return await self._spread(new.record, is_valid=True)

    async def _spread(self, record: ApiKey, *, is_valid: bool) -> tuple[str, ...]:
        await self._feed.announce()
        return await self._audience.reach(record.hash, is_valid=is_valid)


class CredentialsFile(msgspec.Struct, kw_only=True):
    """What a supervisor such as `corral up` reads. Empty fields were unknown when the file was written."""

    admin: str
    registration: str


class Credentials(PartlyPrinted, frozen=True, kw_only=True):
    unprinted = ("registration_token", "new_admin_key")

    registration_token: str
    new_registration_token: bool
    new_admin_key: str | None
    """Only when it was made just now; it is not stored anywhere else."""

    def write_new(self, file: Path) -> bool:
        """Write what was made just now into a private file. False, and no file, when there is nothing new."""
        token = self.registration_token if self.new_registration_token else ""
        if not token and self.new_admin_key is None:
            return False
        _write(file, admin=self.new_admin_key or "", registration=token)
        return True


class FirstKeys:
    """Several frontends may start at once on one database: exactly one of them makes the keys."""

    def __init__(self, keys: Keys, secrets: Secrets, now: Callable[[], datetime]) -> None:
        self._keys = keys
        self._secrets = secrets
        self._now = now

    async def ensure(self, *, configured_token: str, file: Path | None) -> Credentials:
        made = new_secret()
        token = configured_token
        if not token:
            token = await self._secrets.put_if_absent(REGISTRATION_TOKEN, made, at=self._now())
        elif await self._secrets.get(REGISTRATION_TOKEN) != token:
            # A configured token wins and is stored, so that a frontend without the setting knows it too.
            await self._secrets.replace(REGISTRATION_TOKEN, token, at=self._now())
        first = mint(ADMIN, [Scope.ADMIN], at=self._now(), by="first start")
        is_first = await self._keys.insert_first_admin(first.record, events=[created_event(first.record)])
        admin_key = first.key if is_first else None
        if file is not None:
            admin_key = await self._keep(file, token, admin_key)
        return Credentials(registration_token=token, new_registration_token=token == made, new_admin_key=admin_key)

    async def _keep(self, file: Path, token: str, new_admin_key: str | None) -> str | None:
        """Make sure that the file holds a working administrator key; returns it when it is new."""
        if new_admin_key is None and (credentials := _read(file)) is not None:
            record = await self._keys.find_by_hash(hash_secret(credentials.admin))
            if record is not None and record.is_valid(self._now()):
                if credentials.registration != token:
                    _write(file, admin=credentials.admin, registration=token)
                return None
        key = new_admin_key or (await self.reset_admin(by="lost credentials file")).key
        _write(file, admin=key, registration=token)
        return key

    async def keep(self, file: Path, admin_key: str) -> None:
        """Hand a new administrator key to the supervisor that reads this file."""
        token = await self._secrets.get(REGISTRATION_TOKEN)
        _write(file, admin=admin_key, registration=token or "")

    async def reset_admin(self, *, by: str) -> NewKey:
        """A new administrator key; the one from the first start, or from the last reset, stops working."""
        now = self._now()
        new = mint(ADMIN, [Scope.ADMIN], at=now, by=by)
        await self._keys.insert(new.record, events=[created_event(new.record)])
        for old in await self._keys.list():
            is_old_admin = old.name == ADMIN and Scope.ADMIN in old.scopes and old.id != new.record.id
            if is_old_admin and old.revoked_at is None and old.user_id is None:
                await self._keys.revoke(old.id, at=now, events=[revoked_event(old, at=now, by=by)])
        return new


def _read(file: Path) -> CredentialsFile | None:
    data = read_private(file)
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=CredentialsFile)
    except UNREADABLE_JSON:
        return None


def _write(file: Path, *, admin: str, registration: str) -> None:
    write_private(file, msgspec.json.encode(CredentialsFile(admin=admin, registration=registration)))


log = logging.getLogger(__name__)

_PERIOD: Final = timedelta(minutes=1)


class KeyUse:
    """When keys were used last: noted in memory with every request, written for all of them once a minute.

    For requests to models, the gateways' reports name the keys. What a frontend noted since its last write is lost if
    it is killed, and written if it is stopped.
    """

    def __init__(self, keys: Keys, clock: Clock) -> None:
        self._keys = keys
        self._clock = clock
        self._unwritten: dict[KeyId, datetime] = {}

    def note(self, key_ids: Iterable[KeyId]) -> None:
        """Remember that these keys are used now; `write` stores it."""
        self._unwritten.update(dict.fromkeys(key_ids, self._clock.now()))

    def hear_report(self, report: GatewayReport) -> None:
        self.note({KeyId(finished.key) for finished in report.finished if finished.key})

    async def last(self) -> dict[KeyId, datetime]:
        """When each key was used last, as far as it is written or was noted here; without those that never were."""
        written = await self._keys.uses()
        newer = {id: at for id, at in self._unwritten.items() if id not in written or written[id] < at}
        return written | newer

    async def write(self) -> None:
        """Have written what was noted so far. What cannot be written now is kept."""
        batch, self._unwritten = self._unwritten, {}
        if not batch:
            return
        try:
            await self._keys.note_uses(batch)
        except BaseException:
            self._unwritten = batch | self._unwritten
            raise

    def loops(self, record: RecordRoom) -> dict[str, Loop]:
        write = record.every(_PERIOD, Poke(), self.write, "uses of keys")

        async def run() -> None:
            try:
                await write()
            finally:
                try:
                    await self.write()
                except CorralError as error:
                    log.warning("uses of keys are lost: %s", error, extra={"event": "keys.uses_lost"})

        return {"uses of keys": run}
