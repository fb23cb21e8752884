"""Backends of a whole fleet, installed and deleted by one command that waits for every node."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corral.testing.own_images import own_gallery

PATIENCE = "4m"
"""Of a command that waits for nodes; more than any machine needs, so that only a fault uses it up."""


@pytest.fixture
def fleet(tmp_path: Path, run_up: Any) -> Iterator[Any]:
    with run_up(tmp_path, CORRAL_BUILTIN_GALLERY=str(own_gallery())) as running:
        running.until_ready()
        running.until_healthy("worker-1", "worker-2")
        yield running


def succeeded(outcome: subprocess.CompletedProcess[str]) -> str:
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    return outcome.stdout


def nodes_with(fleet: Any, backend: str) -> list[str]:
    found = json.loads(succeeded(fleet.corral("backends", "list", "--json")))
    return [node["node_name"] for one in found["items"] if one["name"] == backend for node in one["nodes"]]


def test_one_command_installs_on_every_node_and_one_deletes(fleet: Any) -> None:
    installed = succeeded(fleet.corral("backends", "install", "echo", "--within", PATIENCE))
    assert installed.endswith("echo: installed on 2 nodes.\n")
    assert nodes_with(fleet, "echo") == ["worker-1", "worker-2"]
    assert len(list(Path(fleet.data).glob("workers/*/backends/echo/run.sh"))) == 2

    (operation,) = json.loads(succeeded(fleet.corral("ops", "list", "--json")))
    assert (operation["verb"], operation["state"], operation["counts"]) == ("install", "done", {"success": 2})

    deleted = succeeded(fleet.corral("backends", "delete", "echo", "--within", PATIENCE))
    assert deleted.endswith("echo: deleted on 2 nodes.\n")
    assert nodes_with(fleet, "echo") == []
    assert list(Path(fleet.data).glob("workers/*/backends/echo")) == []
