"""NVIDIA's systems on a chip."""

from typing import Any

import pytest

from corral.worker.hardware.gpus import MeasuredGpu, Tegra, Vendor

ORIN = "NVIDIA Jetson AGX Orin Developer Kit"


@pytest.mark.parametrize(
    "files",
    [
        {"sys/devices/soc0/family": "Tegra\n"},
        {"sys/devices/soc0/soc_id": "jep106:0426:0023\n"},
        {"proc/device-tree/compatible": "nvidia,p3737-0000+p3701-0005\0nvidia,tegra234\0"},
    ],
)
def test_a_jetson_is_known_by_any_of_its_signs(machine: Any, files: dict[str, str]) -> None:
    root = machine(files)
    [gpu] = Tegra(sys=root / "sys", proc=root / "proc").find()

    assert gpu.vendor is Vendor.NVIDIA
    assert gpu.shares_ram
    assert (gpu.total, gpu.free) == (None, None)


@pytest.mark.parametrize(
    ("chip", "capability"),
    [("tegra194", (7, 2)), ("tegra234", (8, 7)), ("tegra264", (11, 0)), ("tegra999", None)],
)
def test_its_chip_says_what_it_can_do(machine: Any, chip: str, capability: tuple[int, int] | None) -> None:
    files = {"proc/device-tree/compatible": f"nvidia,board\0nvidia,{chip}\0", "proc/device-tree/model": f"{ORIN}\0"}
    root = machine(files)

    assert Tegra(sys=root / "sys", proc=root / "proc").find() == [
        MeasuredGpu(vendor=Vendor.NVIDIA, id="tegra-0", name=ORIN, compute_capability=capability, shares_ram=True)
    ]


def test_other_machines_with_a_device_tree_are_none(machine: Any) -> None:
    files = {"proc/device-tree/compatible": "raspberrypi,5-model-b\0brcm,bcm2712\0", "sys/devices/soc0/family": "BCM\n"}
    root = machine(files)

    assert Tegra(sys=root / "sys", proc=root / "proc").find() == []
