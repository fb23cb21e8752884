"""NVIDIA's systems on a chip, such as Jetson: one GPU that shares the machine's memory. NVML may not know it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from corral.worker.hardware.gpus.gpu import MeasuredGpu, Vendor, text_in

COMPUTE_CAPABILITIES: Final[Mapping[str, tuple[int, int]]] = {
    "nvidia,tegra210": (5, 3),
    "nvidia,tegra186": (6, 2),
    "nvidia,tegra194": (7, 2),
    "nvidia,tegra234": (8, 7),
    "nvidia,tegra264": (11, 0),
}
"""By chip: Nano, TX2, Xavier, Orin, Thor."""


class Tegra:
    name = "tegra"

    def __init__(self, *, sys: Path = Path("/sys"), proc: Path = Path("/proc")) -> None:
        self._soc = sys / "devices" / "soc0"
        self._tree = proc / "device-tree"

    def find(self) -> list[MeasuredGpu]:
        chips = text_in(self._tree / "compatible").split("\0")
        if not self._is_tegra(chips):
            return []
        known = (COMPUTE_CAPABILITIES[chip] for chip in chips if chip in COMPUTE_CAPABILITIES)
        name = text_in(self._tree / "model") or "Tegra"
        return [MeasuredGpu(vendor=Vendor.NVIDIA, name=name, compute_capability=next(known, None), shares_ram=True)]

    def _is_tegra(self, chips: list[str]) -> bool:
        return (
            text_in(self._soc / "family") == "Tegra"
            or text_in(self._soc / "soc_id").startswith("jep106:0426")
            or any(chip.startswith("nvidia,tegra") for chip in chips)
        )
