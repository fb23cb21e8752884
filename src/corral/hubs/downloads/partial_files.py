"""Files that are not whole yet, in `.corral/partial` of the directory they are for, and what is known about them.

Beside the bytes lies a ledger: how many bytes of each piece are there. It is a mapped file and written after the bytes,
so a kill loses none of it. A process that works on a file holds the lock on its bytes; several processes, on several
machines, may share the directory. Blocks.
"""

import contextlib
import errno
import fcntl
import hashlib
import mmap
import os
import struct
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

import msgspec
from msgspec.structs import replace

from corral.base.open_directories import Confined, ConfinedPath, PathRefused, look
from corral.hubs.downloads.orders import DestinationUnusable, TooLittleDisk

FOLDER: Final = (".corral", "partial")
FILE_MODE: Final = 0o644
_BYTES: Final = ".part"
_LEDGER: Final = ".ledger"
_MAGIC: Final = b"corral01"
_HEADER: Final = struct.Struct("<8sQQ64s128s256s")
MEMBER: Final = "#member"
"""Behind a destination: the file on its way out of the archive that was downloaded for it."""
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_MOST_PIECES: Final = 16
"""Pieces that one request asks for: few requests, and yet the file fills from its beginning, where it is hashed."""


@contextmanager
def disk_errors(name: str) -> Iterator[None]:
    """Turn what a file system may answer into a DownloadError."""
    try:
        yield
    except PathRefused as error:
        raise DestinationUnusable(f"destination: {name!r}: {error}") from error
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise TooLittleDisk(f"{name}: there is no room left on the disk") from error
        raise DestinationUnusable(f"destination: {name!r}: {error.strerror or error}") from error


class LedgerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a ledger says about the file."""

    size: int
    piece_bytes: int
    boot: str
    """Which life of which machine wrote it: after another, bytes may be missing that were never synced."""
    identity: str
    """The digest that was promised, or where the file came from."""
    validator: str
    """What the server called this version of the file; empty: nothing."""

    def packed(self) -> bytes:
        texts = (self.boot.encode(), self.identity.encode(), self.validator.encode())
        return _HEADER.pack(_MAGIC, self.size, self.piece_bytes, *texts)

    @classmethod
    def unpacked(cls, data: bytes) -> "LedgerFacts | None":
        """The facts of a header; None when the data is not a header, or makes no sense."""
        if len(data) != _HEADER.size:
            return None
        magic, size, piece_bytes, *texts = _HEADER.unpack(data)
        if magic != _MAGIC or not piece_bytes:
            return None
        try:
            boot, identity, validator = (text.rstrip(b"\0").decode("ascii") for text in texts)
        except UnicodeDecodeError:
            return None
        return cls(size=size, piece_bytes=piece_bytes, boot=boot, identity=identity, validator=validator)


class PieceLedger:
    """How many bytes of each piece are there, from the beginning of each piece; and who fetches which."""

    def __init__(self, descriptor: int, facts: LedgerFacts) -> None:
        """Map a ledger whose file has these facts already."""
        self.facts = facts
        self.count = -(-facts.size // facts.piece_bytes)
        self._map = mmap.mmap(descriptor, _HEADER.size + 8 * self.count)
        self._view = memoryview(self._map)
        self._done = self._view[_HEADER.size :].cast("Q")
        self._claimed: set[int] = set()
        self._prefix_pieces = 0
        for number in range(self.count):  # whatever is on the disk, nothing beyond a piece is believed
            if self._done[number] > self._length(number):
                self._done[number] = 0
        self.done_bytes = sum(self._done)
        self._first_open = 0
        self.open_pieces = sum(not self._is_done(number) for number in range(self.count))

    @classmethod
    def new(cls, descriptor: int, facts: LedgerFacts) -> "PieceLedger":
        """Write an empty ledger over whatever there was."""
        os.ftruncate(descriptor, 0)
        os.ftruncate(descriptor, _HEADER.size + 8 * -(-facts.size // facts.piece_bytes))
        os.pwrite(descriptor, facts.packed(), 0)
        return cls(descriptor, facts)

    @classmethod
    def read(cls, descriptor: int) -> "PieceLedger | None":
        """The ledger of an earlier attempt; None when it cannot be believed."""
        facts = LedgerFacts.unpacked(os.pread(descriptor, _HEADER.size, 0))
        if facts is None:
            return None
        length = _HEADER.size + 8 * -(-facts.size // facts.piece_bytes)
        return cls(descriptor, facts) if os.fstat(descriptor).st_size == length else None

    @property
    def size(self) -> int:
        return self.facts.size

    @property
    def is_whole(self) -> bool:
        return self.done_bytes == self.facts.size

    def prefix(self) -> int:
        """How many bytes are there without a gap, from the beginning of the file. For one thread only."""
        while self._prefix_pieces < self.count and self._is_done(self._prefix_pieces):
            self._prefix_pieces += 1
        if self._prefix_pieces == self.count:
            return self.facts.size
        return self._prefix_pieces * self.facts.piece_bytes + self._done[self._prefix_pieces]

    def claim(self, connections: int) -> tuple[int, int] | None:
        """Claim the first bytes that are missing and that nobody fetches, as their beginning and end; None: none left.

        Long stretches at first, for few requests; short ones at last, so that all connections end together.
        """
        while self._first_open < self.count and self._is_done(self._first_open):
            self._first_open += 1
        free = (number for number in range(self._first_open, self.count) if self._is_free(number))
        if (first := next(free, None)) is None:
            return None
        most = max(1, min(_MOST_PIECES, (self.open_pieces - len(self._claimed)) // (4 * connections)))
        last = first
        while last - first + 1 < most and next(free, None) == last + 1 and not self._done[last + 1]:
            last += 1
        self._claimed.update(range(first, last + 1))
        begin = first * self.facts.piece_bytes
        return begin + self._done[first], last * self.facts.piece_bytes + self._length(last)

    def hold(self, span: tuple[int, int]) -> None:
        """Claim certain bytes, which begin and end with a piece."""
        if span[0] < span[1]:
            self._claimed.update(self._pieces(span))

    def release(self, span: tuple[int, int]) -> None:
        """Give a claim back, whatever of it was fetched."""
        self._claimed.difference_update(self._pieces(span))

    def _pieces(self, span: tuple[int, int]) -> range:
        return range(span[0] // self.facts.piece_bytes, (span[1] - 1) // self.facts.piece_bytes + 1)

    def advance(self, position: int, count: int) -> bool:
        """Note bytes that were written where the ledger ended in their piece. Return whether a piece became whole."""
        has_finished = False
        while count:
            number, offset = divmod(position, self.facts.piece_bytes)
            if offset != self._done[number]:
                raise ValueError(f"bytes at {position} do not follow those that are there")
            step = min(count, self._length(number) - offset)
            self._done[number] = offset + step
            self.done_bytes += step
            if self._is_done(number):
                has_finished = True
                self.open_pieces -= 1
            position, count = position + step, count - step
        return has_finished

    def relabel(self, identity: str) -> None:
        """Say from now on that the bytes are those of something else."""
        self.facts = replace(self.facts, identity=identity)
        self._map[: _HEADER.size] = self.facts.packed()

    def close(self) -> None:
        self._done.release()
        self._view.release()
        self._map.close()

    def _is_free(self, number: int) -> bool:
        return number not in self._claimed and not self._is_done(number)

    def _is_done(self, number: int) -> bool:
        return self._done[number] == self._length(number)

    def _length(self, number: int) -> int:
        return min(self.facts.piece_bytes, self.facts.size - number * self.facts.piece_bytes)


class PartialFolder:
    """The directory of partial files. A context, which holds it open."""

    def __init__(self, base: Path) -> None:
        confined = Confined(base)
        path = base.joinpath(*FOLDER)
        with disk_errors(str(path)), confined.reach((*FOLDER, "."), path, create=True) as place:
            self.descriptor = os.dup(place.directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)

    def present_bytes(self, destination: str) -> int:
        """Disk space that the partial file of a destination takes already."""
        status = look(self.descriptor, key_of(destination) + _BYTES)
        return 0 if status is None else status.st_blocks * 512

    def forget(self, destination: str) -> None:
        """Remove what somebody left who was killed right after the file got its name, unless it is worked on."""
        key = key_of(destination)
        if look(self.descriptor, key + _BYTES) is not None:
            with PartialFile.opened(self.descriptor, key) as part:
                if part.try_lock() and part.is_current():
                    part.remove()
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(key + _LEDGER, dir_fd=self.descriptor)

    def sizes(self) -> dict[str, int]:
        """Disk space that each partial file takes, by its key."""
        sizes_by_key = {}
        for name in os.listdir(self.descriptor):
            stem, ending = os.path.splitext(name)
            status = look(self.descriptor, name)
            if ending == _BYTES and status is not None:
                sizes_by_key[stem] = status.st_blocks * 512
        return sizes_by_key

    def sweep(self, before: float, *, keep: Collection[str] = ()) -> int:
        """Remove what nobody works on and nobody has written to since this time, apart from these keys. Return how many
        files went."""
        removed = 0
        for name in os.listdir(self.descriptor):
            status = look(self.descriptor, name)
            stem, ending = os.path.splitext(name)
            if status is None or ending not in (_BYTES, _LEDGER) or status.st_mtime >= before or stem in keep:
                continue
            if ending == _LEDGER and look(self.descriptor, stem + _BYTES) is not None:
                continue  # goes with its bytes
            if ending == _LEDGER:
                os.unlink(name, dir_fd=self.descriptor)
            else:
                with contextlib.suppress(OSError), PartialFile.opened(self.descriptor, stem) as part:
                    if part.try_lock() and part.is_current():
                        part.remove()
            removed += look(self.descriptor, name) is None
        return removed


class PartialFile:
    """The bytes of one destination so far. A context; opening creates it."""

    def __init__(self, folder: PartialFolder, destination: str) -> None:
        self._open(folder.descriptor, key_of(destination))

    @classmethod
    def opened(cls, folder: int, key: str) -> "PartialFile":
        """Open one by its key instead of its destination."""
        part = cls.__new__(cls)
        part._open(folder, key)
        return part

    def _open(self, folder: int, key: str) -> None:
        self._folder = folder
        self._key = key
        self.descriptor = self._descriptor_of(_BYTES)

    def _descriptor_of(self, ending: str) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(self._key + ending, flags, 0o600, dir_fd=self._folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)

    def try_lock(self) -> bool:
        """Lock the file until it is closed. False: another process works on it."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def is_current(self) -> bool:
        """Whether the file is still under its name: who had the lock before may have finished or removed it."""
        status = look(self._folder, self._key + _BYTES)
        return status is not None and os.path.samestat(status, os.fstat(self.descriptor))

    def read_ledger(self) -> PieceLedger | None:
        """The ledger of an earlier attempt, if it fits the bytes."""
        with self._ledger_file() as descriptor:
            ledger = PieceLedger.read(descriptor)
        if ledger is not None and os.fstat(self.descriptor).st_size != ledger.size:
            ledger.close()
            return None
        return ledger

    def new_ledger(self, facts: LedgerFacts) -> PieceLedger:
        """Begin from nothing, with a file of the final size."""
        self.empty()
        with self._ledger_file() as descriptor:
            ledger = PieceLedger.new(descriptor, facts)
        try:
            os.ftruncate(self.descriptor, facts.size)
        except BaseException:
            ledger.close()
            raise
        return ledger

    @contextmanager
    def _ledger_file(self) -> Iterator[int]:
        descriptor = self._descriptor_of(_LEDGER)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def write(self, chunks: Sequence[bytes], position: int) -> None:
        """Write all chunks, one after the other, from a position on."""
        total_bytes = sum(map(len, chunks))
        written = os.pwritev(self.descriptor, chunks, position)
        if written == total_bytes:
            return
        unwritten = memoryview(b"".join(chunks))[written:]
        while unwritten:
            position += written
            written = os.pwrite(self.descriptor, unwritten, position)
            unwritten = unwritten[written:]

    def empty(self) -> None:
        """Forget all bytes and what was known about them."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._key + _LEDGER, dir_fd=self._folder)
        os.ftruncate(self.descriptor, 0)

    def remove(self) -> None:
        for ending in (_LEDGER, _BYTES):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._key + ending, dir_fd=self._folder)

    def finish(self, place: ConfinedPath) -> None:
        """Bring the bytes to the disk and give them their name, in this order. The name appears at once, or not."""
        os.fchmod(self.descriptor, FILE_MODE)
        os.fsync(self.descriptor)
        os.rename(self._key + _BYTES, place.name, src_dir_fd=self._folder, dst_dir_fd=place.directory)
        os.fsync(place.directory)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._key + _LEDGER, dir_fd=self._folder)


def key_of(text: str) -> str:
    """A short name for a destination or a URL, which tells neither."""
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:32]
