"""The first keys of a fleet: made once, shown once, and replaceable on the machine when they are lost."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from corral.base.ids import new_secret
from corral.base.private_files import read_private, write_private
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.frontend.access.key_ring import NewKey, created_event, mint, revoked_event
from corral.frontend.access.store import Keys
from corral.frontend.store.secrets import Secrets
from corral.wire.keys import Scope, hash_secret

REGISTRATION_TOKEN: Final = "registration-token"  # noqa: S105 - the name of the secret
ADMIN: Final = "admin"
FIRST_START: Final = "first start"


class CredentialsFile(msgspec.Struct, kw_only=True):
    """What a supervisor such as `corral up` reads. Empty: not known to whoever wrote the file."""

    admin: str
    registration: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    registration_token: str = field(repr=False)
    new_registration_token: bool
    new_admin_key: str | None = field(repr=False)
    """Only when it was made just now; it is not stored anywhere else."""

    def write_new(self, file: Path) -> bool:
        """Write what was made just now into a private file. False, and no file, when there is nothing new."""
        token = self.registration_token if self.new_registration_token else ""
        if not token and self.new_admin_key is None:
            return False
        _write(file, CredentialsFile(admin=self.new_admin_key or "", registration=token))
        return True


class FirstKeys:
    """Several frontends may start at once on one database: exactly one of them makes the keys."""

    def __init__(self, keys: Keys, secrets: Secrets, now: Callable[[], datetime]) -> None:
        self._keys = keys
        self._secrets = secrets
        self._now = now

    async def ensure(self, *, configured_token: str, file: Path | None) -> Credentials:
        made = new_secret()
        token = await self._registration_token(configured_token, made)
        first = mint(ADMIN, [Scope.ADMIN], at=self._now(), by=FIRST_START)
        is_first = await self._keys.insert_first_admin(first.record, events=[created_event(first.record)])
        admin_key = first.key if is_first else None
        if file is not None:
            admin_key = await self._keep(file, token, admin_key)
        return Credentials(registration_token=token, new_registration_token=token == made, new_admin_key=admin_key)

    async def _registration_token(self, configured: str, made: str) -> str:
        """A configured token wins and is stored, so that a frontend without the setting knows it too."""
        if not configured:
            return await self._secrets.put_if_absent(REGISTRATION_TOKEN, made, at=self._now())
        if await self._secrets.get(REGISTRATION_TOKEN) != configured:
            await self._secrets.replace(REGISTRATION_TOKEN, configured, at=self._now())
        return configured

    async def _keep(self, file: Path, token: str, new_admin_key: str | None) -> str | None:
        """Make sure that the file holds a working administrator key; returns it when it is new."""
        if new_admin_key is None and (kept := _read(file)) is not None:
            record = await self._keys.find_by_hash(hash_secret(kept.admin))
            if record is not None and record.is_valid(self._now()):
                if kept.registration != token:
                    _write(file, CredentialsFile(admin=kept.admin, registration=token))
                return None
        key = new_admin_key or (await self.reset_admin(by="lost credentials file")).key
        _write(file, CredentialsFile(admin=key, registration=token))
        return key

    async def keep(self, file: Path, admin_key: str) -> None:
        """Hand a new administrator key to the supervisor that reads this file."""
        token = await self._secrets.get(REGISTRATION_TOKEN)
        _write(file, CredentialsFile(admin=admin_key, registration=token or ""))

    async def reset_admin(self, *, by: str) -> NewKey:
        """A new administrator key; the one from the first start, or from the last reset, stops working."""
        now = self._now()
        new = mint(ADMIN, [Scope.ADMIN], at=now, by=by)
        await self._keys.insert(new.record, events=[created_event(new.record)])
        for old in await self._keys.list():
            is_old_admin = old.name == ADMIN and Scope.ADMIN in old.scopes and old.id != new.record.id
            if is_old_admin and old.revoked_at is None:
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


def _write(file: Path, credentials: CredentialsFile) -> None:
    write_private(file, msgspec.json.encode(credentials))
