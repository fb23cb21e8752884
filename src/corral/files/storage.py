"""Object storage in the words of those who use it, and what it can be told. Imports no client: those are heavy."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import BinaryIO, Protocol

from corral.base.errors import CorralError


class StorageUnavailable(CorralError):
    """The object storage does not answer, or not as it should."""

    code = "storage_unavailable"
    retryable = True


class ObjectMissing(CorralError):
    """There is no such object."""

    code = "object_missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageConfig:
    """Where objects are, and with which patience."""

    url: str
    """Of the server; buckets are addressed by path."""
    bucket: str = "localai"
    """LocalAI's frontends have this default; its workers have none."""
    region: str = "us-east-1"
    access_key: str = field(default="", repr=False)
    secret_key: str = field(default="", repr=False)
    """Without both keys, credentials come from the surroundings, as AWS has it."""
    connect_timeout: timedelta = timedelta(seconds=5)
    stall_timeout: timedelta = timedelta(seconds=60)
    """How long a transfer may stand still. There is no bound for a whole one: models have hundreds of gigabytes."""
    retries: int = 3
    """Of one request, with growing pauses. Few: the frontend asks again by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    size: int
    etag: str
    """Changes with the content; empty when the server does not say."""


class ObjectStorage(Protocol):
    """One bucket. Every call may be cancelled. ObjectMissing and StorageUnavailable are the ways to fail."""

    async def look(self, key: str) -> StoredObject: ...

    async def download(self, key: str, target: BinaryIO) -> None:
        """Write an object to an empty file; what is there of it after a failure is the caller's to remove."""

    async def upload(self, source: BinaryIO, key: str, *, created_at: str) -> None:
        """Store a file. Other readers see all of it or nothing."""
