"""Intel's GPUs, by what the drivers xe and i915 show of them.

Only cards have memory of their own. One built into a processor uses the machine's, in amounts that nobody tells, so
nothing is said of it and such a machine counts as one without a GPU when builds are chosen.
"""

from pathlib import Path

from corral.worker.hardware.gpus.gpu import MeasuredGpu, Vendor, number_in


def read(device: Path) -> MeasuredGpu:
    """One GPU by its directory below /sys."""
    return MeasuredGpu(
        vendor=Vendor.INTEL,
        total=_sum_of(device, "tile*/physical_vram_size_bytes") or _sum_of(device, "drm/card*/lmem_total_bytes"),
        free=_sum_of(device, "drm/card*/lmem_avail_bytes"),
    )


def _sum_of(device: Path, pattern: str) -> int | None:
    """Sum a value over all tiles; None when there is no such file. The xe driver never reports free memory."""
    amounts = [amount for path in device.glob(pattern) if (amount := number_in(path)) is not None]
    return sum(amounts) if amounts else None
