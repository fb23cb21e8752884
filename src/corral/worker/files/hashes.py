"""SHA-256 of files, cached in memory and on disk beside the file as LocalAI's workers do; and the thread that flushes
received files to disk. Called from threads.

A hash on disk is valid only while it is not older than its file. A hash whose file has not reached the disk is
dated back until it has, so that after a power cut a damaged file is never trusted. A file that the thread does not
get to is only hashed once more.
"""

import contextlib
import hashlib
import logging
import os
import queue
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import msgspec

from corral.base.open_directories import look
from corral.worker.files import disk
from corral.worker.files.disk import hash_name

log = logging.getLogger(__name__)

PIECE: Final = 1024 * 1024
_MOST_REMEMBERED: Final = 4096
_HEX: Final = re.compile(r"[0-9a-f]{64}")
_SECOND_NS: Final = 10**9
_END_SECONDS: Final = 1.0
_FLUSHED_TOGETHER: Final = 64
"""Files after which their directories are flushed: of a thousand small ones in one directory, it would else be flushed
a thousand times."""

FileIdentity = tuple[int, int, int, int]


class Interrupted(OSError):
    """The worker is shutting down, so the hash is not needed."""


class Hashes:
    def __init__(self) -> None:
        self._remembered: OrderedDict[FileIdentity, str] = OrderedDict()
        self._lock = threading.Lock()
        self.stopping = threading.Event()
        """Set to abort all computations soon with Interrupted."""

    def known(self, directory: int, name: str) -> str:
        """Return the hash of a finished file if it is cached; else empty."""
        status = look(directory, name)
        if status is None:
            return ""
        with self._lock:
            remembered = self._remembered.get(_identity(status), "")
        written = None if remembered else look(directory, hash_name(name))
        if written is None or written.st_mtime_ns < status.st_mtime_ns:
            return remembered
        text = disk.read_text(directory, hash_name(name)).lower()
        return text if _HEX.fullmatch(text) else ""

    def of(self, directory: int, name: str) -> str:
        """Return the hash of a finished file, cached or computed. Raise OSError when the file cannot be read."""
        if cached := self.known(directory, name):
            return cached
        descriptor = disk.open_existing(directory, name)
        try:
            before = os.fstat(descriptor)
            digest = self.read(descriptor, hashlib.sha256()).hexdigest()
            after = os.fstat(descriptor)
            if _identity(before) == _identity(after):
                self.remember(after, digest)
                with contextlib.suppress(OSError):  # a full or read-only disk, or a too long name: this is only a cache
                    os.fsync(descriptor)
                    disk.write_text(directory, hash_name(name), digest)
        finally:
            os.close(descriptor)
        return digest

    def of_part(self, directory: int, name: str) -> str:
        """Return the hash of a partial upload. Not cached on disk, because it will change soon."""
        descriptor = disk.open_existing(directory, name)
        try:
            status = os.fstat(descriptor)
            with self._lock:
                remembered = self._remembered.get(_identity(status), "")
            return remembered or self.read(descriptor, hashlib.sha256(), status.st_size).hexdigest()
        finally:
            os.close(descriptor)

    def read(self, descriptor: int, hasher: "hashlib._Hash", length: int | None = None) -> "hashlib._Hash":
        """Feed the first `length` bytes, or the whole file, to a hasher. Does not use the file's position."""
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

    def remember(self, status: os.stat_result, digest: str) -> None:
        with self._lock:
            self._remembered[_identity(status)] = digest
            self._remembered.move_to_end(_identity(status))
            while len(self._remembered) > _MOST_REMEMBERED:
                self._remembered.popitem(last=False)

    def announce(self, directory: int, name: str, digest: str, status: os.stat_result) -> None:
        """Write the hash of a file that is not flushed yet; it is not valid until `confirm`."""
        self.remember(status, digest)
        with contextlib.suppress(OSError):  # as above
            disk.write_text(directory, hash_name(name), digest, mtime_ns=status.st_mtime_ns - _SECOND_NS)


def confirm(directory: int, name: str) -> None:
    """Make the hash valid: the file is flushed to disk."""
    os.utime(hash_name(name), dir_fd=directory, follow_symlinks=False)


def _identity(status: os.stat_result) -> FileIdentity:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class _Received(msgspec.Struct, frozen=True):
    """A file to flush, with duplicated descriptors that are closed at the end."""

    directory: int
    name: str
    file: int

    def close(self) -> None:
        os.close(self.directory)
        os.close(self.file)


class Settling:
    """A thread that flushes files, which may take minutes: it must delay neither a response nor the shutdown."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[_Received | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._is_closed = False

    def add(self, directory: int, name: str, file: int) -> None:
        """Queue a file. The descriptors are duplicated; the caller keeps its own."""
        with self._lock:
            if self._is_closed:
                return
            self._waiting.put(_Received(os.dup(directory), name, os.dup(file)))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="corral-files-settling", daemon=True)
                self._thread.start()

    def finish(self) -> None:
        """Wait until everything queued so far is flushed."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._waiting.put(None)
            thread.join()

    def close(self) -> None:
        """Stop: flush nothing more, and wait only briefly for the current file."""
        with self._lock:
            self._is_closed = True
            thread = self._thread
        with contextlib.suppress(queue.Empty):
            while True:
                if (received := self._waiting.get_nowait()) is not None:
                    received.close()
        if thread is not None:
            self._waiting.put(None)
            thread.join(_END_SECONDS)

    def _run(self) -> None:
        is_ended = False
        while not is_ended:
            batch, is_ended = self._next_batch()
            try:
                self._flush(batch)
            finally:
                for received in batch:
                    received.close()

    def _next_batch(self) -> tuple[list[_Received], bool]:
        """Wait for a file; return it with those that wait behind it, and whether the thread ends after them."""
        batch: list[_Received] = []
        received = self._waiting.get()
        while received is not None:
            batch.append(received)
            if len(batch) == _FLUSHED_TOGETHER or self._waiting.empty():
                return batch, False
            received = self._waiting.get()
        return batch, True

    def _flush(self, batch: Sequence[_Received]) -> None:
        """Bring files to disk, then their directories, each once however many of the files are in it."""
        flushed = [received for received in batch if not self._is_closed and _flushed(received.file, received.name)]
        directories = {_place(received.directory): received for received in flushed}
        durable = {place for place, received in directories.items() if _flushed(received.directory, received.name)}
        for received in flushed:
            if _place(received.directory) in durable:
                _confirm_received(received)


def _flushed(descriptor: int, name: str) -> bool:
    """Bring a file to disk, or the directory that names it; False when that failed."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        _log_unsettled(name, error)
        return False
    return True


def _place(directory: int) -> tuple[int, int]:
    status = os.fstat(directory)
    return status.st_dev, status.st_ino


def _confirm_received(received: _Received) -> None:
    directory, name = received.directory, received.name
    try:
        if disk.is_still(directory, name, received.file) and look(directory, hash_name(name)):
            confirm(directory, name)
    except OSError as error:
        _log_unsettled(name, error)


def _log_unsettled(name: str, error: OSError) -> None:
    log.warning("cannot bring %s to disk: %s", name, error.strerror, extra={"event": "files.not_settled"})
