"""What the file server does to names in a directory that is held open: files, the names beside them, and room on their
disk. Blocks; never follows a link.

The names of hashes are LocalAI's, so that its workers and ours can follow each other on one disk.
"""

import ctypes
import errno
import fcntl
import hashlib
import os
import secrets
import stat
import threading
from collections import Counter
from collections.abc import Callable
from typing import Final

from corral.base.open_directories import look

HASH_SUFFIX: Final = ".sha256"
TARGET_SUFFIX: Final = ".sha256.target"
PART_PREFIX: Final = ".corral-part-"
NEW_PREFIX: Final = ".corral-new-"


def hash_name(name: str) -> str:
    return name + HASH_SUFFIX


def target_name(name: str) -> str:
    return name + TARGET_SUFFIX


def part_name(name: str) -> str:
    """Where ranges of this file are gathered: always the same, so that an upload can go on after a restart."""
    return PART_PREFIX + hashlib.sha256(os.fsencode(name)).hexdigest()[:32]


def new_name() -> str:
    """For something that will be renamed in the same breath, or never."""
    return NEW_PREFIX + secrets.token_hex(16)


def is_ours(name: str) -> bool:
    """A name that no key may mean."""
    return name.startswith((PART_PREFIX, NEW_PREFIX))


FILE_MODE: Final = 0o644
_NEVER_FOLLOW: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""Without blocking, because a name may turn out to be a pipe that nobody writes into."""
WRITTEN_AT_ONCE: Final = 64 * 1024
"""For one write of a megabyte the kernel takes a megabyte of memory in one block. Where a host takes back what its
guests do not use, such blocks are what it took, and to get them again costs several times as much as writing."""
_MOST_TEXT: Final = 4096
_NOT_THERE: Final = frozenset({errno.ENOENT, errno.ENAMETOOLONG})
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_KEEP_SIZE: Final = 1
_fallocate: Final = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
"""Not Python's `posix_fallocate`: it makes files longer, and where a disk cannot reserve room it writes zeros."""
if _fallocate is not None:
    _fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def open_existing(directory: int, name: str, flags: int = os.O_RDONLY) -> int:
    """A regular file. Links, pipes and devices are refused as if nothing were there."""
    descriptor = os.open(name, flags | _NEVER_FOLLOW, dir_fd=directory)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "not a regular file", name)
    return descriptor


def create(directory: int, name: str) -> int:
    """A new file, held against everyone else who asks."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _NEVER_FOLLOW
    descriptor = os.open(name, flags, FILE_MODE, dir_fd=directory)
    hold(descriptor)
    return descriptor


def hold(descriptor: int) -> bool:
    """Claim a file against other processes that share the directory; False when one of them has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def let_go(descriptor: int) -> None:
    """Also for those who share the open file."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def is_still(directory: int, name: str, descriptor: int) -> bool:
    """Does the name still mean the file that is open?"""
    found = look(directory, name)
    return found is not None and os.path.samestat(found, os.fstat(descriptor))


def remove(directory: int, *names: str) -> None:
    """Harmless when there is nothing by that name."""
    for name in names:
        try:
            os.unlink(name, dir_fd=directory)
        except OSError as error:
            if error.errno not in _NOT_THERE:
                raise


def remove_odd(directory: int, name: str) -> None:
    """A link or the like that somebody left where a file of ours belongs."""
    found = look(directory, name)
    if found is not None and not stat.S_ISREG(found.st_mode):
        remove(directory, name)


def rename(directory: int, name: str, to: str) -> None:
    os.rename(name, to, src_dir_fd=directory, dst_dir_fd=directory)


def read_text(directory: int, name: str) -> str:
    """A small file; empty when there is none, or when it cannot be read."""
    try:
        descriptor = open_existing(directory, name)
    except OSError:
        return ""
    try:
        return os.read(descriptor, _MOST_TEXT).decode(errors="replace").strip()
    finally:
        os.close(descriptor)


def write_text(directory: int, name: str, text: str, *, mtime_ns: int | None = None) -> None:
    """Write a small file whole or not at all."""
    temporary = new_name()
    descriptor = create(directory, temporary)
    try:
        write_all(descriptor, text.encode())
        if mtime_ns is not None:
            os.utime(descriptor, ns=(mtime_ns, mtime_ns))
        rename(directory, temporary, name)
    except BaseException:
        remove(directory, temporary)
        raise
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view[:WRITTEN_AT_ONCE]) :]


def reserve(descriptor: int, begin: int, count: int) -> bool:
    """Have room for bytes that will be written; the file is no longer for it. False where a disk cannot do that, and
    OSError when it is full."""
    if _fallocate is None or count <= 0:
        return False
    if _fallocate(descriptor, _KEEP_SIZE, begin, count) == 0:
        return True
    number = ctypes.get_errno()
    if number in FULL:
        raise OSError(number, os.strerror(number))
    return False


def give_back(descriptor: int) -> None:
    """Room that was reserved beyond the end of a file, if any. What a disk itself needs for a file in many pieces is
    no such room."""
    found = os.fstat(descriptor)
    if found.st_blocks * 512 > found.st_size + found.st_size // 256 + found.st_blksize:
        os.ftruncate(descriptor, found.st_size)


def free_bytes(directory: int) -> int:
    found = os.fstatvfs(directory)
    return found.f_bavail * found.f_frsize


class Room:
    """Room on the disks: uploads that were let in count as if they were written already, so that two cannot be promised
    the same room. Called from several threads."""

    def __init__(self, free_bytes: Callable[[int], int] = free_bytes) -> None:
        self._free_bytes = free_bytes
        self._promised: Counter[int] = Counter()
        self._lock = threading.Lock()

    def free(self, directory: int, device: int) -> int:
        """Bytes that nobody was promised, on the disk of a directory."""
        with self._lock:
            return self._free_bytes(directory) - self._promised[device]

    def promise(self, device: int, count: int) -> "Promise":
        self.add(device, count)
        return Promise(self, device, count)

    def add(self, device: int, count: int) -> None:
        with self._lock:
            self._promised[device] += count


class Promise:
    """Bytes that one upload may still write. Written ones are on the disk and no longer promised."""

    def __init__(self, room: Room, device: int, count: int) -> None:
        self._room = room
        self._device = device
        self._left = count

    def use(self, count: int) -> None:
        used = min(count, self._left)
        self._left -= used
        self._room.add(self._device, -used)

    def close(self) -> None:
        self.use(self._left)
