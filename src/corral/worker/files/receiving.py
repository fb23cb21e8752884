"""Files that are being received: from the decision to take them to the moment they have their name. May block: call it
in threads, one at a time for each file.
"""

import hashlib
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from corral.base.open_directories import ConfinedPath
from corral.wire.file_transfer import ContentRange
from corral.worker.files import disk, refusals
from corral.worker.files.names import new_name, target_name
from corral.worker.files.opening import Opening, Received, commit, promised, writing
from corral.worker.files.store import FileKind, FileStore


class Upload:
    """One file that is being received. It is this object's alone until it is closed.

    Writing and hashing are apart, so that two threads can do them at the same time; each sees all bytes in order.
    """

    def __init__(self, store: FileStore, place: ConfinedPath, received: Received, resources: ExitStack) -> None:
        self._store = store
        self._place = place
        self._name = received.name
        self._file = received.file
        self._promise = received.promise
        self._resources = resources
        self._hasher = store.unfinished.take(os.fstat(received.file))
        self._is_done = False
        self._begun_with = os.lseek(received.file, 0, os.SEEK_END)
        self._hashed = self._begun_with
        self.size = self._begun_with

    def reserve(self, count: int) -> None:
        """Have the disk set room aside for what is about to come. Then writing it takes far less of the kernel's time,
        and a disk that is full says so now. Refused then, which leaves nothing of the file."""
        try:
            if disk.reserve(self._file, self.size, count):
                self._promise.use(count)
        except OSError as error:
            self._discard()
            raise refusals.disk_full(error) from error

    def write(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Append. Refused when the disk is full, which leaves nothing of the file."""
        try:
            for piece in pieces:
                disk.write_all(self._file, piece)
                self.size += len(piece)
                self._promise.use(len(piece))
        except OSError as error:
            if error.errno in disk.FULL:
                self._discard()
                raise refusals.disk_full(error) from error
            os.ftruncate(self._file, self.size)
            raise refusals.failed("writing file", error) from error

    def hash(self, pieces: Sequence[bytes | memoryview]) -> None:
        hasher = self._caught_up()
        for piece in pieces:
            hasher.update(piece)
            self._hashed += len(piece)

    def finish(self, expected: str) -> Path:
        """Give the file its name if its hash is the expected one, or if none is expected; otherwise remove it."""
        digest = self._caught_up().hexdigest()
        if expected and expected != digest:
            self._is_done = True
            disk.remove(self._place.directory, self._name)
            self._store.remove_everything(self._place)
            raise refusals.wrong_hash(expected, digest)
        self._commit(digest)
        return self._place.path

    def close(self) -> None:
        """Whatever happened: let go of everything."""
        try:
            if not self._is_done:
                self._leave()
        finally:
            self._resources.close()

    def _caught_up(self) -> "hashlib._Hash":
        """What came in an earlier life has to be read again."""
        if self._hasher is None:
            self._hasher = self._store.hashes.read(self._file, hashlib.sha256(), self._begun_with)
        return self._hasher

    def _commit(self, digest: str) -> None:
        self._is_done = True
        commit(self._store, self._place, name=self._name, file=self._file, digest=digest)

    def _discard(self) -> None:
        self._is_done = True
        disk.remove(self._place.directory, self._name)

    def _leave(self) -> None:
        """It ends before it is complete."""
        raise NotImplementedError


class WholeUpload(Upload):
    """A file in one piece. It cannot be resumed, so what was received is of no use to anyone."""

    @classmethod
    def open(cls, store: FileStore, key: str, *, length: int | None) -> Self:
        """`length` is how many bytes will come, where that is known."""
        with ExitStack() as stack:
            place = stack.enter_context(store.place(key, create=True))
            if store.find(place).kind is FileKind.DIRECTORY:
                raise refusals.FileRefused(500, f"creating file: open {place.path}: is a directory")
            if not stack.enter_context(writing(store, place)):
                raise refusals.busy_whole()
            promise = promised(store, place, length or 0, stack)
            name = new_name()
            file = disk.create(place.directory, name)
            stack.callback(os.close, file)
            return cls(store, place, Received(name=name, file=file, promise=promise), stack.pop_all())

    def _leave(self) -> None:
        self._discard()


class RangedUpload(Upload):
    """A file in one or more ranges. What was received stays, and the next range goes on from there."""

    @classmethod
    def open(cls, store: FileStore, key: str, wanted: ContentRange, digest: str) -> "Self | Path":
        """The path of the file when all of it is there already, and right."""
        with ExitStack() as stack:
            place = stack.enter_context(store.place(key, create=True))
            opening = Opening(store, place, wanted, digest, stack)
            if opening.is_complete():
                return place.path
            return cls(store, place, opening.begin(), stack.pop_all())

    def expected(self, digest: str) -> str:
        """What the hash must be: as the client says now, else as it said with an earlier range."""
        return digest or self._store.target(self._place)

    def _leave(self) -> None:
        disk.give_back(self._file)
        if self._hasher is not None and self._hashed == self.size:
            self._store.unfinished.keep(os.fstat(self._file), self._hasher)

    def _discard(self) -> None:
        super()._discard()
        disk.remove(self._place.directory, target_name(self._place.name))
