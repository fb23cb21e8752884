"""`corral worker backends`: what it does to the directory, what it says, and how it ends."""

import json
from pathlib import Path
from typing import Any

import pytest

from corral.base.private_files import held
from corral.processes.exit_codes import ExitCode
from tests.kit.backends import SHIPPED

from .conftest import Corral

INDEX = """
- name: mock
  alias: m
  version: '{version}'
  uri: ./mock
- name: meta
  capabilities: {{default: mock}}
"""


@pytest.fixture
def backends(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where they are installed; `mock` beside it is a directory to install from."""
    for name, value in {
        "CORRAL_BACKEND_GALLERIES": json.dumps([{"name": "mine", "url": (home / "index.yaml").as_uri()}]),
        "CORRAL_CAPABILITY": "default",
        "CORRAL_SYSTEM_BACKENDS_PATH": str(home / "system"),
        "CORRAL_BACKENDS_PATH": str(home / "backends"),
        "CORRAL_PREVIOUS_MIN_FREE": "0",
    }.items():
        monkeypatch.setenv(name, value)
    offer(home, "1")
    make(home / "mock", "1")
    make(home / "system" / "sys", "0")
    return home / "backends"


def make(place: Path, version: str) -> None:
    place.mkdir(parents=True, exist_ok=True)
    (place / "run.sh").write_text("#!/bin/sh\n")
    (place / "version").write_text(version)


def offer(home: Path, version: str) -> None:
    (home / "index.yaml").write_text(INDEX.format(version=version))


def listed(corral: Corral) -> dict[str, dict[str, Any]]:
    """What is on this machine, but for what ships with Corral."""
    rows: Any = corral("worker", "backends", "list", "--json").json()["items"]
    return {row["name"]: row for row in rows if row["name"] not in SHIPPED}


def test_from_a_directory_and_back_and_away(corral: Corral, backends: Path, home: Path) -> None:
    source = str(home / "mock")
    first = corral("worker", "backends", "install", source, "--name", "x", "--alias", "y")
    assert (first.code, first.out) == (0, "x is installed.\n")
    again = corral("worker", "backends", "install", source, "--name", "x")
    assert again.out == "x is there already; nothing was fetched.\n"

    make(home / "mock", "2")
    assert corral("worker", "backends", "upgrade", "y").out == "x is upgraded.\n"
    row = listed(corral)["x"]
    assert (row["kind"], row["alias"], row["uri"]) == ("build", "y", source)
    assert row["previous_installed_at"] < row["installed_at"]

    assert corral("worker", "backends", "rollback", "x").out == "x is back to the version before.\n"
    assert (backends / "x" / "version").read_text() == "1"

    assert corral("worker", "backends", "delete", "y").out == "x is deleted.\n"
    gone = corral("worker", "backends", "delete", "y")
    assert (gone.code, gone.out) == (0, "y is not here; nothing to do.\n")
    assert set(listed(corral)) == {"sys"}
    left = [path for path in backends.rglob("*") if path.is_file()]
    assert [path.name for path in left] == ["lock"]


def test_from_a_gallery_with_what_is_outdated(corral: Corral, backends: Path, home: Path) -> None:
    installed = corral("worker", "backends", "install", "meta", "--json")
    assert installed.code == 0
    told: Any = installed.json()
    assert (told["name"], told["outcome"], told["version"]) == ("mock", "installed", "1")
    assert listed(corral)["meta"]["build"] == "mock"
    assert "Current" in corral("worker", "backends", "outdated").out

    offer(home, "2")
    rows: Any = corral("worker", "backends", "outdated", "--json").json()["items"]
    assert [(row["name"], row["state"], row["available"]) for row in rows] == [("mock", "outdated", "2")]
    assert corral("worker", "backends", "upgrade", "--all").out == "mock is upgraded (2).\n"
    assert corral("worker", "backends", "list").out.split()[:4] == ["NAME", "KIND", "VERSION", "INSTALLED"]


def test_one_of_the_system_is_hidden_by_force_alone(corral: Corral, backends: Path, home: Path) -> None:
    there = corral("worker", "backends", "install", "sys")
    assert there.out.startswith("sys came with the system; nothing was fetched. `--force` installs another one")
    forced = corral("worker", "backends", "install", str(home / "mock"), "--name", "sys", "--force")
    assert (forced.code, forced.out) == (0, "sys is installed.\n")
    assert listed(corral)["sys"]["kind"] == "build"


def test_while_a_worker_runs_one_may_look_and_not_touch(corral: Corral, backends: Path) -> None:
    (backends / ".corral").mkdir(parents=True)
    with held(backends / ".corral" / "lock", "taken"):
        for words in (["install", "mock"], ["upgrade", "--all"], ["delete", "x"], ["rollback", "x"], ["repair"]):
            refused = corral("worker", "backends", *words)
            assert refused.code == ExitCode.IN_USE
            assert f"installs backends into {backends}: ask that worker through its frontend" in refused.err
        assert corral("worker", "backends", "list").code == 0
        assert corral("worker", "backends", "outdated").out == "Nothing is installed.\n"


def test_a_crash_is_put_right(corral: Corral, backends: Path) -> None:
    make(backends / "mock.install-backup", "1")
    make(backends / "other.install-tmp", "half")
    assert corral("worker", "backends", "repair").out == "Put right: mock.install-backup, other.install-tmp\n"
    assert corral("worker", "backends", "repair", "--json").json() == {"repaired": []}
    assert "mock" in listed(corral)


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["install", "mok"], ExitCode.FAILED, 'no backend found with name "mok"; did you mean mock?'),
        (["install", "mock", "--name", "x"], ExitCode.USAGE, "--name"),
        (["install", "/nowhere", "--name", "x"], ExitCode.FAILED, "there is no /nowhere on this machine"),
        (["upgrade"], ExitCode.USAGE, "or give --all"),
        (["upgrade", "nope"], ExitCode.FAILED, 'backend "nope": backend not found; installed here: none'),
        (["upgrade", "sys"], ExitCode.FAILED, 'system backend "sys" cannot be upgraded'),
        (["rollback", "nope"], ExitCode.FAILED, "backend not found"),
        (["delete", "sys"], ExitCode.FAILED, 'system backend "sys" cannot be deleted'),
    ],
)
def test_what_cannot_be_done_is_said(
    corral: Corral, backends: Path, words: list[str], code: ExitCode, error: str
) -> None:
    outcome = corral("worker", "backends", *words)
    assert outcome.code == code
    assert error in outcome.err
    assert "Traceback" not in outcome.err


def test_an_unreachable_registry_is_told_with_its_own_code(
    corral: Corral, backends: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(backends / "mock", "1")
    (backends / "mock" / "metadata.json").write_text('{"name": "mock", "gallery_url": "x", "digest": "sha256:0"}')
    (home / "index.yaml").write_text("- {name: mock, uri: 'registry.example/upper@sha256:1'}\n")
    outcome = corral("worker", "backends", "outdated")
    assert (outcome.code, "neither a version" in outcome.out) == (0, True)
    monkeypatch.setenv("CORRAL_BACKEND_GALLERIES", '[{"name": "mine", "url": "file:///nowhere/index.yaml"}]')
    outcome = corral("worker", "backends", "outdated")
    assert "the gallery mine cannot be read" in outcome.out
    assert outcome.code == ExitCode.UNAVAILABLE
