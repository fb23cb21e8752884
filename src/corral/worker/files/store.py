"""What is in the three directories: finished files, unfinished uploads, and who may write which. May block: call it in
threads.

A file is received under another name and renamed when it is complete and its hash is right. Until then, and only to
readers over HTTP, the unfinished upload stands for the file, because that is how LocalAI's frontends find out where
to go on.
"""

import hashlib
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from corral.base.open_directories import Confined, ConfinedPath, PathEscapes, PathRefused, look, opened_directory
from corral.worker.files import disk
from corral.worker.files.disk import TARGET_SUFFIX, Room, hash_name, is_ours, part_name, target_name
from corral.worker.files.hashes import Hashes, Settling
from corral.worker.files.keys import Area, locate
from corral.worker.files.refusals import bad_request, failed, outside

MOST_UNFINISHED: Final = 256
"""Uploads whose hashing is remembered; others are read again when they go on."""


class FileKind(Enum):
    MISSING = "missing"
    DIRECTORY = "directory"
    PARTIAL = "partial"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLookup:
    """What a key leads to at this moment."""

    kind: FileKind
    name: str = ""
    """Of the file that holds the bytes, in the directory of the place."""
    size: int = 0
    target: str = ""
    """Of an unfinished upload: the hash that it will have, where the client said so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What is told of a file without its bytes."""

    path: Path
    size: int
    target: str = ""
    hash: str = ""


class Writers:
    """Who receives which file. Within this process; other processes are kept out by locks on the files."""

    def __init__(self) -> None:
        self._held: set[tuple[int, int, str]] = set()
        self._lock = threading.Lock()

    def hold(self, identity: tuple[int, int, str]) -> bool:
        """False when somebody else receives this file."""
        with self._lock:
            if identity in self._held:
                return False
            self._held.add(identity)
            return True

    def release(self, identity: tuple[int, int, str]) -> None:
        with self._lock:
            self._held.discard(identity)


class Unfinished:
    """How far the hashing of unfinished uploads has come, so that the next range goes on from there."""

    def __init__(self) -> None:
        self._hashers: OrderedDict[tuple[int, int], tuple[int, hashlib._Hash]] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, found: os.stat_result) -> "hashlib._Hash | None":
        """The hasher of exactly these bytes, if it is known; forgotten here."""
        with self._lock:
            size, hasher = self._hashers.pop((found.st_dev, found.st_ino), (-1, None))
        return hasher if size == found.st_size else None

    def keep(self, found: os.stat_result, hasher: "hashlib._Hash") -> None:
        with self._lock:
            self._hashers[found.st_dev, found.st_ino] = (found.st_size, hasher)
            while len(self._hashers) > MOST_UNFINISHED:
                self._hashers.popitem(last=False)


class FileStore:
    """The parts that reading and receiving share."""

    def __init__(self, directories: Mapping[Area, Path], *, room: Room | None = None) -> None:
        self.areas = {area: Confined(path) for area, path in directories.items()}
        self.hashes = Hashes()
        self.settling = Settling()
        self.writers = Writers()
        self.unfinished = Unfinished()
        self.room = room or Room()
        self._bases = {area: confined.base for area, confined in self.areas.items()}

    def close(self) -> None:
        self.hashes.stopping.set()
        self.settling.close()

    @contextmanager
    def place(self, key: str, *, create: bool = False) -> Iterator[ConfinedPath]:
        """Hold the directory that a key leads into. FileNotFoundError when a directory on the way is missing."""
        location = locate(key, self._bases)
        if any(map(is_ours, location.parts)):
            raise bad_request(f'path "{location.path}" is reserved')
        try:
            with self.areas[location.area].reach(location.parts, location.path, create=create) as place:
                yield place
        except PathEscapes as error:
            raise outside(location.path) from error
        except PathRefused as error:
            raise bad_request(error.message) from error

    def find(self, place: ConfinedPath) -> FileLookup:
        own = look(place.directory, place.name)
        if own is not None and not stat.S_ISREG(own.st_mode):
            return FileLookup(kind=FileKind.DIRECTORY if stat.S_ISDIR(own.st_mode) else FileKind.MISSING)
        part = look(place.directory, part_name(place.name))
        target = self.target(place)
        if part is not None and stat.S_ISREG(part.st_mode):
            return FileLookup(kind=FileKind.PARTIAL, name=part_name(place.name), size=part.st_size, target=target)
        if own is None:
            return FileLookup(kind=FileKind.MISSING)
        kind = (
            FileKind.PARTIAL if target else FileKind.FINISHED
        )  # a partial under the final name is LocalAI's, or just renamed
        return FileLookup(kind=kind, name=place.name, size=own.st_size, target=target)

    def target(self, place: ConfinedPath) -> str:
        return disk.read_text(place.directory, target_name(place.name)).lower()

    def head(self, key: str) -> Head | None:
        """None when there is no such file; refused for directories. Reads nothing but notes: see `digest`."""
        try:
            with self.place(key) as place:
                found = self.find(place)
                if found.kind is FileKind.DIRECTORY:
                    raise bad_request("path is a directory")
                if found.kind is FileKind.MISSING:
                    return None
                known = self.hashes.known(place.directory, found.name) if found.kind is FileKind.FINISHED else ""
                return Head(path=place.path, size=found.size, target=found.target, hash=known)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise failed("stat failed", error) from error

    def digest(self, key: str) -> str:
        """The hash of a file that has to be read for it, which may take minutes; of an unfinished one, so far. Empty
        when it cannot be had: then it is left out of the answer, and the peer sends the file."""
        try:
            with self.place(key) as place:
                found = self.find(place)
                read = self.hashes.of_part if found.kind is FileKind.PARTIAL else self.hashes.of
                return read(place.directory, found.name) if found.name else ""
        except OSError:
            return ""

    def open(self, key: str) -> int | None:
        """A descriptor to read from, of the caller's from now on; None for a directory. FileNotFoundError otherwise."""
        with self.place(key) as place:
            found = self.find(place)
            if found.kind is FileKind.DIRECTORY:
                return None
            if found.kind is FileKind.MISSING:
                raise FileNotFoundError(place.path)
            return disk.open_existing(place.directory, found.name)

    def listing(self, key: str) -> list[str]:
        """Every file below a directory, as LocalAI's worker walks it. FileNotFoundError when there is no directory."""
        with self.place(key) as place, opened_directory(place.name, place.directory) as directory:
            return list(_walk(directory, ""))

    def make_temporary(self, name: str) -> Path:
        """An empty file in the staging directory that a backend may write its output into."""
        with self.place(name) as place:
            os.close(disk.create(place.directory, place.name))
            return place.path

    def remove_everything(self, place: ConfinedPath) -> None:
        """The file, what was received of it, and what is known about it."""
        name = place.name
        disk.remove(place.directory, part_name(name), target_name(name), name, hash_name(name))


def _walk(directory: int, prefix: str) -> Iterator[str]:
    """In the order of names, a directory's files where its name stands. Links are not followed, nor are they files."""
    with os.scandir(directory) as entries:
        children = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries if not entry.is_symlink()}
    shown = {name for name in children if not is_ours(name)} | _unfinished(children)
    for name in sorted(shown, key=os.fsencode):
        if children.get(name):
            yield from _below(directory, name, prefix)
        elif name not in children or _is_regular(directory, name):
            yield prefix + name


def _unfinished(names: Mapping[str, bool]) -> set[str]:
    """Files of which a part was received, by the names that they will have."""
    wanted = (name.removesuffix(TARGET_SUFFIX) for name in names if name.endswith(TARGET_SUFFIX))
    return {name for name in wanted if part_name(name) in names}


def _is_regular(directory: int, name: str) -> bool:
    found = look(directory, name)
    return found is not None and stat.S_ISREG(found.st_mode)


def _below(directory: int, name: str, prefix: str) -> Sequence[str]:
    try:
        with opened_directory(name, directory) as inner:
            return list(_walk(inner, f"{prefix}{name}/"))
    except (FileNotFoundError, NotADirectoryError):
        return ()
