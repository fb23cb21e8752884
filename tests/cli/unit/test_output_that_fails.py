"""What a command does when nobody reads its output, or the disk has no room for it."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

CORRAL = [sys.executable, "-P", "-m", "corral"]


@pytest.fixture
def closed_pipe() -> Iterator[int]:
    """The writing end of a pipe whose reader is gone, as after `| head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.fixture
def full_disk() -> Iterator[int]:
    """A file on which no byte finds room."""
    file = os.open("/dev/full", os.O_WRONLY)
    yield file
    os.close(file)


@pytest.mark.parametrize("words", [["--help"], ["version", "--json"], ["completion", "bash"]])
def test_a_reader_who_leaves_early_is_no_failure(words: list[str], closed_pipe: int) -> None:
    finished = subprocess.run([*CORRAL, *words], stdout=closed_pipe, stderr=subprocess.PIPE, text=True, check=False)
    assert (finished.returncode, finished.stderr) == (0, "")


@pytest.mark.parametrize("words", [["--help"], ["version", "--json"], ["completion", "bash"]])
def test_a_full_disk_is_told_in_one_sentence(words: list[str], full_disk: int) -> None:
    finished = subprocess.run([*CORRAL, *words], stdout=full_disk, stderr=subprocess.PIPE, text=True, check=False)
    assert (finished.returncode, finished.stderr) == (
        73,
        "error: the output cannot be written: No space left on device\n",
    )
