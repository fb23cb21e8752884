"""One set-up at a time, and what the user is told."""

import fcntl
import io
import os
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


def test_programs_left_behind_still_hold_the_lock(environment: ModuleType, tmp_path: Path) -> None:
    started, release = tmp_path / "started", tmp_path / "release"
    os.mkfifo(started)
    os.mkfifo(release)
    first = os.open(tmp_path / "lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(first, fcntl.LOCK_EX)
    script = f"echo yes > '{started}'; read line < '{release}'"
    child = threading.Thread(target=environment.running.Runner(first).attempt, args=(["sh", "-c", script],))
    child.start()
    assert started.read_text() == "yes\n"

    os.close(first)  # as if we had been killed
    second = os.open(tmp_path / "lock", os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    release.write_text("go\n")
    child.join()

    fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(second)


def test_who_finds_the_lock_taken_says_so_and_waits(
    environment: ModuleType, checkout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, entered = threading.Event(), threading.Event()

    class Screen(io.StringIO):
        def flush(self) -> None:
            told.set()

    def enter() -> None:
        with environment.running.exclusive(checkout):
            entered.set()

    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    second = threading.Thread(target=enter)
    with environment.running.exclusive(checkout):
        second.start()
        told.wait()
        assert not entered.is_set()
    second.join()

    assert entered.is_set()
    assert screen.getvalue() == "Another set-up is at work in this checkout: waiting for it …\n"


def test_a_failed_program_is_quoted_before_the_advice(environment: ModuleType, checkout: Any) -> None:
    with environment.running.exclusive(checkout) as runner, pytest.raises(environment.running.Trouble) as trouble:
        runner.succeed(["sh", "-c", "echo no such host >&2; exit 3"], advice="Check the network.")

    assert str(trouble.value) == "    no such host\nCheck the network."


def test_a_program_that_is_not_there_is_named(environment: ModuleType, checkout: Any) -> None:
    with pytest.raises(environment.running.Trouble, match="no pytest in"):
        environment.command.run(checkout, ["pytest"])
