"""S3 and what speaks like it: the only import of the client."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import BinaryIO, Final
from urllib.parse import quote

import obstore
from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from corral.files.storage import (
    KEYS_REFUSED,
    ObjectMissing,
    ObjectTooLarge,
    StorageConfig,
    StorageRefused,
    StorageUnavailable,
    StoredObject,
    check_key,
)

_PIECE: Final = 4 * 1024 * 1024
_READ: Final = 1024 * 1024
"""Bytes of a piece for those who write and hash it meanwhile."""
PART: Final = 16 * 1024 * 1024
"""Bytes per part of a large upload. S3 admits 10,000 parts, so a file of 150 GiB can be stored."""
CREATED_AT: Final = "created-at"
"""User metadata by which LocalAI's frontends find objects that may go."""
DIGEST: Final = "corral-sha256"
"""User metadata with the SHA-256 of the object."""


class S3Objects:
    """One bucket on one server."""

    def __init__(self, config: StorageConfig) -> None:
        self._config = config
        self._root = f"{config.url.rstrip('/')}/{quote(config.bucket)}"
        self._store = self._open(self._root)

    async def look(self, key: str) -> StoredObject:
        store, path = self._place(key)
        with translated_errors(key):
            answer = await obstore.get_async(store, path, options={"head": True})
        facts, digest = answer.meta, answer.attributes.get(DIGEST, "")
        return StoredObject(size=facts["size"], etag=facts["e_tag"] or "", digest=digest)

    async def read(self, key: str, offset: int) -> AsyncIterator[bytes]:
        store, path = self._place(key)
        with translated_errors(key):
            answer = await obstore.get_async(store, path, options={"range": {"offset": offset}} if offset else {})
        async for piece in _pieces(answer, key, _READ):
            yield piece

    async def download(self, key: str, target: BinaryIO, *, most: int | None = None) -> None:
        store, path = self._place(key)
        if most is not None and (size := (await self.look(key)).size) > most:
            raise ObjectTooLarge(f"{key} has {size} bytes, and {most} at most are taken")
        with translated_errors(key):
            answer = await obstore.get_async(store, path)
        written = 0
        async for piece in _pieces(answer, key, _PIECE):
            if most is not None and written + len(piece) > most:
                raise ObjectTooLarge(f"{key} became larger than {most} bytes")
            written += await asyncio.to_thread(target.write, piece)
        if written != answer.meta["size"]:
            raise StorageUnavailable(f"{key} ended after {written} of {answer.meta['size']} bytes")

    async def upload(self, source: BinaryIO, key: str, *, created_at: str) -> None:
        store, path = self._place(key)
        with translated_errors(key):
            await obstore.put_async(store, path, source, attributes={CREATED_AT: created_at}, chunk_size=PART)

    def _place(self, key: str) -> tuple[S3Store, str]:
        """Return the store of a key, and the path within it. The client takes no empty parts in a path, but LocalAI's
        frontends ask for keys with a double slash; whatever comes before it goes into the address instead."""
        check_key(key)
        before, doubled, after = key.rpartition("//")
        return (self._open(f"{self._root}/{quote(before)}/"), after) if doubled else (self._store, key)

    def _open(self, address: str) -> S3Store:
        """An address that has the bucket in it already is what the client takes for a virtual host."""
        config = self._config
        keys = {"access_key_id": config.access_key, "secret_access_key": config.secret_key}
        return S3Store(
            config.bucket,
            endpoint=address,
            region=config.region,
            virtual_hosted_style_request=True,
            client_options={
                "allow_http": True,
                "connect_timeout": config.connect_timeout,
                "read_timeout": config.stall_timeout,
                "timeout": timedelta(days=1),
                "pool_max_idle_per_host": "0",
            },
            retry_config={"max_retries": config.retries},
            **(keys if config.access_key and config.secret_key else {}),  # type: ignore[arg-type]
        )


async def _pieces(answer: "obstore.GetResult", key: str, size: int) -> AsyncIterator[bytes]:
    with translated_errors(key):
        async for piece in answer.stream(min_chunk_size=size):
            yield piece


@contextmanager
def translated_errors(key: str) -> Iterator[None]:
    """Raise the client's errors as ours. Their texts name addresses and answers, never credentials."""
    try:
        yield
    except FileNotFoundError as error:
        raise ObjectMissing(f"there is no object {key}") from error
    except (PermissionDeniedError, UnauthenticatedError, PermissionError) as error:
        raise StorageRefused(KEYS_REFUSED.format("403")) from error
    except BaseError as error:
        # Without the document that the client adds: the server's whole answer.
        brief = str(error).partition("<?xml")[0].strip().rstrip(":")[:300]
        raise StorageUnavailable(brief or type(error).__name__) from error
    except ValueError as error:
        raise ObjectMissing(f"{key!r} cannot be the name of an object") from error
