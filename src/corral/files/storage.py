"""What the worker needs of an object storage, and its settings. Imports no client: those are heavy."""

from dataclasses import dataclass
from datetime import timedelta
from typing import BinaryIO, Protocol

from corral.base.errors import CorralError
from corral.base.setting_kinds import HTTP_URL, SECRET, TEXT
from corral.base.settings import setting


class StorageUnavailable(CorralError):
    """The object storage does not answer, or not as it should."""

    code = "storage_unavailable"
    retryable = True


class ObjectMissing(CorralError):
    """There is no such object."""

    code = "object_missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageConfig:
    """Where objects are, and how long to wait for them."""

    url: str = setting(
        HTTP_URL,
        """Object storage (S3) through which frontends may send files to this worker. None by default: files come over
        HTTP. A storage that is away stops nothing but what needs it.""",
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
    retries: int = 3
    """Per request, with growing pauses. Few: the frontend asks again by itself."""


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
