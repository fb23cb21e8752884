"""NVIDIA's GPUs, by what its management library (NVML) says.

The library is loaded only where there are signs of such a GPU, and its Python side only then too: it takes megabytes.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from corral.worker.hardware.gpus.gpu import MeasuredGpu, Vendor
from corral.worker.hardware.gpus.sysfs import Sysfs

SIGNS: Final = ("proc/driver/nvidia/version", "dev/nvidiactl", "dev/nvhost-gpu", "dev/nvgpu", "dev/dxg")
"""Files that are there when a driver is loaded; the last one is that of Windows' subsystem for Linux."""

SHARING_RAM: Final = ("GB10", "Thor", "Tegra", "Orin", "Xavier")
"""Parts of names of GPUs that have no memory of their own."""


class Nvidia:
    """Asks NVML, which stays loaded: on some machines it takes a second to start."""

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
            self._stop(library)  # the driver may have been replaced: load it again next time
            raise

    def _start(self) -> ModuleType | None:
        if not self._is_worth_asking():
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

    def _stop(self, library: ModuleType) -> None:
        self._started = None
        with contextlib.suppress(library.NVMLError):  # it may be in no state to be shut down
            library.nvmlShutdown()

    def _is_worth_asking(self) -> bool:
        is_loaded = any((self._root / sign).exists() for sign in SIGNS)
        return is_loaded or Sysfs(self._root / "sys").has(Vendor.NVIDIA)


def _read(library: ModuleType, index: int) -> MeasuredGpu:
    """One GPU. What has fallen off the bus is still counted, without memory."""
    try:
        handle = library.nvmlDeviceGetHandleByIndex(index)
    except library.NVMLError:
        return MeasuredGpu(vendor=Vendor.NVIDIA)
    name = _answer(library, library.nvmlDeviceGetName, handle) or ""
    memory = _answer(library, library.nvmlDeviceGetMemoryInfo, handle)
    has_memory = memory is not None and memory.total > 0
    return MeasuredGpu(
        vendor=Vendor.NVIDIA,
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
