"""All ways to find GPUs together, also when some of them hang or fail."""

import threading
from datetime import timedelta

import pytest

from corral.worker.hardware.gpus import Gpus, MachineGpus, MeasuredGpu, Vendor, detectors_of_this_machine, together
from corral.worker.hardware.readings import Space

GIB = 1024**3
NVIDIA = MeasuredGpu(vendor=Vendor.NVIDIA, name="L4", compute_capability=(8, 9), total=24 * GIB, free=20 * GIB)
UNREAD = MeasuredGpu(vendor=Vendor.NVIDIA)
AMD = MeasuredGpu(vendor=Vendor.AMD, total=16 * GIB, free=16 * GIB)
RAM = Space(total=128 * GIB, available=100 * GIB)


class Scripted:
    """Answers one after the other, the last one for ever; raises errors, waits for events."""

    def __init__(self, name: str, *answers: list[MeasuredGpu] | Exception | threading.Event) -> None:
        self.name = name
        self._answers = list(answers)

    def find(self) -> list[MeasuredGpu]:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, threading.Event):
            answer.wait()
            return []
        return answer


def reader(*detectors: Scripted, timeout: timedelta = timedelta(seconds=60)) -> MachineGpus:
    return MachineGpus(detectors, timeout=timeout)


async def test_the_first_way_that_finds_some_is_believed() -> None:
    assert await reader(Scripted("a", []), Scripted("b", [NVIDIA]), Scripted("c", [AMD])).read() == [NVIDIA]


async def test_none_found_is_none() -> None:
    assert await reader(Scripted("a", [])).read() == []
    assert await reader().read() == []


async def test_one_that_raises_leaves_the_word_to_the_next() -> None:
    assert await reader(Scripted("a", RuntimeError("broken")), Scripted("b", [UNREAD])).read() == [UNREAD]


async def test_one_that_hangs_leaves_the_word_to_the_next(caplog: pytest.LogCaptureFixture) -> None:
    let_go = threading.Event()
    gpus = reader(Scripted("a", let_go), Scripted("b", [UNREAD]), timeout=timedelta(milliseconds=20))
    try:
        while await gpus.read() != [UNREAD]:
            pass
    finally:
        let_go.set()

    assert [r.message for r in caplog.records if "gpus.a" in r.message] == ["gpus.a does not answer; leaving it out"]


async def test_gpus_that_cannot_be_read_any_more_are_still_there() -> None:
    """So a driver that fails later changes neither the vendor nor the builds that suit the machine."""
    gpus = reader(Scripted("a", [NVIDIA], RuntimeError("lost")), Scripted("b", [AMD]))
    assert await gpus.read() == [NVIDIA]

    [kept] = await gpus.read()

    assert (kept.vendor, kept.total, kept.free) == (Vendor.NVIDIA, 24 * GIB, None)


async def test_what_is_found_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    gpus = reader(Scripted("a", [NVIDIA, AMD]))
    for _ in range(3):
        await gpus.read()

    assert [record.message for record in caplog.records] == ["GPUs: nvidia L4, amd"]


async def test_this_very_machine_can_be_asked() -> None:
    """Whatever it has, nothing fails, and without a GPU nothing of NVIDIA's is loaded."""
    ways = detectors_of_this_machine(lambda: pytest.fail("loaded"))

    assert [way.name for way in ways] == ["nvidia", "tegra", "sysfs", "apple"]
    for way in ways[1:]:
        assert isinstance(way.find(), list)


def test_several_gpus_are_summed_and_what_all_can_do_counts() -> None:
    older = MeasuredGpu(vendor=Vendor.NVIDIA, compute_capability=(7, 5), total=8 * GIB, free=GIB)

    assert together([NVIDIA, older], RAM) == Gpus(
        vendor="nvidia", compute_capability="7.5", total_vram=32 * GIB, available_vram=21 * GIB
    )


def test_generations_are_compared_as_numbers() -> None:
    blackwell = MeasuredGpu(vendor=Vendor.NVIDIA, compute_capability=(12, 0))

    assert together([blackwell, NVIDIA], None).compute_capability == "8.9"


def test_memory_that_cannot_be_read_adds_nothing() -> None:
    assert together([NVIDIA, UNREAD], RAM).total_vram == 24 * GIB
    assert together([UNREAD], RAM) == Gpus(vendor="nvidia", total_vram=None, available_vram=None)


def test_shared_memory_counts_once() -> None:
    shares = MeasuredGpu(vendor=Vendor.NVIDIA, shares_ram=True)

    assert together([shares, shares], RAM).total_vram == 128 * GIB
    assert together([shares], None).total_vram is None


def test_no_gpu_has_no_memory_and_that_is_known() -> None:
    assert together([], RAM) == Gpus(vendor="", total_vram=0, available_vram=0)
