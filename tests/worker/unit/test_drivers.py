"""GPUs without a driver that engines can use, found in a copy of what Linux tells."""

from pathlib import Path

import pytest

from corral.worker.hardware.drivers import driver_problems
from corral.worker.hardware.gpus import MeasuredGpu, Vendor

NVIDIA, AMD, INTEL, CONSOLE = "0x10de", "0x1002", "0x8086", "0x1a03"


def add(sys: Path, vendor: str, driver: str = "", *, kind: str = "0x030000", slot: int = 1) -> None:
    device = sys / "bus" / "pci" / "devices" / f"0000:0{slot}:00.0"
    device.mkdir(parents=True)
    (device / "class").write_text(f"{kind}\n")
    (device / "vendor").write_text(f"{vendor}\n")
    if driver:
        target = sys / "bus" / "pci" / "drivers" / driver
        target.mkdir(parents=True, exist_ok=True)
        (device / "driver").symlink_to(target)


@pytest.mark.parametrize(
    ("vendor", "driver", "sentence"),
    [
        (NVIDIA, "", "the GPU 0000:01:00.0 (nvidia) has no driver; install nvidia"),
        (NVIDIA, "nouveau", "has the driver nouveau; engines need nvidia"),
        (AMD, "radeon", "has the driver radeon; engines need amdgpu"),
        (INTEL, "", "(intel) has no driver; install i915 or xe"),
        (NVIDIA, "nvidia", "its library (NVML) tells of no GPU"),
    ],
)
def test_a_gpu_that_no_engine_could_use_is_named(tmp_path: Path, vendor: str, driver: str, sentence: str) -> None:
    add(tmp_path, vendor, driver)
    [problem] = driver_problems(tmp_path, [])
    assert sentence in problem


@pytest.mark.parametrize(("vendor", "driver"), [(AMD, "amdgpu"), (INTEL, "xe"), (NVIDIA, "vfio-pci"), (CONSOLE, "ast")])
def test_what_works_or_is_no_gpu_of_ours_is_no_problem(tmp_path: Path, vendor: str, driver: str) -> None:
    add(tmp_path, vendor, driver)
    add(tmp_path, NVIDIA, kind="0x020000", slot=2)
    assert driver_problems(tmp_path, []) == []


def test_a_gpu_that_nvml_knows_is_no_problem(tmp_path: Path) -> None:
    add(tmp_path, NVIDIA, "nvidia")
    assert driver_problems(tmp_path, [MeasuredGpu(vendor=Vendor.NVIDIA, total=1)]) == []


def test_a_machine_that_tells_nothing_has_no_problem(tmp_path: Path) -> None:
    assert driver_problems(tmp_path / "nothing", []) == []
