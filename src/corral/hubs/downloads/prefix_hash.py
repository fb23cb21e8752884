"""Hashes a file behind those who write it, and has the kernel bring it to the disk meanwhile. For a thread."""

import ctypes
import functools
import hashlib
import os
import threading
from collections.abc import Callable
from typing import Final

from corral.hubs.downloads.orders import DownloadDamaged

_AT_ONCE: Final = 1024 * 1024
_WRITE_BACK_BYTES: Final = 8 * _AT_ONCE
_SYNC_FILE_RANGE_WRITE: Final = 2


class PrefixHash:
    """The digest that was promised for a file, and its sha256, which is wanted of every file."""

    def __init__(self, descriptor: int, size: int, digest: str, *, prefix: Callable[[], int]) -> None:
        """`prefix` says how many bytes are there without a gap; `wake` must be called when there are more."""
        self.size = size
        self._descriptor = descriptor
        self._promised = digest
        self._prefix = prefix
        self._news = threading.Event()
        self._is_stopped = False
        self._sha256 = hashlib.sha256()
        self._git = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        self._is_git = digest.startswith("git-sha1:")

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    @property
    def comparable(self) -> str:
        """The digest of the kind that was promised."""
        return f"git-sha1:{self._git.hexdigest()}" if self._is_git else f"sha256:{self.sha256}"

    @property
    def is_as_promised(self) -> bool:
        return not self._promised or self.comparable == self._promised

    def wake(self) -> None:
        self._news.set()

    def stop(self) -> None:
        """Have `run` return soon. The digests are worthless then."""
        self._is_stopped = True
        self._news.set()

    def run(self) -> None:
        """Hash until the end of the file."""
        buffer = memoryview(bytearray(_AT_ONCE))
        position = written_back = 0
        while position < self.size and not self._is_stopped:
            self._news.clear()
            if (end := self._prefix()) <= position:
                self._news.wait()
                continue
            while position < end and not self._is_stopped:
                count = os.preadv(self._descriptor, [buffer[: min(_AT_ONCE, end - position)]], position)
                if not count:
                    raise DownloadDamaged("the file became shorter while it was hashed")
                self._update(buffer[:count])
                position += count
                if position - written_back >= _WRITE_BACK_BYTES:
                    _write_back(self._descriptor, written_back, position - written_back)
                    written_back = position

    def _update(self, data: memoryview) -> None:
        self._sha256.update(data)
        if self._is_git:
            self._git.update(data)


def _write_back(descriptor: int, offset: int, count: int) -> None:
    """Begin to write pages to the disk, and do not wait for it: the sync at the end finds little left to do."""
    if (call := _sync_file_range()) is not None:
        call(descriptor, ctypes.c_int64(offset), ctypes.c_int64(count), _SYNC_FILE_RANGE_WRITE)


@functools.cache
def _sync_file_range() -> Callable[..., int] | None:
    """Linux's own call, which Python lacks; a failure of it does not matter."""
    return getattr(ctypes.CDLL(None), "sync_file_range", None)
