"""`warm`: what a request to a loaded model costs behind the gateway, and what every process of a fleet weighs.

A whole fleet on PostgreSQL, which writes down every statement: those of a fleet that idles are compared with those of
one that answers.
"""

import asyncio
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import aiohttp
import psutil

from bench.readings import MEGABYTE, memory_of
from bench.report import Row, Table, figure
from bench.say import say
from bench.up import fleet
from corral.processes.up_file import UpFile
from tests.kit.databases import DatabaseKind, DatabaseSource
from tests.kit.models import QUESTION, chat_model
from tests.kit.postgres import PostgresServer

CLIENTS: Final = 4
MODEL: Final = "smollm2"
_STATEMENT: Final = ("LOG:  execute", "LOG:  statement")


async def warm(seconds: float | None = None) -> list[Table]:
    """Both tables. `seconds` is how long the fleet idles, and how long it answers."""
    each = 15.0 if seconds is None else seconds
    with tempfile.TemporaryDirectory(prefix="corral-bench-") as folder, DatabaseSource(Path(folder)) as databases:
        databases.postgres.log_statements()
        async with databases.blank_url(DatabaseKind.POSTGRES) as url:
            settings = {"CORRAL_DATABASE": url, "CORRAL_FIRST_MODEL": str(chat_model())}
            async with fleet(Path(folder) / "up", workers=1, settings=settings) as up:
                return await _measure(up, databases.postgres, each)


async def _measure(up: UpFile, postgres: PostgresServer, seconds: float) -> list[Table]:
    headers = {"Authorization": f"Bearer {up.keys.admin}"}
    async with aiohttp.ClientSession(base_url=up.url, headers=headers) as session:
        idle_memory = _memory(up, "idle")
        await _ask(session)  # the cold one
        say(f"warm: {seconds:g} s idle")
        idle, _ = await _counted(postgres, session, seconds, clients=0)
        say(f"warm: {seconds:g} s of answers")
        busy, answers = await _counted(postgres, session, seconds, clients=CLIENTS)
    rows: list[Row] = [
        figure("statements/s, idle", idle / seconds, ""),
        figure("statements/s, answering", busy / seconds, ""),
        figure("answers", answers, ""),
        figure("more statements per answer", max(0.0, round((busy - idle) / answers, 1)), "", at_most=0),
    ]
    notes = ["An idle fleet hears heartbeats and looks after itself; those statements are not a request's."]
    memory = [*idle_memory, *_memory(up, "after these answers")]
    return [
        Table(title="A warm request: database statements", rows=rows, notes=notes),
        Table(title="Memory of every process", rows=memory),
    ]


async def _counted(
    postgres: PostgresServer, session: aiohttp.ClientSession, seconds: float, *, clients: int
) -> tuple[int, int]:
    """Statements and answers within so many seconds."""
    before = _statements(postgres)
    end = time.monotonic() + seconds

    async def client() -> int:
        answers = 0
        while time.monotonic() < end:
            await _ask(session)
            answers += 1
        return answers

    answers = sum(await asyncio.gather(*(client() for _ in range(clients))))
    await asyncio.sleep(max(0.0, end - time.monotonic()))
    return _statements(postgres) - before, answers


def _statements(postgres: PostgresServer) -> int:
    with postgres.log.open(errors="replace") as lines:
        return sum(any(mark in line for mark in _STATEMENT) for line in lines)


async def _ask(session: aiohttp.ClientSession) -> None:
    body = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": QUESTION}]}
    async with session.post("/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        await answer.read()


def _memory(up: UpFile, when: str) -> list[Row]:
    return [figure(f"{name}, {when}", memory_of(pid).resident / MEGABYTE, "MB") for name, pid in _processes(up)]


def _processes(up: UpFile) -> Iterator[tuple[str, int]]:
    pids = up.pids
    yield from (("launcher", pids.frontend), ("control", pids.control), ("nats-server", pids.nats))
    yield from (("gateway", pid) for pid in pids.gateways)
    for pid in pids.workers:
        yield "agent", pid
        for child in psutil.Process(pid).children(recursive=True):
            yield f"{_program(child)}, its child", child.pid


def _program(process: psutil.Process) -> str:
    """The script that a Python process runs, or the program."""
    words = [Path(word).name for word in process.cmdline()]
    return next((word for word in words if word.endswith(".py")), words[0] if words else "gone")
