"""Diagnostics of this machine: the data directory, its disk, and the processes, NATS and port of `corral up`."""

import os
import shutil
import socket
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from corral.cli.doctor.examination import OK, PROBLEM, WARNING, Examination, finding
from corral.cli.units import size
from corral.processes.probe import is_free
from corral.processes.up_file import NAME, UpPids
from corral.wire.nodes import Finding


def check_data_directory(examination: Examination) -> Finding:
    """Can the data directory be used, and is it private?"""
    path = examination.settings.data
    if not path.exists():
        return finding("data directory", OK, f"{path} is not there yet; `corral up` makes it")
    if not path.is_dir():
        return finding("data directory", PROBLEM, f"{path} is not a directory", "Choose another one with --data.")
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        return finding(
            "data directory",
            PROBLEM,
            f"{path} cannot be read and written by this user",
            f"Run as its owner, run `chown -R $USER {path}`, or choose another one with --data.",
        )
    if path.stat().st_mode & 0o077:
        return finding("data directory", WARNING, f"{path} is open to other users", f"Run: chmod 700 {path}")
    return finding("data directory", OK, f"{path} is writable and private")


LITTLE: Final = 1024**3
"""Smaller than most models."""
TOO_LITTLE: Final = 100 * 1024**2
"""The database may soon have no room to grow."""


def check_disk_space(examination: Examination) -> Finding:
    """Is there space on the disk of the data directory?"""
    path = _existing_parent(examination.settings.data)
    try:
        free = shutil.disk_usage(path).free
    except OSError as error:
        return finding("disk space", WARNING, f"the disk of {path} cannot be looked at: {error.strerror}")
    return judge_disk_space(free, path)


def judge_disk_space(free: int, path: Path) -> Finding:
    summary = f"{size(free)} are free on the disk of {path}"
    if free >= LITTLE:
        return finding("disk space", OK, summary)
    level = PROBLEM if free < TOO_LITTLE else WARNING
    return finding("disk space", level, summary, "Free some space, or choose another disk with --data.")


def _existing_parent(path: Path) -> Path:
    return next((place for place in (path, *path.absolute().parents) if place.exists()), Path("/"))


def check_processes(examination: Examination) -> Finding:
    """Do the processes run that `up.json` names?"""
    if examination.up is None:
        return finding("processes", OK, f"no `corral up` runs in {examination.settings.data}")
    named = _process_ids(examination.up.pids)
    dead = [name for name, pid in named.items() if not is_alive(pid)]
    if not dead:
        return finding("processes", OK, f"all {len(named)} processes of `corral up` run")
    if len(dead) == len(named):
        left = examination.settings.data / NAME
        return finding(
            "processes", WARNING, f"none of the processes in {left} runs", "Start again with `corral up`; it tidies up."
        )
    summary = f"{', '.join(dead)} of `corral up` does not run" if len(dead) == 1 else f"{', '.join(dead)} do not run"
    return finding("processes", PROBLEM, summary, "They are started again within seconds; if not, see the log.")


def _process_ids(pids: UpPids) -> dict[str, int]:
    workers = {f"worker-{number}": pid for number, pid in enumerate(pids.workers, start=1)}
    gateways = {f"gateway-{number}": pid for number, pid in enumerate(pids.gateways, start=1)}
    return {"nats": pids.nats, "frontend": pids.frontend, "control": pids.control, **gateways, **workers}


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that ended and was not reaped yet does not."""
    import psutil

    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, ValueError, OverflowError):
        return False


_NATS_TIMEOUT_SECONDS: Final = 3.0
_NATS_PORT: Final = 4222


def check_nats(examination: Examination) -> Finding | None:
    """Can NATS be reached from here? Only `up.json` says where it is; for other fleets the frontend checks it."""
    if examination.up is None:
        return None
    parts = urlsplit(examination.up.nats_url)
    host, port = parts.hostname or "", parts.port or _NATS_PORT
    if greets(host, port):
        return finding("nats", OK, f"{host}:{port} answers")
    return finding("nats", PROBLEM, f"{host}:{port} does not answer", "`corral up` starts it again; see its log.")


def greets(host: str, port: int) -> bool:
    """Whether a NATS server answers, which sends its INFO first."""
    try:
        with socket.create_connection((host, port), timeout=_NATS_TIMEOUT_SECONDS) as connection:
            connection.settimeout(_NATS_TIMEOUT_SECONDS)
            return connection.recv(5).startswith(b"INFO ")
    except OSError:
        return False


_UP_HOST: Final = "127.0.0.1"
_UP_PORT: Final = 8080


def check_port(examination: Examination) -> Finding | None:
    """Is the port free that `corral up` would take? Not checked while a fleet runs, because it has the port."""
    if examination.up is not None or examination.frontend.is_there:
        return None
    if is_free(_UP_HOST, _UP_PORT):
        return finding("ports", OK, f"port {_UP_PORT} is free for `corral up`")
    return finding(
        "ports",
        WARNING,
        f"port {_UP_PORT} is taken by another program",
        "Start with another one: corral up --port 8090",
    )
