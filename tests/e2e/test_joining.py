"""A new machine joins with two pastes, as a person would do it; then it needs nothing any more."""

import json
import os
import pty
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kit.certificates import Authority
from tests.kit.ports import lasting_range
from tests.kit.up import CORRAL, Running, RunningUp, environment, run_corral, running, running_up
from tests.kit.waiting import wait_until

from .test_docs_commands import ROOT, Shell, follow, steps_of

MACHINE = "new-machine"
_PORTS = 10


@pytest.fixture(scope="module")
def fleet_without_workers(module_folder: Path) -> Iterator[RunningUp]:
    """Other machines reach it as well."""
    with running_up(module_folder, "--workers", "0", "--host", "0.0.0.0") as running_fleet:
        running_fleet.until_ready()
        yield running_fleet


@pytest.fixture
def up(fleet_without_workers: RunningUp) -> Iterator[RunningUp]:
    """A fleet without nodes that has invited nobody; what a test leaves of both is taken away."""
    up = fleet_without_workers
    assert (up.nodes(), invitations(up)) == ({}, [])
    yield up
    for node in up.nodes().values():
        assert up.api("DELETE", f"/api/v1/nodes/{node['id']}").status < 300
    for invitation in invitations(up):
        assert up.api("DELETE", f"/api/v1/invitations/{invitation['id']}").status < 300


def invitations(up: RunningUp) -> list[Any]:
    """Those that somebody could use."""
    return [one for one in up.api("GET", "/api/v1/invitations").json() if one["state"] == "open"]


@contextmanager
def typed(folder: Path, arguments: Sequence[str], line: str, **variables: str) -> Iterator[Running]:
    """A command on a terminal of its own, whose question is answered with one paste."""
    folder.mkdir(exist_ok=True)
    terminal, its_end = pty.openpty()
    log = folder / "worker.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*CORRAL, *arguments],
            env=environment(folder, **variables),
            stdin=its_end,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    os.close(its_end)
    worker = Running(process, log, folder)
    try:
        wait_until(lambda: "Join code" in worker.output or process.poll() is not None, "the question", seconds=60)
        os.write(terminal, f"{line}\n".encode())
        yield worker
    finally:
        worker.end()
        os.close(terminal)


def invited(up: RunningUp, *arguments: str) -> tuple[list[str], str]:
    """The command and the code that a person copies from the screen."""
    outcome = up.corral("nodes", "invite", *arguments)
    assert outcome.returncode == 0, outcome.stderr
    command, code = [line.strip() for line in outcome.stdout.splitlines() if line.startswith("  ")]
    words = shlex.split(command)
    assert words[:3] == ["corral", "worker", "--join"]
    return words[1:], code


def place(folder: Path) -> list[str]:
    """What only tests need: a machine beside others on the same one."""
    http = lasting_range(_PORTS).start
    return [
        *("--data", str(folder / "worker"), "--models", str(folder / "models"), "--backends", str(folder / "backends")),
        *("--name", MACHINE, "--address", f"127.0.0.1:{http + 1}", "--max-port", str(http + _PORTS - 1)),
    ]


def test_a_machine_joins_with_two_pastes_and_comes_back_with_none(up: RunningUp, tmp_path: Path) -> None:
    machine = tmp_path / "machine"
    began = time.monotonic()
    command, code = invited(up, "--approve", "--label", "rack=7", "--at", up.state()["url"])
    with typed(machine, [*command, *place(machine)], code.lower().replace("-", " ")) as worker:
        up.until_healthy(MACHINE)
        assert time.monotonic() - began < 60  # 3 to 5 s on an idle machine
        node = up.nodes()[MACHINE]
        assert node["labels"]["rack"] == "7"
        assert node["approved_by"].startswith("invitation ")
        assert node["fingerprint"] in worker.output
        assert code not in worker.output
        assert worker.stop(signal.SIGTERM) == 0
    kept = json.loads((machine / "worker" / "joined.json").read_text())
    assert (kept["urls"], kept["pin"]) == ([up.state()["url"]], command[-1].partition("#")[2])

    arguments = ["worker", *place(machine)]
    with running(machine, arguments) as worker:
        up.until_healthy(MACHINE)
        assert up.nodes()[MACHINE]["id"] == node["id"]
        assert worker.stop(signal.SIGTERM) == 0


def test_a_removed_machine_joins_again_with_another_code(up: RunningUp, tmp_path: Path) -> None:
    machine = tmp_path / "machine"
    machine.mkdir()
    at = ["--approve", "--at", up.state()["url"]]
    command, used = invited(up, *at)
    with running(machine, [*command, *place(machine)], CORRAL_JOIN_CODE=used) as worker:
        up.until_healthy(MACHINE)
        first = up.nodes()[MACHINE]["id"]
        assert worker.stop(signal.SIGTERM) == 0
    assert up.corral("nodes", "remove", MACHINE, "--yes").returncode == 0
    refused = run_corral(machine, *command, *place(machine))
    assert (refused.returncode, "--code-file or --code-descriptor" in refused.stderr) == (77, True), refused.stderr

    command, code = invited(up, *at)
    with typed(machine, [*command, *place(machine)], code) as worker:
        up.until_healthy(MACHINE)
        assert up.nodes()[MACHINE]["id"] != first
        assert worker.stop(signal.SIGTERM) == 0
    with typed(machine, [*command, *place(machine)], "") as worker:
        up.until_healthy(MACHINE)
        assert worker.stop(signal.SIGTERM) == 0


def test_a_used_code_is_refused_with_its_reason(up: RunningUp, tmp_path: Path) -> None:
    command, code = invited(up, "--at", up.state()["url"])
    [invitation] = invitations(up)
    assert up.api("DELETE", f"/api/v1/invitations/{invitation['id']}").status == 204
    machine = tmp_path / "machine"
    refused = run_corral(machine, *command, *place(machine), CORRAL_JOIN_CODE=code)
    assert refused.returncode == 77
    assert "the join code was revoked" in refused.stderr
    assert code not in refused.stderr
    no_code = run_corral(machine, *command, *place(machine))
    assert (no_code.returncode, "needs a join code" in no_code.stderr) == (64, True)


def test_a_machine_knows_its_fleet_behind_a_certificate_of_its_own(start_up: Any, tmp_path: Path) -> None:
    """No authority that the machine trusts vouches for the certificate: the fleet's key does."""
    certificate, key = Authority(tmp_path / "authority").issue("up")
    up = start_up("--workers", "0", "--tls-cert", str(certificate), "--tls-key", str(key))
    up.until_ready()
    public = next(word for word in up.output.split() if word.startswith("https://"))
    command, code = invited(up, "--approve", "--at", public)
    machine = tmp_path / "machine"
    machine.mkdir()
    file = machine / "code"
    file.write_text(code)
    file.chmod(0o600)
    arguments = [*place(machine), "--code-file", str(file)]

    stranger = [*command[:-1], f"{public}#{'a' * 32}"]
    refused = run_corral(machine, *stranger, *arguments)
    assert refused.returncode == 77
    assert "is another fleet" in refused.stderr
    without_pin = run_corral(machine, *command[:-1], public, *arguments)
    assert (without_pin.returncode, "certificate is not trusted" in without_pin.stderr) == (77, True)
    assert up.api("GET", "/api/v1/invitations").json()[0]["uses"] == 0

    checked = run_corral(machine, *command, *arguments, "--check")
    assert checked.returncode == 0, checked.stdout
    assert "the frontend reaches the HTTP server" in checked.stdout
    assert up.api("GET", "/api/v1/invitations").json()[0]["uses"] == 0

    with running(machine, [*command, *arguments]) as worker:
        up.until_healthy(MACHINE)
        assert worker.stop(signal.SIGTERM) == 0


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://127.0.0.1:9#short"])
def test_a_check_without_a_frontend_says_so(tmp_path: Path, url: str) -> None:
    outcome = run_corral(
        tmp_path, "worker", "--join", url, *place(tmp_path), "--check", CORRAL_NATS_URL="nats://127.0.0.1:9"
    )
    if "#" in url:
        assert (outcome.returncode, "fleet pin" in outcome.stderr) == (64, True)
    else:
        assert (outcome.returncode, "needs a join code" in outcome.stderr) == (64, True)


def test_the_guide_can_be_followed(up: RunningUp, tmp_path: Path) -> None:
    machine = tmp_path / "machine"
    machine.mkdir()
    invite, check, *others = steps_of(ROOT / "docs" / "guides" / "add-a-machine.md")
    shell = Shell(machine, environment(machine, CORRAL_DATA=str(up.data)))
    try:
        shell.run(f'corral() {{ {shlex.join(CORRAL)} "$@"; }}')
        made = shell.run(invite.command.replace("http://10.0.0.1:8080", up.state()["url"]))
        assert (made.code, [line for line in invite.missing_from(made.output) if "-" not in line]) == (0, [])
        command, code = [line.strip() for line in made.output.splitlines() if line.startswith("  ")]
        shell.run(f"export CORRAL_JOIN_CODE={code}")
        written, options = check.command.split(" --check")[0], shlex.join(place(machine))
        checked = shell.run(f"{check.command.replace(written, command)} {options}")
        assert (checked.code, check.missing_from(checked.output)) == (0, [])
        with running(machine, [*shlex.split(command)[1:], *place(machine)], CORRAL_JOIN_CODE=code):
            follow(shell, others)
    finally:
        shell.close()
