"""Fetches objects by their digest to where the file server has files, as if a frontend had sent them over HTTP.

A fetch goes on when its callers are gone. One that was interrupted, by the storage or by the end of the worker, goes on
behind what is there when somebody asks again. Nothing gets its name before its digest is right.
"""

import asyncio
import contextlib
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from corral.base.errors import CorralError, InvalidInput
from corral.base.tasks import end_tasks, start_task
from corral.files.sending import PeerDiskFull, WrongDigest
from corral.files.storage import ObjectMissing, ObjectStorage, StorageUnavailable
from corral.wire.files import BUSY, ContentRange, EnsureProgress, EnsureWish, LocalPathReply
from corral.worker.files import disk
from corral.worker.files.bodies import AT_ONCE
from corral.worker.files.receiving import RangedUpload, Upload, WholeUpload
from corral.worker.files.refusals import FileRefused
from corral.worker.files.store import FileStore
from corral.worker.files.threads import Threads
from corral.worker.files.uploads import UploadWriter

log = logging.getLogger(__name__)

_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_LONGEST_WAIT: Final = 30.0
_MOST_AT_ONCE: Final = 16
"""Objects that are read from the storage at the same time."""


@dataclass(slots=True)
class _Fetch:
    present: int = 0
    task: "asyncio.Task[Path] | None" = None


@dataclass(slots=True)
class _Target:
    """What an object is written into, or the path of a file that is complete already."""

    upload: Upload | Path

    def close(self) -> None:
        if isinstance(self.upload, Upload):
            self.upload.close()


class ObjectFetches:
    def __init__(self, storage: ObjectStorage, store: FileStore, threads: Threads) -> None:
        self._storage = storage
        self._store = store
        self._threads = threads
        self._fetches: dict[tuple[str, str], _Fetch] = {}
        self._turns = asyncio.Semaphore(_MOST_AT_ONCE)

    async def close(self) -> None:
        await end_tasks(*(fetch.task for fetch in self._fetches.values() if fetch.task is not None))

    async def ensure(self, key: str, wish: EnsureWish) -> LocalPathReply:
        """Where the file is; or, after as long as the caller wants to wait, how far it is."""
        _check(wish)
        identity = wish.place, wish.digest
        fetch = self._fetches.get(identity)
        if fetch is None or fetch.task is None:
            fetch = self._fetches[identity] = _Fetch()
            fetch.task = start_task(self._fetch(key, wish, fetch), name=f"fetch {wish.place}")
            fetch.task.add_done_callback(lambda task: self._ended(identity, task))
        done, _ = await asyncio.wait({fetch.task}, timeout=max(0.0, min(wish.wait, _LONGEST_WAIT)))
        if not done:
            return LocalPathReply(corral=EnsureProgress(present=fetch.present))
        return _reply(fetch.task)

    def _ended(self, identity: tuple[str, str], task: "asyncio.Task[Path]") -> None:
        self._fetches.pop(identity, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.info("%s was not fetched: %s", identity[0], error, extra={"event": "objects.not_fetched"})

    async def _fetch(self, key: str, wish: EnsureWish, fetch: _Fetch) -> Path:
        store, place = self._store, wish.place
        head = await self._threads.run(lambda: store.head(place))
        if head is not None and not head.target and head.size == wish.size:
            digest = head.hash or await self._threads.run_long(lambda: store.digest(place))
            if digest == wish.digest:
                return head.path
        is_begun = head is not None and head.target == wish.digest and 0 < head.size < wish.size
        fetch.present = begun = head.size if head is not None and is_begun else 0
        async with self._turns:
            stored = await self._storage.look(key)
            if stored.size != wish.size:
                raise WrongDigest(f"the object {key} has {stored.size} bytes instead of {wish.size}")
            if wish.size <= AT_ONCE and not begun:
                return await self._fetch_at_once(key, wish, fetch)
            async with self._threads.opened(lambda: _opened(store, wish, begun)) as target:
                upload = target.upload
                if isinstance(upload, Path):
                    return upload
                await self._pull(key, upload, wish, fetch)
                return await self._threads.run(lambda: upload.finish(wish.digest))

    async def _fetch_at_once(self, key: str, wish: EnsureWish, fetch: _Fetch) -> Path:
        """Read a small object, and have one thread do all that is to do on the disk."""
        content = bytearray()
        try:
            if wish.size:
                async for piece in self._storage.read(key, 0):
                    content += piece
                    fetch.present = len(content)
                    if len(content) > wish.size:
                        raise _wrong_length(key, len(content), wish)
        finally:  # what came before a failure stays
            path = await self._threads.run(lambda: _received(self._store, wish, bytes(content)))
        if path is None:
            raise _wrong_length(key, len(content), wish)
        return path

    async def _pull(self, key: str, upload: Upload, wish: EnsureWish, fetch: _Fetch) -> None:
        """Append what the file lacks. What came before a failure stays."""
        await self._threads.run(lambda: upload.reserve(wish.size - upload.size))
        writer = UploadWriter(upload, self._threads)
        try:
            if upload.size < wish.size:
                async for piece in self._storage.read(key, upload.size):
                    await writer.add(bytes(piece))
                    fetch.present += len(piece)
        finally:
            await writer.flush()
        if upload.size != wish.size:
            raise _wrong_length(key, upload.size, wish)


def _check(wish: EnsureWish) -> None:
    if not _DIGEST.fullmatch(wish.digest):
        raise InvalidInput("digest", "must be a SHA-256 in hexadecimal digits")
    if wish.size < 0:
        raise InvalidInput("size", f"is {wish.size}")
    if not wish.place.startswith("models/"):
        raise InvalidInput("place", "must be below models/")


def _opened(store: FileStore, wish: EnsureWish, begun: int) -> _Target:
    if not wish.size:
        return _Target(WholeUpload.open(store, wish.place, length=0))
    span = ContentRange(begun, wish.size - 1, wish.size)
    return _Target(RangedUpload.open(store, wish.place, span, wish.digest))


def _received(store: FileStore, wish: EnsureWish, content: bytes) -> Path | None:
    """Put a file in its place; None when bytes of it are missing, and what is there waits for them. Blocks."""
    with contextlib.closing(_opened(store, wish, 0)) as target:
        upload = target.upload
        if isinstance(upload, Path):
            return upload
        upload.write([content])
        upload.hash([content])
        return upload.finish(wish.digest) if upload.size == wish.size else None


def _wrong_length(key: str, size: int, wish: EnsureWish) -> StorageUnavailable:
    return StorageUnavailable(f"{key} ended after {size} of {wish.size} bytes")


def _reply(task: "asyncio.Task[Path]") -> LocalPathReply:
    if task.cancelled():
        return _failed(StorageUnavailable("the worker is ending"), StorageUnavailable.code)
    error = task.exception()
    match error:
        case None:
            return LocalPathReply(local_path=str(task.result()))
        case ObjectMissing():
            progress = EnsureProgress(is_missing=True, code=error.code)
            return LocalPathReply(error=error.message, corral=progress)
        case FileRefused(status=507):
            return _failed(error, PeerDiskFull.code)
        case FileRefused(status=416):
            return _failed(error, BUSY)
        case FileRefused() if "sha256 mismatch" in error.text:
            return _failed(error, WrongDigest.code)
        case CorralError():
            return _failed(error, error.code)
        case OSError():
            is_full = error.errno in disk.FULL
            text = f"writing file: {error.strerror or error}"
            return _failed(CorralError(text), PeerDiskFull.code if is_full else "disk_error")
    raise error


def _failed(error: CorralError, code: str) -> LocalPathReply:
    return LocalPathReply(error=error.message, corral=EnsureProgress(code=code))
