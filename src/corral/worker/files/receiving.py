"""Receives files: who may send one, where it resumes, and how it gets its final name. Blocking: call it in threads,
one at a time per file."""

import errno
import hashlib
import os
from collections.abc import Sequence
from contextlib import ExitStack
from enum import Enum
from pathlib import Path
from typing import Self

import msgspec

from corral.base.open_directories import HERE, ConfinedPath, look
from corral.wire.files import ContentRange, is_pending
from corral.worker.files import disk, refusals
from corral.worker.files.disk import Promise, hash_name, new_name, part_name, target_name
from corral.worker.files.store import FileKind, FileStore


class RangeVerdict(Enum):
    APPEND = "append"
    RESTART = "restart"
    """What is there belongs to another file: start again with this range."""
    CONFLICT = "conflict"
    """The range continues another file than the one that was begun: drop that one and refuse."""
    ELSEWHERE = "elsewhere"
    """The range does not begin where the file ends."""


def judge(span: ContentRange, digest: str, *, size: int = 0, target: str = "", stored: str = "") -> RangeVerdict:
    """Decide what to do with a range. Pure: LocalAI's rules, and digests that follow with a later range.

    `digest` is the expected hash of the whole file as the client states it, `target` as an earlier range stated it, and
    `stored` the hash of a finished file; each is empty when it is unknown. `size` is what was received so far.
    """
    is_late = is_pending(target) and not is_pending(digest)
    if span.start == 0 and size > 0:
        if not digest or (target or stored) != digest:
            return RangeVerdict.RESTART
        if target and size >= span.total:  # all bytes are there but the hash is wrong
            return RangeVerdict.RESTART
    elif span.start > 0 and digest and target and target != digest and not is_late:
        return RangeVerdict.CONFLICT
    return RangeVerdict.APPEND if span.start == size else RangeVerdict.ELSEWHERE


class Received(msgspec.Struct, frozen=True, kw_only=True):
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
            raise refusals.bad_request("destination is a directory")
        if not resources.enter_context(store.writers.only(place.identity)):
            raise self._busy()
        self._present = store.find(place)
        if self._present.kind is FileKind.PARTIAL:  # to be locked against other processes
            if self._present.name == place.name:  # as LocalAI's worker leaves it
                disk.rename(place.directory, place.name, self._part)
            self._open_part()
            self._present = store.find(place)

    def is_complete(self) -> bool:
        """Whether all bytes arrived before, although the sender does not know it. Renames the file if need be."""
        present, span, hashes = self._present, self._span, self._store.hashes
        if not self._digest or is_pending(self._digest) or span.start or present.size != span.total:
            return False
        if present.kind is FileKind.FINISHED:
            if hashes.of(self._place.directory, present.name) != self._digest:
                return False
        elif present.kind is FileKind.PARTIAL and present.target == self._digest:
            if hashes.of_part(self._place.directory, present.name) != self._digest:
                return False
            if self._file is not None:
                commit(self._store, self._place, name=self._part, file=self._file, digest=self._digest)
                self._present = self._store.find(self._place)
        else:
            return False
        return span.is_whole

    def begin(self) -> Received:
        """Return the file that the range is appended to."""
        lookup, span, directory = self._present, self._span, self._place.directory
        is_finished = lookup.kind is FileKind.FINISHED
        stored = self._store.hashes.known(directory, lookup.name) if is_finished else ""
        match judge(span, self._digest, size=lookup.size, target=lookup.target, stored=stored):
            case RangeVerdict.CONFLICT:
                self._store.remove_everything(self._place)
                was, now = lookup.target, self._digest
                raise refusals.FileRefused(
                    409,
                    f"X-Content-SHA256 mismatch with in-progress upload (was {was}, now {now}); restart from byte 0",
                )
            case RangeVerdict.ELSEWHERE:
                text = f"Content-Range start {span.start} does not match current file size {lookup.size}"
                raise refusals.try_again(text, lookup.size, span.total)
            case RangeVerdict.RESTART:  # a finished file stays until the new one is complete
                disk.remove(directory, target_name(self._place.name))
                if self._file is not None:
                    os.ftruncate(self._file, 0)
            case RangeVerdict.APPEND if is_finished and lookup.size:
                # Considered finished, because its first ranges came without a hash.
                disk.remove(directory, hash_name(self._place.name))
                disk.rename(directory, self._place.name, self._part)
                self._open_part()
        return self._prepared()

    def _prepared(self) -> Received:
        """Promise space, create the partial file if there is none, and record the expected hash."""
        size = 0 if self._file is None else os.fstat(self._file).st_size
        promise = promised(self._store, self._place, self._span.total - size, self._resources)
        if self._file is None:
            disk.remove_odd(self._place.directory, self._part)
            try:
                self._file = disk.create(self._place.directory, self._part)
            except FileExistsError as error:  # another process created it just now
                raise self._busy() from error
            self._resources.callback(os.close, self._file)
        if self._digest and self._digest != self._store.target(self._place):
            self._write_target()
        return Received(name=self._part, file=self._file, promise=promise)

    def _open_part(self) -> None:
        file = disk.open_existing(self._place.directory, self._part, os.O_RDWR)
        self._resources.callback(os.close, file)
        if not disk.hold(file) or not disk.is_still(self._place.directory, self._part, file):
            raise self._busy()
        disk.give_back(file)  # free what a killed worker had reserved
        self._file = file

    def _write_target(self) -> None:
        try:
            disk.write_text(self._place.directory, target_name(self._place.name), self._digest)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return  # the upload itself works; it only cannot be resumed
            disk.remove(self._place.directory, self._part)
            raise

    def _busy(self) -> refusals.FileRefused:
        return refusals.try_again("another upload of this file is under way", self._present.size, self._span.total)


def commit(store: FileStore, place: ConfinedPath, *, name: str, file: int, digest: str) -> None:
    """Give a received file its final name. It survives a crash from here on; its hash becomes valid after the flush."""
    if not disk.is_still(place.directory, name, file):
        raise refusals.FileRefused(409, "the upload was replaced by another one; restart from byte 0")
    disk.let_go(file)
    disk.rename(place.directory, name, place.name)
    disk.remove(place.directory, target_name(place.name), part_name(place.name))
    store.hashes.announce(place.directory, place.name, digest, os.fstat(file))
    store.settling.add(place.directory, place.name, file)
    store.forget_download(place.path)


def promised(store: FileStore, place: ConfinedPath, needed: int, resources: ExitStack) -> Promise:
    """Promise space for the upload, or refuse it. If necessary, remove the file that is being replaced first."""
    device = os.fstat(place.directory).st_dev
    free = store.room.free(place.directory, device)
    if needed > free:
        old = look(place.directory, place.name)
        reclaimed = 0 if old is None or old.st_nlink > 1 else old.st_blocks * 512
        if needed > free + reclaimed:
            free = max(free, 0)
            raise refusals.FileRefused(507, f"not enough disk space: {needed} bytes are needed and {free} are free")
        disk.remove(place.directory, place.name, hash_name(place.name))
    promise = store.room.promise(device, needed)
    resources.callback(promise.close)
    return promise


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
        self._is_done = True
        if expected and expected != digest:
            disk.remove(self._place.directory, self._name)
            self._store.remove_everything(self._place)
            raise refusals.bad_request(f"sha256 mismatch: expected {expected} got {digest}")
        commit(self._store, self._place, name=self._name, file=self._file, digest=digest)
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

    def _discard(self) -> None:
        self._is_done = True
        disk.remove(self._place.directory, self._name)

    def _leave(self) -> None:
        """Called when the upload ends before it is complete: unless it can be resumed, the file is removed."""
        self._discard()


class WholeUpload(Upload):
    """A file in one piece. It cannot be resumed, so a partial one is removed."""

    @classmethod
    def open(cls, store: FileStore, key: str, *, length: int | None) -> Self:
        """Begin. `length` is the number of bytes, if known."""
        with ExitStack() as stack:
            place = stack.enter_context(store.place(key, create=True))
            if store.find(place).kind is FileKind.DIRECTORY:
                raise refusals.FileRefused(500, f"creating file: open {place.path}: is a directory")
            if not stack.enter_context(store.writers.only(place.identity)):
                raise refusals.FileRefused(409, "another upload of this file is under way")  # cannot be resumed
            promise = promised(store, place, length or 0, stack)
            name = new_name()
            file = disk.create(place.directory, name)
            stack.callback(os.close, file)
            return cls(store, place, Received(name=name, file=file, promise=promise), stack.pop_all())


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
