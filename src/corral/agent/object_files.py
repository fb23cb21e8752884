"""Files that come from object storage or go there: the cache of this worker, and which paths may be touched.

Objects lie in the cache under their keys, as LocalAI's worker has it. A directory beside them, which no listing shows,
holds which version of an object a file is: an object that was replaced is fetched again.
"""

import asyncio
import logging
import os
import posixpath
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final, Self

from corral.base.clock import Clock
from corral.base.errors import CorralError
from corral.base.tasks import end_tasks, start_task
from corral.files.storage import ObjectMissing, ObjectStorage, StorageUnavailable, StoredObject
from corral.protocol.times import format_time

log = logging.getLogger(__name__)

TEMPORARY: Final = "staging-tmp"
EPHEMERAL: Final = "ephemeral"
NOTES: Final = ".corral"
RETENTION: Final = timedelta(hours=24)
"""Of files that belong to one request. LocalAI's worker keeps them for ever."""


class PathRefused(CorralError):
    """The path leads out of the directories that may be touched."""

    code = "path_refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectPlaces:
    """Directories of a worker, each beside its models as LocalAI's worker has them."""

    models: Path
    cache: Path
    data: Path

    @classmethod
    def beside(cls, models: Path) -> Self:
        models = models.absolute()
        return cls(models=models, cache=models.parent / "cache", data=models.parent / "data")


class ObjectFiles:
    """Fetches each object once at a time, whoever asks; a fetch goes on when those who asked are gone."""

    def __init__(self, storage: ObjectStorage, places: ObjectPlaces, clock: Clock) -> None:
        self._storage = storage
        self._places = places
        self._clock = clock
        self._fetches: dict[Path, asyncio.Task[None]] = {}

    async def close(self) -> None:
        """End what is under way; what there is of it is removed."""
        await end_tasks(*self._fetches.values())

    async def ensure(self, key: str) -> Path:
        """Have an object on the disk. While the storage is away, what is there already will do."""
        path = self._cached(key)
        if path not in self._fetches:
            self._fetches[path] = start_task(self._fetch(key, path), name=f"fetch {key}")
            self._fetches[path].add_done_callback(lambda fetch: self._ended(path, fetch))
        fetch = self._fetches[path]
        await asyncio.wait({fetch})  # whoever is cancelled here does not end it for the others
        if fetch.cancelled():
            raise StorageUnavailable("the worker is ending")
        fetch.result()
        return path

    async def stage(self, local_path: str, key: str) -> str:
        """Put a file of the cache or of the models into the storage."""
        path = await asyncio.to_thread(self._may_be_staged, local_path)
        if not await asyncio.to_thread(path.is_file):
            raise ObjectMissing(f"opening {local_path} for upload: no such file")
        await self._storage.upload(path, key, created_at=format_time(self._clock.now()))
        return key

    async def temporary(self) -> Path:
        """A new empty file that a backend can write to."""
        return await asyncio.to_thread(self._new_temporary)

    async def listing(self, prefix: str) -> list[str]:
        """Files below a directory, as paths relative to it."""
        directory = self._directory_of(prefix)
        return await asyncio.to_thread(lambda: sorted(_files_below(directory)))

    def _cached(self, key: str) -> Path:
        problem = f'key "{key}" escapes cache directory'
        path = _below(self._places.cache, key, problem)
        if _is_in(path, self._places.cache / NOTES, or_it=True):
            raise PathRefused(problem)
        return path

    def _ended(self, path: Path, fetch: "asyncio.Task[None]") -> None:
        """Those who asked may all be gone by now, so a failure is looked at here too."""
        self._fetches.pop(path, None)
        if not fetch.cancelled() and (error := fetch.exception()) is not None:
            log.info("%s was not fetched: %s", path, error, extra={"event": "objects.not_fetched"})

    async def _fetch(self, key: str, path: Path) -> None:
        try:
            stored = await self._storage.look(key)
        except (ObjectMissing, StorageUnavailable) as error:
            if not await asyncio.to_thread(path.is_file):
                raise
            log.info("using what is cached of %s: %s", key, error, extra={"event": "objects.cached"})
            return
        if not await asyncio.to_thread(self._is_current, path, stored):
            await self._download(key, path, stored)

    async def _download(self, key: str, path: Path, stored: StoredObject) -> None:
        partial = path.with_name(f"{path.name}.tmp")
        try:
            await asyncio.to_thread(_make_room, path, stored.size)
            await self._storage.download(key, partial)
            await asyncio.to_thread(self._take_in, partial, path, stored)
        finally:
            partial.unlink(missing_ok=True)

    def _take_in(self, partial: Path, path: Path, stored: StoredObject) -> None:
        """First the note goes, so that a crash in between only costs another fetch."""
        note = self._note_of(path)
        note.unlink(missing_ok=True)
        partial.rename(path)
        note.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
        note.write_text(stored.etag, encoding="utf-8")

    def _is_current(self, path: Path, stored: StoredObject) -> bool:
        """Without a note, as a LocalAI worker leaves files, the size has to do."""
        try:
            size = path.stat().st_size
        except OSError:
            return False
        try:
            etag = self._note_of(path).read_text(encoding="utf-8")
        except OSError:
            etag = ""
        return size == stored.size and etag in ("", stored.etag)

    def _note_of(self, path: Path) -> Path:
        return self._places.cache / NOTES / path.relative_to(self._places.cache)

    def _may_be_staged(self, local_path: str) -> Path:
        """LocalAI's frontends also name files by their keys with a slash before them."""
        if not local_path or "\0" in local_path:
            raise PathRefused("path outside allowed directories")
        path = Path(os.path.realpath(local_path))
        if any(_is_in(path, base) for base in (self._places.cache, self._places.models)):
            return path
        for name, base in (("/models/", self._places.models), ("/data/", self._places.data)):
            if local_path.startswith(name):
                return _below(base, local_path.removeprefix(name), "path outside allowed directories")
        raise PathRefused("path outside allowed directories")

    def _directory_of(self, prefix: str) -> Path:
        for name, base in (("models/", self._places.models), ("data/", self._places.data)):
            if prefix.startswith(name):
                return _at_or_below(base, prefix.removeprefix(name), "invalid key prefix")
        return _at_or_below(self._places.cache, prefix, "invalid key prefix")

    def _new_temporary(self) -> Path:
        folder = self._places.cache / TEMPORARY
        folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        for old in (folder, self._places.cache / EPHEMERAL):
            _remove_older(old, time.time() - RETENTION.total_seconds())
        descriptor, name = tempfile.mkstemp(prefix="localai-staging-", suffix=".tmp", dir=folder)
        os.close(descriptor)
        return Path(name)


def _below(base: Path, key: str, problem: str) -> Path:
    """A path that is really below a directory, also when links are followed."""
    path = _at_or_below(base, key, problem)
    if path == base:
        raise PathRefused(problem)
    return path


def _at_or_below(base: Path, key: str, problem: str) -> Path:
    if "\0" in key:
        raise PathRefused(problem)
    path = Path(posixpath.normpath(f"{base}/{key}"))
    if not _is_in(path, base, or_it=True) or not _is_in(Path(os.path.realpath(path)), base, or_it=True):
        raise PathRefused(problem)
    return path


def _is_in(path: Path, base: Path, *, or_it: bool = False) -> bool:
    bases = (base, Path(os.path.realpath(base)))
    return any(one in path.parents or (or_it and path == one) for one in bases)


def _make_room(path: Path, size: int) -> None:
    """The disk is asked before the first byte: a full one takes more down than this file."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
    status = os.statvfs(path.parent)
    if size > (free := status.f_bavail * status.f_frsize):
        raise StorageUnavailable(f"{path} needs {size} bytes, and the disk has {free}")


def _files_below(directory: Path) -> Iterator[str]:
    """Regular files; links are not followed. OSError when the directory itself cannot be read."""
    for folder, names, files in os.walk(directory, onerror=_complain_of(directory)):
        names[:] = [name for name in names if name != NOTES]
        for name in files:
            path = Path(folder, name)
            if path.is_file() and not path.is_symlink():
                yield path.relative_to(directory).as_posix()


def _complain_of(directory: Path) -> Callable[[OSError], None]:
    def complain(error: OSError) -> None:
        if error.filename == str(directory):
            raise ObjectMissing(f"{directory}: {(error.strerror or 'cannot be read').lower()}") from error

    return complain


def _remove_older(folder: Path, limit: float) -> None:
    """Whatever cannot be removed stays; somebody else may be at it."""
    for path in folder.rglob("*"):
        with suppress(OSError):
            if path.is_file() and path.stat().st_mtime < limit:
                path.unlink()
