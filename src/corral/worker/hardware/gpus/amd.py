"""AMD's GPUs, by what the driver amdgpu shows of them."""

from pathlib import Path

from corral.worker.hardware.gpus.gpu import MeasuredGpu, Vendor, number_in, text_in


def read(device: Path) -> MeasuredGpu:
    """One GPU by its directory below /sys. One built into a processor has what the firmware set aside for it."""
    total, used = number_in(device / "mem_info_vram_total"), number_in(device / "mem_info_vram_used")
    total = total or None  # 0 while the driver is starting
    return MeasuredGpu(
        vendor=Vendor.AMD,
        name=text_in(device / "product_name"),
        total=total,
        free=max(total - used, 0) if total is not None and used is not None else None,
    )
