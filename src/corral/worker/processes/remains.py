"""What a backend leaves running when it ends: found by the mark in its environment, and ended.

Killing a process group misses children that began a session of their own (`setsid`). They keep the environment, unless
they clear it; those of an orderly stop are also known by their descent. Every running process is remembered on disk, so
that a worker ends at its next start what a killed one left: on Linux a backend dies with its worker, what it had
started may not. Blocks: call it in a thread.
"""

import logging
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import psutil

from corral.base.errors import PathNotUsable
from corral.base.private_files import make_private_directory, read_private, write_private
from corral.base.unreadable_json import UNREADABLE_JSON

log = logging.getLogger(__name__)

_KILL_SECONDS: Final = 5.0
_ROUNDS: Final = 5


class Remembered(msgspec.Struct, kw_only=True):
    """A process of an earlier worker, identified even if its pid is reused."""

    pid: int
    started_at: float
    mark: str
    key: str


class Remains:
    """One file for each running process, in a directory of this worker's own."""

    def __init__(self, directory: Path, *, mark_variable: str) -> None:
        self._directory = directory
        self._mark_variable = mark_variable

    def remember(self, pid: int, *, mark: str, key: str) -> None:
        """A full disk must not keep a backend from serving, so failing is only logged."""
        try:
            started_at = psutil.Process(pid).create_time()
            record = Remembered(pid=pid, started_at=started_at, mark=mark, key=key)
            make_private_directory(self._directory)
            write_private(self._file(pid), msgspec.json.encode(record))
        except psutil.NoSuchProcess:
            return
        except PathNotUsable as error:
            log.warning("cannot remember a process: %s", error, extra={"event": "backend.not_remembered"})

    def forget(self, pid: int) -> None:
        self._file(pid).unlink(missing_ok=True)

    def end(self, pid: int, *, mark: str, descendants: Sequence[psutil.Process]) -> int:
        """Kill what a process that is gone has left, and forget it; how many processes that were."""
        record = _read(self._file(pid)) or Remembered(pid=pid, started_at=0.0, mark=mark, key="")
        ended = 0
        for _ in range(_ROUNDS):
            # Those that it started may be starting others.
            survivors = {*filter(_is_alive, descendants), *self._family(record)}
            if not survivors:
                break
            ended += len(survivors)
            _end(survivors)
        self.forget(pid)
        return ended

    def end_all(self) -> list[str]:
        """Kill what is left of every remembered process; the keys of those that had left something."""
        files = sorted(self._directory.glob("*.json")) if self._directory.is_dir() else []
        survivors: dict[str, list[psutil.Process]] = {}
        for file in files:
            if (record := _read(file)) is not None:
                survivors.setdefault(record.key, []).extend(self._family(record))
        _end({process for processes in survivors.values() for process in processes})
        for file in files:
            file.unlink(missing_ok=True)
        return sorted(key for key, processes in survivors.items() if processes)

    def _family(self, record: Remembered) -> Iterator[psutil.Process]:
        """The process and its descendants, in its session or in another one."""
        return (process for process in psutil.process_iter() if self._is_ours(process, record))

    def _is_ours(self, process: psutil.Process, record: Remembered) -> bool:
        """The number of a dead process may have been given to a stranger, who then leads a session of that number."""
        try:
            if process.pid == record.pid:
                return process.create_time() == record.started_at
            is_younger = process.create_time() >= record.started_at  # asked first: it costs less than the environment
            return is_younger and process.environ().get(self._mark_variable) == record.mark
        except (psutil.Error, OSError):
            return False

    def _file(self, pid: int) -> Path:
        return self._directory / f"{pid}.json"


def _read(file: Path) -> Remembered | None:
    try:
        return msgspec.json.decode(read_private(file) or b"", type=Remembered)
    except (PathNotUsable, *UNREADABLE_JSON) as error:
        log.warning("ignoring %s: %s", file, error, extra={"event": "backend.not_remembered"})
        return None


def descendants_of(pid: int) -> list[psutil.Process]:
    """Everything that descends from a process which runs; nothing when it is gone."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def _end(processes: Collection[psutil.Process]) -> None:
    for process in processes:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
        except psutil.Error as error:
            log.warning("cannot end a process of an earlier life: %s", error, extra={"event": "backend.not_reaped"})
    psutil.wait_procs(processes, timeout=_KILL_SECONDS)


def _is_alive(process: psutil.Process) -> bool:
    """Neither gone nor only waiting to be reaped, and still the one that was meant."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
