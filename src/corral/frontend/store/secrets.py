"""Secrets in the database, sealed with a key that is not in it."""

import base64
import binascii
import contextlib
import hashlib
import os
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlalchemy import Select, delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from corral.base.errors import InvalidInput, PathNotUsable, SecretsKeyMismatch
from corral.base.ids import NodeId, new_secret
from corral.base.private_files import make_private_directory, read_private, sync_directory, write_private
from corral.base.values import PartlyPrinted
from corral.frontend.store.db import Database
from corral.frontend.store.dialect import insert_into
from corral.frontend.store.schema import secrets

_BYTES: Final = 32


class SecretsKey(PartlyPrinted, frozen=True):
    """256 bits; written as 43 characters of URL-safe base64."""

    unprinted = ("raw",)

    raw: bytes

    @classmethod
    def generate(cls) -> Self:
        return cls.from_text(new_secret())

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Read what `to_text` wrote; the text itself never appears in an error."""
        cleaned = text.strip().rstrip("=")
        try:
            raw = base64.b64decode(cleaned + "=" * (-len(cleaned) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raw = b""
        if len(raw) != _BYTES:
            raise InvalidInput("secrets key", f"it must be {_BYTES} bytes in URL-safe base64, which is 43 characters")
        return cls(raw)

    def to_text(self) -> str:
        return base64.urlsafe_b64encode(self.raw).decode().rstrip("=")

    @classmethod
    def load_or_create(cls, path: Path) -> Self:
        """The key in the file. Of several processes that find none, one makes it and all get the same."""
        content = read_private(path)
        if content is None:
            _create(path, cls.generate().to_text())
            content = read_private(path)
        if content is None:
            raise PathNotUsable(f"{path} went away while it was being created")
        try:
            return cls.from_text(content.decode("ascii", errors="replace"))
        except InvalidInput as error:
            raise PathNotUsable(f"{path} does not hold a secrets key: {error.problem}") from None

    def keep(self, path: Path) -> None:
        """Write the key into the file, in place of another one. PathNotUsable when that is not possible."""
        content = f"{self.to_text()}\n".encode()
        if read_private(path) != content:
            make_private_directory(path.parent)
            write_private(path, content)
        sync_directory(path.parent)


def _create(path: Path, text: str) -> None:
    """Write beside, then link: a link never replaces a file that somebody else put there first."""
    make_private_directory(path.parent)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{new_secret()[:8]}")
    write_private(draft, f"{text}\n".encode())
    try:
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
            sync_directory(path.parent)
    except OSError as error:
        raise PathNotUsable(f"cannot write {path}: {error.strerror}") from error
    finally:
        os.unlink(draft)


_CHECK_NAME: Final = "check"
_CHECK_VALUE: Final = "this key fits"
_VERSION: Final = b"\x01"
_NONCE_BYTES: Final = 12


NEXT_KEY: Final = "rotation/next"
"""While the secrets key is changed: the next one, sealed with the one before."""
KEY_BEFORE: Final = "rotation/before"
"""Meanwhile, the one before, sealed with the next."""


def node_secret_name(node_id: NodeId) -> str:
    return f"node/{node_id}"


def replica_key_name(id: str) -> str:
    return f"replica/{id}"


def replica_token_name(id: str) -> str:
    return f"replica/{id}/token"


def engine_key_name(id: str) -> str:
    return f"engine/{id}"


class SealedSecret(PartlyPrinted, frozen=True, kw_only=True):
    """A sealed secret that a caller stores in its own transaction; see `Secrets.seal`."""

    unprinted = ("sealed",)

    name: str
    sealed: bytes
    at: datetime


async def store_sealed(connection: AsyncConnection, secret: SealedSecret) -> None:
    """Write a sealed secret in the caller's transaction, over an older one if need be."""
    newer = {"sealed": secret.sealed, "updated_at": secret.at}
    insert = insert_into(connection, secrets).values(name=secret.name, created_at=secret.at, **newer)
    await connection.execute(insert.on_conflict_do_update(index_elements=[secrets.c.name], set_=newer))


async def discard(connection: AsyncConnection, name: str) -> bool:
    """Delete a secret in the caller's transaction."""
    return (await connection.execute(delete(secrets).where(secrets.c.name == name))).rowcount == 1


class Secrets:
    """Seals with one key, and opens with that or, while it is changed, with the other one."""

    def __init__(self, database: Database, key: SecretsKey) -> None:
        self._db = database
        self._given_key = key
        self._keys = [key]
        """The first key seals; all of them open."""
        self.change = ""
        """Names the change of the key in which this process takes part, among all changes; empty without one."""

    @classmethod
    async def open(cls, database: Database, key: SecretsKey, *, at: datetime) -> Self:
        """Open with a key that fits; SecretsKeyMismatch for any other. The first key that comes is the one."""
        opened = cls(database, key)
        await opened.look_for_change()
        async with database.look() as connection:
            first = select(secrets.c.name, secrets.c.sealed).order_by(secrets.c.name != _CHECK_NAME).limit(1)
            stored = (await connection.execute(first)).first()
        if stored is not None:  # where the check itself was lost, another secret does
            opened.unseal(stored.name, stored.sealed)
        await opened.put_if_absent(_CHECK_NAME, _CHECK_VALUE, at=at)
        return opened

    def seal(self, name: str, value: str, *, at: datetime) -> SealedSecret:
        """Make a secret that another module stores in its own transaction."""
        return SealedSecret(name=name, sealed=_seal(self._keys[0], name, value), at=at)

    def unseal(self, name: str, sealed: bytes) -> str:
        """Open what another module stored."""
        for key in self._keys:
            if (value := _open(key, name, sealed)) is not None:
                return value
        raise SecretsKeyMismatch(
            "the secrets key does not fit this database, or was changed: copy the secrets key file of another frontend"
            " that uses it, or set CORRAL_SECRETS_KEY to that key",
            secret=name,
        )

    async def look_for_change(self) -> SecretsKey | None:
        """Take part in a change of the key that is under way; returns the next key then. None when there is none.

        From then on everything is sealed with the next key, and what either of both sealed is opened. After the change
        the key before opens nothing here any more. SecretsKeyMismatch: a change went by unseen, or this is the key of
        another database; whatever this process sealed now would be lost.
        """
        names = [NEXT_KEY, KEY_BEFORE, _CHECK_NAME]
        async with self._db.look() as connection:  # one statement: all rows are of the same moment
            statement = select(secrets.c.name, secrets.c.sealed).where(secrets.c.name.in_(names))
            rows = {row.name: row.sealed for row in await connection.execute(statement)}
        check = rows.pop(_CHECK_NAME, None)
        if not rows:
            del self._keys[1:]
        for key in list(self._keys):
            if (text := _open(key, NEXT_KEY, rows.get(NEXT_KEY, b""))) is not None:
                self._keys = [SecretsKey.from_text(text), key]
            elif (text := _open(key, KEY_BEFORE, rows.get(KEY_BEFORE, b""))) is not None:
                self._keys = [key, SecretsKey.from_text(text)]
        if check is not None:
            self.unseal(_CHECK_NAME, check)
        self.change = hashlib.sha256(rows.get(NEXT_KEY, b"")).hexdigest()[:16] if len(self._keys) > 1 else ""
        return self._keys[0] if len(self._keys) > 1 else None

    @property
    def current(self) -> SecretsKey:
        """The key that seals now."""
        return self._keys[0]

    @property
    def before(self) -> SecretsKey:
        """While the key is changed, the one before; else the key of now."""
        return self._keys[-1]

    @property
    def was_given_current(self) -> bool:
        """Whether the key that this process was started with is the one that seals now."""
        return self._given_key == self._keys[0]

    def opens(self, name: str, sealed: bytes) -> bool:
        """Whether a key of now opens it."""
        return any(_open(key, name, sealed) is not None for key in self._keys)

    def resealed(self, name: str, sealed: bytes) -> bytes | None:
        """The secret sealed with the current key; None when it already is. SecretsKeyMismatch: no key opens it."""
        if _open(self._keys[0], name, sealed) is not None:
            return None
        return _seal(self._keys[0], name, self.unseal(name, sealed))

    def bridge(self, following: SecretsKey) -> dict[str, bytes]:
        """What leads from the key of now to the next one and back, by the names under which it is stored."""
        present = self._keys[0]
        return {
            NEXT_KEY: _seal(present, NEXT_KEY, following.to_text()),
            KEY_BEFORE: _seal(following, KEY_BEFORE, present.to_text()),
        }

    async def unreadable(self) -> list[str]:
        """Names of the stored secrets that this key does not open."""
        async with self._db.read() as connection:
            rows = (await connection.execute(select(secrets.c.name, secrets.c.sealed).order_by(secrets.c.name))).all()
        return [row.name for row in rows if not self.opens(row.name, row.sealed)]

    async def get(self, name: str) -> str | None:
        async with self._db.look() as connection:
            sealed = (await connection.execute(_sealed(name))).scalar_one_or_none()
        return None if sealed is None else self.unseal(name, sealed)

    async def put_if_absent(self, name: str, value: str, *, at: datetime) -> str:
        """Store unless there is one; returns the one that is stored now, ours or somebody else's."""
        row = {"name": name, "sealed": self.seal(name, value, at=at).sealed, "created_at": at, "updated_at": at}
        async with self._db.begin() as connection:
            await connection.execute(insert_into(connection, secrets).values(row).on_conflict_do_nothing())
            sealed = (await connection.execute(_sealed(name))).scalar_one()
        return self.unseal(name, sealed)

    async def replace(self, name: str, value: str, *, at: datetime) -> None:
        """Store, whether or not there is an older one."""
        async with self._db.begin() as connection:
            await store_sealed(connection, self.seal(name, value, at=at))


def _seal(key: SecretsKey, name: str, value: str) -> bytes:
    nonce = os.urandom(_NONCE_BYTES)
    return _VERSION + nonce + AESGCM(key.raw).encrypt(nonce, value.encode(), name.encode())


def _open(key: SecretsKey, name: str, sealed: bytes) -> str | None:
    """What was sealed under this name; None when it was with another key, or under another name."""
    nonce, ciphertext = sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
    try:
        return AESGCM(key.raw).decrypt(nonce, ciphertext, name.encode()).decode()
    except (InvalidTag, ValueError):
        return None


async def was_sealed(database: Database) -> bool:
    """Has some key been used on this database? Then a new one would fit nothing."""
    async with database.look() as connection:
        return (await connection.execute(select(secrets.c.name).limit(1))).first() is not None


def _sealed(name: str) -> Select[Any]:
    return select(secrets.c.sealed).where(secrets.c.name == name)
