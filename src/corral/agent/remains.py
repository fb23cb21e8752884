"""Processes that an earlier life of this worker left running: remembered on disk, ended at the next start.

On Linux a backend dies with its worker; what the backend itself had started may not. Blocks: call it in a thread.
"""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import psutil

from corral.base.errors import PathNotUsable
from corral.base.private_files import make_private_directory, read_private, write_private
from corral.base.unreadable_json import UNREADABLE_JSON

log = logging.getLogger(__name__)

_KILL_SECONDS: Final = 5.0


class Remembered(msgspec.Struct, kw_only=True):
    """One process, told apart from any other that may have its number later."""

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

    def end_all(self) -> list[str]:
        """Kill what is left of every remembered process; the keys of those that had left something."""
        files = sorted(self._directory.glob("*.json")) if self._directory.is_dir() else []
        left: dict[str, list[psutil.Process]] = {}
        for file in files:
            if (record := _read(file)) is not None:
                left.setdefault(record.key, []).extend(self._family(record))
        family = [process for processes in left.values() for process in processes]
        for process in family:
            _kill(process)
        psutil.wait_procs(family, timeout=_KILL_SECONDS)
        for file in files:
            file.unlink(missing_ok=True)
        return sorted(key for key, processes in left.items() if processes)

    def _family(self, record: Remembered) -> Iterator[psutil.Process]:
        """The process, and whatever still belongs to the session that it began."""
        for process in psutil.process_iter():
            if _session_of(process.pid) == record.pid and self._is_ours(process, record):
                yield process

    def _is_ours(self, process: psutil.Process, record: Remembered) -> bool:
        """The number of a dead process may have been given to a stranger, who then leads a session of that number."""
        try:
            if process.pid == record.pid:
                return process.create_time() == record.started_at
            return process.environ().get(self._mark_variable) == record.mark
        except psutil.Error:
            return False

    def _file(self, pid: int) -> Path:
        return self._directory / f"{pid}.json"


def _read(file: Path) -> Remembered | None:
    try:
        return msgspec.json.decode(read_private(file) or b"", type=Remembered)
    except (PathNotUsable, *UNREADABLE_JSON) as error:
        log.warning("ignoring %s: %s", file, error, extra={"event": "backend.not_remembered"})
        return None


def _session_of(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return 0


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.Error as error:
        log.warning("cannot end a process of an earlier life: %s", error, extra={"event": "backend.not_reaped"})
