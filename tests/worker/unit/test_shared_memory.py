"""Shared memory that backends leave: whose is removed, and when."""

import os
from pathlib import Path

import pytest

from corral.worker.confinement.shared_memory import SharedMemory

OURS = os.getuid()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "shm"
    (folder / "nested").mkdir(parents=True)
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("x")
    for name in ("segment", "nested/segment"):
        (folder / name).write_text("x")
    (folder / "link").symlink_to(tmp_path / "precious")
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_a_user_left_goes_with_its_last_process(folder: Path, tmp_path: Path) -> None:
    memory = SharedMemory(folder)
    memory.begin("a", OURS)
    memory.begin("b", OURS)
    memory.end("a")
    assert names(folder) == ["link", "nested", "segment"], "another process may use it"

    memory.end("b")
    assert names(folder) == []
    assert names(tmp_path / "precious") == ["file"], "links are not followed"


@pytest.mark.parametrize("user", [None, OURS + 1])
def test_what_others_left_stays(folder: Path, user: int | None) -> None:
    memory = SharedMemory(folder)
    memory.begin("a", user)
    memory.end("a")
    memory.end("never begun")
    assert names(folder) == ["link", "nested", "segment"]


def test_a_machine_without_shared_memory_is_no_failure(tmp_path: Path) -> None:
    memory = SharedMemory(tmp_path / "none")
    memory.begin("a", OURS)
    memory.end("a")
