"""GPUs as Linux shows them below /sys: which there are, whose, and what their drivers say of their memory."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from corral.worker.hardware.gpus import amd, intel
from corral.worker.hardware.gpus.gpu import MeasuredGpu, Vendor, number_in

PCI_IDS: Final[Mapping[int, Vendor]] = {0x10DE: Vendor.NVIDIA, 0x1002: Vendor.AMD, 0x8086: Vendor.INTEL}
"""In the order in which vendors are preferred. Whatever else shows a picture, as a server's console does, is no GPU."""

_DISPLAY: Final = 0x03
_ACCELERATOR: Final = 0x12
"""How AMD's cards for servers call themselves; Intel's devices of this class are no GPUs."""


class Sysfs:
    """Finds what any driver announces. NVIDIA's says nothing of memory here, so NVML is asked first."""

    name = "sysfs"

    def __init__(self, sys: Path = Path("/sys")) -> None:
        self._sys = sys

    def find(self) -> list[MeasuredGpu]:
        """The GPUs of the preferred vendor: builds of backends are for one only."""
        found = list(self._devices())
        for vendor in PCI_IDS.values():
            if gpus := [_gpu(vendor, device) for whose, device in found if whose is vendor]:
                return gpus
        return []

    def has(self, vendor: Vendor) -> bool:
        return any(whose is vendor for whose, _ in self._devices())

    def _devices(self) -> Iterator[tuple[Vendor, Path]]:
        """Every GPU once. Cards without a screen may be missing among those that draw, and those are not all on PCI."""
        seen = set()
        for directory in (*self._pci_devices(), *self._drawing_devices()):
            vendor = PCI_IDS.get(number_in(directory / "vendor") or 0)
            real = directory.resolve()
            if vendor is not None and real not in seen and not _is_for_virtual_machines(directory):
                seen.add(real)
                yield vendor, real

    def _pci_devices(self) -> Iterator[Path]:
        for directory in _sorted_children(self._sys / "bus" / "pci" / "devices"):
            kind = (number_in(directory / "class") or 0) >> 16
            is_amd = number_in(directory / "vendor") == 0x1002
            if kind == _DISPLAY or (kind == _ACCELERATOR and is_amd):
                yield directory

    def _drawing_devices(self) -> Iterator[Path]:
        """`card0` is a card, `card0-DP-1` one of its connectors."""
        for directory in _sorted_children(self._sys / "class" / "drm"):
            if directory.name.removeprefix("card").isdecimal():
                yield directory / "device"


def _gpu(vendor: Vendor, device: Path) -> MeasuredGpu:
    match vendor:
        case Vendor.AMD:
            return amd.read(device)
        case Vendor.INTEL:
            return intel.read(device)
        case _:
            return MeasuredGpu(vendor=vendor)


def _is_for_virtual_machines(device: Path) -> bool:
    """Given away to a virtual machine, or a slice of another device that is meant to be."""
    return (device / "driver").resolve().name == "vfio-pci" or (device / "physfn").exists()


def _sorted_children(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []
