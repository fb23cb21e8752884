"""GPUs of AMD, Intel and others, found on machines as their kernels showed them."""

from pathlib import Path
from typing import Any

import pytest

from corral.worker.hardware.gpus import MeasuredGpu, Sysfs, Vendor

GIB = 1024**3
PCI = "sys/bus/pci/devices"

CONSOLE = {  # what a server shows its boot messages on
    f"{PCI}/0000:06:00.0/vendor": "0x1a03\n",
    f"{PCI}/0000:06:00.0/class": "0x030000\n",
}
NETWORK_CARD = {f"{PCI}/0000:01:00.0/vendor": "0x8086\n", f"{PCI}/0000:01:00.0/class": "0x020000\n"}


def radeon(address: str = "0000:03:00.0", *, total: str = "17163091968\n", used: str = "27394048\n") -> dict[str, str]:
    return {
        f"{PCI}/{address}/vendor": "0x1002\n",
        f"{PCI}/{address}/class": "0x030000\n",
        f"{PCI}/{address}/product_name": "AMD Radeon RX 7800 XT\n",
        f"{PCI}/{address}/mem_info_vram_total": total,
        f"{PCI}/{address}/mem_info_vram_used": used,
    }


def find(root: Path) -> list[MeasuredGpu]:
    return Sysfs(root / "sys").find()


def test_a_machine_without_sysfs_has_none(root: Path) -> None:
    assert find(root) == []


def test_a_servers_console_and_other_cards_are_no_gpus(machine: Any) -> None:
    assert find(machine({**CONSOLE, **NETWORK_CARD})) == []


def test_amds_card_tells_its_memory(machine: Any) -> None:
    assert find(machine({**radeon(), **CONSOLE})) == [
        MeasuredGpu(
            vendor=Vendor.AMD,
            id="0000:03:00.0",
            name="AMD Radeon RX 7800 XT",
            total=17163091968,
            free=17163091968 - 27394048,
        )
    ]


def test_a_card_that_is_listed_as_device_and_as_drawing_is_one(machine: Any) -> None:
    files = {**radeon(), "sys/class/drm/card0/device": "-> ../../../bus/pci/devices/0000:03:00.0"}
    files |= {"sys/class/drm/card0-DP-1/status": "connected\n", "sys/class/drm/renderD128/dev": "226:128\n"}

    assert len(find(machine(files))) == 1


def test_a_card_that_only_draws_is_found_too(machine: Any) -> None:
    """As in containers that see /sys/class/drm and little else."""
    files = {
        "sys/devices/gpu/vendor": "0x1002\n",
        "sys/devices/gpu/mem_info_vram_total": "8573157376\n",
        "sys/class/drm/card1/device": "-> ../../../devices/gpu",
    }
    assert find(machine(files)) == [MeasuredGpu(vendor=Vendor.AMD, id="gpu", total=8573157376)]


def test_amds_accelerators_do_not_call_themselves_displays(machine: Any) -> None:
    files = radeon("0000:05:00.0", total=f"{192 * GIB}\n", used="0\n")
    files[f"{PCI}/0000:05:00.0/class"] = "0x120000\n"

    assert [gpu.free for gpu in find(machine(files))] == [192 * GIB]


def test_intels_accelerators_are_no_gpus(machine: Any) -> None:
    assert find(machine({f"{PCI}/a/vendor": "0x8086\n", f"{PCI}/a/class": "0x120000\n"})) == []


@pytest.mark.parametrize(
    ("total", "used", "expected"),
    [
        ("0\n", "0\n", (None, None)),
        ("", "", (None, None)),
        ("17163091968\n", "nonsense\n", (17163091968, None)),
        ("100\n", "200\n", (100, 0)),
    ],
)
def test_memory_that_cannot_be_read_is_unknown_and_not_0(
    machine: Any, total: str, used: str, expected: tuple[int | None, int | None]
) -> None:
    [gpu] = find(machine(radeon(total=total, used=used)))

    assert (gpu.total, gpu.free) == expected


def test_an_old_driver_that_says_nothing_of_memory_leaves_it_unknown(machine: Any) -> None:
    assert find(machine({f"{PCI}/a/vendor": "0x1002\n", f"{PCI}/a/class": "0x030000\n"})) == [
        MeasuredGpu(vendor=Vendor.AMD, id="a")
    ]


def test_intels_card_with_the_driver_xe_sums_its_tiles(machine: Any) -> None:
    files = {
        f"{PCI}/a/vendor": "0x8086\n",
        f"{PCI}/a/class": "0x038000\n",
        f"{PCI}/a/tile0/physical_vram_size_bytes": f"{6 * GIB}\n",
        f"{PCI}/a/tile1/physical_vram_size_bytes": f"{6 * GIB}\n",
    }
    assert find(machine(files)) == [MeasuredGpu(vendor=Vendor.INTEL, id="a", total=12 * GIB)]


def test_intels_card_with_the_driver_i915_says_what_is_free_too(machine: Any) -> None:
    files = {
        f"{PCI}/a/vendor": "0x8086\n",
        f"{PCI}/a/class": "0x030000\n",
        f"{PCI}/a/drm/card1/lmem_total_bytes": f"{16 * GIB}\n",
        f"{PCI}/a/drm/card1/lmem_avail_bytes": f"{15 * GIB}\n",
    }
    assert find(machine(files)) == [MeasuredGpu(vendor=Vendor.INTEL, id="a", total=16 * GIB, free=15 * GIB)]


def test_of_a_gpu_in_intels_processor_no_memory_is_known(machine: Any) -> None:
    files = {f"{PCI}/0000:00:02.0/vendor": "0x8086\n", f"{PCI}/0000:00:02.0/class": "0x030000\n"}

    assert find(machine(files)) == [MeasuredGpu(vendor=Vendor.INTEL, id="0000:00:02.0")]


def test_the_preferred_vendor_alone_counts(machine: Any) -> None:
    """A build of a backend is for one vendor; the memory of the others is of no use to it."""
    intel = {f"{PCI}/0000:00:02.0/vendor": "0x8086\n", f"{PCI}/0000:00:02.0/class": "0x030000\n"}
    nvidia = {f"{PCI}/0000:0b:00.0/vendor": "0x10de\n", f"{PCI}/0000:0b:00.0/class": "0x030200\n"}

    assert [gpu.vendor for gpu in find(machine({**intel, **radeon()}))] == [Vendor.AMD]
    assert find(machine(nvidia)) == [MeasuredGpu(vendor=Vendor.NVIDIA, id="0000:0b:00.0")]


def test_amds_serial_number_stays_when_the_card_moves_to_another_slot(machine: Any) -> None:
    files = radeon("0000:03:00.0") | {f"{PCI}/0000:03:00.0/unique_id": "4b2c1a9f8d3e6f7a\n"}
    files |= radeon("0000:04:00.0") | {f"{PCI}/0000:04:00.0/unique_id": "0000000000000000\n"}

    assert [gpu.id for gpu in find(machine(files))] == ["GPU-4b2c1a9f8d3e6f7a", "0000:04:00.0"]


def test_amds_cards_count_as_their_own_software_counts_them(machine: Any) -> None:
    """The first node is the processor, and the card in the second slot was found first."""
    nodes = "sys/class/kfd/kfd/topology/nodes"
    files = (
        radeon("0000:03:00.0")
        | radeon("0000:83:00.0")
        | {
            f"{nodes}/0/properties": "cpu_cores_count 64\nsimd_count 0\nlocation_id 0\n",
            f"{nodes}/2/properties": "simd_count 120\nlocation_id 33536\ndomain 0\nnonsense\n",
            f"{nodes}/10/properties": "simd_count 120\nlocation_id 768\ndomain 0\n",
        }
    )

    assert [(gpu.id, gpu.index) for gpu in find(machine(files))] == [("0000:03:00.0", 1), ("0000:83:00.0", 0)]


def test_intels_cards_count_in_the_order_of_their_bus(machine: Any) -> None:
    cards = ("0000:00:02.0", "0000:03:00.0", "0000:04:00.0")
    files = {f"{PCI}/{card}/vendor": "0x8086\n" for card in cards}
    files |= {f"{PCI}/{card}/class": "0x030000\n" for card in cards}

    assert [(gpu.id, gpu.index) for gpu in find(machine(files))] == [
        (card, number) for number, card in enumerate(cards)
    ]


def test_what_is_given_to_virtual_machines_is_not_ours(machine: Any) -> None:
    passed_on = radeon("0000:03:00.0") | {f"{PCI}/0000:03:00.0/driver": "-> ../../drivers/vfio-pci"}
    slice_of_another = radeon("0000:04:00.1") | {f"{PCI}/0000:04:00.1/physfn/vendor": "0x1002\n"}

    assert find(machine({**passed_on, **slice_of_another})) == []
