"""The control groups this process is in, and what they allow. Linux, versions 2 and 1; elsewhere nothing is limited."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """What one group may use, and what is left of it, in bytes."""

    limit: int
    available: int


class Cgroup:
    """Reads the limits of this process's groups and of all groups above them.

    In a container the mount shows the container's own group as the root, so a path from `/proc/self/cgroup` that is
    not there is simply skipped.
    """

    def __init__(self, *, proc: Path = Path("/proc"), mount: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc = proc
        self._mount = mount

    def memory_limits(self) -> list[MemoryLimit]:
        """Every limit that holds, in no order; the lowest one counts."""
        return [limit for read in (self._memory_v2, self._memory_v1) for limit in read()]

    def cpu_quota(self) -> float | None:
        """How many processors' worth of time the groups grant; None: no limit."""
        quotas = [quota for read in (self._cpu_v2, self._cpu_v1) for quota in read()]
        return min(quotas, default=None)

    def _memory_v2(self) -> Iterator[MemoryLimit]:
        for group in self._groups("", self._mount):
            limit, used = _number(group / "memory.max"), _number(group / "memory.current")
            if limit is not None and used is not None:
                yield _memory_limit(limit, used, _statistic(group / "memory.stat", "inactive_file"))

    def _memory_v1(self) -> Iterator[MemoryLimit]:
        for group in self._groups("memory", self._mount / "memory"):
            limit, used = _number(group / "memory.limit_in_bytes"), _number(group / "memory.usage_in_bytes")
            if limit is not None and used is not None:
                yield _memory_limit(limit, used, _statistic(group / "memory.stat", "total_inactive_file"))

    def _cpu_v2(self) -> Iterator[float]:
        for group in self._groups("", self._mount):
            quota, _, period = _text(group / "cpu.max").partition(" ")
            if quota.isdecimal() and period.isdecimal() and int(period):
                yield int(quota) / int(period)

    def _cpu_v1(self) -> Iterator[float]:
        for group in self._groups("cpu", self._mount / "cpu"):
            quota, period = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
            if quota and period:
                yield quota / period

    def _groups(self, controller: str, mount: Path) -> Iterator[Path]:
        """Directories from the root of the mount down to this process's own group."""
        path = PurePosixPath(self._path_of(controller))
        for part in (*reversed(path.parents), path):
            yield mount / str(part).lstrip("/")

    def _path_of(self, controller: str) -> str:
        """This process's group. A line is `<number>:<controllers>:<path>`; version 2 names no controllers."""
        for line in _text(self._proc / "self" / "cgroup").splitlines():
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if controller in controllers.split(","):
                return path
        return "/"


def _memory_limit(limit: int, used: int, reclaimable: int) -> MemoryLimit:
    """Return the limit and what is free. Reclaimable file pages count as free: the kernel drops them under pressure."""
    return MemoryLimit(limit=limit, available=max(limit - max(used - reclaimable, 0), 0))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    """Return a number from a file; None for `max` and `-1`, which mean no limit."""
    text = _text(path)
    return int(text) if text.isdecimal() else None


def _statistic(path: Path, name: str) -> int:
    for line in _text(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.isdecimal():
            return int(value)
    return 0
