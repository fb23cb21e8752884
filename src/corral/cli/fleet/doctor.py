"""`corral doctor` asks all diagnostics, shows what they found, and ends with 1 when something is wrong."""

import os
import shutil
import socket
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import click
import msgspec
from msgspec.structs import replace

from corral import __version__
from corral.base.errors import AccessDenied, CorralError, PathNotUsable
from corral.base.private_files import is_there
from corral.base.words import format_duration
from corral.cli.client import ApiClient, FrontendFailed, FrontendTarget, Unreachable
from corral.cli.connection import connected, target_of
from corral.cli.options import CorralCommand, command_sources, warn
from corral.cli.output import facts, json_option, level_text, plain, print_json, show
from corral.cli.units import size
from corral.processes.exit_codes import ExitCode
from corral.processes.settings import ClientSettings
from corral.processes.settings_sources import resolve
from corral.processes.up_file import NAME, UpFile, read_up_file
from corral.wire.nodes import DoctorReport, Finding, VersionView

DEEP_PATIENCE: Final = timedelta(minutes=6)
OK: Final = "ok"
WARNING: Final = "warning"
PROBLEM: Final = "problem"


class FrontendWords(msgspec.Struct, frozen=True, kw_only=True):
    """What the frontend answered, or why it did not."""

    target: FrontendTarget | None = None
    trouble: CorralError | None = None
    """Why it did not answer: no frontend is known, nothing listens there, or the key was refused."""
    report: DoctorReport | None = None
    version: VersionView | None = None
    clock_ahead_seconds: float | None = None
    """How far its clock is ahead of ours, to about a second; None when it did not say."""

    @property
    def is_there(self) -> bool:
        """Whether something answered, even if it was a refusal."""
        return self.report is not None or isinstance(self.trouble, AccessDenied)


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about this machine and its frontend, gathered once before the first diagnostic runs."""

    settings: ClientSettings
    up: UpFile | None
    frontend: FrontendWords
    is_deep: bool = False


def local_diagnostics(examination: Examination) -> Sequence[Callable[[Examination], Finding | None]]:
    """The checks to run, in the order in which a person would look; a check returns None when it does not apply.

    With --url only the frontend is checked: what runs on this machine may be another fleet.
    """
    of_frontend = (check_frontend, check_key, check_version, check_clock)
    if examination.settings.url:
        return of_frontend
    return (check_data_directory, check_disk_space, check_file, check_processes, *of_frontend, check_nats, check_port)


@click.command(cls=CorralCommand)
@click.option("--deep", is_flag=True, help="Also read all of the database and its sealed secrets, for minutes.")
@json_option
@connected
def doctor(deep: bool, as_json: bool) -> int:
    """Find out what is wrong, and say what to do.

    Looks at this machine, and at the frontend if there is one; with --url only at that one. Ends with 1 when there is
    a problem, with 0 when there are only warnings.
    """
    sources = command_sources()
    examination = examine(resolve(ClientSettings, sources), is_deep=deep)
    local_findings = [
        finding for check in local_diagnostics(examination) if (finding := check(examination)) is not None
    ]
    frontend_findings = examination.frontend.report.findings if examination.frontend.report is not None else []
    levels = [finding.level for finding in [*local_findings, *frontend_findings]]
    problems, warnings = levels.count(PROBLEM), levels.count(WARNING)
    if as_json:
        print_json({"here": local_findings, "frontend": frontend_findings})
    else:
        warn(sources.warnings)
        show("[bold]On this machine[/]")
        show(facts([_row(finding) for finding in local_findings]))
        if frontend_findings:
            show("\n[bold]At the frontend[/]")
            show(facts([_row(finding) for finding in frontend_findings]))
        counts = f"{problems} problem{'' if problems == 1 else 's'}, {warnings} warning{'' if warnings == 1 else 's'}."
        show(f"\n{counts}" if problems or warnings else "\nAll is well.")
    return ExitCode.FAILED if problems else ExitCode.OK


def _row(finding: Finding) -> tuple[str, str]:
    remedy = f"\n[dim]→[/] {plain(finding.remedy)}" if finding.remedy and finding.level != OK else ""
    return plain(finding.check), f"{level_text(finding.level)}: {plain(finding.summary)}{remedy}"


def examine(settings: ClientSettings, *, is_deep: bool = False) -> Examination:
    try:
        up = read_up_file(settings.data)
    except CorralError:  # the diagnostic of the data directory says why
        up = None
    return Examination(settings=settings, up=up, frontend=_ask_frontend(settings, is_deep=is_deep), is_deep=is_deep)


def _ask_frontend(settings: ClientSettings, *, is_deep: bool) -> FrontendWords:
    try:
        target = target_of(settings)
    except CorralError as error:
        return FrontendWords(trouble=error)
    client = ApiClient(target)
    try:
        query, patience = ([("deep", "true")], DEEP_PATIENCE) if is_deep else ([], None)
        report = client.get("/api/v1/doctor", DoctorReport, query, patience=patience)
        words = FrontendWords(target=target, report=report, version=client.get("/api/v1/version", VersionView))
    except CorralError as error:
        words = FrontendWords(target=target, trouble=error)
    if client.server_time is None or client.server_time.tzinfo is None:
        return words
    return replace(words, clock_ahead_seconds=(client.server_time - datetime.now(UTC)).total_seconds())


def _finding(check: str, level: str, summary: str, remedy: str = "") -> Finding:
    return Finding(check=check, level=level, summary=summary, remedy=remedy)


def check_data_directory(examination: Examination) -> Finding:
    """Can the data directory be used, and is it private?"""
    path = examination.settings.data
    try:
        is_made = is_there(path)
    except PathNotUsable as error:
        remedy = "Run as the user whose fleet it is, or choose another one with --data."
        return _finding("data directory", PROBLEM, error.message, remedy)
    if not is_made:
        return _finding("data directory", OK, f"{path} is not there yet; `corral up` makes it")
    if not path.is_dir():
        return _finding("data directory", PROBLEM, f"{path} is not a directory", "Choose another one with --data.")
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        remedy = f"Run as its owner, run `chown -R $USER {path}`, or choose another one with --data."
        return _finding("data directory", PROBLEM, f"{path} cannot be read and written by this user", remedy)
    if path.stat().st_mode & 0o077:
        return _finding("data directory", WARNING, f"{path} is open to other users", f"Run: chmod 700 {path}")
    return _finding("data directory", OK, f"{path} is writable and private")


LITTLE: Final = 1024**3
"""Smaller than most models."""
TOO_LITTLE: Final = 100 * 1024**2
"""The database may soon have no room to grow."""


def check_disk_space(examination: Examination) -> Finding:
    """Is there space on the disk of the data directory?"""
    data = examination.settings.data
    try:
        path = next((place for place in (data, *data.absolute().parents) if is_there(place)), Path("/"))
        free = shutil.disk_usage(path).free
    except PathNotUsable as error:
        return _finding("disk space", WARNING, f"the disk is unknown: {error.message}")
    except OSError as error:
        return _finding("disk space", WARNING, f"the disk of {data} cannot be looked at: {error.strerror}")
    return judge_disk_space(free, path)


def judge_disk_space(free: int, path: Path) -> Finding:
    summary = f"{size(free)} are free on the disk of {path}"
    if free >= LITTLE:
        return _finding("disk space", OK, summary)
    level = PROBLEM if free < TOO_LITTLE else WARNING
    return _finding("disk space", level, summary, "Free some space, or choose another disk with --data.")


def check_file(examination: Examination) -> Finding | None:
    """Is the SQLite file in the data directory whole? Where a frontend runs, it looks itself."""
    file = examination.settings.data / "corral.db"
    if not examination.is_deep or examination.frontend.is_there or not file.exists():
        return None
    from corral.frontend.store.soundness import DEEP, damage, sqlite_problems

    try:
        problems = sqlite_problems(file, pragma="integrity_check", within=DEEP)
    except TimeoutError:
        return _finding("database file", WARNING, f"{file} was not read to its end within {format_duration(DEEP)}")
    if not problems:
        return _finding("database file", OK, f"{file} is whole")
    return _finding("database file", PROBLEM, damage(file, problems[0]))


def check_processes(examination: Examination) -> Finding | None:
    """Do the processes run that `up.json` names? Not checked where nobody may read it."""
    if isinstance(examination.frontend.trouble, PathNotUsable):
        return None
    if examination.up is None:
        return _finding("processes", OK, f"no `corral up` runs in {examination.settings.data}")
    pids = examination.up.pids
    named = {"nats": pids.nats, "frontend": pids.frontend, "control": pids.control}
    named |= {f"gateway-{number}": pid for number, pid in enumerate(pids.gateways, start=1)}
    named |= {f"worker-{number}": pid for number, pid in enumerate(pids.workers, start=1)}
    dead = [name for name, pid in named.items() if not is_alive(pid)]
    if not dead:
        return _finding("processes", OK, f"all {len(named)} processes of `corral up` run")
    if len(dead) == len(named):
        summary = f"none of the processes in {examination.settings.data / NAME} runs"
        return _finding("processes", WARNING, summary, "Start again with `corral up`; it tidies up.")
    summary = f"{', '.join(dead)} of `corral up` does not run" if len(dead) == 1 else f"{', '.join(dead)} do not run"
    return _finding("processes", PROBLEM, summary, "They are started again within seconds; if not, see the log.")


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that ended and was not reaped yet does not."""
    import psutil

    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, ValueError, OverflowError):
        return False


def check_frontend(examination: Examination) -> Finding:
    """Does a frontend answer?"""
    words = examination.frontend
    if words.target is None:
        if isinstance(words.trouble, PathNotUsable):
            summary = f"no frontend is known: {words.trouble.message}"
            return _finding("frontend", PROBLEM, summary, "Name one with --url or CORRAL_URL.")
        summary = f"no frontend is known: there is no up.json in {examination.settings.data}"
        remedy = "Start one with `corral up`, or name one with --url or CORRAL_URL."
        return _finding("frontend", PROBLEM, summary, remedy)
    url, origin = words.target.url, words.target.origin
    if words.is_there:
        return _finding("frontend", OK, f"{url} answers (from {origin})")
    remedy = "Start it with `corral up` or `corral frontend`, or correct the URL."
    match words.trouble:  # the errors themselves advise to run doctor
        case FrontendFailed():
            summary = f"{url} answers, but: {words.trouble.reason}"
            remedy = "What died there is started again within seconds; if not, see the log of the frontend."
        case Unreachable():
            summary = f"no answer from {url} (from {origin}): {words.trouble.reason}"
        case _:
            summary = words.trouble.message if words.trouble is not None else "it does not answer"
    return _finding("frontend", PROBLEM, summary, remedy)


def check_key(examination: Examination) -> Finding | None:
    """Does the frontend accept our key?"""
    words = examination.frontend
    if isinstance(words.trouble, AccessDenied):
        remedy = (
            "Set CORRAL_KEY or --key-file to an admin key; `corral keys reset-admin` makes one on the frontend's "
            "machine."
        )
        return _finding("key", PROBLEM, words.trouble.message, remedy)
    return _finding("key", OK, "the frontend accepts it") if words.report is not None else None


def check_version(examination: Examination) -> Finding | None:
    """Do this program and the frontend have the same version?"""
    if examination.frontend.version is None:
        return None
    frontend_version = examination.frontend.version.version
    if frontend_version == __version__:
        return _finding("version", OK, f"{frontend_version} here and there")
    summary = f"{__version__} here, {frontend_version} at the frontend"
    return _finding("version", WARNING, summary, "Install the frontend's version here.")


TOLERATED_SECONDS: Final = 5.0
"""The frontend sends its time in whole seconds, and the answer took some time to arrive."""
ALARMING_SECONDS: Final = 300.0
"""From here on keys and certificates may look expired, or not yet valid."""
EARLIEST: Final = datetime(2025, 1, 1, tzinfo=UTC)
"""Corral did not exist before: such a clock was never set."""


def check_clock(examination: Examination) -> Finding:
    """Does our clock agree with the frontend's?"""
    return judge_clock(examination.frontend.clock_ahead_seconds, datetime.now(UTC))


def judge_clock(ahead_seconds: float | None, now: datetime) -> Finding:
    if now < EARLIEST:
        return _finding("clock", PROBLEM, f"this machine believes it is {now:%Y-%m-%d}", "Let NTP set its clock.")
    if ahead_seconds is None:
        return _finding("clock", OK, "set; there is no frontend to compare it with")
    distance = abs(ahead_seconds)
    if distance <= TOLERATED_SECONDS:
        return _finding("clock", OK, "agrees with the frontend's")
    relation = "behind" if ahead_seconds > 0 else "ahead of"
    summary = f"{format_duration(timedelta(seconds=distance))} {relation} the frontend's"
    level = PROBLEM if distance >= ALARMING_SECONDS else WARNING
    return _finding("clock", level, summary, "Let NTP set the clocks of both machines.")


_NATS_TIMEOUT_SECONDS: Final = 3.0
_NATS_PORT: Final = 4222


def check_nats(examination: Examination) -> Finding | None:
    """Can NATS be reached from here? Only `up.json` says where it is; for other fleets the frontend checks it."""
    if examination.up is None:
        return None
    parts = urlsplit(examination.up.nats_url)
    host, port = parts.hostname or "", parts.port or _NATS_PORT
    if greets(host, port):
        return _finding("nats", OK, f"{host}:{port} answers")
    return _finding("nats", PROBLEM, f"{host}:{port} does not answer", "`corral up` starts it again; see its log.")


def greets(host: str, port: int) -> bool:
    """Whether a NATS server answers, which sends its INFO first."""
    try:
        with socket.create_connection((host, port), timeout=_NATS_TIMEOUT_SECONDS) as connection:
            connection.settimeout(_NATS_TIMEOUT_SECONDS)
            return connection.recv(5).startswith(b"INFO ")
    except OSError:
        return False


def check_port(examination: Examination) -> Finding | None:
    """Is the port free that `corral up` would take? Not checked while a fleet runs, because it has the port."""
    from corral.processes.probe import is_free

    if examination.up is not None or examination.frontend.is_there:
        return None
    if is_free("127.0.0.1", 8080):
        return _finding("ports", OK, "port 8080 is free for `corral up`")
    remedy = "Start with another one: corral up --port 8090"
    return _finding("ports", WARNING, "port 8080 is taken by another program", remedy)
