"""Secrets in the database, sealed with a key that is not in it."""

import base64
import binascii
import contextlib
import os
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from sqlalchemy import Select, delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from corral.base.errors import InvalidInput, PathNotUsable, SecretsKeyMismatch
from corral.base.ids import NodeId, new_secret
from corral.base.private_files import make_private_directory, read_private, write_private
from corral.frontend.store.db import Database
from corral.frontend.store.dialect import insert_into
from corral.frontend.store.schema import secrets

_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class SecretsKey:
    """256 bits; written as 43 characters of URL-safe base64."""

    raw: bytes = field(repr=False)

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


def _create(path: Path, text: str) -> None:
    """Write beside, then link: a link never replaces a file that somebody else put there first."""
    make_private_directory(path.parent)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{new_secret()[:8]}")
    write_private(draft, f"{text}\n".encode())
    try:
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    except OSError as error:
        raise PathNotUsable(f"cannot write {path}: {error.strerror}") from error
    finally:
        os.unlink(draft)


_CHECK_NAME: Final = "check"
_CHECK_VALUE: Final = "this key fits"
_VERSION: Final = b"\x01"
_NONCE_BYTES: Final = 12


def node_secret_name(node_id: NodeId) -> str:
    return f"node/{node_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedSecret:
    """A secret ready to be stored by whoever has a transaction open; see `Secrets.seal`."""

    name: str
    sealed: bytes = field(repr=False)
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
    def __init__(self, database: Database, key: SecretsKey) -> None:
        self._db = database
        self._cipher = AESGCM(key.raw)

    @classmethod
    async def open(cls, database: Database, key: SecretsKey, *, at: datetime) -> Self:
        """Open with a key that fits; SecretsKeyMismatch for any other. The first key that comes is the one."""
        opened = cls(database, key)
        await opened.put_if_absent(_CHECK_NAME, _CHECK_VALUE, at=at)
        return opened

    def seal(self, name: str, value: str, *, at: datetime) -> SealedSecret:
        """Make a secret that another module stores in its own transaction."""
        nonce = os.urandom(_NONCE_BYTES)
        sealed = _VERSION + nonce + self._cipher.encrypt(nonce, value.encode(), name.encode())
        return SealedSecret(name=name, sealed=sealed, at=at)

    def unseal(self, name: str, sealed: bytes) -> str:
        """Open what another module stored."""
        nonce, ciphertext = sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
        try:
            return self._cipher.decrypt(nonce, ciphertext, name.encode()).decode()
        except (InvalidTag, ValueError) as error:
            raise SecretsKeyMismatch(
                "the secrets key does not fit this database: copy the secrets key file of another frontend"
                " that uses it, or set CORRAL_SECRETS_KEY to that key",
                secret=name,
            ) from error

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


async def was_sealed(database: Database) -> bool:
    """Has some key been used on this database? Then a new one would fit nothing."""
    async with database.look() as connection:
        return (await connection.execute(_sealed(_CHECK_NAME))).first() is not None


def _sealed(name: str) -> Select[Any]:
    return select(secrets.c.sealed).where(secrets.c.name == name)
