"""SHA-256 of files, computed as seldom as possible: remembered here, and on disk beside the file as LocalAI's workers
remember it. And the thread that brings received files safely to disk. Called from threads.

A hash on disk counts only while it is not older than its file. That is also how one is marked as not yet safe: it is
dated back until its file has really reached the disk, so that after a power cut a file is never taken for what it was
going to be. What the thread does not get to only has to be hashed once more.
"""

import contextlib
import hashlib
import logging
import os
import queue
import re
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from corral.base.open_directories import look
from corral.worker.files import disk
from corral.worker.files.disk import hash_name

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


log = logging.getLogger(__name__)

_END_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Received:
    """Descriptors of its own, closed when it is done."""

    directory: int
    name: str
    file: int

    def close(self) -> None:
        os.close(self.directory)
        os.close(self.file)


class Settling:
    """One thread that nobody waits for: writing gigabytes back may take minutes, and must delay neither an answer nor
    the end of the worker."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[_Received | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._is_closed = False

    def add(self, directory: int, name: str, file: int) -> None:
        """Take care of a file from now on; the caller's descriptors stay the caller's."""
        with self._lock:
            if self._is_closed:
                return
            self._waiting.put(_Received(os.dup(directory), name, os.dup(file)))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="corral-files-settling", daemon=True)
                self._thread.start()

    def finish(self) -> None:
        """Wait for everything that was added so far."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._waiting.put(None)
            thread.join()

    def close(self) -> None:
        """Begin nothing more. Waits a moment for what is being written, and no longer."""
        with self._lock:
            self._is_closed = True
            thread = self._thread
        self._drop_waiting()
        if thread is not None:
            self._waiting.put(None)
            thread.join(_END_SECONDS)

    def _drop_waiting(self) -> None:
        while True:
            try:
                received = self._waiting.get_nowait()
            except queue.Empty:
                return
            if received is not None:
                received.close()

    def _run(self) -> None:
        while (received := self._waiting.get()) is not None:
            try:
                _settle(received)
            except OSError as error:
                log.warning(
                    "cannot bring %s to disk: %s", received.name, error.strerror, extra={"event": "files.not_settled"}
                )
            finally:
                received.close()


def _settle(received: _Received) -> None:
    os.fsync(received.file)
    os.fsync(received.directory)
    if disk.is_still(received.directory, received.name, received.file) and look(
        received.directory, hash_name(received.name)
    ):
        confirm(received.directory, received.name)
