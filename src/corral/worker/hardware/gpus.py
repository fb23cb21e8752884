"""The GPUs of this machine: each way to find them is a class, and `MachineGpus` asks them all."""

import contextlib
import logging
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Protocol

import msgspec
from msgspec.structs import replace

from corral.base.tasks import task_group
from corral.worker.hardware.readings import BoundedReading, Space, number_in, text_in

log = logging.getLogger(__name__)


class Vendor(StrEnum):
    """Makers by the names that LocalAI's peers use; the first one found decides which builds a machine gets."""

    NVIDIA = "nvidia"
    AMD = "amd"
    INTEL = "intel"
    APPLE = "apple"


class MeasuredGpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU. None: could not be read, which is not the same as 0."""

    vendor: Vendor
    id: str = ""
    """An id that survives restarts and another slot order; empty when the GPU cannot be distinguished from others."""
    index: int = 0
    """Its place in the order in which the engines of its vendor count."""
    name: str = ""
    compute_capability: tuple[int, int] | None = None
    """NVIDIA's compute capability, as major and minor number."""
    total: int | None = None
    free: int | None = None
    shares_ram: bool = False
    """The GPU has no memory of its own and uses the machine's."""


class Gpus(msgspec.Struct, frozen=True, kw_only=True):
    """All GPUs together; empty and 0 without one. None: there are GPUs, but the value cannot be read."""

    vendor: str = ""
    compute_capability: str = ""
    total_vram: int | None = 0
    available_vram: int | None = 0


class Detector(Protocol):
    """One way to find GPUs."""

    @property
    def name(self) -> str: ...

    def find(self) -> list[MeasuredGpu]:
        """Return all GPUs of one vendor; none if this method does not apply here. May block for ever, and may raise."""


def together(gpus: Sequence[MeasuredGpu], ram: Space | None) -> Gpus:
    """The sum over GPUs of one vendor; memory that cannot be read adds nothing, so that no sum promises too much."""
    if not gpus:
        return Gpus()
    shared = ram if any(gpu.shares_ram for gpu in gpus) else None
    capabilities = [gpu.compute_capability for gpu in gpus if gpu.compute_capability is not None]
    return Gpus(
        vendor=gpus[0].vendor,
        # What all of them can do, since a model may be spread over them.
        compute_capability="{}.{}".format(*min(capabilities)) if capabilities else "",
        total_vram=_sum_of_known([*(gpu.total for gpu in gpus), shared.total if shared else None]),
        available_vram=_sum_of_known([*(gpu.free for gpu in gpus), shared.available if shared else None]),
    )


def _sum_of_known(amounts: Iterable[int | None]) -> int | None:
    known_amounts = [amount for amount in amounts if amount is not None]
    return sum(known_amounts) if known_amounts else None


def cards_of(gpus: Sequence[MeasuredGpu], ram: Space | None) -> tuple[MeasuredGpu, ...]:
    """The GPUs that models can be given one by one: those with an id and an amount of memory.

    Where that is the machine's memory, one GPU has it: several would promise it several times.
    """
    sharing = next((gpu for gpu in gpus if gpu.shares_ram), None)
    counted = (
        replace(gpu, total=ram.total, free=ram.available) if gpu is sharing and ram is not None else gpu for gpu in gpus
    )
    return tuple({gpu.id: gpu for gpu in counted if gpu.id and gpu.total}.values())


PCI_IDS: Final[Mapping[int, Vendor]] = {0x10DE: Vendor.NVIDIA, 0x1002: Vendor.AMD, 0x8086: Vendor.INTEL}
"""In the order in which vendors are preferred. Whatever else shows a picture, as a server's console does, is no GPU."""
_DISPLAY: Final = 0x03
_ACCELERATOR: Final = 0x12
"""How AMD's cards for servers call themselves; Intel's devices of this class are no GPUs."""
_SYSCTL: Final = "/usr/sbin/sysctl"
_WITHIN_SECONDS: Final = 2


class Sysfs:
    """Finds what any driver announces. NVIDIA's says nothing of memory here, so NVML is asked first."""

    name = "sysfs"

    def __init__(self, sys: Path = Path("/sys")) -> None:
        self._sys = sys

    def find(self) -> list[MeasuredGpu]:
        """The GPUs of the preferred vendor: builds of backends are for one only."""
        devices = list(self._devices())
        for vendor in PCI_IDS.values():
            vendor_devices = [device for maker, device in devices if maker is vendor]
            if not vendor_devices:
                continue
            ranks = self._ranks_in_rocm() if vendor is Vendor.AMD else {}
            return [
                replace(_READERS[vendor](device), index=ranks.get(device.name, number))
                for number, device in enumerate(vendor_devices)
            ]
        return []

    def _ranks_in_rocm(self) -> dict[str, int]:
        """Where AMD's own software counts each GPU, by its address on PCI: in the order of the driver's nodes, of which
        processors are some."""
        nodes = _sorted_children(self._sys / "class" / "kfd" / "kfd" / "topology" / "nodes")
        gpus = []
        for node in sorted((node for node in nodes if node.name.isdecimal()), key=lambda node: int(node.name)):
            facts = dict(line.split(maxsplit=1) for line in text_in(node / "properties").splitlines() if " " in line)
            number = {name: int(value) for name, value in facts.items() if value.isdecimal()}
            if number.get("simd_count"):
                place = number.get("location_id", 0)
                domain, bus, slot = number.get("domain", 0), place >> 8 & 0xFF, place >> 3 & 0x1F
                gpus.append(f"{domain:04x}:{bus:02x}:{slot:02x}.{place & 7}")
        return {address: rank for rank, address in enumerate(gpus)}

    def has(self, vendor: Vendor) -> bool:
        return any(maker is vendor for maker, _ in self._devices())

    def _devices(self) -> Iterator[tuple[Vendor, Path]]:
        """Every GPU once. Cards without a screen may be missing among those that draw, and those are not all on PCI."""
        directories = []
        for directory in _sorted_children(self._sys / "bus" / "pci" / "devices"):
            kind = (number_in(directory / "class") or 0) >> 16
            is_amd = number_in(directory / "vendor") == 0x1002
            if kind == _DISPLAY or (kind == _ACCELERATOR and is_amd):
                directories.append(directory)
        for directory in _sorted_children(self._sys / "class" / "drm"):
            if directory.name.removeprefix("card").isdecimal():  # `card0` is a card, `card0-DP-1` one of its connectors
                directories.append(directory / "device")
        seen = set()
        for directory in directories:
            vendor = PCI_IDS.get(number_in(directory / "vendor") or 0)
            real = directory.resolve()
            # Given away to a virtual machine, or a slice of another device that is meant to be.
            is_virtual = (directory / "driver").resolve().name == "vfio-pci" or (directory / "physfn").exists()
            if vendor is not None and real not in seen and not is_virtual:
                seen.add(real)
                yield vendor, real


def _sorted_children(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _read_nvidia(device: Path) -> MeasuredGpu:
    return MeasuredGpu(vendor=Vendor.NVIDIA, id=device.name)


def _read_amd(device: Path) -> MeasuredGpu:
    """Read a GPU of the driver amdgpu.

    A GPU built into a processor has the memory that the firmware reserved for it.
    """
    total, used = number_in(device / "mem_info_vram_total"), number_in(device / "mem_info_vram_used")
    total = total or None  # 0 while the driver is starting
    serial = text_in(device / "unique_id").lower()  # hexadecimal; most cards for desktops have none
    return MeasuredGpu(
        vendor=Vendor.AMD,
        id=f"GPU-{serial}" if serial.strip("0") else device.name,
        name=text_in(device / "product_name"),
        total=total,
        free=max(total - used, 0) if total is not None and used is not None else None,
    )


def _read_intel(device: Path) -> MeasuredGpu:
    """Read a GPU of the drivers i915 or xe; xe never reports free memory.

    A GPU built into a processor uses the machine's memory, in amounts that no driver reports, so such a machine counts
    as one without a GPU when builds are chosen.
    """

    def sum_of(pattern: str) -> int | None:
        amounts = [amount for path in device.glob(pattern) if (amount := number_in(path)) is not None]
        return sum(amounts) if amounts else None

    return MeasuredGpu(
        vendor=Vendor.INTEL,
        id=device.name,
        total=sum_of("tile*/physical_vram_size_bytes") or sum_of("drm/card*/lmem_total_bytes"),
        free=sum_of("drm/card*/lmem_avail_bytes"),
    )


_READERS: Final[Mapping[Vendor, Callable[[Path], MeasuredGpu]]] = {
    Vendor.NVIDIA: _read_nvidia,
    Vendor.AMD: _read_amd,
    Vendor.INTEL: _read_intel,
}


class Apple:
    """Apple's own chips: one GPU that shares the machine's memory."""

    name = "apple"

    def __init__(self, *, system: str = sys.platform, sysctl: "Callable[[str], str] | None" = None) -> None:
        self._system = system
        self._sysctl = sysctl or read_sysctl
        self._gpus: list[MeasuredGpu] | None = None

    def find(self) -> list[MeasuredGpu]:
        """Return the chip's GPU. It is read only once: neither the chip nor its memory changes."""
        if self._gpus is None:
            self._gpus = []
            if self._system == "darwin" and self._sysctl("hw.optional.arm64") == "1":
                name = self._sysctl("machdep.cpu.brand_string")
                self._gpus.append(MeasuredGpu(vendor=Vendor.APPLE, id="apple-0", name=name, shares_ram=True))
        return self._gpus


def read_sysctl(name: str) -> str:
    """A value of the kernel; empty when it has none of that name, as Macs with Intel's processors."""
    command = [_SYSCTL, "-n", name]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=_WITHIN_SECONDS, check=False)  # noqa: S603
    return answer.stdout.strip() if answer.returncode == 0 else ""


SIGNS: Final = ("proc/driver/nvidia/version", "dev/nvidiactl", "dev/nvhost-gpu", "dev/nvgpu", "dev/dxg")
"""Files that are there when a driver is loaded; the last one is that of Windows' subsystem for Linux."""

SHARING_RAM: Final = ("GB10", "Thor", "Tegra", "Orin", "Xavier")
"""Parts of names of GPUs that have no memory of their own."""

COMPUTE_CAPABILITIES: Final[Mapping[str, tuple[int, int]]] = {
    "nvidia,tegra210": (5, 3),
    "nvidia,tegra186": (6, 2),
    "nvidia,tegra194": (7, 2),
    "nvidia,tegra234": (8, 7),
    "nvidia,tegra264": (11, 0),
}
"""By chip: Nano, TX2, Xavier, Orin, Thor."""


class Nvidia:
    """Asks NVIDIA's management library (NVML), which stays loaded: on some machines it takes a second to start.

    It is loaded only where there are signs of such a GPU, because even its Python side takes megabytes.
    """

    name = "nvidia"

    def __init__(self, load: Callable[[], ModuleType], *, root: Path = Path("/")) -> None:
        self._load = load
        """Imports `pynvml`. ImportError when it is not installed."""
        self._root = root
        self._started: ModuleType | None = None

    def find(self) -> list[MeasuredGpu]:
        """Return the GPUs, or none without a driver. Raise when there is a driver that does not work."""
        library = self._started or self._start()
        if library is None:
            return []
        try:
            return [_read(library, index) for index in range(library.nvmlDeviceGetCount())]
        except library.NVMLError:
            self._started = None  # the driver may have been replaced: load it again next time
            with contextlib.suppress(library.NVMLError):  # it may be in no state to be shut down
                library.nvmlShutdown()
            raise

    def _start(self) -> ModuleType | None:
        is_loaded = any((self._root / sign).exists() for sign in SIGNS)
        if not is_loaded and not Sysfs(self._root / "sys").has(Vendor.NVIDIA):
            return None
        try:
            library = self._load()
        except ImportError:
            return None
        try:
            library.nvmlInit()
        except library.NVMLError as error:
            if error.value in (library.NVML_ERROR_LIBRARY_NOT_FOUND, library.NVML_ERROR_DRIVER_NOT_LOADED):
                return None
            raise
        self._started = library
        return library


def _read(library: ModuleType, index: int) -> MeasuredGpu:
    """Read one GPU. A GPU that has fallen off the bus is still counted, without memory."""
    try:
        handle = library.nvmlDeviceGetHandleByIndex(index)
    except library.NVMLError:
        return MeasuredGpu(vendor=Vendor.NVIDIA)
    name = _answer(library, library.nvmlDeviceGetName, handle) or ""
    memory = _answer(library, library.nvmlDeviceGetMemoryInfo, handle)
    has_memory = memory is not None and memory.total > 0
    return MeasuredGpu(
        vendor=Vendor.NVIDIA,
        id=_answer(library, library.nvmlDeviceGetUUID, handle) or f"nvidia-{index}",
        index=index,
        name=name,
        compute_capability=_answer(library, library.nvmlDeviceGetCudaComputeCapability, handle),
        total=memory.total if has_memory else None,
        free=memory.free if has_memory else None,
        shares_ram=not has_memory and any(part in name for part in SHARING_RAM),
    )


def _answer(library: ModuleType, question: Callable[[Any], Any], handle: object) -> Any:
    """Query NVML; None for values that this GPU does not report."""
    try:
        return question(handle)
    except library.NVMLError:
        return None


class Tegra:
    """NVIDIA's systems on a chip, such as Jetson: one GPU that shares the machine's memory."""

    name = "tegra"

    def __init__(self, *, sys: Path = Path("/sys"), proc: Path = Path("/proc")) -> None:
        self._soc = sys / "devices" / "soc0"
        self._tree = proc / "device-tree"

    def find(self) -> list[MeasuredGpu]:
        chips = text_in(self._tree / "compatible").split("\0")
        is_tegra = (
            text_in(self._soc / "family") == "Tegra"
            or text_in(self._soc / "soc_id").startswith("jep106:0426")
            or any(chip.startswith("nvidia,tegra") for chip in chips)
        )
        if not is_tegra:
            return []
        capability = next((COMPUTE_CAPABILITIES[chip] for chip in chips if chip in COMPUTE_CAPABILITIES), None)
        name = text_in(self._tree / "model") or "Tegra"
        gpu = MeasuredGpu(vendor=Vendor.NVIDIA, id="tegra-0", name=name, compute_capability=capability, shares_ram=True)
        return [gpu]


def detectors_of_this_machine(load_nvml: Callable[[], ModuleType]) -> list[Detector]:
    """Return detectors in order of trust: those that know most about a GPU first."""
    return [Nvidia(load_nvml), Tegra(), Sysfs(), Apple()]


class MachineGpus:
    """Asks every way to find GPUs, each in its own thread and in time. The first that finds some is believed."""

    def __init__(self, detectors: Sequence[Detector], *, timeout: timedelta) -> None:
        self._ways = [_Way(detector, timeout) for detector in detectors]
        self._logged: list[str] = []

    async def read(self) -> list[MeasuredGpu]:
        async with task_group() as group:
            tasks = [group.create_task(way.read(), name=f"gpus {number}") for number, way in enumerate(self._ways)]
        gpus = next((task.result() for task in tasks if task.result()), [])
        names = [f"{gpu.vendor} {gpu.name}".strip() for gpu in gpus]
        if names != self._logged:
            self._logged = names
            log.info("GPUs: %s", ", ".join(names) or "none", extra={"event": "hardware.gpus_found"})
        return gpus


class _Way:
    """One detector, and what it last said: a driver that hangs does not make its GPUs disappear."""

    def __init__(self, detector: Detector, timeout: timedelta) -> None:
        self._reading = BoundedReading(detector.find, timeout=timeout, name=f"gpus.{detector.name}")
        self._last: list[MeasuredGpu] = []

    async def read(self) -> list[MeasuredGpu]:
        gpus = await self._reading.read()
        if gpus is None:
            return [replace(gpu, free=None) for gpu in self._last]
        self._last = gpus
        return gpus
