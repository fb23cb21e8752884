"""GPUs that the machine has and that no engine could use, because of their drivers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from corral.worker.hardware.gpus import PCI_IDS, MeasuredGpu, Vendor
from corral.worker.hardware.readings import number_in

_DISPLAY: Final = 0x03
_DRIVERS: Final[Mapping[Vendor, frozenset[str]]] = {
    Vendor.NVIDIA: frozenset({"nvidia"}),
    Vendor.AMD: frozenset({"amdgpu"}),
    Vendor.INTEL: frozenset({"i915", "xe"}),
}
_VIRTUAL: Final = "vfio-pci"
"""Given to virtual machines on purpose."""


def driver_problems(sys: Path, gpus: Sequence[MeasuredGpu]) -> list[str]:
    """A sentence for each GPU on PCI that has no driver, or one that engines cannot use; and for NVIDIA's when the
    driver is there and its library says nothing."""
    problems, is_driven = [], False
    for device in _gpus_on_pci(sys):
        vendor = PCI_IDS[number_in(device / "vendor") or 0]
        driver = (device / "driver").resolve().name if (device / "driver").exists() else ""
        if driver == _VIRTUAL:
            continue
        drivers = " or ".join(sorted(_DRIVERS[vendor]))
        if not driver:
            problems.append(f"the GPU {device.name} ({vendor.value}) has no driver; install {drivers}")
        elif driver not in _DRIVERS[vendor]:
            problems.append(f"the GPU {device.name} ({vendor.value}) has the driver {driver}; engines need {drivers}")
        else:
            is_driven = is_driven or vendor is Vendor.NVIDIA
    if is_driven and not any(gpu.vendor is Vendor.NVIDIA and gpu.total for gpu in gpus):
        problems.append(
            "the driver nvidia is loaded, and its library (NVML) tells of no GPU: its versions may not fit each other "
            "after an update, or this user may not open /dev/nvidia0; try nvidia-smi, and restart the machine"
        )
    return problems


def _gpus_on_pci(sys: Path) -> list[Path]:
    try:
        devices = sorted((sys / "bus" / "pci" / "devices").iterdir())
    except OSError:
        return []
    return [
        device
        for device in devices
        if (number_in(device / "class") or 0) >> 16 == _DISPLAY and (number_in(device / "vendor") or 0) in PCI_IDS
    ]
