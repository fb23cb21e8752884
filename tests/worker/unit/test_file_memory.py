"""What is remembered of small files, and when they are read again."""

import os
import time
from pathlib import Path

import pytest

from corral.worker.installing.backend_metadata import FileMemory

LONG_AGO = time.time() - 3600


class Reading:
    """Counts how often it is asked to."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, directory: Path) -> str:
        self.times += 1
        return "".join(path.read_text() for path in sorted(directory.glob("*.json")))


@pytest.fixture
def aged(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every file had been written an hour ago: the time of a change cannot be set by hand."""
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + 3600 * 10**9)


@pytest.fixture
def reading() -> Reading:
    return Reading()


@pytest.fixture
def memory(reading: Reading) -> FileMemory[str]:
    return FileMemory(reading, ("a.json", "b.json"))


@pytest.mark.usefixtures("aged")
def test_what_stays_the_same_is_read_once(memory: FileMemory[str], reading: Reading, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("a")

    assert [memory.of(tmp_path) for _ in range(3)] == ["a"] * 3
    assert reading.times == 1


@pytest.mark.usefixtures("aged")
def test_every_kind_of_change_is_seen(memory: FileMemory[str], tmp_path: Path) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    seen = [memory.of(tmp_path)]
    first.write_text("1")
    seen.append(memory.of(tmp_path))
    second.write_text("2")
    seen.append(memory.of(tmp_path))
    second.unlink()
    seen.append(memory.of(tmp_path))
    (tmp_path / "new").write_text("3")
    os.utime(tmp_path / "new", (LONG_AGO, LONG_AGO))
    (tmp_path / "new").rename(first)
    seen.append(memory.of(tmp_path))

    assert seen == ["", "1", "12", "1", "3"]


def test_what_was_written_just_now_is_not_trusted_to_stay(
    memory: FileMemory[str], reading: Reading, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It might change once more within the same tick of the disk's clock."""
    (tmp_path / "a.json").write_text("a")
    just_now = (tmp_path / "a.json").stat().st_ctime_ns
    monkeypatch.setattr(time, "time_ns", lambda: just_now)

    memory.of(tmp_path)
    memory.of(tmp_path)

    assert reading.times == 2


@pytest.mark.usefixtures("aged")
def test_directories_have_memories_of_their_own_and_not_without_end(
    memory: FileMemory[str], reading: Reading, tmp_path: Path
) -> None:
    for number in range(3000):
        memory.of(tmp_path / str(number))

    assert reading.times == 3000
    memory.of(tmp_path / "2999")
    assert reading.times == 3000
    memory.of(tmp_path / "0")
    assert reading.times == 3001
