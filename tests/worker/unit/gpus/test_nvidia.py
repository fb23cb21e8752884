"""NVIDIA's GPUs by the answers of their library, as they were seen on real machines."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pynvml
import pytest

from corral.worker.hardware.gpus import MeasuredGpu, Nvidia, Vendor
from tests.kit.nvml import MIB, Device, Library, Memory, as_module

NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED
GPU_IS_LOST = pynvml.NVML_ERROR_GPU_IS_LOST


RTX_3090 = Device("NVIDIA GeForce RTX 3090", Memory(24576 * MIB, 24000 * MIB), uuid="GPU-3090")
A_2000 = Device("NVIDIA RTX A2000", Memory(6138 * MIB, 6000 * MIB), (8, 0), uuid="GPU-2000")
GB10 = Device("NVIDIA GB10", NOT_SUPPORTED, (12, 1))
ORIN = Device("Orin (nvgpu)", NOT_SUPPORTED, (8, 7))
LOST = Device(GPU_IS_LOST, GPU_IS_LOST, GPU_IS_LOST, handle_error=GPU_IS_LOST)


@pytest.fixture
def nvidia(machine: Any) -> Callable[[Library], Nvidia]:
    root: Path = machine({"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module\n"})

    def make(library: Library) -> Nvidia:
        return Nvidia(lambda: as_module(library), root=root)

    return make


def test_every_gpu_tells_name_memory_and_generation(nvidia: Any) -> None:
    assert nvidia(Library([RTX_3090, A_2000])).find() == [
        MeasuredGpu(
            vendor=Vendor.NVIDIA,
            id="GPU-3090",
            name="NVIDIA GeForce RTX 3090",
            compute_capability=(8, 6),
            total=24576 * MIB,
            free=24000 * MIB,
        ),
        MeasuredGpu(
            vendor=Vendor.NVIDIA,
            id="GPU-2000",
            index=1,
            name="NVIDIA RTX A2000",
            compute_capability=(8, 0),
            total=6138 * MIB,
            free=6000 * MIB,
        ),
    ]


@pytest.mark.parametrize(
    ("device", "capability"), [(GB10, (12, 1)), (ORIN, (8, 7)), (Device("NVIDIA Thor", Memory(0, 0), (11, 0)), (11, 0))]
)
def test_one_that_reports_no_memory_uses_the_machines(nvidia: Any, device: Device, capability: tuple[int, int]) -> None:
    [gpu] = nvidia(Library([device])).find()

    assert gpu == MeasuredGpu(
        vendor=Vendor.NVIDIA, id="GPU-1", name=str(device.name), compute_capability=capability, shares_ram=True
    )


def test_no_answer_on_any_other_gpu_is_unknown_and_not_the_machines_memory(nvidia: Any) -> None:
    [gpu] = nvidia(Library([Device("NVIDIA GeForce RTX 3090", NOT_SUPPORTED, NOT_SUPPORTED)])).find()

    assert gpu == MeasuredGpu(vendor=Vendor.NVIDIA, id="GPU-1", name="NVIDIA GeForce RTX 3090")


def test_one_that_fell_off_the_bus_does_not_hide_the_others(nvidia: Any) -> None:
    lost, other = nvidia(Library([LOST, A_2000])).find()

    assert lost == MeasuredGpu(vendor=Vendor.NVIDIA)
    assert other.total == 6138 * MIB


def test_one_without_a_uuid_is_told_by_its_number(nvidia: Any) -> None:
    older = Device("NVIDIA L4", Memory(24576 * MIB, 24000 * MIB), uuid=NOT_SUPPORTED)

    assert [gpu.id for gpu in nvidia(Library([RTX_3090, older])).find()] == ["GPU-3090", "nvidia-1"]


def test_free_memory_is_read_each_time_and_the_library_started_once(nvidia: Any) -> None:
    library = Library([Device("NVIDIA L4", Memory(100, 90))])
    reader = nvidia(library)

    assert reader.find()[0].free == 90
    library.devices[0].memory = Memory(100, 10)
    assert reader.find()[0].free == 10
    assert library.calls == ["init"]


@pytest.mark.parametrize("error", [pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED])
def test_without_a_driver_there_are_none(nvidia: Any, error: int) -> None:
    assert nvidia(Library([RTX_3090], init_error=error)).find() == []


def test_without_the_python_package_there_are_none(machine: Any) -> None:
    def absent() -> ModuleType:
        raise ModuleNotFoundError("No module named 'pynvml'")

    assert Nvidia(absent, root=machine({"dev/nvidiactl": ""})).find() == []


def test_a_driver_that_does_not_fit_its_library_is_told(nvidia: Any) -> None:
    """As after an upgrade without a restart: somebody has to do something about it."""
    library = Library([RTX_3090], init_error=pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)

    with pytest.raises(pynvml.NVMLError, match="version mismatch"):
        nvidia(library).find()


def test_after_a_failure_the_library_is_started_afresh(nvidia: Any) -> None:
    library = Library([RTX_3090], count_error=pynvml.NVML_ERROR_UNKNOWN)
    reader = nvidia(library)
    with pytest.raises(pynvml.NVMLError):
        reader.find()

    library.count_error = None
    assert len(reader.find()) == 1
    assert library.calls == ["init", "shutdown", "init"]


def test_a_machine_without_any_sign_of_nvidia_never_loads_the_library(machine: Any) -> None:
    asked = Nvidia(lambda: pytest.fail("loaded"), root=machine({"sys/bus/pci/devices/a/vendor": "0x8086\n"}))

    assert asked.find() == []


def test_a_card_whose_driver_is_not_loaded_yet_is_a_sign(machine: Any) -> None:
    """Asking the library loads the driver on machines that start without it."""
    root = machine({"sys/bus/pci/devices/a/vendor": "0x10de\n", "sys/bus/pci/devices/a/class": "0x030200\n"})

    assert len(Nvidia(lambda: as_module(Library([RTX_3090])), root=root).find()) == 1
