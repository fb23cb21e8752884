"""What small files say, read again only when one of them is another. May block: call it in threads."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

T = TypeVar("T")

_MOST: Final = 1024
"""Directories that are remembered; with more of them everything is forgotten and read again."""
_SURE_NS: Final = 2 * 10**9
"""A file that is younger may be written again without a sign: times on disk are coarse."""

FilesMark = tuple[int, int, int, int, int] | None


class FileMemory(Generic[T]):
    """One value for each directory, made from some of its files."""

    def __init__(self, read: Callable[[Path], T], names: Sequence[str]) -> None:
        self._read = read
        self._names = tuple(names)
        self._known: dict[str, tuple[tuple[FilesMark, ...], T]] = {}

    def of(self, directory: Path) -> T:
        """What they say now. A file that is changed while it is read is read again the next time."""
        key = os.fspath(directory)
        marks = tuple(_mark(f"{key}/{name}") for name in self._names)
        known = self._known.get(key)
        if known is not None and known[0] == marks:
            return known[1]
        value = self._read(directory)
        if _are_old(marks):
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[key] = (marks, value)
        return value


def _mark(path: str) -> FilesMark:
    """Return values that change when the file is replaced or written; None when it does not exist."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _are_old(marks: Sequence[FilesMark]) -> bool:
    limit = time.time_ns() - _SURE_NS
    return all(max(mark[3], mark[4]) < limit for mark in marks if mark is not None)
