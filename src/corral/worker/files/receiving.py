"""Receives files: who may send one, where it resumes, and how it gets its final name. Blocking: call it in threads,
one at a time per file."""

import errno
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from corral.base.open_directories import HERE, ConfinedPath, look
from corral.wire.files import ContentRange
from corral.worker.files import disk, refusals
from corral.worker.files.disk import Promise, hash_name, new_name, part_name, target_name
from corral.worker.files.judging import Present, RangeVerdict, judge
from corral.worker.files.store import FileKind, FileLookup, FileStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """The file that an upload is written into."""

    name: str
    """Temporary name until it is complete."""
    file: int
    promise: Promise


class Opening:
    """Decides what to do with a range, while the file is locked."""

    def __init__(
        self, store: FileStore, place: ConfinedPath, span: ContentRange, digest: str, resources: ExitStack
    ) -> None:
        self._store = store
        self._place = place
        self._part = part_name(place.name)
        self._span = span
        self._digest = digest
        self._resources = resources
        self._file: int | None = None
        self._present = store.find(place)
        if self._present.kind is FileKind.DIRECTORY or place.name == HERE:
            raise refusals.is_directory()
        if not resources.enter_context(writing(store, place)):
            raise self._busy()
        self._present = self._claimed()

    def is_complete(self) -> bool:
        """Whether all bytes arrived before, although the sender does not know it. The file may only have to be
        renamed."""
        present, span = self._present, self._span
        if not self._digest or span.start or present.size != span.total or not self._is_right():
            return False
        if present.kind is FileKind.PARTIAL and self._file is not None:
            commit(self._store, self._place, name=self._part, file=self._file, digest=self._digest)
            self._present = self._store.find(self._place)
        return span.is_whole

    def begin(self) -> Received:
        """Return the file that the range is appended to."""
        lookup = self._present
        hashes, directory = self._store.hashes, self._place.directory
        digest = hashes.known(directory, lookup.name) if lookup.kind is FileKind.FINISHED else ""
        present = Present(size=lookup.size, target=lookup.target, hash=digest)
        match judge(self._span, self._digest, present):
            case RangeVerdict.CONFLICT:
                self._store.remove_everything(self._place)
                raise refusals.other_upload(lookup.target, self._digest)
            case RangeVerdict.ELSEWHERE:
                raise refusals.elsewhere(self._span.start, lookup.size, self._span.total)
            case RangeVerdict.RESTART:
                self._forget_part()
            case RangeVerdict.APPEND:
                self._take_over_finished()
        return self._ready()

    def _claimed(self) -> FileLookup:
        """Return what is there, with the unfinished upload locked against other processes."""
        directory, lookup = self._place.directory, self._store.find(self._place)
        if lookup.kind is not FileKind.PARTIAL:
            return lookup
        if lookup.name == self._place.name:  # a partial file as LocalAI's worker leaves it
            disk.rename(directory, lookup.name, self._part)
        self._open_part()
        return self._store.find(self._place)

    def _open_part(self) -> None:
        file = disk.open_existing(self._place.directory, self._part, os.O_RDWR)
        self._resources.callback(os.close, file)
        if not disk.hold(file) or not disk.is_still(self._place.directory, self._part, file):
            raise self._busy()
        disk.give_back(file)  # free what a killed worker had reserved
        self._file = file

    def _is_right(self) -> bool:
        directory, lookup = self._place.directory, self._present
        if lookup.kind is FileKind.FINISHED:
            return self._store.hashes.of(directory, lookup.name) == self._digest
        is_meant = lookup.kind is FileKind.PARTIAL and lookup.target == self._digest
        return is_meant and self._store.hashes.of_part(directory, lookup.name) == self._digest

    def _forget_part(self) -> None:
        """Drop the partial upload. A finished file stays until the new one is complete."""
        disk.remove(self._place.directory, target_name(self._place.name))
        if self._file is not None:
            os.ftruncate(self._file, 0)

    def _take_over_finished(self) -> None:
        """Append to a file that was considered finished, because its first ranges came without a hash."""
        if self._present.kind is FileKind.FINISHED and self._present.size:
            disk.remove(self._place.directory, hash_name(self._place.name))
            disk.rename(self._place.directory, self._place.name, self._part)
            self._open_part()

    def _ready(self) -> Received:
        size = 0 if self._file is None else os.fstat(self._file).st_size
        promise = promised(self._store, self._place, self._span.total - size, self._resources)
        file = self._create_part() if self._file is None else self._file
        if self._digest and self._digest != self._store.target(self._place):
            self._write_target()
        return Received(name=self._part, file=file, promise=promise)

    def _create_part(self) -> int:
        disk.remove_odd(self._place.directory, self._part)
        try:
            file = disk.create(self._place.directory, self._part)
        except FileExistsError as error:  # another process created it just now
            raise self._busy() from error
        self._resources.callback(os.close, file)
        return file

    def _write_target(self) -> None:
        try:
            disk.write_text(self._place.directory, target_name(self._place.name), self._digest)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return  # the upload itself works; it only cannot be resumed
            disk.remove(self._place.directory, self._part)
            raise

    def _busy(self) -> refusals.FileRefused:
        return refusals.busy(self._present.size, self._span.total)


def commit(store: FileStore, place: ConfinedPath, *, name: str, file: int, digest: str) -> None:
    """Give a received file its final name. It survives a crash from here on; its hash becomes valid after the flush."""
    if not disk.is_still(place.directory, name, file):
        raise refusals.FileRefused(409, "the upload was replaced by another one; restart from byte 0")
    disk.let_go(file)
    disk.rename(place.directory, name, place.name)
    disk.remove(place.directory, target_name(place.name), part_name(place.name))
    store.hashes.announce(place.directory, place.name, digest, os.fstat(file))
    store.settling.add(place.directory, place.name, file)


@contextmanager
def writing(store: FileStore, place: ConfinedPath) -> Iterator[bool]:
    """Become the only receiver of this file in this process; False when there is another one."""
    identity = place.identity
    if not store.writers.hold(identity):
        yield False
        return
    try:
        yield True
    finally:
        store.writers.release(identity)


def promised(store: FileStore, place: ConfinedPath, needed: int, resources: ExitStack) -> Promise:
    """Promise space for the upload, or refuse it. If necessary, remove the file that is being replaced first."""
    device = os.fstat(place.directory).st_dev
    free = store.room.free(place.directory, device)
    if needed > free:
        _make_room(place, needed, free)
    promise = store.room.promise(device, needed)
    resources.callback(promise.close)
    return promise


def _make_room(place: ConfinedPath, needed: int, free: int) -> None:
    old = look(place.directory, place.name)
    reclaimed = 0 if old is None or old.st_nlink > 1 else old.st_blocks * 512
    if needed > free + reclaimed:
        raise refusals.no_room(needed, max(free, 0))
    disk.remove(place.directory, place.name, hash_name(place.name))


class Upload:
    """One file that is being received, exclusively until it is closed.

    `write` and `hash` are separate, so that two threads can run them in parallel; each gets all bytes in order.
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
        """Reserve disk space for the expected bytes, which makes writing cheaper. Refuse the upload and remove the
        file when the disk is full."""
        try:
            if disk.reserve(self._file, self.size, count):
                self._promise.use(count)
        except OSError as error:
            self._discard()
            raise refusals.disk_full(error) from error

    def write(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Append. Refuse the upload and remove the file when the disk is full."""
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
        """Give the file its name if its hash is as expected, or nothing is expected; otherwise remove it."""
        digest = self._caught_up().hexdigest()
        if expected and expected != digest:
            self._is_done = True
            disk.remove(self._place.directory, self._name)
            self._store.remove_everything(self._place)
            raise refusals.wrong_hash(expected, digest)
        self._commit(digest)
        return self._place.path

    def close(self) -> None:
        """Release all resources, whatever happened."""
        try:
            if not self._is_done:
                self._leave()
        finally:
            self._resources.close()

    def _caught_up(self) -> "hashlib._Hash":
        """Return the hasher; first feed it what was received before a restart."""
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
        """Called when the upload ends before it is complete."""
        raise NotImplementedError


class WholeUpload(Upload):
    """A file in one piece. It cannot be resumed, so a partial one is removed."""

    @classmethod
    def open(cls, store: FileStore, key: str, *, length: int | None) -> Self:
        """Begin. `length` is the number of bytes, if known."""
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
    """A file in one or more ranges. What was received stays, and the next range continues there."""

    @classmethod
    def open(cls, store: FileStore, key: str, span: ContentRange, digest: str) -> "Self | Path":
        """Begin, or return the path of the file when all of it is there already with the right hash."""
        with ExitStack() as stack:
            place = stack.enter_context(store.place(key, create=True))
            opening = Opening(store, place, span, digest, stack)
            if opening.is_complete():
                return place.path
            return cls(store, place, opening.begin(), stack.pop_all())

    def expected(self, digest: str) -> str:
        """Return the expected hash: from this request, else from an earlier range."""
        return digest or self._store.target(self._place)

    def _leave(self) -> None:
        disk.give_back(self._file)
        if self._hasher is not None and self._hashed == self.size:
            self._store.unfinished.keep(os.fstat(self._file), self._hasher)

    def _discard(self) -> None:
        super()._discard()
        disk.remove(self._place.directory, target_name(self._place.name))
