"""Limits of control groups, read from trees as the kernel shows them."""

from pathlib import Path

import pytest

from corral.worker.hardware.machine import Cgroup, MemoryLimit

MIB = 1024 * 1024


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def cgroup(tmp_path: Path) -> Cgroup:
    return Cgroup(proc=tmp_path / "proc", mount=tmp_path / "cgroup")


def test_a_machine_without_control_groups_has_no_limits(cgroup: Cgroup) -> None:
    assert cgroup.memory_limits() == []
    assert cgroup.cpu_quota() is None


def test_a_container_sees_its_own_group_as_the_root(cgroup: Cgroup, tmp_path: Path) -> None:
    write(tmp_path, {
        "proc/self/cgroup": "0::/\n",
        "cgroup/memory.max": f"{512 * MIB}\n",
        "cgroup/memory.current": f"{200 * MIB}\n",
        "cgroup/memory.stat": f"anon 1\ninactive_file {50 * MIB}\nactive_file 7\n",
        "cgroup/cpu.max": "150000 100000\n",
    })  # fmt: skip

    assert cgroup.memory_limits() == [MemoryLimit(limit=512 * MIB, available=362 * MIB)]
    assert cgroup.cpu_quota() == 1.5


def test_every_group_on_the_way_down_counts(cgroup: Cgroup, tmp_path: Path) -> None:
    write(tmp_path, {
        "proc/self/cgroup": "0::/system.slice/worker.service\n",
        "cgroup/system.slice/memory.max": f"{800 * MIB}",
        "cgroup/system.slice/memory.current": f"{790 * MIB}",
        "cgroup/system.slice/worker.service/memory.max": f"{400 * MIB}",
        "cgroup/system.slice/worker.service/memory.current": f"{100 * MIB}",
        "cgroup/system.slice/cpu.max": "400000 100000",
        "cgroup/system.slice/worker.service/cpu.max": "max 100000",
    })  # fmt: skip

    assert cgroup.memory_limits() == [
        MemoryLimit(limit=800 * MIB, available=10 * MIB),
        MemoryLimit(limit=400 * MIB, available=300 * MIB),
    ]
    assert cgroup.cpu_quota() == 4


def test_max_means_no_limit(cgroup: Cgroup, tmp_path: Path) -> None:
    write(tmp_path, {"proc/self/cgroup": "0::/\n", "cgroup/memory.max": "max\n", "cgroup/memory.current": "5\n"})

    assert cgroup.memory_limits() == []


def test_version_1_is_read_where_its_controllers_are_mounted(cgroup: Cgroup, tmp_path: Path) -> None:
    write(tmp_path, {
        "proc/self/cgroup": "5:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:name=systemd:/\n",
        "cgroup/memory/memory.limit_in_bytes": f"{300 * MIB}",
        "cgroup/memory/memory.usage_in_bytes": f"{100 * MIB}",
        "cgroup/memory/memory.stat": f"total_inactive_file {20 * MIB}",
        "cgroup/cpu/cpu.cfs_quota_us": "50000",
        "cgroup/cpu/cpu.cfs_period_us": "100000",
    })  # fmt: skip

    assert cgroup.memory_limits() == [MemoryLimit(limit=300 * MIB, available=220 * MIB)]
    assert cgroup.cpu_quota() == 0.5


def test_more_in_use_than_allowed_leaves_nothing_and_not_less(cgroup: Cgroup, tmp_path: Path) -> None:
    write(tmp_path, {"cgroup/memory.max": "100", "cgroup/memory.current": "150"})

    assert cgroup.memory_limits() == [MemoryLimit(limit=100, available=0)]


def test_nonsense_is_no_limit(cgroup: Cgroup, tmp_path: Path) -> None:
    write(tmp_path, {
        "proc/self/cgroup": "nonsense\n\n::\n",
        "cgroup/memory.max": "-3",
        "cgroup/memory.current": "",
        "cgroup/cpu.max": "100000 0",
    })  # fmt: skip

    assert cgroup.memory_limits() == []
    assert cgroup.cpu_quota() is None
