"""Secrets of a whole fleet, as a program sees them that runs beside it as the same user: a backend, for example."""

import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import StartUp
from tests.kit.inspection import as_neighbour, environment_text, seen_by_neighbour
from tests.kit.up import CORRAL, RunningUp, running_up

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc")
FOREIGN = "a-secret-of-somebody-else"
OURS = "a-password-of-ours"
MODULES = ("corral up", "corral frontend", "corral control", "corral gateway", "corral worker")


@pytest.fixture(scope="module")
def fleet(module_folder: Path) -> Iterator[RunningUp]:
    """A fleet without capabilities, in an environment with a secret of its own and one of another program."""
    variables = {"CORRAL_STORAGE_SECRET_KEY": OURS, "CORRAL_STORAGE_ACCESS_KEY": "me", "THEIR_PASSWORD": FOREIGN}
    command = as_neighbour(*CORRAL)
    with running_up(module_folder, "--workers", "1", command=command, **variables) as up:
        up.until_ready()
        yield up


def processes(fleet: RunningUp) -> dict[str, int]:
    """Every process of ours, by what it is."""
    own = psutil.Process(fleet.process.pid)
    lines = {process.pid: " ".join(process.cmdline()) for process in [own, *own.children(recursive=True)]}
    return {name: pid for pid, line in lines.items() for name in MODULES if re.search(rf"-m {name}\b", line)}


def test_no_process_shows_a_secret_in_its_environment(fleet: RunningUp) -> None:
    """Root sees the environments, where it has its capabilities; others see nothing at all."""
    state = fleet.state()
    secrets = [state["keys"]["admin"], state["keys"]["registration"], OURS]
    found = processes(fleet)
    assert found.keys() == set(MODULES)
    for name, pid in found.items():
        shown = environment_text(pid)
        assert not any(secret in shown for secret in secrets), name
        tokens = re.findall(r"^\w*(?:TOKEN|PASSWORD|SECRET|SEED)\w*=(.+)$", shown.replace("\0", "\n"), re.MULTILINE)
        assert {token.strip("*") for token in tokens} <= {"", FOREIGN}, name
        assert not re.search(r"\w+://[^/@\s]+:[^/@\s]+@", shown), f"{name}: a URL has a password"


def test_a_neighbour_can_look_into_none_of_them(fleet: RunningUp) -> None:
    for name, pid in processes(fleet).items():
        assert "open" not in seen_by_neighbour(pid).values(), name


def test_the_gateway_inherits_only_what_it_uses(fleet: RunningUp) -> None:
    shown = environment_text(processes(fleet)["corral gateway"])
    assert FOREIGN not in shown
    names = {entry.partition("=")[0] for entry in shown.split("\0")}
    assert [name for name in names if re.search("NATS|TOKEN|PASSWORD|DATABASE|CREDENTIAL|STORAGE", name)] == []


def test_the_secrets_key_is_changed_while_the_fleet_runs(start_up: StartUp) -> None:
    up = start_up("--workers", "1")
    up.until_ready()
    file = up.data / "secrets.key"
    before = file.read_text()
    changed = up.corral("keys", "rotate", "--keep-before")
    assert changed.returncode == 0
    assert "backups made until now open only with the key of now" in changed.stderr
    kept = up.data / "secrets.key.before"
    assert (kept.read_text(), kept.stat().st_mode & 0o777) == (before, 0o600)
    assert "The key before opens nothing in this database any more." in changed.stdout
    assert file.read_text() != before
    up.until_healthy("worker-1")
    assert up.corral("nodes", "files", "worker-1").returncode == 0, "control still has the secret of the node"
    assert up.stop(signal.SIGTERM) == 0

    changed_key = file.read_text()
    file.write_text(before)
    up = start_up("--workers", "1")
    assert up.process.wait(timeout=60) == 78, "although its gateway was ready"
    assert "the secrets key does not fit this database" in up.output
    file.write_text(changed_key)
    up = start_up("--workers", "1")
    up.until_ready()
    up.until_healthy("worker-1")
