"""Receipts of files that were downloaded or hashed: their digests, which hold for as long as nobody touches the files.

A receipt knows its file by size, time and inode. It is written before the file gets its name, since a rename changes
none of them: after a kill in between it is still there, and a file of many gigabytes is never hashed twice. Blocks.
"""

import contextlib
import os
from pathlib import Path
from typing import Final

import msgspec

from corral.base.open_directories import Confined, PathRefused, look
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.hubs.downloads.partial_files import key_of

FOLDER: Final = (".corral", "receipts")
_LARGEST: Final = 64 * 1024


class FileReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """What a file held when it had this size, time and inode."""

    destination: str
    size: int
    modified: int
    """Time of the last change, in nanoseconds."""
    inode: int
    sha256: str
    digest: str
    """In the form in which it was promised: `sha256:…` or `git-sha1:…`."""
    purpose: str = ""
    """Whom it was downloaded for."""

    def is_of(self, status: os.stat_result) -> bool:
        return (self.size, self.modified, self.inode) == (status.st_size, status.st_mtime_ns, status.st_ino)

    def proves(self, digest: str, size: int | None, purpose: str) -> bool:
        """Whether the file is the one that was promised. Without a digest, one that came for the same purpose is."""
        if size not in (None, self.size):
            return False
        return digest in (f"sha256:{self.sha256}", self.digest) if digest else bool(purpose) and purpose == self.purpose


class Receipts:
    """The receipts of one directory, which several processes may share."""

    def __init__(self, base: Path) -> None:
        self._models = Confined(base)
        self._folder = self._models.base.joinpath(*FOLDER)

    def find(self, destination: str) -> FileReceipt | None:
        """The receipt of a file that is there and was not touched since; None: nothing is known."""
        with contextlib.suppress(OSError, PathRefused):
            path = self._models.path(destination)
            with self._models.reach(path.parts[len(self._models.base.parts) :], path) as place:
                status = look(place.directory, place.name)
            if status is not None and (receipt := self._read(destination)) is not None and receipt.is_of(status):
                return receipt
        return None

    def _read(self, destination: str) -> FileReceipt | None:
        name = _name_of(destination)
        with self._models.reach((*FOLDER, name), self._folder / name) as place:
            descriptor = os.open(place.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place.directory)
        with os.fdopen(descriptor, "rb") as file, contextlib.suppress(*UNREADABLE_JSON):
            receipt = msgspec.json.decode(file.read(_LARGEST), type=FileReceipt)
            return receipt if receipt.destination == destination else None
        return None

    def write(self, receipt: FileReceipt) -> None:
        """Keep a receipt. One that cannot be written is only missed: the file is then hashed again."""
        name = _name_of(receipt.destination)
        with (
            contextlib.suppress(OSError, PathRefused),
            self._models.reach((*FOLDER, name), self._folder / name, create=True) as place,
        ):
            fresh = f"{name}.{os.getpid()}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(fresh, flags, 0o644, dir_fd=place.directory), "wb") as file:
                file.write(msgspec.json.encode(receipt))
            os.rename(fresh, name, src_dir_fd=place.directory, dst_dir_fd=place.directory)

    def remove(self, destination: str) -> None:
        """A receipt turned out to be wrong."""
        name = _name_of(destination)
        with (
            contextlib.suppress(OSError, PathRefused),
            self._models.reach((*FOLDER, name), self._folder / name) as place,
        ):
            os.unlink(place.name, dir_fd=place.directory)

    def sweep(self, before: float) -> int:
        """Remove those from before this time (seconds since the epoch) whose files are gone or were changed. Return how
        many."""
        removed = 0
        with contextlib.suppress(OSError, PathRefused), self._models.reach((*FOLDER, "."), self._folder) as place:
            for name in os.listdir(place.directory):
                status = look(place.directory, name)
                if status is not None and status.st_mtime < before and not self._is_of_use(place.directory, name):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=place.directory)
                        removed += 1
        return removed

    def _is_of_use(self, folder: int, name: str) -> bool:
        with contextlib.suppress(OSError, *UNREADABLE_JSON):
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            with os.fdopen(descriptor, "rb") as file:
                receipt = msgspec.json.decode(file.read(_LARGEST), type=FileReceipt)
            return name == _name_of(receipt.destination) and self.find(receipt.destination) is not None
        return False


def _name_of(destination: str) -> str:
    return f"{key_of(destination)}.json"
