"""The content of the three directories: finished files, unfinished uploads, and their writers. Blocking: call it in
threads.

A file is received under a temporary name and renamed when it is complete and its hash is right. Until then HTTP
readers see the unfinished upload in its place, because that is how LocalAI's frontends find out where to resume.
"""

import hashlib
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from corral.base.open_directories import Confined, ConfinedPath, PathEscapes, PathRefused, look, opened_directory
from corral.hubs.downloads.orders import DownloadError
from corral.hubs.downloads.partial_files import FOLDER, PartialFolder
from corral.worker.files import disk
from corral.worker.files.disk import TARGET_SUFFIX, Room, hash_name, is_ours, part_name, target_name
from corral.worker.files.hashes import Hashes, Settling
from corral.worker.files.keys import Area, locate
from corral.worker.files.refusals import bad_request, failed, outside

MOST_UNFINISHED: Final = 256
"""Maximum number of uploads whose hash state is kept; others are read again when they resume."""

_PULLED_HERE: Final = (".corral", "store")
"""Where frontends that pull models into a directory have its id."""


class FileKind(Enum):
    MISSING = "missing"
    DIRECTORY = "directory"
    PARTIAL = "partial"
    FINISHED = "finished"


class FileLookup(msgspec.Struct, frozen=True, kw_only=True):
    """What a key refers to at this moment."""

    kind: FileKind
    name: str = ""
    """Name of the file with the bytes, in the directory of the place."""
    size: int = 0
    target: str = ""
    """Expected hash of an unfinished upload, if the client stated it."""


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """Metadata of a file."""

    path: Path
    size: int
    target: str = ""
    hash: str = ""


class Writers:
    """Which files are being received by this process. Locks on the files exclude other processes."""

    def __init__(self) -> None:
        self._held: set[tuple[int, int, str]] = set()
        self._lock = threading.Lock()

    @contextmanager
    def only(self, identity: tuple[int, int, str]) -> Iterator[bool]:
        """Become the only receiver of a file in this process; False when there is another one."""
        with self._lock:
            is_only = identity not in self._held
            self._held.add(identity)
        try:
            yield is_only
        finally:
            if is_only:
                with self._lock:
                    self._held.discard(identity)


class Unfinished:
    """Hash states of unfinished uploads, so that the next range can continue."""

    def __init__(self) -> None:
        self._hashers: OrderedDict[tuple[int, int], tuple[int, hashlib._Hash]] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, status: os.stat_result) -> "hashlib._Hash | None":
        """Remove and return the hasher of exactly these bytes, if there is one."""
        with self._lock:
            size, hasher = self._hashers.pop((status.st_dev, status.st_ino), (-1, None))
        return hasher if size == status.st_size else None

    def keep(self, status: os.stat_result, hasher: "hashlib._Hash") -> None:
        with self._lock:
            self._hashers[status.st_dev, status.st_ino] = (status.st_size, hasher)
            while len(self._hashers) > MOST_UNFINISHED:
                self._hashers.popitem(last=False)


class FileStore:
    """The served directories with their hashes, their disk space, and the uploads under way."""

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
        """Open the directory that a key leads into. Raise FileNotFoundError when a directory on the way is missing."""
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
        kind = FileKind.PARTIAL if target else FileKind.FINISHED  # partial: LocalAI's own, or just renamed
        return FileLookup(kind=kind, name=place.name, size=own.st_size, target=target)

    def target(self, place: ConfinedPath) -> str:
        return disk.read_text(place.directory, target_name(place.name)).lower()

    def head(self, key: str) -> Head | None:
        """Return None when there is no such file; refuse directories. Does not read the file: see `digest`."""
        try:
            with self.place(key) as place:
                lookup = self.find(place)
                if lookup.kind is FileKind.DIRECTORY:
                    raise bad_request("path is a directory")
                if lookup.kind is FileKind.MISSING:
                    return None
                digest = self.hashes.known(place.directory, lookup.name) if lookup.kind is FileKind.FINISHED else ""
                return Head(path=place.path, size=lookup.size, target=lookup.target, hash=digest)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise failed("stat failed", error) from error

    def digest(self, key: str) -> str:
        """Compute the hash of a file, or of the received part, which may take minutes. Empty when it fails: then the
        response has none, and the peer sends the file."""
        try:
            with self.place(key) as place:
                lookup = self.find(place)
                read = self.hashes.of_part if lookup.kind is FileKind.PARTIAL else self.hashes.of
                return read(place.directory, lookup.name) if lookup.name else ""
        except OSError:
            return ""

    def open(self, key: str) -> int | None:
        """Open a file for the caller; None for a directory. Raise FileNotFoundError when it is missing."""
        with self.place(key) as place:
            lookup = self.find(place)
            if lookup.kind is FileKind.DIRECTORY:
                return None
            if lookup.kind is FileKind.MISSING:
                raise FileNotFoundError(place.path)
            return disk.open_existing(place.directory, lookup.name)

    def listing(self, key: str) -> list[str]:
        """Return every file below a directory, in the order of LocalAI's worker. FileNotFoundError without it."""
        with self.place(key) as place, opened_directory(place.name, place.directory) as directory:
            return list(_walk(directory, ""))

    def make_temporary(self, name: str) -> Path:
        """Create an empty file in the staging directory for a backend's output."""
        with self.place(name) as place:
            os.close(disk.create(place.directory, place.name))
            return place.path

    def path_below(self, key: str, area: Area) -> str:
        """Return the path of a key below the directory of its area, which must be this one."""
        location = locate(key, self._bases)
        if location.area is not area or any(map(is_ours, location.parts)):
            raise bad_request(f"the key does not name a file below {area}/")
        return "/".join(location.parts)

    def adopt(self, key: str, digest: str, size: int) -> Path:
        """Take over a file that a child process has put in its place and on the disk, with this digest."""
        with self.place(key) as place:
            status = look(place.directory, place.name)
            if status is None or not stat.S_ISREG(status.st_mode) or status.st_size != size:
                raise bad_request(f"{place.name} is not what was fetched")
            disk.remove(place.directory, part_name(place.name), target_name(place.name))
            self.hashes.remember(status, digest)
            with suppress(OSError):  # a name that is too long for another one beside it
                disk.write_text(place.directory, hash_name(place.name), digest)
            return place.path

    def forget_download(self, path: Path) -> None:
        """Remove what a child process downloaded of a model file that has come on another way, unless it goes on."""
        base = self.areas[Area.MODELS].base
        with suppress(OSError, DownloadError):  # the sweeper finds what is left
            if path.is_relative_to(base) and base.joinpath(*FOLDER).is_dir():
                with PartialFolder(base) as folder:
                    folder.forget(str(path.relative_to(base)))

    def sweep_downloads(self, before: float) -> int:
        """Remove what was downloaded of model files and not written to since this time. Return how many files went.

        Not where frontends pull models to: they know what their pulls go on with, which may have waited for longer.
        """
        base = self.areas[Area.MODELS].base
        with suppress(OSError, DownloadError):
            if base.joinpath(*FOLDER).is_dir() and not base.joinpath(*_PULLED_HERE).exists():
                with PartialFolder(base) as folder:
                    return folder.sweep(before)
        return 0

    def remove_everything(self, place: ConfinedPath) -> None:
        """Remove the file, its partial upload, and its hash files."""
        name = place.name
        disk.remove(place.directory, part_name(name), target_name(name), name, hash_name(name))


def _walk(directory: int, prefix: str) -> Iterator[str]:
    """Yield files sorted by name, those of a subdirectory in its position. Links are neither followed nor listed.

    A file with a partial upload is listed by its final name.
    """
    with os.scandir(directory) as entries:
        children = {entry.name: entry for entry in entries if not entry.is_symlink()}
    targets = {name.removesuffix(TARGET_SUFFIX) for name in children if name.endswith(TARGET_SUFFIX)}
    visible = {name for name in children if not is_ours(name)}
    visible |= {name for name in targets if part_name(name) in children}
    for name in sorted(visible, key=os.fsencode):
        if name in children and children[name].is_dir(follow_symlinks=False):
            with suppress(FileNotFoundError, NotADirectoryError), opened_directory(name, directory) as inner:
                yield from _walk(inner, f"{prefix}{name}/")
        elif name not in children or children[name].is_file(follow_symlinks=False):
            yield prefix + name
