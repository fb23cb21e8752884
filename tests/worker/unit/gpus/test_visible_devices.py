"""Which GPUs a process sees, and which of them an operator hid from the worker."""

from typing import Any

import pytest

from corral.worker.hardware.gpus import MeasuredGpu, Vendor, cards_of
from corral.worker.hardware.readings import Space
from corral.worker.hardware.visible_devices import UnknownCard, device_variables, visible_gpus

GIB = 1024**3
RAM = Space(total=128 * GIB, available=100 * GIB)


def gpus(vendor: Vendor, *ids: str, **fields: Any) -> list[MeasuredGpu]:
    return [
        MeasuredGpu(vendor=vendor, id=id, index=index, total=12 * GIB, free=11 * GIB, **fields)
        for index, id in enumerate(ids)
    ]


NVIDIA = gpus(Vendor.NVIDIA, "GPU-aaaa", "GPU-bbbb", "GPU-cccc")
AMD = gpus(Vendor.AMD, "GPU-4b2c1a9f8d3e6f7a", "0000:04:00.0", "0000:05:00.0")
INTEL = gpus(Vendor.INTEL, "0000:03:00.0", "0000:04:00.0")


def test_nvidias_are_numbered_as_their_bus_does() -> None:
    """Not UUIDs: older versions of vLLM read the variable, and fail on them."""
    assert device_variables(NVIDIA, ["GPU-cccc", "GPU-aaaa"]) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "2,0",
        "NVIDIA_VISIBLE_DEVICES": "GPU-cccc,GPU-aaaa",
        "GGML_VK_VISIBLE_DEVICES": "2,0",
    }


def test_of_amds_what_one_variable_hides_the_next_does_not_count() -> None:
    assert device_variables(AMD, ["GPU-4b2c1a9f8d3e6f7a", "0000:05:00.0"]) == {
        "ROCR_VISIBLE_DEVICES": "GPU-4b2c1a9f8d3e6f7a,2",
        "HIP_VISIBLE_DEVICES": "0,1",
        "GGML_VK_VISIBLE_DEVICES": "0,2",
    }


def test_intels_are_hidden_below_what_selects_among_them() -> None:
    assert device_variables(INTEL, ["0000:04:00.0"]) == {
        "ZE_ENABLE_PCI_ID_DEVICE_ORDER": "1",
        "ZE_AFFINITY_MASK": "1",
        "ONEAPI_DEVICE_SELECTOR": "level_zero:gpu",
        "GGML_VK_VISIBLE_DEVICES": "1",
    }


@pytest.mark.parametrize(
    ("cards", "expected"),
    [
        (NVIDIA, {"CUDA_VISIBLE_DEVICES": "-1", "NVIDIA_VISIBLE_DEVICES": "none", "GGML_VK_VISIBLE_DEVICES": ""}),
        (AMD, {"ROCR_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1", "GGML_VK_VISIBLE_DEVICES": ""}),
        (INTEL, {"ONEAPI_DEVICE_SELECTOR": "*:cpu", "GGML_VK_VISIBLE_DEVICES": ""}),
    ],
)
def test_no_card_at_all_hides_them_all(cards: list[MeasuredGpu], expected: dict[str, str]) -> None:
    assert expected.items() <= device_variables(cards, []).items()


@pytest.mark.parametrize("cards", [NVIDIA, AMD, INTEL, gpus(Vendor.APPLE, "apple-0"), []])
def test_where_a_process_may_see_all_nothing_is_set(cards: list[MeasuredGpu]) -> None:
    assert device_variables(cards, [card.id for card in reversed(cards)]) == {}


def test_a_card_that_is_not_there_is_refused_by_its_name() -> None:
    with pytest.raises(UnknownCard, match="this node has no GPU 'GPU-gone'; it has GPU-aaaa, GPU-bbbb, GPU-cccc"):
        device_variables(NVIDIA, ["GPU-aaaa", "GPU-gone"])
    with pytest.raises(UnknownCard, match="this node has no GPU 'GPU-gone'; it has none"):
        device_variables([], ["GPU-gone"])


@pytest.mark.parametrize(
    ("cards", "environment", "left"),
    [
        (NVIDIA, {}, [0, 1, 2]),
        (NVIDIA, {"CUDA_VISIBLE_DEVICES": "2, 0"}, [2, 0]),
        (NVIDIA, {"CUDA_VISIBLE_DEVICES": "GPU-b"}, [1]),
        (NVIDIA, {"CUDA_VISIBLE_DEVICES": "1,9,0"}, [1]),
        (NVIDIA, {"CUDA_VISIBLE_DEVICES": "-1"}, []),
        (NVIDIA, {"CUDA_VISIBLE_DEVICES": ""}, []),
        (NVIDIA, {"CUDA_VISIBLE_DEVICES": "0,0,1"}, [0]),
        (NVIDIA, {"CUDA_VISIBLE_DEVICES": "MIG-6f3a,MIG-77b1"}, [0, 1, 2]),
        (NVIDIA, {"CUDA_VISIBLE_DEVICES": " MIG-GPU-aaaa/1/0"}, [0, 1, 2]),
        (NVIDIA, {"ROCR_VISIBLE_DEVICES": "0"}, [0, 1, 2]),
        (AMD, {"HIP_VISIBLE_DEVICES": "1"}, [1]),
        (INTEL, {"ZE_AFFINITY_MASK": "1.0"}, [1]),
        ([], {"CUDA_VISIBLE_DEVICES": "0"}, []),
    ],
)
def test_what_an_operator_hid_is_not_reported(
    cards: list[MeasuredGpu], environment: dict[str, str], left: list[int]
) -> None:
    assert [gpu.index for gpu in visible_gpus(cards, environment)] == left


def test_processes_keep_the_parts_of_gpus_that_an_operator_gave_the_worker() -> None:
    inherited = {"CUDA_VISIBLE_DEVICES": "MIG-6f3a"}
    assert device_variables(NVIDIA, ["GPU-bbbb"], inherited) == {}
    with pytest.raises(UnknownCard):
        device_variables(NVIDIA, ["GPU-gone"], inherited)


def test_cards_are_those_that_can_be_told_apart_and_have_an_amount_of_memory() -> None:
    unread, lost = MeasuredGpu(vendor=Vendor.NVIDIA, id="GPU-dddd"), MeasuredGpu(vendor=Vendor.NVIDIA)

    assert cards_of([*NVIDIA, unread, lost], RAM) == tuple(NVIDIA)
    assert cards_of([], RAM) == ()


def test_the_machines_memory_is_told_of_one_card_only() -> None:
    sharing = [MeasuredGpu(vendor=Vendor.NVIDIA, id=id, shares_ram=True) for id in ("GPU-a", "GPU-b")]

    [card] = cards_of(sharing, RAM)

    assert (card.id, card.total, card.free, card.shares_ram) == ("GPU-a", 128 * GIB, 100 * GIB, True)
    assert cards_of(sharing, None) == ()
