"""Files that are being received: who may send one, what it goes on from, and how it gets its name. Blocks: call it in
threads, one at a time for each file.
"""

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
    """What an upload is written into."""

    name: str
    """Until it is complete."""
    file: int
    promise: Promise


class Opening:
    """Decides what to do with a range, while nobody else can change what it is decided on."""

    def __init__(
        self, store: FileStore, place: ConfinedPath, wanted: ContentRange, digest: str, resources: ExitStack
    ) -> None:
        self._store = store
        self._place = place
        self._part = part_name(place.name)
        self._wanted = wanted
        self._digest = digest
        self._resources = resources
        self._file: int | None = None
        self._found = store.find(place)
        if self._found.kind is FileKind.DIRECTORY or place.name == HERE:
            raise refusals.is_directory()
        if not resources.enter_context(writing(store, place)):
            raise self._busy()
        self._found = self._claimed()

    def is_complete(self) -> bool:
        """Everything came before, but the sender never heard so: then the file may only have to be renamed."""
        found, wanted = self._found, self._wanted
        if not self._digest or wanted.start or found.size != wanted.total or not self._is_right():
            return False
        if found.kind is FileKind.PARTIAL and self._file is not None:
            commit(self._store, self._place, name=self._part, file=self._file, digest=self._digest)
            self._found = self._store.find(self._place)
        return wanted.is_whole

    def begin(self) -> Received:
        """What the range is to be appended to."""
        found = self._found
        known = self._store.hashes.known(self._place.directory, found.name) if found.kind is FileKind.FINISHED else ""
        present = Present(size=found.size, target=found.target, hash=known)
        match judge(self._wanted, self._digest, present):
            case RangeVerdict.CONFLICT:
                self._store.remove_everything(self._place)
                raise refusals.other_upload(found.target, self._digest)
            case RangeVerdict.ELSEWHERE:
                raise refusals.elsewhere(self._wanted.start, found.size, self._wanted.total)
            case RangeVerdict.RESTART:
                self._forget_part()
            case RangeVerdict.APPEND:
                self._take_over_finished()
        return self._ready()

    def _claimed(self) -> FileLookup:
        """What is there, with the unfinished upload locked against other processes."""
        directory, found = self._place.directory, self._store.find(self._place)
        if found.kind is not FileKind.PARTIAL:
            return found
        if found.name == self._place.name:  # as LocalAI's worker leaves it
            disk.rename(directory, found.name, self._part)
        self._open_part()
        return self._store.find(self._place)

    def _open_part(self) -> None:
        file = disk.open_existing(self._place.directory, self._part, os.O_RDWR)
        self._resources.callback(os.close, file)
        if not disk.hold(file) or not disk.is_still(self._place.directory, self._part, file):
            raise self._busy()
        disk.give_back(file)  # what a worker that was killed had reserved
        self._file = file

    def _is_right(self) -> bool:
        directory, found = self._place.directory, self._found
        if found.kind is FileKind.FINISHED:
            return self._store.hashes.of(directory, found.name) == self._digest
        is_meant = found.kind is FileKind.PARTIAL and found.target == self._digest
        return is_meant and self._store.hashes.of_part(directory, found.name) == self._digest

    def _forget_part(self) -> None:
        """Begin anew. A finished file stays until the new one is complete."""
        disk.remove(self._place.directory, target_name(self._place.name))
        if self._file is not None:
            os.ftruncate(self._file, 0)

    def _take_over_finished(self) -> None:
        """More is appended to what was taken for finished, because its first ranges came without a hash."""
        if self._found.kind is FileKind.FINISHED and self._found.size:
            disk.remove(self._place.directory, hash_name(self._place.name))
            disk.rename(self._place.directory, self._place.name, self._part)
            self._open_part()

    def _ready(self) -> Received:
        size = 0 if self._file is None else os.fstat(self._file).st_size
        promise = promised(self._store, self._place, self._wanted.total - size, self._resources)
        file = self._create_part() if self._file is None else self._file
        if self._digest and self._digest != self._store.target(self._place):
            self._write_target()
        return Received(name=self._part, file=file, promise=promise)

    def _create_part(self) -> int:
        disk.remove_odd(self._place.directory, self._part)
        try:
            file = disk.create(self._place.directory, self._part)
        except FileExistsError as error:  # by another process, just now
            raise self._busy() from error
        self._resources.callback(os.close, file)
        return file

    def _write_target(self) -> None:
        try:
            disk.write_text(self._place.directory, target_name(self._place.name), self._digest)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return  # the file itself has a name; it only cannot be resumed
            disk.remove(self._place.directory, self._part)
            raise

    def _busy(self) -> refusals.FileRefused:
        return refusals.busy(self._found.size, self._wanted.total)


def commit(store: FileStore, place: ConfinedPath, *, name: str, file: int, digest: str) -> None:
    """Give a received file its name. From here on it is there, also after a crash; its hash counts a little later."""
    if not disk.is_still(place.directory, name, file):
        raise refusals.FileRefused(409, "the upload was replaced by another one; restart from byte 0")
    disk.let_go(file)
    disk.rename(place.directory, name, place.name)
    disk.remove(place.directory, target_name(place.name), part_name(place.name))
    store.hashes.announce(place.directory, place.name, digest, os.fstat(file))
    store.settling.add(place.directory, place.name, file)


@contextmanager
def writing(store: FileStore, place: ConfinedPath) -> Iterator[bool]:
    """Be the only one in this process who receives this file; False when another one is."""
    identity = place.identity
    if not store.writers.hold(identity):
        yield False
        return
    try:
        yield True
    finally:
        store.writers.release(identity)


def promised(store: FileStore, place: ConfinedPath, needed: int, resources: ExitStack) -> Promise:
    """Have room for so many bytes, or be refused. If it must be, the file that is replaced makes room first."""
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
