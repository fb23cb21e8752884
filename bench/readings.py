"""What the kernel says about a process: its memory, and the processor time it has used. Linux only."""

import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

MEGABYTE: Final = 1_000_000
_KIBIBYTE: Final = 1024
_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """In bytes."""

    resident: int
    """RSS: all pages that are in memory, shared ones counted whole. This is what goals are judged by."""
    proportional: int
    """PSS: shared pages divided by the number of processes that share them."""
    peak: int
    """The most that was ever resident."""


def memory_of(pid: int) -> Memory:
    status, rollup = _fields(pid, "status"), _fields(pid, "smaps_rollup")
    return Memory(resident=status["VmRSS"], proportional=rollup["Pss"], peak=status["VmHWM"])


def resident_of(pid: int) -> int:
    """RSS alone: it costs so little that one may ask all the time."""
    return _fields(pid, "status")["VmRSS"]


def peak_of(pid: int) -> int:
    """The most that was ever resident, as cheap."""
    return _fields(pid, "status")["VmHWM"]


def children_of(pid: int) -> list[int]:
    """Return the child processes of all threads of a process."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in files for child in file.read_text().split()]


def words_of(pid: int) -> list[str]:
    """What it was started with."""
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def _fields(pid: int, file: str) -> dict[str, int]:
    """The lines `Name:   123 kB` of a file of this process, in bytes."""
    lines = (line.split() for line in Path(f"/proc/{pid}/{file}").read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) * _KIBIBYTE for words in lines if words[2:] == ["kB"]}


def family(pid: int) -> list[int]:
    """The process and all that descend from it."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def processor_seconds(pid: int) -> float:
    """Time on a processor since the start of the process, in user and in kernel mode, of all its threads."""
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / _TICKS_PER_SECOND


class ProcessorShare:
    """How much of one core a process used, from the moment this is made."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._used = processor_seconds(pid)
        self._began = time.monotonic()

    def percent(self) -> float:
        return 100 * (processor_seconds(self._pid) - self._used) / (time.monotonic() - self._began)


def machine() -> dict[str, str | float]:
    """Where the figures come from. A high load means that others worked here too, and figures are worse for it."""
    return {
        "cores": os.cpu_count() or 0,
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "kernel": platform.release(),
    }
