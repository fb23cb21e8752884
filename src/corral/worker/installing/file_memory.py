"""Caches values parsed from small files, and parses them again when a file changes. Blocking: call it in threads."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_MOST: Final = 1024
"""Maximum number of cached directories; beyond it the cache is emptied."""
_SURE_NS: Final = 2 * 10**9
"""A younger file may change again without a new time, because file times are coarse."""

FilesMark = tuple[int, int, int, int, int] | None


class FileMemory(Generic[T]):
    """One value per directory, parsed from some of its files."""

    def __init__(self, read: Callable[[Path], T], names: Sequence[str]) -> None:
        self._read = read
        self._names = tuple(names)
        self._cached: dict[str, tuple[tuple[FilesMark, ...], T]] = {}

    def of(self, directory: Path) -> T:
        """Return the current value. A file that changes while it is read is read again the next time."""
        key = os.fspath(directory)
        marks = tuple(_mark(f"{key}/{name}") for name in self._names)
        cached = self._cached.get(key)
        if cached is not None and cached[0] == marks:
            return cached[1]
        value = self._read(directory)
        if _are_old(marks):
            if len(self._cached) >= _MOST:
                self._cached.clear()
            self._cached[key] = (marks, value)
        return value


def _mark(path: str) -> FilesMark:
    """Return values that change when the file is replaced or written; None when it does not exist."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _are_old(marks: Sequence[FilesMark]) -> bool:
    limit = time.time_ns() - _SURE_NS
    return all(max(mark[3], mark[4]) < limit for mark in marks if mark is not None)
