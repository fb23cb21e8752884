"""Moves files between object storage and this worker, as the subjects `files.*` ask; `object_cache.py` is the disk."""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
from msgspec import UNSET

from corral.base.clock import Clock
from corral.base.open_directories import PathRefused
from corral.base.tasks import end_tasks, in_thread, opened_in_thread, start_task
from corral.bus.port import Handler, Message
from corral.files.storage import ObjectMissing, ObjectStorage, StorageUnavailable
from corral.wire import go_json, subjects
from corral.wire.files import EnsureRequest, ListedFiles, ListRequest, LocalPathReply, StageReply, StageRequest
from corral.wire.go_json import format_time
from corral.worker.files.object_cache import ObjectCache, ObjectPlaces
from corral.worker.files.object_fetches import ObjectFetches
from corral.worker.handlers import UNREADABLE, replying
from corral.worker.membership.lifecycle import Subject

log = logging.getLogger(__name__)

_STAGED_KEYS: Final = ("models/", "data/", "ephemeral/")
"""The families of keys in which LocalAI's and our frontends look for files of nodes."""
_SHOWN: Final = 200


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
