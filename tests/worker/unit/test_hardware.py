"""What a machine is measured to have."""

import asyncio
import os
import threading
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from corral.worker.hardware.gpus import Gpus, MachineGpus, MeasuredGpu, Vendor
from corral.worker.hardware.machine import (
    CapabilityRule,
    Cgroup,
    Hardware,
    detect_capability,
    limited_ram,
    memory_pool,
    nearest_existing,
    read_cpu_model,
    read_disk,
    usable_cpus,
)
from corral.worker.hardware.readings import BoundedReading, Space
from tests.kit.waiting import WAIT_TIMEOUT

GIB = 1024**3


def limits(tmp_path: Path, **memory: int) -> Cgroup:
    for name, value in memory.items():
        (tmp_path / f"memory.{name}").write_text(str(value))
    return Cgroup(proc=tmp_path / "proc", mount=tmp_path)


class Found:
    """A way to find GPUs that finds these."""

    name = "found"

    def __init__(self, *gpus: MeasuredGpu) -> None:
        self._gpus = list(gpus)

    def find(self) -> list[MeasuredGpu]:
        return self._gpus


def hardware(
    tmp_path: Path, *, models_path: Path, gpus: Found | None = None, environment: dict[str, str] | None = None
) -> Hardware:
    return Hardware(
        models_path=models_path,
        disk_timeout=timedelta(seconds=10),
        capability=CapabilityRule(forced="", run_file=tmp_path / "capability"),
        gpus=MachineGpus([gpus or Found()], timeout=timedelta(seconds=10)),
        cgroup=limits(tmp_path),
        environment=environment,
    )


async def test_this_very_machine_is_measured(tmp_path: Path) -> None:
    measured = await hardware(tmp_path, models_path=tmp_path / "not" / "yet" / "made").measure()

    assert measured.ram is not None
    assert measured.ram.total == psutil.virtual_memory().total
    assert 0 < measured.ram.available <= measured.ram.total
    assert measured.disk is not None
    assert measured.disk.total == os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize
    assert 0 <= measured.disk.available <= measured.disk.total
    assert measured.gpus == Gpus()
    assert measured.capability == "default"


async def test_the_machine_says_what_it_is(tmp_path: Path) -> None:
    machine = hardware(tmp_path, models_path=tmp_path).machine()

    assert machine.os
    assert machine.architecture
    assert machine.cpus is None or machine.cpus >= 1


def test_a_lower_limit_of_a_container_replaces_the_machines_memory(tmp_path: Path) -> None:
    cgroup = limits(tmp_path, max=2 * GIB, current=GIB)

    assert limited_ram(Space(total=16 * GIB, available=8 * GIB), cgroup) == Space(total=2 * GIB, available=GIB)


def test_a_busy_machine_leaves_less_than_the_container_may_have(tmp_path: Path) -> None:
    cgroup = limits(tmp_path, max=4 * GIB, current=0)

    assert limited_ram(Space(total=16 * GIB, available=GIB), cgroup) == Space(total=4 * GIB, available=GIB)


def test_a_limit_above_the_machines_memory_means_nothing(tmp_path: Path) -> None:
    ram = Space(total=16 * GIB, available=8 * GIB)

    assert limited_ram(ram, limits(tmp_path, max=2**62, current=2**62)) == ram


def test_memory_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    assert limited_ram(None, limits(tmp_path, max=GIB, current=0)) is None


def test_the_disk_of_a_path_that_is_not_there_is_that_of_its_nearest_ancestor(tmp_path: Path) -> None:
    assert nearest_existing(tmp_path / "a" / "b") == tmp_path
    assert read_disk(tmp_path / "a" / "b") is not None


def test_a_file_system_without_blocks_is_not_reported_as_0() -> None:
    proc = Path("/proc/self/fd")
    if not proc.exists():
        pytest.skip("needs /proc")

    assert read_disk(proc) is None


@pytest.mark.parametrize(
    ("forced", "run_file", "gpus", "expected"),
    [
        ("nvidia-cuda-13", "amd", Gpus(), "nvidia-cuda-13"),
        ("", "nvidia-cuda-12\n", Gpus(), "nvidia-cuda-12"),
        ("", " \n", Gpus(), "default"),
        ("", None, Gpus(), "default"),
        ("", None, Gpus(vendor="amd", total_vram=4 * GIB), "default"),
        ("", None, Gpus(vendor="amd", total_vram=4 * GIB + 1), "amd"),
        ("", None, Gpus(vendor="amd", total_vram=None), "default"),
    ],
)
def test_a_forced_capability_wins_then_the_run_file_then_detection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forced: str, run_file: str | None, gpus: Gpus, expected: str
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    path = tmp_path / "capability"
    if run_file is not None:
        path.write_text(run_file)

    assert CapabilityRule(forced=forced, run_file=path).judge(gpus) == expected


@pytest.mark.parametrize(("architecture", "expected"), [("arm64", "metal"), ("x86_64", "darwin-x86")])
def test_apples_machines_have_capabilities_of_their_own(architecture: str, expected: str) -> None:
    assert detect_capability(Gpus(), system="darwin", architecture=architecture) == expected


@pytest.mark.parametrize(
    ("vendor", "total", "architecture", "cuda", "expected"),
    [
        ("nvidia", 8 * GIB, "x86_64", [], "nvidia"),
        ("nvidia", 8 * GIB, "x86_64", ["cuda-11"], "nvidia"),
        ("nvidia", 8 * GIB, "x86_64", ["cuda-12"], "nvidia-cuda-12"),
        ("nvidia", 8 * GIB, "x86_64", ["cuda-12", "cuda-13"], "nvidia-cuda-13"),
        ("nvidia", 4 * GIB, "x86_64", ["cuda-13"], "default"),
        ("nvidia", None, "x86_64", ["cuda-13"], "default"),
        ("nvidia", None, "aarch64", [], "nvidia-l4t"),
        ("nvidia", 2 * GIB, "arm64", ["cuda-12"], "nvidia-l4t-cuda-12"),
        ("nvidia", 8 * GIB, "aarch64", ["cuda-12", "cuda-13"], "nvidia-l4t-cuda-13"),
        ("amd", 8 * GIB, "aarch64", ["cuda-13"], "amd"),
        ("intel", 8 * GIB, "x86_64", ["cuda-13"], "intel"),
        ("", 0, "aarch64", ["cuda-13"], "default"),
    ],
)
def test_the_capability_of_a_linux_machine_is_localais(
    tmp_path: Path, vendor: str, total: int | None, architecture: str, cuda: list[str], expected: str
) -> None:
    for name in cuda:
        (tmp_path / name).mkdir()
    gpus = Gpus(vendor=vendor, total_vram=total)

    assert detect_capability(gpus, system="linux", architecture=architecture, local=tmp_path) == expected


def test_workers_in_one_control_group_of_one_machine_name_the_same_memory(tmp_path: Path) -> None:
    def pool(*, ram: int = 8 * GIB, boot: str = "b1", cgroup: str = "c1", **memory: int) -> str:
        (tmp_path / cgroup).mkdir(exist_ok=True)
        (tmp_path / "boot").write_text(f"{boot}\n")
        return memory_pool(
            Space(total=ram, available=ram), limits(tmp_path / cgroup, **memory), boot_id=tmp_path / "boot"
        )

    machine = pool()
    assert machine == pool(cgroup="c2") == pool(cgroup="c3", max=9 * GIB, current=0)
    assert machine != pool(boot="b2")
    limited = pool(cgroup="c4", max=4 * GIB, current=0)
    assert limited == pool(cgroup="c4", max=4 * GIB, current=GIB)
    assert len({machine, limited, pool(cgroup="c5", max=4 * GIB, current=0)}) == 3


def test_a_machine_that_cannot_be_told_from_others_names_no_memory(tmp_path: Path) -> None:
    ram, nothing = Space(total=GIB, available=GIB), tmp_path / "nothing"
    assert memory_pool(ram, limits(tmp_path), boot_id=nothing) == ""
    (tmp_path / "boot").write_text("b1")
    assert memory_pool(None, limits(tmp_path), boot_id=tmp_path / "boot") == ""


async def test_a_gpu_without_memory_of_its_own_has_the_machines(tmp_path: Path) -> None:
    shares = Found(MeasuredGpu(vendor=Vendor.NVIDIA, shares_ram=True))
    measured = await hardware(tmp_path, models_path=tmp_path, gpus=shares).measure()

    assert measured.ram is not None
    assert (measured.gpus.total_vram, measured.gpus.available_vram) == (measured.ram.total, measured.ram.available)


async def test_gpus_are_measured_one_by_one_without_those_that_an_operator_hid(tmp_path: Path) -> None:
    cards = [MeasuredGpu(vendor=Vendor.NVIDIA, id=f"GPU-{n}", index=n, total=12 * GIB, free=GIB) for n in range(2)]
    machine = hardware(tmp_path, models_path=tmp_path, gpus=Found(*cards))
    assert machine.cards == ()
    assert (await machine.measure()).cards == tuple(cards) == machine.cards

    hidden = hardware(tmp_path, models_path=tmp_path, gpus=Found(*cards), environment={"CUDA_VISIBLE_DEVICES": "1"})
    measured = await hidden.measure()

    assert (measured.cards, measured.gpus.total_vram) == ((cards[1],), 12 * GIB)


def test_a_quota_bounds_the_processors_and_a_started_one_counts() -> None:
    everything = usable_cpus(None)

    assert usable_cpus(0.1) == 1
    assert usable_cpus(1.0) == 1
    assert usable_cpus(10_000) == everything


def test_the_model_of_the_processor_is_read_or_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.processor", lambda: "")
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Fast Chip 9000\nmodel name\t: Other\n")

    assert read_cpu_model(cpuinfo) == "Fast Chip 9000"
    assert read_cpu_model(tmp_path / "missing") is None


class Stuck:
    """A reading that hangs until it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.begun = threading.Event()
        self.started = 0

    def take(self) -> int | None:
        self.started += 1
        self.begun.set()
        self.let_go.wait()
        return 42


async def test_a_reading_that_hangs_is_left_out_and_takes_only_one_thread(caplog: pytest.LogCaptureFixture) -> None:
    stuck = Stuck()
    reading = BoundedReading(stuck.take, timeout=timedelta(milliseconds=1), name="disk")

    assert await reading.read() is None
    assert await asyncio.to_thread(stuck.begun.wait, WAIT_TIMEOUT.total_seconds())
    assert [await reading.read() for _ in range(5)] == [None] * 5
    assert stuck.started == 1
    assert [record.message for record in caplog.records] == ["disk does not answer; leaving it out"]

    stuck.let_go.set()
    patient = BoundedReading(stuck.take, timeout=timedelta(seconds=60), name="disk")
    assert await patient.read() == 42


async def test_a_reading_that_comes_back_is_used_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    stuck = Stuck()
    reading = BoundedReading(stuck.take, timeout=timedelta(milliseconds=1), name="disk")
    assert await reading.read() is None

    stuck.let_go.set()
    while (value := await reading.read()) is None:
        pass

    assert value == 42
    assert caplog.records[-1].message == "disk answers again"


async def test_what_hangs_is_waited_for_once() -> None:
    stuck = Stuck()
    reading = BoundedReading(stuck.take, timeout=timedelta(milliseconds=100), name="gpus")

    async with asyncio.timeout(10):  # ten times less than if each of them waited
        assert [await reading.read() for _ in range(1000)] == [None] * 1000
    stuck.let_go.set()
    while (value := await reading.read()) is None:
        pass
    assert value == 42


async def test_a_reading_that_raises_is_left_out_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    answers: list[int | Exception] = [OSError("one"), OSError("one"), OSError("two"), 42]

    def take() -> int:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    reading = BoundedReading(take, timeout=timedelta(seconds=60), name="gpus")

    assert [await reading.read() for _ in range(4)] == [None, None, None, 42]
    told = "gpus cannot be read; leaving it out"
    assert [record.message for record in caplog.records] == [told, told, "gpus can be read again"]
    assert all(record.exc_info for record in caplog.records[:2])


async def test_the_event_loop_does_not_wait_until_a_thread_gets_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a thread's own start does; on a busy machine that takes longer than the reading."""
    monkeypatch.setattr(threading.Thread, "start", lambda _: pytest.fail("waits for the thread"))
    reading = BoundedReading(threading.get_ident, timeout=timedelta(seconds=60), name="disk")

    assert await reading.read() not in (None, threading.get_ident())


async def test_two_who_read_at_once_share_one_reading() -> None:
    stuck = Stuck()
    reading = BoundedReading(stuck.take, timeout=timedelta(seconds=60), name="disk")

    async with asyncio.TaskGroup() as group:
        readers = [group.create_task(reading.read()) for _ in range(3)]
        await asyncio.sleep(0)
        stuck.let_go.set()

    assert [reader.result() for reader in readers] == [42, 42, 42]
    assert stuck.started == 1
