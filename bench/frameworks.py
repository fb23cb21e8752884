"""`frameworks`: what the admin API's HTTP framework costs, beside others that could have been chosen.

The same small answer from each, one process on one core; the load comes from the other core. Those that Corral does not
depend on live in an environment of their own under `.build`, made when this bench is asked for, and are left out where
they cannot be installed. Figures of the processor are the steadier ones: they do not depend on who else works here.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from bench import ROOT
from bench.client import Connection, request
from bench.hammer import Order, hammer_from_outside
from bench.readings import MEGABYTE, family, memory_of, processor_seconds
from bench.report import Row, Table
from bench.say import say
from bench.up import environment, fleet, frontend_of
from corral.base.errors import ChildFailed
from corral.base.processes import ChildCommand, ChildProcess, Output, start_process
from tests.kit.ports import lasting_port

HOST: Final = "127.0.0.1"
PATH: Final = "/nodes/7f1c2d9e-5a0b-4c3d-8e6f-112233445566"
ROUNDS: Final = 3
EXTRA: Final = ROOT / ".build" / "bench-frameworks"
EXTRA_PACKAGES: Final = ("fastapi", "granian", "httptools", "litestar", "msgspec", "starlette", "uvicorn", "uvloop")
_START_WITHIN_SECONDS: Final = 20.0
_LOOK_SECONDS: Final = 0.002
_PORT: Final = "PORT"
_UVICORN: Final = ("uvicorn", "--http", "httptools", "--loop", "uvloop", "--no-access-log", "--log-level", "warning")
_GRANIAN: Final = ("granian", "--interface", "asgi", "--loop", "uvloop", "--no-access-log", "--log-level", "warning")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A framework on a server; `arguments` follow `python -m`."""

    name: str
    module: str
    arguments: Sequence[str]
    packages: Sequence[str]
    is_extra: bool = False
    """Not among Corral's own dependencies."""

    @property
    def python(self) -> str:
        return str(EXTRA / "bin" / "python") if self.is_extra else sys.executable

    @property
    def is_installed(self) -> bool:
        return Path(self.python).exists()


def _on_uvicorn(module: str) -> tuple[str, ...]:
    return (*_UVICORN, "--port", _PORT, f"{module}:app")


_APPS: Final = "bench.framework_apps"
CONTENDERS: Final = (
    Contender(
        name="Starlette, uvicorn",
        module=f"{_APPS}.starlette_app",
        arguments=_on_uvicorn(f"{_APPS}.starlette_app"),
        packages=("starlette", "uvicorn"),
    ),
    Contender(
        name="the same with our route table",
        module=f"{_APPS}.corral_app",
        arguments=_on_uvicorn(f"{_APPS}.corral_app"),
        packages=("starlette", "uvicorn"),
    ),
    Contender(
        name="Starlette, granian",
        module=f"{_APPS}.starlette_app",
        arguments=(*_GRANIAN, "--port", _PORT, f"{_APPS}.starlette_app:app"),
        packages=("starlette", "granian"),
        is_extra=True,
    ),
    Contender(
        name="aiohttp.web",
        module=f"{_APPS}.aiohttp_app",
        arguments=(f"{_APPS}.aiohttp_app", _PORT),
        packages=("aiohttp",),
    ),
    Contender(
        name="Litestar, uvicorn",
        module=f"{_APPS}.litestar_app",
        arguments=_on_uvicorn(f"{_APPS}.litestar_app"),
        packages=("litestar", "uvicorn"),
        is_extra=True,
    ),
    Contender(
        name="FastAPI, uvicorn",
        module=f"{_APPS}.fastapi_app",
        arguments=_on_uvicorn(f"{_APPS}.fastapi_app"),
        packages=("fastapi", "uvicorn"),
        is_extra=True,
    ),
)


@dataclass(slots=True, kw_only=True)
class _Found:
    """What the rounds of one contender gave."""

    versions: str = ""
    import_seconds: list[float] = field(default_factory=list)
    imported_bytes: list[int] = field(default_factory=list)
    start_seconds: list[float] = field(default_factory=list)
    per_second: list[float] = field(default_factory=list)
    microseconds: list[float] = field(default_factory=list)
    loaded_bytes: list[int] = field(default_factory=list)
    errors: int = 0
    hammer_share: float = 0.0

    def row(self, name: str) -> Row:
        return {
            "framework": name,
            "versions": self.versions,
            "requests/s": median(self.per_second),
            "CPU each, µs": median(self.microseconds),
            "RSS imported, MB": median(self.imported_bytes) / MEGABYTE,
            "RSS under load, MB": median(self.loaded_bytes) / MEGABYTE,
            "CPU of import, ms": 1000 * median(self.import_seconds),
            "start, ms": 1000 * median(self.start_seconds),
            "errors": self.errors,
        }


async def frameworks(seconds: float, *, contenders: Sequence[Contender] = CONTENDERS, rounds: int = ROUNDS) -> Table:
    """Rounds go through all of them in turn, so that a busy minute of the machine hits all alike."""
    notes = prepare_extra() if any(contender.is_extra for contender in contenders) else []
    present = [contender for contender in contenders if contender.is_installed]
    found = {contender.name: _Found() for contender in present}
    for round in range(1, rounds + 1):
        for contender in present:
            say(f"frameworks: round {round} of {rounds}, {contender.name}")
            await _measure(contender, found[contender.name], seconds)
    busiest = max(one.hammer_share for one in found.values())
    notes.append(f"Medians of {rounds} rounds of {seconds:g} s; server on one core, 16 connections from another.")
    notes.append(f"The load generator used at most {busiest:.0f} % of its core.")
    rows = [found[contender.name].row(contender.name) for contender in present]
    return Table(title="One node as JSON, one process, one core", rows=rows, notes=notes)


async def whole_control(seconds: float) -> Table:
    """A real control process: the key is looked up in SQLite for every request."""
    with tempfile.TemporaryDirectory(prefix="corral-bench-") as folder, on_core(0):
        async with fleet(Path(folder), workers=0) as up:
            frontend = frontend_of(up)
            order = Order(
                host=frontend.host,
                port=frontend.port,
                path="/api/v1/version",
                seconds=seconds,
                bearer=frontend.admin_key,
            )
            say("frameworks: a whole control process")
            used = processor_seconds(up.pids.control)
            with on_core(1):
                tale = await hammer_from_outside(order)
            used = processor_seconds(up.pids.control) - used
            row: Row = {
                "what": "GET /api/v1/version",
                "requests/s": tale.requests / tale.seconds,
                "CPU each, µs": 1e6 * used / tale.requests,
                "RSS under load, MB": memory_of(up.pids.control).peak / MEGABYTE,
                "errors": tale.errors,
            }
    return Table(title="The real control process, each key looked up in SQLite", rows=[row])


# One contender.


async def _measure(contender: Contender, found: _Found, seconds: float) -> None:
    cost = _import_cost(contender)
    found.versions = cost.versions
    found.import_seconds.append(cost.seconds)
    found.imported_bytes.append(cost.resident_bytes)
    began = time.monotonic()
    async with _serving(contender) as (process, port):
        found.start_seconds.append(time.monotonic() - began)
        order = Order(host=HOST, port=port, path=PATH, seconds=seconds)
        pids = family(process.pid)
        used = sum(map(processor_seconds, pids))
        with on_core(1):
            tale = await hammer_from_outside(order)
        used = sum(map(processor_seconds, pids)) - used
        found.per_second.append(tale.requests / tale.seconds)
        found.microseconds.append(1e6 * used / tale.requests)
        found.loaded_bytes.append(sum(memory_of(pid).peak for pid in pids))
        found.errors += tale.errors
        found.hammer_share = max(found.hammer_share, tale.own_share)


@asynccontextmanager
async def _serving(contender: Contender) -> AsyncIterator[tuple[ChildProcess, int]]:
    """From the start of the process to its first good answer; ended on leaving."""
    port = lasting_port()
    words = [str(port) if word == _PORT else word for word in contender.arguments]
    command = ChildCommand(argv=[contender.python, "-m", *words], env=_environment(), cwd=ROOT, output=Output.TAIL)
    with on_core(0):
        process = start_process(command)
    async with process:
        await _until_it_answers(process, port)
        yield process, port


async def _until_it_answers(process: ChildProcess, port: int) -> None:
    deadline = time.monotonic() + _START_WITHIN_SECONDS
    while True:
        try:
            connection = await Connection.open(HOST, port)
            answer = await connection.ask(request("GET", PATH))
            connection.close()
            if answer.status == 200:
                return
        except OSError:
            pass
        if process.returncode is not None or time.monotonic() > deadline:
            raise ChildFailed("the server did not start:\n" + "\n".join(process.tail))
        await asyncio.sleep(_LOOK_SECONDS)


class _ImportCost(msgspec.Struct):
    seconds: float
    """Processor time in seconds, including the start of the interpreter."""
    resident_bytes: int
    versions: str


_IMPORT: Final = """
import importlib, sys, time
importlib.import_module(sys.argv[1])
seconds = time.process_time()
import json, os
from importlib.metadata import version
pages = int(open("/proc/self/statm").read().split()[1])
versions = " ".join(version(name) for name in sys.argv[2:])
print(json.dumps({"seconds": seconds, "resident_bytes": pages * os.sysconf("SC_PAGE_SIZE"), "versions": versions}))
"""


def _import_cost(contender: Contender) -> _ImportCost:
    told = subprocess.run(
        [contender.python, "-c", _IMPORT, contender.module, *contender.packages],
        env=_environment(),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=True,
    )
    return msgspec.json.decode(told.stdout, type=_ImportCost)


def _environment() -> dict[str, str]:
    """An interpreter without Corral finds what the applications import of it."""
    return environment({"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])})


# Where it runs.


@contextmanager
def on_core(number: int) -> Iterator[None]:
    """Processes that are started inside stay on this core; on a machine with one core, so does everything."""
    before = os.sched_getaffinity(0)
    cores = sorted(before)
    os.sched_setaffinity(0, {cores[number % len(cores)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def prepare_extra() -> list[str]:
    """Install what only this bench needs, once. Returns what is to be said when that does not work."""
    if (EXTRA / "ready").exists():
        return []
    say("frameworks: installing those that Corral does not use, into .build")
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(EXTRA)], check=True, capture_output=True)
        pip = [str(EXTRA / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *EXTRA_PACKAGES], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        (EXTRA / "bin" / "python").unlink(missing_ok=True)
        return [f"Frameworks that Corral does not use could not be installed and are left out: {error}"]
    (EXTRA / "ready").touch()
    return []
