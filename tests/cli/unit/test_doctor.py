"""`corral doctor`: what each diagnostic says, and that it works when nothing runs."""

import os
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from corral import __version__
from corral.cli.fleet.doctor import greets, is_alive, judge_clock, judge_disk_space
from corral.processes import probe
from corral.processes.up_file import UpFile, UpKeys, UpPids, write_up_file
from corral.wire.nodes import DoctorReport, Finding, VersionView

NOW = datetime(2026, 3, 1, tzinfo=UTC)
GIB = 1024**3
NOBODY = 2**22 + 5
"""Above the highest pid that Linux gives by default."""


def levels(outcome: Any, where: str = "here") -> dict[str, str]:
    return {finding["check"]: finding["level"] for finding in outcome.json()[where]}


def up_file(url: str, pid: int) -> UpFile:
    return UpFile(
        url=url,
        nats_url="nats://worker:secret@127.0.0.1:9",
        keys=UpKeys(admin="corral_x", registration="y"),
        pids=UpPids(frontend=pid, control=pid, nats=pid, workers=[pid]),
    )


def test_when_nothing_runs_it_says_so_and_what_to_do(corral: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "is_free", lambda host, port: True)  # a fleet may run beside the tests
    outcome = corral("doctor")
    assert outcome.code == 1
    assert "frontend        problem: no frontend is known" in outcome.out
    assert "→ Start one with `corral up`, or name one with --url or CORRAL_URL." in outcome.out
    assert outcome.out.endswith("1 problem, 0 warnings.\n")


def test_a_taken_port_is_told_with_what_to_do(corral: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "is_free", lambda host, port: False)
    outcome = corral("doctor")
    assert "port 8080 is taken by another program" in outcome.out
    assert "corral up --port 8090" in outcome.out


def test_with_a_url_it_looks_at_that_fleet_only(connected: Any, frontend: Any, home: Path) -> None:
    data = home / ".local/share/corral"
    data.mkdir(parents=True, mode=0o755)
    write_up_file(data, up_file("http://127.0.0.1:9", NOBODY))
    frontend.tell("GET /api/v1/doctor", DoctorReport(findings=[]))
    frontend.tell("GET /api/v1/version", VersionView(version=__version__, frontend_id="x", features=[]))
    assert set(levels(connected("doctor", "--json"))) == {"frontend", "key", "version", "clock"}


def test_when_all_is_well_it_ends_with_0(connected: Any, frontend: Any) -> None:
    report = DoctorReport(findings=[Finding(check="database", level="ok", summary="answers")])
    frontend.tell("GET /api/v1/doctor", report)
    frontend.tell("GET /api/v1/version", VersionView(version=__version__, frontend_id="x", features=[]))
    outcome = connected("doctor")
    assert outcome.out.endswith("All is well.\n")
    assert outcome.code == 0
    assert "At the frontend\ndatabase  ok: answers\n" in outcome.out


def test_a_problem_at_the_frontend_counts_and_shows_its_remedy(connected: Any, frontend: Any) -> None:
    finding = Finding(check="nats", level="problem", summary="not connected", remedy="Start it.")
    frontend.tell("GET /api/v1/doctor", DoctorReport(findings=[finding]))
    frontend.tell("GET /api/v1/version", VersionView(version="9.9", frontend_id="x", features=[]))
    outcome = connected("doctor")
    assert outcome.code == 1
    assert "nats  problem: not connected\n      → Start it.\n" in outcome.out
    assert levels(connected("doctor", "--json"))["version"] == "warning"


def test_a_refused_key_is_a_problem_of_its_own(connected: Any, frontend: Any) -> None:
    frontend.tell("GET /api/v1/doctor", {"error": {"message": "no"}}, 401)
    found = levels(connected("doctor", "--json"))
    assert (found["frontend"], found["key"]) == ("ok", "problem")


def test_a_frontend_whose_control_is_away_is_not_said_to_be_started(connected: Any, frontend: Any) -> None:
    frontend.tell("GET /api/v1/doctor", {"error": {"message": "the control plane is away"}}, 503)
    outcome = connected("doctor")
    assert outcome.code == 1
    assert f"problem: {frontend.url} answers, but: the control plane is away\n" in outcome.out
    assert "→ What died there is started again within seconds; if not, see the log of the frontend.\n" in outcome.out
    assert "`corral doctor`" not in outcome.out


def test_a_dead_fleet_is_recognised(corral: Any, home: Path) -> None:
    data = home / ".local/share/corral"
    data.mkdir(parents=True, mode=0o700)
    write_up_file(data, up_file("http://127.0.0.1:9", NOBODY))
    outcome = corral("doctor", "--json")
    found = levels(outcome)
    assert (found["processes"], found["frontend"], found["nats"]) == ("warning", "problem", "problem")
    assert "secret" not in outcome.out


@pytest.mark.parametrize(("mode", "level"), [(0o700, "ok"), (0o755, "warning")])
def test_the_data_directory_should_be_private(corral: Any, tmp_path: Path, mode: int, level: str) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(mode)
    assert levels(corral("doctor", "--json", "--data", str(data)))["data directory"] == level


def test_a_data_directory_that_is_a_file_is_a_problem(corral: Any, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    outcome = corral("doctor", "--json", "--data", str(tmp_path / "data"))
    assert levels(outcome)["data directory"] == "problem"


def test_a_data_directory_that_cannot_be_looked_at_is_a_problem_and_no_fault(corral: Any, tmp_path: Path) -> None:
    """A name that is too long stands for the directory of another user, which root may look at."""
    data = tmp_path / ("n" * 300)
    outcome = corral("doctor", "--json", "--data", str(data))
    assert outcome.code == 1
    findings = {finding["check"]: finding for finding in outcome.json()["here"]}
    assert findings["data directory"]["summary"] == f"cannot look at {data}: File name too long"
    assert findings["data directory"]["remedy"].startswith("Run as the user whose fleet it is")
    assert findings["frontend"]["summary"] == f"no frontend is known: cannot read {data}/up.json: File name too long"
    assert (findings["data directory"]["level"], findings["disk space"]["level"]) == ("problem", "warning")
    assert "processes" not in findings


@pytest.mark.parametrize(("free", "level"), [(5 * GIB, "ok"), (GIB // 2, "warning"), (50 * 1024**2, "problem")])
def test_little_space_is_told(free: int, level: str) -> None:
    assert judge_disk_space(free, Path("/x")).level == level


@pytest.mark.parametrize(
    ("ahead", "now", "level", "summary"),
    [
        (None, NOW, "ok", "set; there is no frontend to compare it with"),
        (1.5, NOW, "ok", "agrees with the frontend's"),
        (-60.0, NOW, "warning", "1m 0s ahead of the frontend's"),
        (3600.0, NOW, "problem", "1h 0m behind the frontend's"),
        (0.0, datetime(1970, 1, 1, tzinfo=UTC), "problem", "this machine believes it is 1970-01-01"),
    ],
)
def test_clocks_that_disagree_are_told(ahead: float | None, now: datetime, level: str, summary: str) -> None:
    found = judge_clock(ahead, now)
    assert (found.level, found.summary) == (level, summary)


def test_a_process_is_alive_or_not() -> None:
    assert is_alive(os.getpid())
    assert not is_alive(NOBODY)
    assert not is_alive(-1)


def test_what_listens_but_does_not_greet_is_no_nats(frontend: Any) -> None:
    assert not greets("127.0.0.1", 9)


def test_deep_reads_the_database_file_of_a_fleet_that_does_not_start(corral: Any, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    with closing(sqlite3.connect(data / "corral.db")) as connection:
        connection.execute("CREATE TABLE t (a TEXT)")
    assert "database file" not in levels(corral("doctor", "--json", "--data", str(data)))
    assert levels(corral("doctor", "--deep", "--json", "--data", str(data)))["database file"] == "ok"

    (data / "corral.db").write_bytes(b"something else, but long enough to be a file of SQLite")
    outcome = corral("doctor", "--deep", "--json", "--data", str(data))

    assert levels(outcome)["database file"] == "problem"
    assert "put your last backup" in outcome.out
