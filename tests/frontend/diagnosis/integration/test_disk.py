"""A disk that runs full shows in `/api/v1/ready` and in the doctor, before and when it is, and passes by itself."""

import asyncio
import errno
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from corral.frontend.diagnosis import disk as disk_module
from corral.frontend.diagnosis.disk import FULL, LOW, SILENT, UNREADABLE, DataDisk, DiskPolicy, free_bytes
from corral.frontend.diagnosis.readiness import ControlReadiness
from tests.kit.frontend import Frontend

pytestmark = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
MIB = 1024**2
REST = "free in the data directory (setting disk_full: 100 MiB)"


class Disks:
    """What is free in each place, as the test says."""

    def __init__(self) -> None:
        self.free = 10_000 * MIB
        self.error: OSError | None = None

    def __call__(self, _: Path) -> int:
        if self.error is not None:
            raise self.error
        return self.free


@pytest.fixture
def disks(frontend: Frontend, monkeypatch: pytest.MonkeyPatch) -> Disks:
    disks = Disks()
    readiness: ControlReadiness = frontend.control.context.readiness
    monkeypatch.setattr(readiness, "disk", DataDisk([Path("/")], DiskPolicy(), measure=disks))
    return disks


async def finding(frontend: Frontend) -> tuple[str, str]:
    report: Any = (await frontend.call("GET", "/api/v1/doctor")).json()
    (disk,) = [each for each in report["findings"] if each["check"] == "disk"]
    return disk["level"], disk["summary"]


@pytest.mark.parametrize(
    ("free", "status", "words", "level", "summary"),
    [
        (1024 * MIB, 200, "ok", "ok", "1.0 GiB free in the data directory"),
        (1023 * MIB, 200, f"ok; {LOW}", "warning", "1023 MiB free in the data directory (setting disk_low: 1.0 GiB)"),
        (100 * MIB, 200, f"ok; {LOW}", "warning", "100 MiB free in the data directory (setting disk_low: 1.0 GiB)"),
        (
            99 * MIB,
            503,
            f"not ready: {FULL}",
            "problem",
            "99.0 MiB free in the data directory (setting disk_full: 100 MiB)",
        ),
        (0, 503, f"not ready: {FULL}", "problem", "0 B free in the data directory (setting disk_full: 100 MiB)"),
    ],
)
async def test_what_is_left_decides(
    free: int, status: int, words: str, level: str, summary: str, frontend: Frontend, disks: Disks
) -> None:
    disks.free = free

    ready = await frontend.call("GET", "/api/v1/ready", key="")

    assert (ready.status, ready.body.decode()) == (status, words)
    assert await finding(frontend) == (level, summary)


async def test_it_passes_by_itself(frontend: Frontend, disks: Disks) -> None:
    disks.free = 0
    assert (await frontend.call("GET", "/api/v1/ready", key="")).status == 503
    assert FULL in frontend.control.context.readiness.known()
    disks.free = 5000 * MIB

    assert (await frontend.call("GET", "/api/v1/ready", key="")).status == 200
    assert frontend.control.context.readiness.known() == []


async def test_a_directory_that_is_gone_is_a_problem(frontend: Frontend, disks: Disks) -> None:
    disks.error = OSError(errno.ENOENT, "No such file or directory")

    ready = await frontend.call("GET", "/api/v1/ready", key="")

    assert (ready.status, ready.body.decode()) == (503, f"not ready: {UNREADABLE}")
    assert (await finding(frontend))[0] == "problem"


async def test_the_fullest_place_counts(database: object, tmp_path: Path) -> None:
    places = {tmp_path: 5000 * MIB, tmp_path / "elsewhere": 3 * MIB}
    disk = DataDisk(tuple(places), DiskPolicy(), measure=places.__getitem__)

    assert await disk.look() == 3 * MIB
    assert disk.is_full


def test_a_real_filesystem_has_room(database: object, tmp_path: Path) -> None:
    assert free_bytes(tmp_path) > 0


async def test_a_disk_that_hangs_takes_one_thread_and_is_told(
    frontend: Frontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, looks = threading.Event(), []

    def hang(_: Path) -> int:
        looks.append(threading.current_thread())
        goes_on.wait(60)
        return 5000 * MIB

    monkeypatch.setattr(disk_module, "_PATIENCE", timedelta(milliseconds=50))
    monkeypatch.setattr(frontend.control.context.readiness, "disk", DataDisk([Path("/")], DiskPolicy(), measure=hang))
    try:
        calls = [frontend.call("GET", "/api/v1/ready", key="") for _ in range(20)]
        answers = {(each.status, each.body.decode()) for each in await asyncio.gather(*calls)}
        assert answers == {(503, f"not ready: {SILENT}")}
        assert "it does not answer" in (await finding(frontend))[1]
        assert len(looks) == 1
    finally:
        goes_on.set()
    looks[0].join()
    await asyncio.sleep(0)

    assert (await frontend.call("GET", "/api/v1/ready", key="")).status == 200
