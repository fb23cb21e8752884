"""SHA-256 of files, computed as seldom as possible: remembered here, and on disk beside the file as LocalAI's workers
remember it.

A hash on disk counts only while it is not older than its file. That is also how one is marked as not yet safe: it is
dated back until its file has really reached the disk, so that after a power cut a file is never taken for what it was
going to be. Called from threads.
"""

import contextlib
import hashlib
import os
import re
import threading
from collections import OrderedDict
from typing import Final

from corral.base.open_directories import look
from corral.worker.files import disk
from corral.worker.files.names import hash_name

PIECE: Final = 1024 * 1024
_MOST_REMEMBERED: Final = 4096
_HEX: Final = re.compile(r"[0-9a-f]{64}")
_SECOND_NS: Final = 10**9

FileIdentity = tuple[int, int, int, int]


class Interrupted(OSError):
    """The worker ends, so nobody needs the hash any more."""


class Hashes:
    def __init__(self) -> None:
        self._remembered: OrderedDict[FileIdentity, str] = OrderedDict()
        self._lock = threading.Lock()
        self.stopping = threading.Event()
        """Set to have every computation end soon, with Interrupted."""

    def known(self, directory: int, name: str) -> str:
        """Of a finished file, where it can be had without reading the file; else empty."""
        found = look(directory, name)
        if found is None:
            return ""
        with self._lock:
            remembered = self._remembered.get(_identity(found), "")
        return remembered or _on_disk(directory, name, found)

    def of(self, directory: int, name: str) -> str:
        """Of a finished file: known, or computed and kept. OSError when it cannot be read."""
        if known := self.known(directory, name):
            return known
        descriptor = disk.open_existing(directory, name)
        try:
            before = os.fstat(descriptor)
            digest = self.read(descriptor, hashlib.sha256()).hexdigest()
            after = os.fstat(descriptor)
            if _identity(before) == _identity(after):
                self._keep(directory, name, digest, descriptor)
        finally:
            os.close(descriptor)
        return digest

    def of_part(self, directory: int, name: str) -> str:
        """Of what was received so far. Not kept on disk: it will be another one soon."""
        descriptor = disk.open_existing(directory, name)
        try:
            found = os.fstat(descriptor)
            with self._lock:
                remembered = self._remembered.get(_identity(found), "")
            return remembered or self.read(descriptor, hashlib.sha256(), found.st_size).hexdigest()
        finally:
            os.close(descriptor)

    def read(self, descriptor: int, hasher: "hashlib._Hash", length: int | None = None) -> "hashlib._Hash":
        """Feed the beginning of an open file, or all of it, to a hasher. The file's position is not used."""
        offset = 0
        while length is None or offset < length:
            if self.stopping.is_set():
                raise Interrupted
            piece = os.pread(descriptor, PIECE if length is None else min(PIECE, length - offset), offset)
            if not piece:
                break
            hasher.update(piece)
            offset += len(piece)
        return hasher

    def remember(self, found: os.stat_result, digest: str) -> None:
        with self._lock:
            self._remembered[_identity(found)] = digest
            self._remembered.move_to_end(_identity(found))
            while len(self._remembered) > _MOST_REMEMBERED:
                self._remembered.popitem(last=False)

    def announce(self, directory: int, name: str, digest: str, found: os.stat_result) -> None:
        """Write the hash of a file that is not safe on disk yet: it does not count until `confirm`."""
        self.remember(found, digest)
        with contextlib.suppress(OSError):  # a disk that is full, or read-only, or short of names: it is only a cache
            disk.write_text(directory, hash_name(name), digest, mtime_ns=found.st_mtime_ns - _SECOND_NS)

    def _keep(self, directory: int, name: str, digest: str, descriptor: int) -> None:
        self.remember(os.fstat(descriptor), digest)
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
            disk.write_text(directory, hash_name(name), digest)


def confirm(directory: int, name: str) -> None:
    """The file is safe on disk: its hash counts from now on."""
    os.utime(hash_name(name), dir_fd=directory, follow_symlinks=False)


def _identity(found: os.stat_result) -> FileIdentity:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _on_disk(directory: int, name: str, found: os.stat_result) -> str:
    written = look(directory, hash_name(name))
    if written is None or written.st_mtime_ns < found.st_mtime_ns:
        return ""
    text = disk.read_text(directory, hash_name(name)).lower()
    return text if _HEX.fullmatch(text) else ""
