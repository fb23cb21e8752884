"""Cache of object storage on this worker's disk, and which paths may be used for it. Blocking: call it in threads.

Objects are stored under their keys, as in LocalAI's worker. A directory beside them, which is not listed, records
the version of each file: an object that was replaced is fetched again.
"""

import logging
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO, Final, Self

import msgspec

from corral.base.open_directories import (
    DIRECTORY_MODE,
    Confined,
    ConfinedPath,
    DirectoryUnusable,
    PathEscapes,
    PathRefused,
    look,
    opened_directory,
)
from corral.files.storage import ObjectMissing, StorageUnavailable, StoredObject
from corral.worker.files import disk

log = logging.getLogger(__name__)

TEMPORARY: Final = "staging-tmp"
EPHEMERAL: Final = "ephemeral"
NOTES: Final = ".corral"
RETENTION: Final = timedelta(hours=24)
"""How long files of a single request are kept. LocalAI's worker never removes them."""
_PARTIAL: Final = ".tmp"


class ObjectPlaces(msgspec.Struct, frozen=True, kw_only=True):
    """Directories of a worker for object storage, next to its models as in LocalAI's worker."""

    models: Path
    cache: Path
    data: Path

    @classmethod
    def beside(cls, models: Path) -> Self:
        models = models.absolute()
        return cls(models=models, cache=models.parent / "cache", data=models.parent / "data")

    @property
    def cached_models(self) -> tuple[Path, Path]:
        """Directory of model files, with the records of their versions."""
        return self.cache / "models", self.cache / NOTES / "models"

    @property
    def exchanged(self) -> tuple[Path, Path]:
        """Directories through which a LocalAI frontend and backends pass files of requests."""
        return self.cache / EPHEMERAL, self.cache / TEMPORARY

    def make(self) -> None:
        """Create the directories that backends use, before the first of them starts: what appears later is closed to
        a confined process. A directory that cannot be created is logged, and its files are refused later. Blocks."""
        for path in (self.cache, self.cache / NOTES, *self.cached_models, *self.exchanged):
            try:
                path.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
            except OSError as error:
                text = "files of the object storage cannot be used: cannot create %s: %s"
                log.warning(text, path, error.strerror, extra={"event": "objects.unusable"})


class Incoming:
    """An object that is being fetched, next to its final path. Closing it leaves no partial file."""

    def __init__(self, place: ConfinedPath, resources: ExitStack) -> None:
        self.place = place
        self._partial = place.name + _PARTIAL
        self._resources = resources
        disk.remove(place.directory, self._partial)
        self.file: BinaryIO = os.fdopen(disk.create(place.directory, self._partial), "wb")
        resources.callback(disk.remove, place.directory, self._partial)
        resources.callback(self.file.close)

    def commit(self) -> None:
        self.file.close()
        disk.rename(self.place.directory, self._partial, self.place.name)

    def close(self) -> None:
        self._resources.close()


class ObjectCache:
    def __init__(self, places: ObjectPlaces) -> None:
        self._cache = Confined(places.cache)
        self._models = Confined(places.models)
        self._data = Confined(places.data)

    def path(self, key: str) -> Path:
        """Return the path of an object in the cache. Raise PathRefused in LocalAI's words."""
        problem = f'key "{key}" escapes cache directory'
        path = _path(self._cache, key, problem)
        if path == self._cache.base or path.is_relative_to(self._cache.base / NOTES):
            raise PathRefused(problem)
        return path

    def has(self, path: Path) -> bool:
        """Whether any version of this object is cached."""
        return self._size(path) is not None

    def is_current(self, path: Path, stored: StoredObject) -> bool:
        """Whether the cached file is the stored version. After a LocalAI worker, which records none, compare sizes."""
        version = ""
        with suppress(OSError, PathRefused), self._reached(self._note_of(path)) as note:
            version = disk.read_text(note.directory, note.name)
        return self._size(path) == stored.size and version in ("", stored.etag)

    def begin(self, path: Path, size: int) -> Incoming:
        """Start a fetch. Check the free space first: a full disk would affect more than this file."""
        self._cache.base.mkdir(parents=True, exist_ok=True, mode=DIRECTORY_MODE)
        with ExitStack() as stack:
            place = stack.enter_context(self._reached(path, create=True))
            if size > (free := disk.free_bytes(place.directory)):
                raise StorageUnavailable(f"{path} needs {size} bytes, and the disk has {free}")
            return Incoming(place, stack.pop_all())

    def take_in(self, incoming: Incoming, stored: StoredObject) -> None:
        """Put a fetched file in place. Removes the version record first, so a crash only costs another fetch."""
        with self._reached(self._note_of(incoming.place.path), create=True) as note:
            disk.remove(note.directory, note.name)
            incoming.commit()
            disk.write_text(note.directory, note.name, stored.etag)

    def open_to_stage(self, local_path: str) -> BinaryIO:
        """Open a file of the cache or of the models. LocalAI's frontends also send keys with a leading slash."""
        problem = "path outside allowed directories"
        if not local_path or "\0" in local_path:
            raise PathRefused(problem)
        path = Path(os.path.realpath(local_path))
        for confined in (self._cache, self._models):
            if confined.parts(path):
                return _opened(confined, path, problem)
        for name, confined in (("/models/", self._models), ("/data/", self._data)):
            if local_path.startswith(name):
                return _opened(confined, _path(confined, local_path.removeprefix(name), problem), problem)
        raise PathRefused(problem)

    def listing(self, prefix: str) -> list[str]:
        """Return the regular files below a directory, following no links. ObjectMissing when it cannot be read."""
        confined, key = self._cache, prefix
        for name, other in (("models/", self._models), ("data/", self._data)):
            if prefix.startswith(name):
                confined, key = other, prefix.removeprefix(name)
        path = _path(confined, key, "invalid key prefix")
        try:
            with (
                _reached(confined, path, "invalid key prefix") as place,
                opened_directory(place.name, place.directory) as directory,
            ):
                return sorted(_files_below(directory))
        except DirectoryUnusable as error:
            raise ObjectMissing(f"{path}: no such file or directory") from error
        except OSError as error:
            raise ObjectMissing(f"{path}: {(error.strerror or 'cannot be read').lower()}") from error

    def new_temporary(self) -> Path:
        """Create an empty file that a backend can write to; remove expired ones."""
        self._cache.base.mkdir(parents=True, exist_ok=True, mode=DIRECTORY_MODE)
        limit = time.time() - RETENTION.total_seconds()
        for folder in (TEMPORARY, EPHEMERAL):
            # Files that cannot be removed are skipped: another task may be using them.
            with suppress(OSError, PathRefused), self._reached(self._cache.base / folder / "any") as place:
                for _, _, names, directory in os.fwalk(".", dir_fd=place.directory):
                    for name in names:
                        status = look(directory, name)
                        if status is not None and status.st_mtime < limit:
                            disk.remove(directory, name)
        name = f"localai-staging-{secrets.token_hex(8)}.tmp"
        with self._reached(self._cache.base / TEMPORARY / name, create=True) as place:
            os.close(disk.create(place.directory, place.name))
            return place.path

    def _size(self, path: Path) -> int | None:
        try:
            with self._reached(path) as place:
                status = look(place.directory, place.name)
        except (FileNotFoundError, NotADirectoryError, DirectoryUnusable):
            return None
        return status.st_size if status is not None and stat.S_ISREG(status.st_mode) else None

    def _note_of(self, path: Path) -> Path:
        return self._cache.base / NOTES / path.relative_to(self._cache.base)

    @contextmanager
    def _reached(self, path: Path, *, create: bool = False) -> Iterator[ConfinedPath]:
        problem = f'key "{path.relative_to(self._cache.base)}" escapes cache directory'
        with _reached(self._cache, path, problem, create=create) as place:
            yield place


def _path(confined: Confined, key: str, problem: str) -> Path:
    try:
        return confined.path(key)
    except PathEscapes as error:
        raise PathRefused(problem) from error


@contextmanager
def _reached(confined: Confined, path: Path, problem: str, *, create: bool = False) -> Iterator[ConfinedPath]:
    """Reach a path below a directory, or raise PathRefused with the caller's text."""
    try:
        with confined.reach(confined.parts(path) or (), path, create=create) as place:
            yield place
    except PathEscapes as error:
        raise PathRefused(problem) from error


def _files_below(directory: int) -> Iterator[str]:
    for folder, folders, names, here in os.fwalk(".", dir_fd=directory):
        folders[:] = [name for name in folders if name != NOTES]
        for name in names:
            status = look(here, name)
            if status is not None and stat.S_ISREG(status.st_mode):
                yield os.path.normpath(f"{folder}/{name}")


def _opened(confined: Confined, path: Path, problem: str) -> BinaryIO:
    try:
        with _reached(confined, path, problem) as place:
            return os.fdopen(disk.open_existing(place.directory, place.name), "rb")
    except (DirectoryUnusable, OSError) as error:
        raise ObjectMissing(f"opening {path} for upload: no such file") from error
