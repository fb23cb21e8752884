"""Moves files between object storage and this worker, as the subjects `files.*` ask; `object_cache.py` is the disk."""

import asyncio
import contextlib
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from msgspec import UNSET

from corral.base.clock import Clock
from corral.base.errors import CorralError, InvalidInput
from corral.base.open_directories import PathRefused
from corral.base.tasks import end_tasks, in_thread, opened_in_thread, start_task
from corral.bus.port import Handler, Message
from corral.files.sending import PeerDiskFull, WrongDigest
from corral.files.storage import ObjectMissing, ObjectStorage, StorageUnavailable
from corral.wire import go_json, subjects
from corral.wire.files import (
    BUSY,
    ContentRange,
    EnsureProgress,
    EnsureRequest,
    EnsureWish,
    ListedFiles,
    ListRequest,
    LocalPathReply,
    StageReply,
    StageRequest,
)
from corral.wire.go_json import format_time
from corral.worker.files import disk
from corral.worker.files.bodies import AT_ONCE
from corral.worker.files.object_cache import ObjectCache, ObjectPlaces
from corral.worker.files.receiving import RangedUpload, Upload, WholeUpload
from corral.worker.files.refusals import FileRefused
from corral.worker.files.store import FileStore
from corral.worker.files.threads import Threads
from corral.worker.files.uploads import UploadWriter
from corral.worker.handlers import UNREADABLE, replying
from corral.worker.membership.lifecycle import Subject

log = logging.getLogger(__name__)

_STAGED_KEYS: Final = ("models/", "data/", "ephemeral/")
"""The families of keys in which LocalAI's and our frontends look for files of nodes."""
_SHOWN: Final = 200
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
    """Fetches objects by their digest to where the file server has files, as if a frontend had sent them over HTTP.

    A fetch goes on when its callers are gone. One that was interrupted, by the storage or by the end of the worker,
    goes on behind what is there when somebody asks again. Nothing gets its name before its digest is right.
    """

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


class ObjectFiles:
    """Fetches each object once at a time for all callers. A fetch continues when its callers are gone."""

    def __init__(self, storage: ObjectStorage, places: ObjectPlaces, clock: Clock) -> None:
        self._storage = storage
        self._cache = ObjectCache(places)
        self._clock = clock
        self._fetches: dict[Path, asyncio.Task[None]] = {}

    async def close(self) -> None:
        """Cancel the fetches in progress and remove their partial files."""
        await end_tasks(*self._fetches.values())

    async def ensure(self, key: str) -> Path:
        """Fetch an object and return its path. While the storage is unavailable, a cached version is used."""
        path = self._cache.path(key)
        if path not in self._fetches:
            self._fetches[path] = start_task(self._fetch(key, path), name=f"fetch {key}")
            self._fetches[path].add_done_callback(lambda fetch: self._ended(path, fetch))
        fetch = self._fetches[path]
        await asyncio.wait({fetch})  # cancelling one caller does not cancel the fetch for the others
        if fetch.cancelled():
            raise StorageUnavailable("the worker is ending")
        fetch.result()
        return path

    async def stage(self, local_path: str, key: str) -> str:
        """Upload a file of the cache or of the models to the storage, under a key that frontends use."""
        async with opened_in_thread(lambda: self._cache.open_to_stage(local_path)) as file:
            if not key.startswith(_STAGED_KEYS):
                raise PathRefused(f"key {key[:_SHOWN]!r} is none under which files are staged")
            await self._storage.upload(file, key, created_at=format_time(self._clock.now()))
        return key

    async def temporary(self) -> Path:
        """Create an empty file that a backend can write to."""
        return await in_thread(self._cache.new_temporary)

    async def listing(self, prefix: str) -> list[str]:
        """Return the files below a directory, as paths relative to it."""
        return await in_thread(lambda: self._cache.listing(prefix))

    def _ended(self, path: Path, fetch: "asyncio.Task[None]") -> None:
        """Log a failed fetch here too, because all its callers may be gone."""
        self._fetches.pop(path, None)
        if not fetch.cancelled() and (error := fetch.exception()) is not None:
            log.info("%s was not fetched: %s", path, error, extra={"event": "objects.not_fetched"})

    async def _fetch(self, key: str, path: Path) -> None:
        try:
            stored = await self._storage.look(key)
        except (ObjectMissing, StorageUnavailable) as error:
            if not await in_thread(lambda: self._cache.has(path)):
                raise
            log.info("using what is cached of %s: %s", key, error, extra={"event": "objects.cached"})
            return
        if await in_thread(lambda: self._cache.is_current(path, stored)):
            return
        async with opened_in_thread(lambda: self._cache.begin(path, stored.size)) as incoming:
            await self._storage.download(key, incoming.file)
            await in_thread(lambda: self._cache.take_in(incoming, stored))


class _Failed(msgspec.Struct):
    """The reply of each of these subjects when it fails."""

    error: str


def object_handlers(files: ObjectFiles, fetches: ObjectFetches) -> Mapping[Subject, Handler]:
    """The handlers of requests about object storage, by subject."""

    async def ensure(message: Message) -> msgspec.Struct:
        request = go_json.decode(message.data, EnsureRequest)
        if request.corral is not UNSET:
            return await fetches.ensure(request.key, request.corral)
        return LocalPathReply(local_path=str(await files.ensure(request.key)))

    async def stage(message: Message) -> msgspec.Struct:
        request = go_json.decode(message.data, StageRequest)
        return StageReply(key=await files.stage(request.local_path, request.key))

    async def temporary(_: Message) -> msgspec.Struct:
        return LocalPathReply(local_path=str(await files.temporary()))

    async def listing(message: Message) -> msgspec.Struct:
        request = go_json.decode(message.data, ListRequest)
        return ListedFiles(files=await files.listing(request.key_prefix) or None)

    answers = {
        subjects.files_ensure: ensure,
        subjects.files_stage: stage,
        subjects.files_temp: temporary,
        subjects.files_list: listing,
    }
    return {subject: replying(answer, _Failed, unreadable=UNREADABLE) for subject, answer in answers.items()}
