"""Removes files that nobody will request again: staged inputs and outputs, and abandoned uploads and downloads.

At the start it removes what an earlier run was writing; later, what is older than the retention. Files locked by
another process stay: workers of one machine may share their directories.
"""

import contextlib
import logging
import os
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import timedelta
from typing import Final

from corral.base.clock import Clock
from corral.base.open_directories import DirectoryUnusable, look, opened_directory
from corral.base.tasks import Poke, poke_or_period
from corral.worker.files import disk
from corral.worker.files.disk import TARGET_SUFFIX, is_ours, part_name
from corral.worker.files.keys import Area
from corral.worker.files.store import FileStore
from corral.worker.files.threads import Threads

log = logging.getLogger(__name__)

LONGEST_PERIOD: Final = timedelta(hours=1)
_MOST_DEPTH: Final = 200

FileNames = frozenset[str]
Choice = Callable[[FileNames], FileNames]
"""Selects, from the names in one directory, those to remove when they are old enough."""


class Sweeper:
    def __init__(self, store: FileStore, threads: Threads, *, clock: Clock, retention: timedelta) -> None:
        self._store = store
        self._threads = threads
        self._clock = clock
        self._retention = retention
        self._born = time.time()  # compared with times from the file system

    async def run(self) -> None:
        """Sweep at once, and then often enough that nothing stays more than a quarter longer than it should."""
        await self.clean_up()
        period = min(self._retention / 4, LONGEST_PERIOD)
        await poke_or_period(self.sweep, poke=Poke(), clock=self._clock, period=period, name="file sweeper")

    async def clean_up(self) -> None:
        """Remove what is useless after a restart. Resumable uploads stay."""
        removed = await self._threads.run_long(lambda: self._remove({area: leftovers for area in Area}, self._born))
        _log_removed(removed, "that an earlier life left")

    async def sweep(self) -> None:
        """Remove what is older than the retention."""
        choices = {Area.MODELS: unfinished, Area.DATA: unfinished, Area.STAGING: everything}
        limit = self._clock.now() - self._retention

        def remove() -> int:
            return self._remove(choices, limit.timestamp()) + self._store.sweep_downloads(limit.timestamp())

        removed = await self._threads.run_long(remove)
        _log_removed(removed, f"that nobody used since {limit:%Y-%m-%d %H:%M}")

    def _remove(self, choices: Mapping[Area, Choice], limit: float) -> int:
        count = 0
        for area, choice in choices.items():
            tree = _Tree(choice, limit, is_stopping=self._store.hashes.stopping.is_set)
            with contextlib.suppress(OSError, DirectoryUnusable), ExitStack() as stack:
                directory = self._store.areas[area].open()
                stack.callback(os.close, directory)
                tree.sweep(directory)
            count += tree.removed
        return count


def everything(names: FileNames) -> FileNames:
    return names


def unfinished(names: FileNames) -> FileNames:
    """Select partial uploads, and their expected hashes."""
    targets = {name for name in names if name.endswith(TARGET_SUFFIX) and name.removesuffix(TARGET_SUFFIX) not in names}
    return frozenset({name for name in names if is_ours(name)} | targets | _targets_of_parts(names))


def leftovers(names: FileNames) -> FileNames:
    """Select uploads that cannot be resumed, because their expected hash is unknown."""
    resumable = {part_name(name.removesuffix(TARGET_SUFFIX)) for name in _targets_of_parts(names)}
    return frozenset(name for name in names if is_ours(name)) - resumable


def _targets_of_parts(names: FileNames) -> set[str]:
    targets = {name for name in names if name.endswith(TARGET_SUFFIX)}
    return {name for name in targets if part_name(name.removesuffix(TARGET_SUFFIX)) in names}


class _Tree:
    """One walk through a directory tree. Follows no links."""

    def __init__(self, choose: Choice, limit: float, *, is_stopping: Callable[[], bool]) -> None:
        self._choose = choose
        self._limit = limit
        self._is_stopping = is_stopping
        self.removed = 0

    def sweep(self, directory: int, depth: int = 0) -> None:
        if self._is_stopping() or depth > _MOST_DEPTH:
            return
        with os.scandir(directory) as entries:
            kinds = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
        files = frozenset(name for name, is_directory in kinds.items() if not is_directory)
        for name in self._choose(files):
            with contextlib.suppress(OSError):
                if self._is_old(directory, name) and not (is_ours(name) and _is_held(directory, name)):
                    disk.remove(directory, name)
                    self.removed += 1
        for name in kinds.keys() - files:
            is_old = self._is_old(directory, name)  # look first: removing its files makes a directory young
            with contextlib.suppress(OSError), opened_directory(name, directory) as below:
                self.sweep(below, depth + 1)
            if is_old and self._choose is everything:
                with contextlib.suppress(OSError):  # not empty
                    os.rmdir(name, dir_fd=directory)

    def _is_old(self, directory: int, name: str) -> bool:
        status = look(directory, name)
        if status is None:
            return False
        used = status.st_mtime if stat.S_ISDIR(status.st_mode) else max(status.st_mtime, status.st_atime)
        return used < self._limit


def _is_held(directory: int, name: str) -> bool:
    """Whether the file is being written, by this or another process."""
    file = disk.open_existing(directory, name)
    try:
        return not disk.hold(file)
    finally:
        os.close(file)


def _log_removed(count: int, which: str) -> None:
    if count:
        log.info("removed %d files %s", count, which, extra={"event": "files.swept", "count": count})
