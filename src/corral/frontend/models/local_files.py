"""Files of the models directory that are sent to nodes: which there are, and their digests. Blocks: for threads.

A digest holds as long as the file has the same size, time and inode. It is kept in memory and, for large files, in the
models directory, as those of files that were downloaded are; so no frontend hashes a large file twice.
"""

import contextlib
import hashlib
import os
import secrets
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from corral.base.errors import CorralError
from corral.base.open_directories import Confined, PathRefused, look
from corral.files.file_peer import LocalFileChanged, TransferStopped
from corral.files.sending import FileMark
from corral.hubs.downloads.receipts import FileReceipt, Receipts

MOST_FILES: Final = 100_000
"""Most files of one model."""
_PIECE: Final = 1024 * 1024
_MOST_KEPT: Final = 200_000
_WORTH_A_RECEIPT: Final = 16 * 1024 * 1024
_SETTLED_SECONDS: Final = 2.0
"""A file that was written so shortly ago may be written again without a change of its time."""
_HASHERS: Final = 2
_LOOK_SECONDS: Final = 0.25
"""How often a thread that waits for a digest looks whether it shall stop."""
_SIDECARS: Final = (".sha256", ".sha256.target")
_PROOFS: Final = (".corral", "proofs")
_PROOF: Final = "proof-"
_LEFT_SECONDS: Final = 3600.0
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class LocalFileUnusable(CorralError):
    """A file of the models directory cannot be read."""

    code = "local_file_unusable"


class LocalFile(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    """Path below the models directory."""
    size: int


class LocalFiles:
    def __init__(self, directory: Path) -> None:
        self._models = Confined(directory)
        self._receipts = Receipts(directory)
        self._digests: OrderedDict[tuple[str, FileMark], str] = OrderedDict()
        self._hashing: dict[tuple[str, FileMark], threading.Event] = {}
        """Digests that are being computed; the event tells when that has ended, with or without a digest."""
        self._sent_unhashed: set[str] = set()
        """Files that are on their way to a node before their digest is known."""
        self._lock = threading.Lock()
        self._hashers = threading.BoundedSemaphore(_HASHERS)

    def below(self, paths: Iterable[str]) -> list[LocalFile]:
        """The files that are there of these, and those in the directories among them. Links lead nowhere outside."""
        files: dict[str, LocalFile] = {}
        for path in paths:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError, PathRefused):
                for file in self._below(path):
                    files.setdefault(file.path, file)
                    if len(files) > MOST_FILES:
                        raise LocalFileUnusable(f"{path}: a model may have {MOST_FILES} files, and this has more")
        return list(files.values())

    def _below(self, path: str) -> Iterator[LocalFile]:
        with self._reached(path) as (directory, name):
            status = look(directory, name)
            if status is None:
                return
            if stat.S_ISREG(status.st_mode):
                yield LocalFile(path=path, size=status.st_size)
            elif stat.S_ISDIR(status.st_mode):
                for top, _, names, folder in os.fwalk(name, dir_fd=directory):
                    below = Path(path, os.path.relpath(top, name))
                    yield from self._listed(str(below), names, folder)

    def _listed(self, below: str, names: list[str], folder: int) -> Iterator[LocalFile]:
        present = frozenset(names)
        for name in sorted(names):
            if any(name.endswith(suffix) and name.removesuffix(suffix) in present for suffix in _SIDECARS):
                continue  # it only tells the hash of another one
            path = f"{below}/{name}"
            with contextlib.suppress(OSError, CorralError):
                status = look(folder, name)
                if status is not None and stat.S_ISLNK(status.st_mode):
                    with self.opened(path) as (_, mark):
                        yield LocalFile(path=path, size=mark.size)
                elif status is not None and stat.S_ISREG(status.st_mode):
                    yield LocalFile(path=path, size=status.st_size)

    @contextmanager
    def opened(self, path: str) -> Iterator[tuple[int, FileMark]]:
        """Open a file: its descriptor, and the mark that identifies its content. LocalFileUnusable says why it cannot
        be read."""
        try:
            with self._reached(path) as (directory, name):
                descriptor = os.open(name, _OPEN, dir_fd=directory)
        except (OSError, PathRefused) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise LocalFileUnusable(f"{path} in the models directory cannot be read: {reason}") from error
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise LocalFileUnusable(f"{path} in the models directory is no file")
            yield descriptor, FileMark.of(status)
        finally:
            os.close(descriptor)

    @contextmanager
    def proof(self) -> Iterator[tuple[str, str]]:
        """A fresh file with random content: its path and its digest. A node that reports the same digest for this path
        shares this directory. LocalFileUnusable when nothing can be written there."""
        name, content = f"{_PROOF}{secrets.token_hex(16)}", secrets.token_bytes(32)
        path = "/".join((*_PROOFS, name))
        try:
            with self._models.reach((*_PROOFS, name), self._models.base / path, create=True) as place:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                with os.fdopen(os.open(name, flags, 0o644, dir_fd=place.directory), "wb") as file:
                    file.write(content)
                try:
                    yield path, hashlib.sha256(content).hexdigest()
                finally:
                    _clear_proofs(place.directory, name)
        except (OSError, PathRefused) as error:
            raise LocalFileUnusable(f"the models directory cannot be written: {error}") from error

    @contextmanager
    def _reached(self, path: str) -> Iterator[tuple[int, str]]:
        whole = self._models.path(path)
        with self._models.reach(whole.parts[len(self._models.base.parts) :], whole) as place:
            yield place.directory, place.name

    def known_digest(self, path: str, descriptor: int, mark: FileMark) -> str:
        """The SHA-256 of an open file if it was computed before, else an empty text."""
        with self._lock:
            digest = self._digests.get((path, mark), "")
        if not digest and mark.size >= _WORTH_A_RECEIPT:
            receipt = self._receipts.find(path)
            is_it = receipt is not None and receipt.is_of(os.fstat(descriptor))
            digest = receipt.sha256 if receipt is not None and is_it else ""
        return digest

    def is_hashing(self, path: str, mark: FileMark) -> bool:
        """Whether a thread is computing the digest of this version of a file."""
        with self._lock:
            return (path, mark) in self._hashing

    @contextmanager
    def sending_unhashed(self, path: str) -> Iterator[bool]:
        """Whether the caller is the one that may send this file before its digest is known: one at a time is."""
        with self._lock:
            is_first = path not in self._sent_unhashed
            self._sent_unhashed.add(path)
        try:
            yield is_first
        finally:
            if is_first:
                with self._lock:
                    self._sent_unhashed.remove(path)

    def digest(self, path: str, descriptor: int, mark: FileMark, *, stop: threading.Event) -> str:
        """The SHA-256 of an open file, known or computed. Threads that need the same one wait for the first of them."""
        while not (digest := self.known_digest(path, descriptor, mark)):
            with self._lock:
                others = self._hashing.get((path, mark))
                if others is None:
                    self._hashing[path, mark] = ended = threading.Event()
            if others is None:
                try:
                    return self._computed_digest(path, descriptor, mark, stop)
                finally:
                    with self._lock:
                        del self._hashing[path, mark]
                    ended.set()
            while not others.wait(_LOOK_SECONDS):
                if stop.is_set():
                    raise TransferStopped
        return digest

    def _computed_digest(self, path: str, descriptor: int, mark: FileMark, stop: threading.Event) -> str:
        while not self._hashers.acquire(timeout=_LOOK_SECONDS):
            if stop.is_set():
                raise TransferStopped
        try:
            digest = _hash(path, descriptor, mark, stop)
        finally:
            self._hashers.release()
        if time.time() - mark.modified / 1e9 > _SETTLED_SECONDS:
            self._keep(path, mark, digest)
        return digest

    def known_digests(self, files: Iterable[LocalFile]) -> dict[str, str]:
        """The SHA-256 of those of these files that need not be computed, by path."""
        with self._lock:
            cached = {(path, mark.size): digest for (path, mark), digest in self._digests.items()}
        digests = {file.path: cached.get((file.path, file.size)) or self._receipt_of(file) for file in files}
        return {path: digest for path, digest in digests.items() if digest}

    def _receipt_of(self, file: LocalFile) -> str:
        receipt = self._receipts.find(file.path) if file.size >= _WORTH_A_RECEIPT else None
        return receipt.sha256 if receipt is not None and receipt.size == file.size else ""

    def forget(self, path: str, mark: FileMark) -> None:
        """A digest turned out to be wrong."""
        with self._lock:
            self._digests.pop((path, mark), None)
        self._receipts.remove(path)

    def _keep(self, path: str, mark: FileMark, digest: str) -> None:
        with self._lock:
            self._digests[path, mark] = digest
            while len(self._digests) > _MOST_KEPT:
                self._digests.popitem(last=False)
        if mark.size >= _WORTH_A_RECEIPT:
            self._receipts.write(
                FileReceipt(
                    destination=path,
                    size=mark.size,
                    modified=mark.modified,
                    inode=mark.inode,
                    sha256=digest,
                    digest=f"sha256:{digest}",
                )
            )


def _clear_proofs(directory: int, proof_name: str) -> None:
    """Remove a proof, with the hash that a worker left beside it, and what somebody who was killed left."""
    before = time.time() - _LEFT_SECONDS
    for name in os.listdir(directory):
        status = look(directory, name)
        is_left = name.startswith(_PROOF) and status is not None and status.st_mtime < before
        if name.startswith(proof_name) or is_left:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=directory)


def _hash(path: str, descriptor: int, mark: FileMark, stop: threading.Event) -> str:
    hasher, offset = hashlib.sha256(), 0
    while piece := os.pread(descriptor, _PIECE, offset):
        if stop.is_set():
            raise TransferStopped
        hasher.update(piece)
        offset += len(piece)
    if offset != mark.size or FileMark.of(os.fstat(descriptor)) != mark:
        raise LocalFileChanged(f"{path} changed while it was read")
    return hasher.hexdigest()
