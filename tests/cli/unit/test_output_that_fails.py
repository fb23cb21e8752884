"""What a command does when its output finds no reader or no room, and with texts that it cannot show or send."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CORRAL = [sys.executable, "-P", "-m", "corral"]
MODEL = {"backend": "llama-cpp", "model": "w.gguf", "revision": "1", "source": "", "state": "cold"}


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


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_end_no_command(closed: str, tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    line = f'"$@" {closed}'
    finished = subprocess.run(
        ["/bin/sh", "-c", line, "sh", *CORRAL, "doctor"], env=environment, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 1, finished.stderr  # there is no fleet
    assert finished.stderr == ""


def test_what_a_terminal_cannot_show_is_replaced_and_ends_no_command(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONIOENCODING": "latin-1"}
    finished = subprocess.run([*CORRAL, "doctor"], env=environment, capture_output=True, text=True, check=False)
    assert finished.stderr == ""
    assert "? Start one with `corral up`" in finished.stdout  # an arrow in UTF-8
    assert finished.returncode == 1


@pytest.mark.parametrize("command", ["chat", "run"])
def test_a_pipe_may_have_bytes_that_are_no_text(frontend: Any, tmp_path: Path, command: str) -> None:
    frontend.tell("GET /api/v1/models", {"items": [{**MODEL, "name": "small"}]})
    frontend.tell("POST /v1/chat/completions", b"data: [DONE]\n\n")
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "CORRAL_URL": frontend.url,
        "CORRAL_KEY": "corral_key",
        "LANG": "C.UTF-8",
    }
    finished = subprocess.run(
        [*CORRAL, command, "small"], env=environment, input=b"caf\xe9\n", capture_output=True, check=False
    )
    assert (finished.returncode, finished.stderr) == (0, b"")
    asked = frontend.calls[-1].body["messages"][-1]["content"]
    assert asked.strip() == "caf\ufffd"


@pytest.mark.parametrize("words", [("chat", "small", "--once", "caf\udce9"), ("models", "show", "caf\udce9")])
def test_an_argument_that_is_no_text_is_refused(connected: Any, frontend: Any, words: tuple[str, ...]) -> None:
    outcome = connected(*words)
    assert (outcome.code, outcome.out) == (64, "")
    assert outcome.err == "error: 'caf\ufffd' cannot be sent: it is not UTF-8 text\n"
