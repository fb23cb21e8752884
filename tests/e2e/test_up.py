"""`corral up` as real processes: ready, restarted, stopped, and never leaving anything behind."""

import contextlib
import itertools
import json
import os
import pty
import re
import resource
import shlex
import signal
import socket
import stat
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest

from corral.bus.authority import Authority
from corral.processes.exit_codes import ExitCode
from corral.processes.probe import is_free
from corral.processes.up_children import STEP
from tests.kit.ports import lasting_port, lasting_range
from tests.kit.waiting import wait_until

KILLED = [("control",), ("frontend",), ("nats",), ("workers", 0)]


def pid_of(state: dict[str, Any], path: tuple[Any, ...]) -> int:
    found: Any = state["pids"]
    for step in path:
        found = found[step]
    assert isinstance(found, int)
    return found


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def nats_seeds(up: Any) -> list[str]:
    """What signs for users of NATS."""
    keys = json.loads((Path(up.data) / "nats" / "authority.json").read_text())
    return [keys["operator_seed"], keys["account_seed"]]


class TestWhileItRuns:
    def test_it_tells_scripts_all_they_need_in_a_private_file(self, up: Any) -> None:
        state = up.state()
        assert set(state) == {"url", "nats_url", "keys", "pids"}
        assert set(state["keys"]) == {"admin", "registration"}
        assert set(state["pids"]) == {"up", "frontend", "control", "gateways", "nats", "workers"}
        assert state["pids"]["up"] == up.process.pid
        assert len(state["pids"]["gateways"]) == 1
        assert len(state["pids"]["workers"]) == 2
        assert re.fullmatch(r"nats://127\.0\.0\.1:\d+", state["nats_url"])
        assert stat.S_IMODE(up.file.stat().st_mode) == 0o600
        assert stat.S_IMODE(up.data.stat().st_mode) == 0o700

    def test_every_part_is_a_process_of_its_own(self, up: Any) -> None:
        pids = up.state()["pids"]
        everything = [pids["frontend"], pids["control"], pids["nats"], *pids["workers"]]
        assert len(set(everything)) == 5
        assert parent(pids["control"]) == pids["frontend"]
        assert {parent(pid) for pid in everything if pid != pids["control"]} == {up.process.pid}

    def test_two_nodes_are_healthy_with_directories_and_ports_of_their_own(self, up: Any) -> None:
        nodes = up.nodes()
        assert {name: node["status"] for name, node in nodes.items()} == {"worker-1": "healthy", "worker-2": "healthy"}
        low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        for name, node in nodes.items():
            host, _, port = node["address"].partition(":")
            assert host == "127.0.0.1"
            assert int(port) < low
            assert node["http_address"] == f"127.0.0.1:{int(port) - 1}"
            assert (up.data / "workers" / name.removeprefix("worker-") / "node-secret").exists()
        assert (up.data / "models").is_dir()

    def test_without_a_terminal_it_prints_where_the_keys_are_and_a_command_to_paste(self, up: Any) -> None:
        state = up.state()
        kept = up.data / "credentials.json"
        assert up.output.count(f"are in {kept}, readable only by you") == 1
        assert json.loads(kept.read_text()) == state["keys"]
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        assert state["keys"]["admin"] not in up.output
        assert state["keys"]["registration"] not in up.output
        assert f"Corral is ready at {state['url']} with 2 healthy nodes" in up.output
        assert f"nodes list --data {up.data}" in up.output

    def test_no_secret_is_in_any_command_line(self, up: Any) -> None:
        state = up.state()
        seeds = nats_seeds(up)
        ours = [up.process.pid, *(state["pids"][name] for name in ("frontend", "control", "nats"))]
        lines = [Path(f"/proc/{pid}/cmdline").read_text() for pid in [*ours, *state["pids"]["workers"]]]
        for secret in (state["keys"]["admin"], state["keys"]["registration"], *seeds):
            assert not any(secret in line for line in lines)

    def test_a_foreign_node_with_the_registration_token_is_pending(self, up: Any) -> None:
        state = up.state()
        body = {"name": "stranger", "address": "10.9.9.9:50051", "token": state["keys"]["registration"]}
        registered = up.call("POST", "/api/node/register", body, key=state["keys"]["registration"])
        assert registered.status == 201
        assert up.nodes()["stranger"]["status"] == "pending"
        assert up.corral("nodes", "remove", "stranger", "--yes").returncode == 0

    def test_a_second_one_in_the_same_directory_is_refused(self, up: Any) -> None:
        refused = up.corral("up", "--port", "0")
        assert refused.returncode == 75
        assert refused.stderr == (
            f"error: another `corral up` runs in {up.data}; stop it first, or choose another directory with --data\n"
        )
        assert up.file.exists()

    def test_commands_find_it_and_work(self, up: Any) -> None:
        listed = up.corral("nodes", "list")
        assert listed.returncode == 0
        assert [line.split()[:2] for line in listed.stdout.splitlines()[1:]] == [
            ["worker-1", "Healthy"],
            ["worker-2", "Healthy"],
        ]
        assert up.corral("nodes", "label", "worker-1", "zone=a").returncode == 0
        assert up.nodes()["worker-1"]["labels"]["zone"] == "a"
        assert up.corral("nodes", "label", "worker-1", "zone-").returncode == 0
        assert "zone" not in up.nodes()["worker-1"]["labels"]
        assert "draining" in up.corral("nodes", "drain", "worker-2").stdout
        assert "healthy" in up.corral("nodes", "resume", "worker-2").stdout
        assert "worker-1" in up.corral("nodes", "show", "worker-1").stdout
        assert up.corral("keys", "create", "ci", "--expires", "1h").stdout.startswith("corral_")
        assert up.corral("keys", "revoke", "ci").returncode == 0
        assert "node.draining" in up.corral("events").stdout
        doctor = up.corral("doctor")
        assert doctor.returncode == 0, doctor.stdout
        assert "All is well." in doctor.stdout

    def test_events_are_followed_without_a_gap_while_control_restarts(self, up: Any, start_process: Any) -> None:
        labels = f"/api/v1/nodes/{up.nodes()['worker-1']['id']}/labels"
        ticks = itertools.count()

        def tick() -> bool:
            """Something to follow; false while control is away."""
            return bool(up.api("PATCH", labels, {"tick": str(next(ticks))}).status == 200)

        with start_process(["events", "--follow", "--json", "--last", "0", "--data", str(up.data)]) as following:

            def followed() -> list[int]:
                return [json.loads(line)["sequence"] for line in following.output.splitlines() if line[:1] == "{"]

            wait_until(lambda: tick() and followed(), "the stream to begin")
            os.kill(up.state()["pids"]["control"], signal.SIGKILL)
            wait_until(tick, "control to be back")
            newest = up.api("GET", "/api/v1/events?limit=1").json()[0]["sequence"]
            wait_until(lambda: newest in followed(), "the newest event")
            sequences = followed()
            assert sequences == list(range(sequences[0], sequences[-1] + 1))
            assert following.stop(signal.SIGINT) == 0
        assert up.corral("nodes", "label", "worker-1", "tick-").returncode == 0
        up.until_healthy("worker-1", "worker-2")
        up.look()

    @pytest.mark.parametrize("path", KILLED, ids=lambda path: str(path[0]))
    def test_a_part_that_is_killed_comes_back(self, up: Any, path: tuple[Any, ...]) -> None:
        ids = {name: node["id"] for name, node in up.nodes().items()}
        before = pid_of(up.state(), path)

        os.kill(before, signal.SIGKILL)

        wait_until(lambda: pid_of(up.state(), path) != before, "a new pid in up.json")
        wait_until(lambda: up.api("GET", "/readyz").status == 200, "the frontend to be ready")
        up.until_healthy("worker-1", "worker-2")
        assert {name: node["id"] for name, node in up.nodes().items()} == ids
        assert stat.S_IMODE(up.file.stat().st_mode) == 0o600
        up.look()

    def test_a_lost_admin_key_can_be_replaced_on_the_machine(self, up: Any) -> None:
        old = up.state()["keys"]["admin"]
        reset = up.corral("keys", "reset-admin")
        assert reset.returncode == 0, reset.stderr
        new = reset.stdout.strip()
        assert up.state()["keys"]["admin"] == new != old
        assert up.api("GET", "/api/v1/keys").status == 200
        assert [key["state"] for key in up.api("GET", "/api/v1/keys").json()].count("active") == 1


@contextmanager
def on_a_terminal(command: list[str], home: Path, **variables: str) -> Iterator[Any]:
    """A program whose output, all of it, goes to a terminal. Gives a function that returns what stands there."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (50, 300))
    written = bytearray()

    def read() -> None:
        with contextlib.suppress(OSError):  # how a terminal says that nobody is left
            while part := os.read(ours, 65536):
                written.extend(part)

    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    env = {**kept, "HOME": str(home), **variables}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True)
    os.close(theirs)
    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield lambda: click.unstyle(re.sub(rb"\x1b\[2K[^\n]*\r(?!\n)", b"", bytes(written)).decode())
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
        reader.join()
        os.close(ours)


def normalised(line: str) -> str:
    """Without what differs from start to start and from machine to machine."""
    line = re.sub(r"((?:key|token): +)\S+", r"\1SECRET", line)
    line = re.sub(r"127\.0\.0\.1:\d+ (.*) after [0-9.]+ s", r"ADDRESS \1 after TIME", line)
    return re.sub(r" \S*/\.(local|venv)/", r" …/.\1/", line)


def reserve_ports(data: Path) -> None:
    """Choose the ports of two workers before the start: fleets of other tests that start now take the usual ones."""
    file = data / "workers" / "ports.json"
    file.parent.mkdir(mode=0o700, parents=True)
    data.chmod(0o700)
    file.write_text(json.dumps({number: lasting_range(STEP).start for number in (1, 2)}))
    file.chmod(0o600)


def test_a_healthy_start_prints_exactly_what_the_readme_shows(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    shown = readme.partition("```text\nAdministrator key:")[2].partition("```")[0]
    lines = ("Administrator key:" + shown).rstrip().splitlines()
    command = [str(Path(sys.executable).parent / "corral"), "up", "--port", "0"]
    variables = {"CORRAL_NATS_PORT": str(lasting_port())}
    reserve_ports(tmp_path / ".local" / "share" / "corral")

    with on_a_terminal(command, tmp_path, **variables) as screen:
        wait_until(lambda: "Try: " in screen() and screen().endswith("\n"), "the fleet to be ready", seconds=180)
        printed = screen().splitlines()

    assert [normalised(line) for line in printed] == [normalised(line) for line in lines]
    assert (tmp_path / ".local/share/corral/logs/control.log").exists()


def test_a_real_problem_reaches_the_terminal(start_up: Any) -> None:
    up = start_up("--workers", "0", CORRAL_VERBOSE="false")
    pids = up.until_ready()["pids"]
    os.kill(pids["control"], signal.SIGKILL)
    wait_until(lambda: "frontend  warning: child died" in up.output, "the warning")
    wait_until(lambda: up.state()["pids"]["control"] != pids["control"], "control to be started again")
    wait_until(lambda: up.api("GET", "/api/v1/ready").status == 200, "control to serve")
    assert up.stop(signal.SIGINT) == 0
    assert "child ready" not in up.output
    assert "child ready" in (up.data / "logs" / "up.log").read_text()
    gateway = (up.data / "logs" / "gateway-1.log").read_text()
    assert "control took no report" not in gateway.rpartition("gateway stops")[2], "its last report was taken"


def test_ctrl_c_stops_everything_in_order(start_up: Any) -> None:
    up = start_up()
    up.until_ready()

    assert up.stop(signal.SIGINT) == 0

    assert up.left() == []
    assert not up.file.exists()
    stopped = [line.rpartition("child=")[2].split()[0] for line in up.output.splitlines() if "child stopped" in line]
    assert set(stopped[:2]) == {"worker-1", "worker-2"}
    assert stopped[2:] == ["gateway-1", "control", "frontend", "nats-server"]


def test_a_signal_while_it_starts_ends_it_too(start_up: Any) -> None:
    up = start_up()
    wait_until(lambda: "child=nats-server" in up.output, "NATS to be started")

    assert up.stop(signal.SIGTERM) == 0

    assert up.left() == []


@pytest.fixture
def own_ports(tmp_path: Path) -> None:
    reserve_ports(tmp_path / "fleet")


@pytest.mark.usefixtures("own_ports")
def test_a_killed_up_leaves_nothing_and_starts_again_with_the_same_nodes_and_keys(start_up: Any) -> None:
    up = start_up()
    first = up.until_ready()
    nodes = {name: (node["id"], node["address"]) for name, node in up.nodes().items()}

    up.stop(signal.SIGKILL)

    wait_until(lambda: not up.left(), "the end of all its processes")
    assert up.file.exists(), "only a kill leaves it"

    again = start_up()
    wait_until(lambda: again.output.count("Corral is ready") == 2, "the second start")

    second = again.state()
    assert second["keys"] == first["keys"]
    assert second["nats_url"] == first["nats_url"]
    assert {name: (node["id"], node["address"]) for name, node in again.nodes().items()} == nodes
    assert again.output.count("readable only by you") == 1


def test_a_new_nats_account_is_made_while_it_is_stopped_and_ends_all_users_of_the_old_one(start_up: Any) -> None:
    up = start_up("--workers", "1")
    up.until_ready()
    up.until_healthy("worker-1")
    node = up.nodes()["worker-1"]["id"]
    folder = up.data / "nats"
    keys = (folder / "authority.json").read_text()

    refused = up.corral("keys", "rotate-nats")
    assert (refused.returncode, (folder / "authority.json").read_text()) == (ExitCode.IN_USE, keys)
    assert "stop it first, with `corral down`" in refused.stderr

    assert up.stop(signal.SIGTERM) == 0
    old = Authority.load_or_create(folder)
    done = up.corral("keys", "rotate-nats")
    assert done.returncode == 0, done.stderr
    assert "Start `corral up` again" in done.stdout
    new = Authority.load_or_create(folder)
    assert not {old.account_seed, old.operator_seed} & {new.account_seed, new.operator_seed}
    kept = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert old.account_seed.encode() not in kept
    assert not (folder / "accounts" / f"{old.account}.jwt").exists()
    assert {stat.S_IMODE((folder / name).stat().st_mode) for name in ("authority.json", "system.creds")} == {0o600}

    again = start_up("--workers", "1")
    again.until_ready()
    again.until_healthy("worker-1")
    assert again.nodes()["worker-1"]["id"] == node
    wait_until(lambda: again.api("GET", f"/api/nodes/{node}/backends").status == 200, "the node to answer on NATS")


def test_without_workers_it_is_ready_with_frontend_and_nats_and_replaces_lost_credentials(start_up: Any) -> None:
    up = start_up("--workers", "0")
    state = up.until_ready()
    assert state["pids"]["workers"] == []
    assert "with no workers" in up.output
    assert up.nodes() == {}
    assert up.stop(signal.SIGTERM) == 0
    assert up.left() == []
    (up.data / "credentials.json").unlink()

    again = start_up("--workers", "0")
    new = again.until_ready()["keys"]

    assert new["admin"] != state["keys"]["admin"]
    assert new["registration"] == state["keys"]["registration"]
    assert {key["state"] for key in again.api("GET", "/api/v1/keys").json()} == {"active", "revoked"}


def test_variables_meant_for_others_are_ignored_and_unknown_ones_warned_about_once(start_up: Any) -> None:
    up = start_up(
        CORRAL_PROT="1",
        LOCALAI_NODE_NAME="elsewhere",
        LOCALAI_ADVERTISE_ADDR="10.0.0.1:1",
        LOCALAI_NATS_URL="nats://elsewhere",
        LOCALAI_NODE_LABELS="zone=a",
    )
    up.until_ready()
    assert {name: node["labels"]["zone"] for name, node in up.nodes().items()} == {"worker-1": "a", "worker-2": "a"}
    assert up.output.count("CORRAL_PROT") == 1


class TestWhatCannotStart:
    def test_a_taken_port_names_the_flag(self, corral: Any, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            refused = corral("up", "--data", str(tmp_path / "data"), "--port", str(port))
        assert refused.returncode == 75
        start, _, offered = refused.stderr.partition(", as in: ")
        assert start == f"error: port {port} on 127.0.0.1 is taken by another program; choose another with --port"
        words = shlex.split(offered)
        assert (words[-4], words[-2:]) == ("--port", ["--data", str(tmp_path / "data")])
        assert is_free("127.0.0.1", int(words[-3]))

    def test_a_data_directory_that_cannot_be_made_names_the_flag(self, corral: Any, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        refused = corral("up", "--data", str(tmp_path / "file" / "data"), "--port", "0")
        assert refused.returncode == 73
        assert refused.stderr == (
            f"error: cannot create the directory {tmp_path}/file/data: Not a directory; "
            "choose another directory with --data\n"
        )

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
    def test_a_data_directory_that_is_not_writable_names_the_flag(self, corral: Any, tmp_path: Path) -> None:
        (tmp_path / "data").mkdir(mode=0o500)
        refused = corral("up", "--data", str(tmp_path / "data"), "--port", "0")
        assert refused.returncode == 73
        assert "is not writable; choose another directory with --data" in refused.stderr

    def test_a_data_directory_that_cannot_be_looked_at_is_told(self, corral: Any, tmp_path: Path) -> None:
        """A name that is too long stands for the directory of another user, which root may look at."""
        data = tmp_path / ("n" * 300)
        refused = corral("up", "--data", str(data), "--port", "0")
        assert refused.returncode == 73
        assert refused.stderr == (
            f"error: cannot look at {data}: File name too long; choose another directory with --data\n"
        )

    def test_a_disk_that_takes_no_more_is_told(self, corral: Any, tmp_path: Path) -> None:
        """A limit on the size of files stands for a full disk: the same call fails."""
        nothing = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))  # noqa: E731 - runs between fork and exec
        bare = {"CORRAL_PROVISIONS": str(tmp_path / "none")}
        refused = corral("up", "--data", str(tmp_path / "data"), "--port", "0", before=nothing, **bare)
        assert refused.returncode == 73
        assert refused.stderr.startswith(f"error: cannot write {tmp_path}/data/")

    def test_an_address_of_another_machine_is_refused(self, corral: Any, tmp_path: Path) -> None:
        refused = corral("up", "--data", str(tmp_path / "data"), "--host", "192.0.2.1")
        assert refused.returncode == 64
        assert "host: cannot listen on 192.0.2.1 port 8080" in refused.stderr
        assert not (tmp_path / "data").exists(), "a refused start leaves nothing behind"

    @pytest.mark.parametrize("arguments", [["--workers", "-1"], ["--workers", "many"], ["--port", "70000"], ["--nope"]])
    def test_nonsense_ends_with_64(self, corral: Any, arguments: list[str]) -> None:
        assert corral("up", *arguments).returncode == 64

    def test_a_setting_that_stops_a_child_ends_up_with_its_code(self, start_up: Any) -> None:
        up = start_up(CORRAL_MAX_BODY="huge")
        assert up.process.wait(timeout=90) == 64
        assert 'max_body: "huge" from the environment variable CORRAL_MAX_BODY cannot be used' in up.output
        assert not up.file.exists()


def test_a_lost_database_beside_the_keys_of_a_fleet_is_refused_at_once(corral: Any, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (data / "secrets.key").touch(mode=0o600)

    refused = corral("up", "--data", str(data), "--port", "0")

    assert refused.returncode == 78
    assert "corral.db is missing, but" in refused.stderr
    assert "start with --new-fleet" in refused.stderr
    assert os.listdir(data) == ["secrets.key"]
