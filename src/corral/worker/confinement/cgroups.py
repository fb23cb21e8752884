"""A control group for each backend process: what it starts ends with it, and limits hold for all of it together.

Version 2 ends a group at once and can keep it to loopback addresses; the limits of version 1 are used where a machine
has them only there. A machine may allow nothing of it, and then backends run without. Blocks: call it in a thread.
"""

import contextlib
import logging
import os
import re
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from corral.worker.confinement.loopback_programs import keep_to_loopback

log = logging.getLogger(__name__)

_PREFIX: Final = "corral-backend-"
_OWN: Final = "corral-worker"
_VERSION_1_LIMITS: Final = {"memory": "memory.limit_in_bytes", "pids": "pids.max"}
_VERSION_2_LIMITS: Final = {"memory": "memory.max", "pids": "pids.max"}
_KILL_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.01
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")


class CgroupParents(msgspec.Struct, frozen=True, kw_only=True):
    """Groups of this worker in which groups for backends can be made."""

    unified: Path | None = None
    """The directory of the group in version 2; None without it."""
    separate: Mapping[str, Path] = msgspec.field(default_factory=dict)
    """In version 1, by controller: `memory`, `pids`."""

    @property
    def version(self) -> str:
        return "v2" if self.unified is not None else "v1" if self.separate else ""


class BackendGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The groups of one process."""

    unified: Path | None
    separate: Sequence[Path]
    limits: frozenset[str]
    """Controllers of this group that limit something."""
    is_loopback: bool = False

    @property
    def task_files(self) -> list[str]:
        """Files by which a process joins."""
        unified_files = [] if self.unified is None else [self.unified / "cgroup.procs"]
        return [str(path) for path in (*unified_files, *(group / "cgroup.procs" for group in self.separate))]

    def end(self) -> int:
        """Kill what is left in the groups and remove them; how many processes that were. Idempotent."""
        groups = [*self.separate, *([] if self.unified is None else [self.unified])]
        ended = {pid for group in groups for pid in _processes(group)}
        deadline = time.monotonic() + _KILL_SECONDS
        for group in groups:
            _empty(group, deadline)
        return len(ended)


def find_parents(*, proc: Path = Path("/proc")) -> CgroupParents:
    """Return the groups in which this process may make others, tried out."""
    mounts = _mounts(proc)
    unified = None
    separate = {}
    for line in _lines(proc / "self" / "cgroup"):
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            mount = mounts.get(controller)
            if mount is None or (controller and controller not in _VERSION_1_LIMITS):
                continue
            group = _below(mount, path)
            if not _can_make_groups(group):
                continue
            if controller:
                separate[controller] = group
            else:
                unified = group
                _share_out(group)
    return CgroupParents(unified=unified, separate=separate)


def make_group(
    parents: CgroupParents, name: str, *, limits: Mapping[str, int], keeps_loopback: bool = False
) -> BackendGroup:
    """Make the groups for one process. `limits` are by controller. What cannot be had is left out of the result."""
    unified = _made(parents.unified, name)
    limited = set()
    is_loopback = False
    if unified is not None:
        limited |= _set_limits(unified, _VERSION_2_LIMITS, limits)
        is_loopback = keeps_loopback and _is_kept(unified)
    separate = []
    for controller, parent in parents.separate.items():
        if controller in limited or (controller not in limits and unified is not None):
            continue
        if (group := _made(parent, name)) is not None:
            separate.append(group)
            limited |= _set_limits(group, {controller: _VERSION_1_LIMITS[controller]}, limits)
    return BackendGroup(unified=unified, separate=separate, limits=frozenset(limited), is_loopback=is_loopback)


def named_group(parents: CgroupParents, name: str) -> BackendGroup:
    """Return the groups that a process of this name may have, made or not, to end them."""
    return BackendGroup(
        unified=None if parents.unified is None else parents.unified / f"{_PREFIX}{name}",
        separate=[parent / f"{_PREFIX}{name}" for parent in parents.separate.values()],
        limits=frozenset(),
    )


def end_left_groups(parents: CgroupParents, owner: str) -> int:
    """End what an earlier life of this worker left in its groups, and remove them."""
    ended = 0
    for parent in filter(None, (parents.unified, *parents.separate.values())):
        for group in parent.glob(f"{_PREFIX}{owner}-*"):
            ended += BackendGroup(unified=group, separate=(), limits=frozenset()).end()
    return ended


def _made(parent: Path | None, name: str) -> Path | None:
    if parent is None:
        return None
    group = parent / f"{_PREFIX}{name}"
    try:
        group.mkdir(exist_ok=True)
    except OSError as error:
        log.warning("no cgroup for a backend: %s", error, extra={"event": "backend.no_cgroup"})
        return None
    return group


def _set_limits(group: Path, files: Mapping[str, str], limits: Mapping[str, int]) -> set[str]:
    limited = set()
    for controller, file in files.items():
        most = limits.get(controller)
        if most is None or not (group / file).exists():
            continue
        with contextlib.suppress(OSError):
            (group / file).write_text(str(most), encoding="ascii")
            limited.add(controller)
    return limited


def _is_kept(group: Path) -> bool:
    try:
        keep_to_loopback(group)
    except OSError:
        return False
    return True


def _mounts(proc: Path) -> dict[str, Path]:
    """Mounts by controller, version 2 under the empty name."""
    mounts: dict[str, Path] = {}
    for line in _lines(proc / "self" / "mounts"):
        _, place, kind, options, *_ = line.split(" ")
        path = Path(_ESCAPE.sub(lambda match: chr(int(match[1], 8)), place))
        if kind == "cgroup2":
            mounts.setdefault("", path)
        elif kind == "cgroup":
            for option in options.split(","):
                mounts.setdefault(option, path)
    return mounts


def _below(mount: Path, path: str) -> Path:
    """The group's directory; in a container, whose own group is mounted as the root, that is the mount."""
    group = mount / path.lstrip("/")
    return group if group.is_dir() else mount


def _can_make_groups(parent: Path) -> bool:
    trial = parent / f"{_PREFIX}trial-{os.getpid()}"
    try:
        trial.mkdir()
        trial.rmdir()
    except OSError:
        return False
    return True


def _share_out(group: Path) -> None:
    """Have version 2 limit groups inside of this one, if that is ours to decide.

    The kernel wants the processes of such a group to be in groups inside of it, so this one moves there, if it is the
    only one and the creator of the group delegated it.
    """
    controllers = [name for name in _VERSION_2_LIMITS if name in _words(group / "cgroup.controllers")]
    if not controllers or set(controllers) <= set(_words(group / "cgroup.subtree_control")):
        return
    with contextlib.suppress(OSError):
        _enable(group, controllers)
        return
    if _processes(group) != [os.getpid()] or not _is_given_away(group):
        return
    worker_group = group / _OWN
    try:
        worker_group.mkdir(exist_ok=True)
        (worker_group / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
        _enable(group, controllers)
    except OSError:
        with contextlib.suppress(OSError):
            (group / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
            worker_group.rmdir()


def _enable(group: Path, controllers: Sequence[str]) -> None:
    words = " ".join(f"+{controller}" for controller in controllers)
    (group / "cgroup.subtree_control").write_text(words, encoding="ascii")


def _is_given_away(group: Path) -> bool:
    """Whether a service manager delegated the group to us: its owner says so, or the manager's mark."""
    if os.geteuid() != 0:
        return True
    for mark in ("trusted.delegate", "user.delegate"):
        with contextlib.suppress(OSError):
            return os.getxattr(group, mark) == b"1"
    return False


def _words(file: Path) -> list[str]:
    return " ".join(_lines(file)).split()


def _processes(group: Path) -> list[int]:
    return [int(line) for line in _lines(group / "cgroup.procs") if line.isdecimal() and line != "0"]


def _empty(group: Path, deadline: float) -> None:
    """Kill until nobody is left, since those that are there may be starting others, and remove the group."""
    while group.is_dir() and time.monotonic() < deadline:
        if (group / "cgroup.kill").exists():
            with contextlib.suppress(OSError):
                (group / "cgroup.kill").write_text("1", encoding="ascii")
        for pid in _processes(group):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(_LOOK_SECONDS)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []
