"""The atomic switch: a crash at any step leaves the old version or the new one, and the next start tidies up."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from corral.worker.installing import switching


class Crash(BaseException):
    """The process ends here: nothing after it runs, not even the clearing up."""


def make(place: Path, version: str) -> None:
    place.mkdir(parents=True)
    for name in ("run.sh", "data"):
        (place / name).write_text(version)


def versions(place: Path) -> set[str]:
    return {path.read_text() for path in place.iterdir()}


def prepare(place: Path) -> None:
    staging = switching.begin(place)
    for name in ("run.sh", "data"):
        (staging / name).write_text("new")
    switching.settle(staging)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = tmp_path / "backends" / "mock"
    make(place, "old")
    return place


def test_a_new_version_takes_the_place_and_leaves_nothing(place: Path) -> None:
    before = place.stat().st_ino
    prepare(place)
    assert versions(place) == {"old"}
    switching.switch(place)
    assert versions(place) == {"new"}
    assert place.stat().st_ino != before
    assert [path.name for path in place.parent.iterdir()] == ["mock"]


def test_a_first_version_needs_no_old_one(tmp_path: Path) -> None:
    place = tmp_path / "backends" / "mock"
    prepare(place)
    switching.switch(place)
    assert versions(place) == {"new"}


def test_a_file_in_the_place_makes_way(tmp_path: Path) -> None:
    """LocalAI once had backends that were a single file."""
    place = tmp_path / "mock"
    place.write_text("old")
    prepare(place)
    switching.switch(place)
    assert versions(place) == {"new"}


def test_a_switch_that_fails_brings_the_old_version_back(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(place)
    staging = switching.staging_of(place)
    shutil.rmtree(staging)
    with pytest.raises(FileNotFoundError):
        switching.switch(place)
    assert versions(place) == {"old"}
    assert [path.name for path in place.parent.iterdir()] == ["mock"]


@pytest.fixture
def crashing(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The call whose turn it is ends the process, as it were, before it does anything."""
    left = [1_000_000]
    rename, rmtree, fsync = Path.rename, shutil.rmtree, os.fsync

    def count() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Crash

    monkeypatch.setattr(Path, "rename", lambda self, target: (count(), rename(self, target))[1])
    monkeypatch.setattr(shutil, "rmtree", lambda path, **more: (count(), rmtree(path, **more))[1])
    monkeypatch.setattr(os, "fsync", lambda descriptor: (count(), fsync(descriptor))[1])
    yield left
    left[0] = 1_000_000


def install(place: Path) -> None:
    prepare(place)
    switching.switch(place)


def install_and_keep(place: Path) -> None:
    prepare(place)
    switching.switch_and_keep(place)


ACTS: dict[str, tuple[Callable[[Path], None], list[set[str]]]] = {
    "install": (install, [{"old"}, {"new"}]),
    "keep": (install_and_keep, [{"old"}, {"new"}]),
    "roll back": (switching.roll_back, [{"old"}, {"older"}]),
    "forget": (switching.forget_previous, [{"old"}]),
    "remove": (switching.remove, [{"old"}, set()]),
}


@pytest.mark.parametrize("act", ACTS)
def test_a_crash_at_any_step_leaves_a_whole_version(place: Path, crashing: list[int], act: str) -> None:
    do, allowed = ACTS[act]
    previous = switching.previous_of(place)
    make(previous, "older")
    seen = set()
    for steps in range(40):
        crashing[0] = steps
        try:
            do(place)
            break
        except Crash:
            crashing[0] = 1_000_000
        switching.repair(place.parent)
        found = versions(place) if place.exists() else set()
        kept = versions(previous) if previous.exists() else set()
        assert found in allowed
        assert kept in ({"older"}, {"old"}, {"new"}, set())
        assert not found or kept != found, "one version twice"
        assert {path.name for path in place.parent.iterdir()} <= {"mock", ".corral"}
        assert {path.name for path in previous.parent.iterdir()} <= {"mock"}
        seen.add(frozenset(found))
        shutil.rmtree(place.parent)
        make(place, "old")
        make(previous, "older")
    else:
        pytest.fail("never came to its end")
    assert {"old"} in seen


def test_the_version_before_is_kept_and_one_can_go_back_and_forth(place: Path) -> None:
    install_and_keep(place)
    previous = switching.previous_of(place)
    assert (versions(place), versions(previous)) == ({"new"}, {"old"})
    switching.roll_back(place)
    assert (versions(place), versions(previous)) == ({"old"}, {"new"})
    switching.roll_back(place)
    assert (versions(place), versions(previous)) == ({"new"}, {"old"})


def test_what_points_or_is_no_backend_is_not_kept(place: Path) -> None:
    (place / "run.sh").unlink()
    install_and_keep(place)
    assert versions(place) == {"new"}
    assert not switching.has_previous(place)


def test_a_version_that_cannot_be_kept_fails_no_install(place: Path) -> None:
    switching.previous_of(place).parent.parent.mkdir()
    switching.previous_of(place).parent.write_text("in the way")
    install_and_keep(place)
    assert versions(place) == {"new"}
    assert {path.name for path in place.parent.iterdir()} == {"mock", ".corral"}


def test_without_a_version_before_there_is_no_going_back(place: Path) -> None:
    with pytest.raises(FileNotFoundError):
        switching.roll_back(place)
    assert versions(place) == {"old"}


@pytest.mark.parametrize("leftover", ["mock.install-tmp", "other.install-tmp", "mock.upgrade-tmp"])
def test_half_made_versions_are_removed(place: Path, leftover: str) -> None:
    make(place.parent / leftover, "half")
    assert switching.repair(place.parent) == [leftover]
    assert [path.name for path in place.parent.iterdir()] == ["mock"]


def test_an_old_version_that_was_moved_aside_comes_back(place: Path) -> None:
    place.rename(place.with_name("mock.install-backup"))
    make(place.with_name("mock.install-tmp"), "half")
    switching.repair(place.parent)
    assert versions(place) == {"old"}
    assert [path.name for path in place.parent.iterdir()] == ["mock"]


def test_an_old_version_beside_the_new_one_goes(place: Path) -> None:
    make(place.with_name("mock.install-backup"), "older")
    switching.repair(place.parent)
    assert versions(place) == {"old"}


def test_repairing_makes_the_folder_and_touches_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "backends"
    assert switching.repair(folder) == []
    make(folder / "mock.backup", "somebody's own")
    assert switching.repair(folder) == []
    assert versions(folder / "mock.backup") == {"somebody's own"}


def test_a_link_in_the_place_is_replaced_and_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    make(elsewhere, "untouched")
    place = tmp_path / "mock"
    place.symlink_to(elsewhere)
    prepare(place)
    switching.switch(place)
    assert versions(place) == {"new"}
    assert versions(elsewhere) == {"untouched"}
    switching.remove(place)
    assert not place.exists()
