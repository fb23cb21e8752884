"""Operations on names in an open directory: files, the small files beside them, and disk space. Blocking; never
follows a link.

The names of hash files are LocalAI's, so that its workers and ours can replace each other on one disk.
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
    """Return the name under which ranges of a file are collected: always the same, to resume after a restart."""
    return PART_PREFIX + hashlib.sha256(os.fsencode(name)).hexdigest()[:32]


def new_name() -> str:
    """Return a unique name for a file that will be renamed at once."""
    return NEW_PREFIX + secrets.token_hex(16)


def is_ours(name: str) -> bool:
    """Whether the name is reserved, so that no key can refer to it."""
    return name.startswith((PART_PREFIX, NEW_PREFIX))


FILE_MODE: Final = 0o644
_NEVER_FOLLOW: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""Non-blocking, because a name may turn out to be a pipe without a writer."""
WRITTEN_AT_ONCE: Final = 64 * 1024
"""Chunk size of writes. For a write of a megabyte the kernel allocates a contiguous megabyte; on hosts that reclaim
their guests' unused memory this costs several times as much as the write."""
_MOST_TEXT: Final = 4096
_NOT_THERE: Final = frozenset({errno.ENOENT, errno.ENAMETOOLONG})
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_KEEP_SIZE: Final = 1
_fallocate: Final = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
"""Not Python's `posix_fallocate`: it makes files longer, and writes zeros where a disk cannot reserve space."""
if _fallocate is not None:
    _fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def open_existing(directory: int, name: str, flags: int = os.O_RDONLY) -> int:
    """Open a regular file. Links, pipes and devices count as missing."""
    descriptor = os.open(name, flags | _NEVER_FOLLOW, dir_fd=directory)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "not a regular file", name)
    return descriptor


def create(directory: int, name: str) -> int:
    """Create a file and lock it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _NEVER_FOLLOW
    descriptor = os.open(name, flags, FILE_MODE, dir_fd=directory)
    hold(descriptor)
    return descriptor


def hold(descriptor: int) -> bool:
    """Lock a file against other processes that share the directory; False when one of them has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def let_go(descriptor: int) -> None:
    """Release the lock, also for duplicated descriptors."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def is_still(directory: int, name: str, descriptor: int) -> bool:
    """Whether the name still refers to the open file."""
    status = look(directory, name)
    return status is not None and os.path.samestat(status, os.fstat(descriptor))


def remove(directory: int, *names: str) -> None:
    """Remove files. Idempotent."""
    for name in names:
        try:
            os.unlink(name, dir_fd=directory)
        except OSError as error:
            if error.errno not in _NOT_THERE:
                raise


def remove_odd(directory: int, name: str) -> None:
    """Remove a link or another irregular entry at a name reserved for a file of ours."""
    status = look(directory, name)
    if status is not None and not stat.S_ISREG(status.st_mode):
        remove(directory, name)


def rename(directory: int, name: str, to: str) -> None:
    os.rename(name, to, src_dir_fd=directory, dst_dir_fd=directory)


def read_text(directory: int, name: str) -> str:
    """Read a small file; empty when it is missing or unreadable."""
    try:
        descriptor = open_existing(directory, name)
    except OSError:
        return ""
    try:
        return os.read(descriptor, _MOST_TEXT).decode(errors="replace").strip()
    finally:
        os.close(descriptor)


def write_text(directory: int, name: str, text: str, *, mtime_ns: int | None = None) -> None:
    """Write a small file atomically."""
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
    """Reserve disk space without changing the file's size. False if the disk cannot do it; OSError when it is full."""
    if _fallocate is None or count <= 0:
        return False
    if _fallocate(descriptor, _KEEP_SIZE, begin, count) == 0:
        return True
    number = ctypes.get_errno()
    if number in FULL:
        raise OSError(number, os.strerror(number))
    return False


def give_back(descriptor: int) -> None:
    """Free space reserved beyond the end of a file. The disk's own overhead for a fragmented file is not counted."""
    status = os.fstat(descriptor)
    if status.st_blocks * 512 > status.st_size + status.st_size // 256 + status.st_blksize:
        os.ftruncate(descriptor, status.st_size)


def free_bytes(directory: int) -> int:
    volume = os.fstatvfs(directory)
    return volume.f_bavail * volume.f_frsize


class Room:
    """Disk space that is not promised to accepted uploads: no two are promised the same space. Thread-safe."""

    def __init__(self, free_bytes: Callable[[int], int] = free_bytes) -> None:
        self._free_bytes = free_bytes
        self._promised: Counter[int] = Counter()
        self._lock = threading.Lock()

    def free(self, directory: int, device: int) -> int:
        """Return the bytes on a directory's disk that are not promised."""
        with self._lock:
            return self._free_bytes(directory) - self._promised[device]

    def promise(self, device: int, count: int) -> "Promise":
        self.add(device, count)
        return Promise(self, device, count)

    def add(self, device: int, count: int) -> None:
        with self._lock:
            self._promised[device] += count


class Promise:
    """Bytes that one upload may still write. Written bytes are on the disk and no longer promised."""

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
