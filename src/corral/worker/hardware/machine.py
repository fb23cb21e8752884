"""What this machine has: memory, disk, processors, GPUs, and the capability by which backend builds are chosen.

Measures and nothing else. What cannot be read is left out, never reported as 0. Inside a container its limits count,
not the machine's. Nothing here blocks the event loop for long: disk and GPUs, which may hang, are read in threads.
"""

import hashlib
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path, PurePosixPath
from typing import Final, Protocol

import msgspec
import psutil

from corral.base.tasks import task_group
from corral.worker.hardware.gpus import Gpus, MachineGpus, MeasuredGpu, Vendor, cards_of, together
from corral.worker.hardware.readings import BoundedReading, Space, text_in
from corral.worker.hardware.visible_devices import visible_gpus

SMALL_GPU_BYTES: Final = 4 * 1024**3
"""With no more than this, models run better without the GPU, by LocalAI's rule."""


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured at one moment; None: could not be read."""

    ram: Space | None = None
    disk: Space | None = None
    gpus: Gpus = msgspec.field(default_factory=Gpus)
    cards: tuple[MeasuredGpu, ...] = ()
    """GPUs that models can be given one by one."""
    capability: str = "default"


class Gauge(Protocol):
    """Port of those who need current measurements of the machine."""

    async def measure(self) -> Measurement: ...


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What does not change while the process lives; None: could not be read."""

    os: str
    architecture: str
    cpus: int | None = None
    """How many this process may use, not how many are built in."""
    cpu_model: str | None = None


class CapabilityRule(msgspec.Struct, frozen=True, kw_only=True):
    """Which builds of a backend suit this machine: what people forced, then the run file, then what was found."""

    forced: str
    run_file: Path

    def judge(self, gpus: Gpus) -> str:
        return self.forced or text_in(self.run_file) or detect_capability(gpus)


class MemoryLimit(msgspec.Struct, frozen=True, kw_only=True):
    """What one control group may use, and what is left of it, in bytes."""

    limit: int
    available: int


class Cgroup:
    """Reads the limits of this process's control groups and of all groups above them, in both versions of Linux's
    control groups; elsewhere nothing is limited.

    In a container the mount shows the container's own group as the root, so a path from `/proc/self/cgroup` that is
    not there is simply skipped.
    """

    def __init__(self, *, proc: Path = Path("/proc"), mount: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc = proc
        self._mount = mount

    def memory_limits(self) -> list[MemoryLimit]:
        """Every limit that holds, in no order; the lowest one counts."""
        return [limit for _, limit in self._limited_groups()]

    def memory_group(self, total: int) -> int | None:
        """The number that the kernel gives the control group with the lowest limit, the same in all containers. None:
        nothing below this total limits the process."""
        limits = ((limit.limit, group) for group, limit in self._limited_groups() if limit.limit < total)
        tightest = min(limits, default=None)
        return None if tightest is None else tightest[1].stat().st_ino

    def _limited_groups(self) -> Iterator[tuple[Path, MemoryLimit]]:
        for controller, limit_file, used_file, reclaimable_name in (
            ("", "memory.max", "memory.current", "inactive_file"),
            ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            for group in self._groups(controller):
                limit, used = _limit_in(group / limit_file), _limit_in(group / used_file)
                if limit is not None and used is not None:
                    # Reclaimable file pages count as free: the kernel drops them under pressure.
                    reclaimable = _statistic(group / "memory.stat", reclaimable_name)
                    available = max(limit - max(used - reclaimable, 0), 0)
                    yield group, MemoryLimit(limit=limit, available=available)

    def cpu_quota(self) -> float | None:
        """How many processors' worth of time the groups grant; None: no limit."""
        quotas = []
        for group in self._groups(""):
            quota, _, period = text_in(group / "cpu.max").partition(" ")
            if quota.isdecimal() and period.isdecimal() and int(period):
                quotas.append(int(quota) / int(period))
        for group in self._groups("cpu"):
            limit, interval = _limit_in(group / "cpu.cfs_quota_us"), _limit_in(group / "cpu.cfs_period_us")
            if limit and interval:
                quotas.append(limit / interval)
        return min(quotas, default=None)

    def _groups(self, controller: str) -> Iterator[Path]:
        """Directories from the root of a controller's mount down to this process's own group.

        A line of the kernel's list is `<number>:<controllers>:<path>`; version 2 names no controllers.
        """
        path = PurePosixPath("/")
        for line in text_in(self._proc / "self" / "cgroup").splitlines():
            _, _, fields = line.partition(":")
            controllers, _, group = fields.partition(":")
            if controller in controllers.split(","):
                path = PurePosixPath(group)
                break
        for part in (*reversed(path.parents), path):
            yield self._mount / controller / str(part).lstrip("/")


def _limit_in(path: Path) -> int | None:
    """Return a number from a file; None for `max` and `-1`, which mean no limit."""
    text = text_in(path)
    return int(text) if text.isdecimal() else None


def _statistic(path: Path, name: str) -> int:
    for line in text_in(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.isdecimal():
            return int(value)
    return 0


class Hardware:
    """Measures this machine: memory, disk, processors and GPUs."""

    def __init__(
        self,
        *,
        models_path: Path,
        disk_timeout: timedelta,
        capability: CapabilityRule,
        gpus: MachineGpus,
        cgroup: Cgroup,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`environment` is what backends inherit, which may hide GPUs from them."""
        self._capability = capability
        self._gpus = gpus
        self._cgroup = cgroup
        self._environment = environment or {}
        self.cards: tuple[MeasuredGpu, ...] = ()
        """The GPUs as they were last measured."""
        self._disk = BoundedReading(lambda: read_disk(models_path), timeout=disk_timeout, name="disk")

    async def measure(self) -> Measurement:
        """Measure free memory, free disk and GPUs now."""
        async with task_group() as group:
            disk = group.create_task(self._disk.read(), name="read disk")
            measured_gpus = group.create_task(self._gpus.read(), name="read GPUs")
        ram = limited_ram(read_ram(), self._cgroup)
        visible = visible_gpus(measured_gpus.result(), self._environment)
        gpus = together(visible, ram)
        self.cards = cards_of(visible, ram)
        return Measurement(
            ram=ram, disk=disk.result(), gpus=gpus, cards=self.cards, capability=self._capability.judge(gpus)
        )

    def machine(self) -> Machine:
        return Machine(
            os=platform.system().lower(),
            architecture=platform.machine().lower(),
            cpus=usable_cpus(self._cgroup.cpu_quota()),
            cpu_model=read_cpu_model(Path("/proc/cpuinfo")),
        )


def detect_capability(
    gpus: Gpus, *, system: str | None = None, architecture: str | None = None, local: Path = Path("/usr/local")
) -> str:
    """Return the capability of a machine where none is forced by a setting, by the rules of LocalAI's workers."""
    is_arm = (architecture or platform.machine()).lower() in ("arm64", "aarch64")
    if (system or sys.platform) == "darwin":
        return "metal" if is_arm else "darwin-x86"
    if gpus.vendor == Vendor.NVIDIA and is_arm:
        return f"nvidia-l4t{_cuda(local)}"
    if not gpus.vendor or (gpus.total_vram or 0) <= SMALL_GPU_BYTES:
        return "default"
    return f"nvidia{_cuda(local)}" if gpus.vendor == Vendor.NVIDIA else gpus.vendor


def _cuda(local: Path) -> str:
    """The newest CUDA that is installed in its usual place, as a capability names it."""
    return next((f"-cuda-{version}" for version in (13, 12) if (local / f"cuda-{version}").exists()), "")


def read_ram() -> Space | None:
    """The machine's memory, of which this process may be allowed less."""
    try:
        memory = psutil.virtual_memory()
    except (OSError, RuntimeError, ValueError):  # /proc is missing or strange, as in some sandboxes
        return None
    return Space(total=memory.total, available=memory.available) if memory.total > 0 else None


def limited_ram(ram: Space | None, cgroup: Cgroup) -> Space | None:
    """What is left of the machine's memory under the limits of its control groups."""
    if ram is None:
        return None
    limits = [limit for limit in cgroup.memory_limits() if limit.limit < ram.total]
    return Space(
        total=min((limit.limit for limit in limits), default=ram.total),
        available=min((ram.available, *(limit.available for limit in limits))),
    )


def memory_pool(ram: Space | None, cgroup: Cgroup, *, boot_id: Path = Path("/proc/sys/kernel/random/boot_id")) -> str:
    """A word that is the same for all workers whose memory `limited_ram` takes from the same place; empty when not
    known. Nobody else can guess it."""
    boot = text_in(boot_id)
    if ram is None or not boot:
        return ""
    try:
        group = cgroup.memory_group(ram.total)
    except OSError:  # the group is gone, or moved
        return ""
    return hashlib.sha256(f"corral memory pool {boot} {group}".encode()).hexdigest()[:32]


def read_disk(path: Path) -> Space | None:
    """Read the file system of the path or of its nearest existing ancestor. May block for ever."""
    try:
        status = os.statvfs(nearest_existing(path))
    except OSError:
        return None
    total = status.f_blocks * status.f_frsize
    return Space(total=total, available=status.f_bavail * status.f_frsize) if total > 0 else None


def nearest_existing(path: Path) -> Path:
    absolute = path.absolute()
    return next((place for place in (absolute, *absolute.parents) if os.path.exists(place)), Path("/"))


def on_one_disk(first: Path, second: Path) -> bool:
    """Whether two places, made already or not, share the room of one file system."""
    try:
        return os.stat(nearest_existing(first)).st_dev == os.stat(nearest_existing(second)).st_dev
    except OSError:
        return False


def usable_cpus(quota: float | None) -> int | None:
    """Processors this process may run on, bounded by its control groups; a started processor counts."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if allowed is None or quota is None:
        return allowed
    return min(allowed, max(1, -int(-quota // 1)))


def read_cpu_model(cpuinfo: Path) -> str | None:
    lines = text_in(cpuinfo).splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next((name for name in names if name), None) or platform.processor() or None
