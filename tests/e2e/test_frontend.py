"""`corral frontend` as real processes: control is kept alive, mistakes end it with a code that tells."""

import json
import os
import re
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.kit.processes import running_below
from tests.kit.waiting import wait_until

NOBODY = "nats://127.0.0.1:9"
"""Nothing listens there; a frontend must live with that."""


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        number: int = probe.getsockname()[1]
        return number


@pytest.fixture
def start(start_process: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    with ExitStack() as stack:

        def run(*arguments: str, **variables: str) -> Any:
            everything = ["frontend", "--data", str(tmp_path / "data"), "--nats", NOBODY, *arguments]
            return stack.enter_context(start_process(everything, **variables))

        yield run


def until_serving(running: Any, port: int, call: Any) -> None:
    """Wait until control answers through the gateway. The home page needs no key, and the gateway cannot give it."""

    def serves() -> bool:
        assert running.process.poll() is None, running.output
        return bool(call("GET", f"http://127.0.0.1:{port}/").status == 200)

    wait_until(serves, "the frontend to serve", seconds=60)
    running.look()


def control_of(running: Any) -> psutil.Process:
    return running_below(running.process.pid, "control")[0]


def test_it_serves_without_nats_and_keeps_control_alive(
    start: Any, call: Any, port: int, corral: Any, tmp_path: Path
) -> None:
    running = start("--port", str(port))
    until_serving(running, port, call)
    wait_until(lambda: call("GET", f"http://127.0.0.1:{port}/readyz").status == 200, "the gateway's first view")
    kept = tmp_path / "data" / "credentials.json"
    key = json.loads(kept.read_text())["admin"]
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert running.output.count(f"The new keys are in {kept}, readable only by you.") == 1
    assert key not in running.output, "it is no terminal"

    first = control_of(running)
    first.kill()
    wait_until(lambda: not first.is_running(), "the end of control")
    until_serving(running, port, call)

    assert call("GET", f"http://127.0.0.1:{port}/api/v1/version", key=key).status == 200
    assert "The new keys" not in running.output.rpartition("child died")[2]
    doctor = corral("doctor", "--url", f"http://127.0.0.1:{port}", CORRAL_KEY=key)
    assert doctor.returncode == 1
    assert re.search(r"^nats +problem: not connected", doctor.stdout, re.MULTILINE)
    running.look()
    assert running.stop(signal.SIGTERM) == 0
    assert running.left() == []


def test_a_killed_launcher_takes_control_with_it(start: Any, call: Any, port: int) -> None:
    running = start("--port", str(port))
    until_serving(running, port, call)

    running.stop(signal.SIGKILL)

    wait_until(lambda: not running.left(), "the end of control")


def test_a_second_frontend_on_one_sqlite_file_is_refused(start: Any, call: Any, port: int) -> None:
    until_serving(start("--port", str(port)), port, call)

    second = start("--port", "0")

    assert second.process.wait(timeout=90) == 75
    assert "an SQLite file serves one frontend" in second.output
    assert call("GET", f"http://127.0.0.1:{port}/healthz").status == 200


def test_another_secrets_key_ends_it_with_78(start: Any, call: Any, port: int, tmp_path: Path) -> None:
    running = start("--port", str(port))
    until_serving(running, port, call)
    running.stop(signal.SIGTERM)
    (tmp_path / "data" / "secrets.key").unlink()

    again = start("--port", str(port))

    assert again.process.wait(timeout=90) == 78
    assert "child died" not in again.output, "it is not worth a restart"


def test_a_lost_or_damaged_database_ends_it_with_78_until_a_new_fleet_is_asked_for(
    start: Any, call: Any, port: int, tmp_path: Path
) -> None:
    database = tmp_path / "data" / "corral.db"
    running = start("--port", str(port))
    until_serving(running, port, call)
    running.stop(signal.SIGTERM)
    whole = database.read_bytes()

    database.write_bytes(whole[: len(whole) // 2])
    damaged = start("--port", str(port))
    assert damaged.process.wait(timeout=90) == 78
    assert f"the database {database} is damaged" in damaged.output
    database.unlink()
    lost = start("--port", str(port))
    assert lost.process.wait(timeout=90) == 78
    assert f"the database {database} is missing, but" in lost.output
    assert "start with --new-fleet" in lost.output
    assert not database.exists()

    database.write_bytes(whole)
    back = start("--port", str(port))
    until_serving(back, port, call)
    back.stop(signal.SIGTERM)
    database.unlink()
    new = start("--port", str(port), "--new-fleet")
    until_serving(new, port, call)
    new.stop(signal.SIGTERM)


def test_a_taken_port_ends_it_with_75(start: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        running = start("--port", str(number))
        assert running.process.wait(timeout=90) == 75
    assert f"port {number} on 127.0.0.1 is taken by another program; choose another with --port" in running.output


@pytest.mark.parametrize(
    ("arguments", "variables", "code", "sentence"),
    [
        (["--database", "mysql://x"], {}, 64, "database:"),
        (["--unhealthy-after", "9"], {}, 64, "offline_after: must be more than unhealthy_after"),
        (["--registration-token", "x"], {}, 64, "a secret is never a flag"),
        (["--config", "/nowhere.toml"], {}, 64, "config: cannot read /nowhere.toml"),
        ([], {"CORRAL_SECRETS_KEY": "short"}, None, "secrets"),
    ],
)
def test_mistakes_are_told_in_a_sentence(
    start: Any, arguments: list[str], variables: dict[str, str], code: int | None, sentence: str
) -> None:
    running = start("--port", "0", *arguments, **variables)
    ended = running.process.wait(timeout=90)
    assert ended in ((64, 77, 78) if code is None else (code,)), running.output
    assert sentence in running.output
    assert "Traceback" not in running.output


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_data_directory_that_is_not_writable_ends_it_with_73(start: Any, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o500)
    assert start("--port", "0").process.wait(timeout=90) == 73


def test_a_data_directory_that_cannot_be_made_ends_it_with_73_and_a_sentence(start: Any, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("a file")
    running = start("--port", "0", "--data", str(tmp_path / "data" / "fleet"))
    assert running.process.wait(timeout=90) == 73
    assert f"cannot create the directory {tmp_path}/data/fleet: Not a directory" in running.output
    assert "Traceback" not in running.output
