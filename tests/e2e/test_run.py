"""`corral run` from nothing: it starts a fleet, answers, and leaves the fleet running until `corral down`."""

import os
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from corral.processes.background import is_running, start_fleet
from corral.processes.settings import gather
from corral.processes.up_file import read_up_file
from tests.kit.models import QUESTION, chat_model
from tests.kit.ports import lasting_port
from tests.kit.waiting import wait_until

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "fleet"


@pytest.fixture
def run(corral: Any, data: Path, tmp_path: Path) -> Iterator[Run]:
    """Runs a command of Corral for a fleet that does not exist yet. Nothing of it is left afterwards."""
    fixed = {
        "CORRAL_DATA": str(data),
        "CORRAL_PORT": "0",
        "CORRAL_NATS_PORT": str(lasting_port()),
        "CORRAL_WORKERS": "1",
        "CORRAL_PROVISIONS": str(tmp_path / "none"),
        "CORRAL_FIRST_MODEL": str(chat_model()),
    }
    yield lambda *arguments, **variables: corral(*arguments, **{**fixed, **variables})
    if (content := read_up_file(data)) is not None and is_alive(content.pids.up):
        assert corral("down", "--data", str(data)).returncode == 0
        wait_until(lambda: not is_alive(content.pids.up), "the end of the fleet", seconds=60)


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_one_command_starts_a_fleet_and_answers(run: Run, data: Path) -> None:
    first = run("run", "smollm2", QUESTION, "--temperature", "0", "--up")
    assert first.returncode == 0, first.stderr
    assert "Paris" in first.stdout
    assert len(first.stdout.splitlines()) == 1
    content = read_up_file(data)
    assert content is not None
    assert [re.sub(r"after [\d.]+ s", "after TIME", line) for line in first.stderr.splitlines()[:2]] == [
        "Starting a fleet in the background.",
        f"The fleet is ready at {content.url}, after TIME.",
    ]
    assert content.keys.admin not in first.stderr

    second = run("run", "smollm2", QUESTION)
    assert (second.returncode, second.stderr) == (0, ""), "the fleet is still there"

    assert run("down").stdout == "The fleet is stopped.\n"
    pids = content.pids
    everything = [pids.up, pids.frontend, pids.control, pids.nats, *pids.gateways, *pids.workers]
    wait_until(lambda: not any(map(is_alive, everything)), "the end of all processes")
    assert read_up_file(data) is None
    assert run("down").returncode == 1


def test_an_interrupted_start_leaves_no_fleet(data: Path, tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "CORRAL_PORT": "0", "CORRAL_WORKERS": "0"}
    environment["CORRAL_NATS_PORT"] = str(lasting_port())

    def once_it_runs() -> None:
        if is_running(data):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start_fleet(gather({}, environment), data, on_wait=once_it_runs)
    assert not is_running(data)
    assert read_up_file(data) is None


def test_two_commands_at_once_share_one_fleet(run: Run, data: Path) -> None:
    with ThreadPoolExecutor() as pool:
        outcomes = list(pool.map(lambda _: run("run", "smollm2", QUESTION, "--temperature", "0", "--up"), range(2)))
    assert [(one.returncode, "Paris" in one.stdout) for one in outcomes] == [(0, True)] * 2, outcomes


def test_what_keeps_the_fleet_from_starting_is_told(run: Run, data: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        failed = run("run", "smollm2", QUESTION, "--up", CORRAL_PORT=str(port))
    assert failed.returncode == 69
    assert "`corral up` did not start: " in failed.stderr
    assert str(port) in failed.stderr
    assert not (data / "up.json").exists()
