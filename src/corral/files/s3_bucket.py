"""A bucket as frontends use it: files go into it in parts, and what nobody needs any more is removed.

With keys of its own this asks the server itself, part by part, and can go on after a restart. By the role of a machine
only the client library can ask; it too sends in parts, but has to begin anew.
"""

import asyncio
import contextlib
import os
import socket
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Final

import aiohttp
import obstore
from aiohttp.connector import AddrInfoType

from corral.base.http_client import open_session
from corral.files.s3 import CREATED_AT, DIGEST, PART, S3Objects, translated_errors
from corral.files.s3_requests import S3Answer, S3Requests, all_of, one_of
from corral.files.s3_uploads import S3Uploads
from corral.files.storage import FileToStore, ObjectMissing, StorageConfig, StorageUnavailable, check_key

_AT_ONCE: Final = 100
"""Keys that are listed and removed together."""
_MISSING: Final = frozenset({"NoSuchKey"})


class S3Bucket(S3Objects):
    """Opened by `open_bucket`."""

    def __init__(self, config: StorageConfig, requests: S3Requests | None) -> None:
        super().__init__(config)
        self._requests = requests
        self._uploads: S3Uploads | None = None
        if requests is not None:
            self._uploads = S3Uploads(requests, stall=config.stall_timeout, patience=config.patience)

    async def store(self, file: FileToStore, key: str, *, digest: str, created_at: str) -> None:
        metadata = {CREATED_AT: created_at, DIGEST: digest}

        async def is_there() -> bool:
            try:
                return (await self.look(key)).digest == digest
            except ObjectMissing:
                return False

        if self._uploads is not None:
            goes_on = digest in key.split("/")
            await self._uploads.send(key, file, metadata=metadata, is_there=is_there, goes_on=goes_on)
            return
        store, path = self._place(key)
        with translated_errors(key), os.fdopen(os.dup(file.descriptor), "rb") as source:
            source.seek(0)
            await obstore.put_async(store, path, source, attributes=dict(metadata), chunk_size=PART, max_concurrency=4)
        file.check()
        file.sends(1, file.mark.size)

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)  # nothing at all would be the bucket
            if self._requests is not None:
                await self._ask(self._requests, "DELETE", key, {}, tolerated=_MISSING)
                continue
            store, path = self._place(key)
            with translated_errors(key):
                await obstore.delete_async(store, path)

    async def older_than(self, prefix: str, limit: datetime) -> AsyncIterator[Sequence[str]]:
        if self._requests is None:
            with translated_errors(prefix):
                async for batch in obstore.list(self._store, prefix, chunk_size=_AT_ONCE):
                    yield [found["path"] for found in batch if found["last_modified"] < limit]
            return
        after = {"list-type": "2", "prefix": prefix, "max-keys": str(_AT_ONCE)}
        while after:
            answer = await self._ask(self._requests, "GET", "", after)
            entries = all_of(answer.text, "Contents")
            yield [one_of(entry, "Key") for entry in entries if _time(one_of(entry, "LastModified")) < limit]
            token = one_of(answer.text, "NextContinuationToken")
            after = {**after, "continuation-token": token} if token else {}

    async def _ask(
        self,
        requests: S3Requests,
        method: str,
        key: str,
        query: Mapping[str, str],
        tolerated: frozenset[str] = frozenset(),
    ) -> S3Answer:
        """The client library has a limit of its own for what it asks."""
        try:
            async with asyncio.timeout(self._config.stall_timeout.total_seconds()):
                return await requests.ask(method, key, query, tolerated=tolerated)
        except TimeoutError as error:
            raise StorageUnavailable("the object storage does not answer") from error


def _time(text: str) -> datetime:
    """When an object was stored. One whose time cannot be read is young for ever."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return datetime.max.replace(tzinfo=UTC)


@asynccontextmanager
async def open_bucket(config: StorageConfig) -> AsyncIterator[S3Bucket]:
    if not config.access_key:
        yield S3Bucket(config, None)
        return
    sockets = _Sockets()
    connector = aiohttp.TCPConnector(socket_factory=sockets.make)
    try:
        async with open_session(connect_timeout=config.connect_timeout, trust_env=True, connector=connector) as session:
            yield S3Bucket(config, S3Requests(config, session, lambda: datetime.now(UTC)))
    finally:
        sockets.end()


class _Sockets:
    """The connections of a session. One that was given up in the middle of a part would stay open for as long as the
    storage takes to read what it had been sent."""

    def __init__(self) -> None:
        self._open: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def make(self, address: AddrInfoType) -> socket.socket:
        family, kind, protocol, _, _ = address
        made = socket.socket(family, kind, protocol)
        self._open.add(made)
        return made

    def end(self) -> None:
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
