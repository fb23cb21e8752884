"""What workers and frontends need of an object storage, and its settings. Imports no client: those are heavy."""

import hashlib
import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import BinaryIO, Final, Protocol

import msgspec

from corral.base.errors import CorralError
from corral.base.setting_kinds import HTTP_URL, SECRET, TEXT
from corral.base.settings import setting
from corral.files.file_peer import LocalFileChanged
from corral.files.sending import FileMark, TransferListener

_MEGABYTE: Final = 1024 * 1024
_SPACE: Final = 0x20
_SHOWN: Final = 200


KEYS_REFUSED: Final = "the object storage refuses the keys ({}): see storage_access_key and storage_secret_key"


class StorageUnavailable(CorralError):
    """The object storage does not answer, or not as it should."""

    code = "storage_unavailable"
    retryable = True


class StorageRefused(StorageUnavailable):
    """The object storage refuses what is asked, and will the next time."""

    code = "storage_refused"
    retryable = False


class ObjectTooLarge(CorralError):
    """An object has more bytes than its reader takes."""

    code = "object_too_large"


class ObjectMissing(CorralError):
    """There is no such object."""

    code = "object_missing"


def check_key(key: str) -> None:
    """Raise ObjectMissing for a key that would lead out of the bucket: clients resolve `..` in addresses, and what is
    above a bucket is the next one."""
    if not key or any(part in (".", "..") for part in key.split("/")) or any(ord(letter) < _SPACE for letter in key):
        raise ObjectMissing(f"{key[:_SHOWN]!r} cannot be the name of an object")


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageConfig:
    """Where objects are, and how long to wait for them."""

    url: str = setting(
        HTTP_URL,
        """Object storage (S3) through which files get from frontends to workers, when both are told of the same one.
        None by default: files go over HTTP, and also while the storage does not work.""",
        name="storage_url",
        flag="--storage",
        aliases=("LOCALAI_STORAGE_URL",),
        default="",
    )
    bucket: str = setting(
        TEXT,
        "Bucket in the object storage. LocalAI's frontends use this one unless they are told otherwise.",
        name="storage_bucket",
        aliases=("LOCALAI_STORAGE_BUCKET",),
        default="localai",
    )
    region: str = setting(
        TEXT,
        "Region of the object storage. Many servers do not care, and take the first that Amazon had.",
        name="storage_region",
        aliases=("LOCALAI_STORAGE_REGION",),
        default="us-east-1",
    )
    access_key: str = setting(
        SECRET,
        "Access key for the object storage; needs the secret key beside it. Without, as the machine's role allows.",
        name="storage_access_key",
        aliases=("LOCALAI_STORAGE_ACCESS_KEY",),
        default="",
        secret=True,
    )
    secret_key: str = setting(
        SECRET,
        "Secret key for the object storage. None by default, as the access key.",
        name="storage_secret_key",
        aliases=("LOCALAI_STORAGE_SECRET_KEY",),
        default="",
        secret=True,
    )
    connect_timeout: timedelta = timedelta(seconds=5)
    stall_timeout: timedelta = timedelta(seconds=60)
    """How long a transfer may stand still. There is no limit for a whole one: models have hundreds of gigabytes."""
    patience: timedelta = timedelta(seconds=60)
    """How long nothing of a file may get there that was begun, before it is given up."""
    retries: int = 3
    """Per request, with growing pauses. Few: the frontend asks again by itself."""


class StoredObject(msgspec.Struct, frozen=True, kw_only=True):
    size: int
    etag: str
    """Changes with the content; empty when the server does not say."""
    digest: str = ""
    """Its SHA-256, as whoever stored it said; empty when nobody did, as LocalAI never does."""


class FileToStore(msgspec.Struct, frozen=True, kw_only=True):
    """An open file of this machine, and how far it is."""

    name: str
    descriptor: int
    mark: FileMark
    listener: TransferListener
    moved: dict[int, int] = msgspec.field(default_factory=dict)
    """Bytes of each part that are there, or on their way."""

    def check(self) -> None:
        if FileMark.of(os.fstat(self.descriptor)) != self.mark:
            raise LocalFileChanged(f"{self.name} changed while it was sent")

    def read(self, offset: int, length: int) -> bytes:
        piece = os.pread(self.descriptor, length, offset)
        if len(piece) < length:
            raise LocalFileChanged(f"{self.name} became shorter while it was sent")
        return piece

    def has(self, number: int, length: int) -> None:
        """So much of a part is there, and no more on its way."""
        self.moved[number] = length
        self.listener.present(sum(self.moved.values()))

    def sends(self, number: int, length: int) -> None:
        self.moved[number] = self.moved.get(number, 0) + length
        self.listener.sent(length)

    def md5(self, span: tuple[int, int]) -> str:
        begin, length = span
        hasher = hashlib.md5(usedforsecurity=False)
        for offset in range(begin, begin + length, _MEGABYTE):
            hasher.update(self.read(offset, min(_MEGABYTE, begin + length - offset)))
        return hasher.hexdigest()


class ObjectStorage(Protocol):
    """One bucket. Every call may be cancelled. ObjectMissing and StorageUnavailable are the ways to fail."""

    async def look(self, key: str) -> StoredObject: ...

    async def download(self, key: str, target: BinaryIO, *, most: int | None = None) -> None:
        """Write an object to an empty file; what is there of it after a failure is the caller's to remove.
        ObjectTooLarge if it has more bytes than `most`; no more than these are written."""

    async def upload(self, source: BinaryIO, key: str, *, created_at: str) -> None:
        """Store a file. Other readers see all of it or nothing."""

    def read(self, key: str, offset: int) -> AsyncIterator[bytes]:
        """The bytes of an object from there on, in pieces."""


class SharedStorage(ObjectStorage, Protocol):
    """One bucket, as frontends use it."""

    async def store(self, file: FileToStore, key: str, *, digest: str, created_at: str) -> None:
        """Store a file in parts, and go on where an earlier attempt ended. Its digest is stored with it."""

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove objects. What is not there is removed already."""

    def older_than(self, prefix: str, limit: datetime) -> AsyncIterator[Sequence[str]]:
        """The keys that begin so of objects that were stored before."""
