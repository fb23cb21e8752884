"""`start`: how long people and supervisors wait for Corral's processes."""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Final, TypeVar

from bench.client import Connection, request
from bench.readings import processor_seconds
from bench.report import Row, Table, figure
from bench.say import say
from bench.up import corral, environment, fleet
from corral.base.errors import ChildFailed
from corral.base.processes import ChildCommand, Output, start_process
from tests.kit.plain_nats import PlainNats
from tests.kit.ports import lasting_port

MeasuredT = TypeVar("MeasuredT")

HOST: Final = "127.0.0.1"
TIMES: Final = 5
UP_SECONDS: Final = 5.0
DOWN_SECONDS: Final = 10.0
_READY_WITHIN_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.005


async def start(times: int = TIMES, *, cold_starts: int = 1) -> Table:
    """Everything is warm: installed, compiled, and not in the first life of its data directory."""

    async def repeated(once: Callable[[], Awaitable[MeasuredT]]) -> list[MeasuredT]:
        return [await once() for _ in range(cold_starts + times)][cold_starts:]

    with tempfile.TemporaryDirectory(prefix="corral-bench-") as name:
        folder = Path(name)
        say("start: corral version")
        version = await repeated(_version)
        async with PlainNats(folder / "nats", port=lasting_port()) as nats:
            say("start: the control process")
            control = await repeated(lambda: _control(folder / "control", nats.frontend_url))
        say("start: corral up")
        lives = await repeated(lambda: _up_and_down(folder / "up"))
    rows = [
        *_seconds("corral version", version),
        *_seconds("control, exec to /readyz", [seconds for seconds, _ in control]),
        *_seconds("control, processor time until then", [used for _, used in control]),
        *_seconds("corral up, to two healthy nodes", [up for up, _ in lives], at_most=UP_SECONDS),
        *_seconds("corral up, SIGTERM to all gone", [down for _, down in lives], at_most=DOWN_SECONDS),
    ]
    return Table(title="Starting and stopping, warm", rows=rows, notes=[f"{times} times each."])


async def _version() -> float:
    began = time.monotonic()
    async with start_process(ChildCommand(argv=corral("version"), env=environment(), output=Output.TAIL)) as process:
        if await process.wait() != 0:
            raise ChildFailed("corral version failed:\n" + "\n".join(process.tail))
        return time.monotonic() - began


async def _control(data: Path, nats_url: str) -> tuple[float, float]:
    """Seconds that pass, and seconds of processor time that it takes."""
    port = lasting_port()
    settings = {"CORRAL_DATA": str(data), "CORRAL_PORT": str(port), "CORRAL_NATS_URL": nats_url}
    began = time.monotonic()
    command = ChildCommand(argv=corral("control"), env=environment(settings), output=Output.TAIL)
    async with start_process(command) as process:
        while not await _is_ready(port):
            if process.returncode is not None or time.monotonic() > began + _READY_WITHIN_SECONDS:
                raise ChildFailed("control did not become ready:\n" + "\n".join(process.tail))
            await asyncio.sleep(_LOOK_SECONDS)
        seconds, used = time.monotonic() - began, processor_seconds(process.pid)
        process.terminate()
        await process.wait()
    return seconds, used


async def _is_ready(port: int) -> bool:
    try:
        connection = await Connection.open(HOST, port)
        async with asyncio.timeout(1):
            answer = await connection.ask(request("GET", "/readyz"))
    except (OSError, TimeoutError):
        return False
    connection.close()
    return answer.status == 200


async def _up_and_down(data: Path) -> tuple[float, float]:
    began = time.monotonic()
    async with fleet(data, workers=2):
        ready = time.monotonic()
    return ready - began, time.monotonic() - ready


def _seconds(what: str, measured: list[float], *, at_most: float | None = None) -> list[Row]:
    return [
        figure(f"{what}: median", median(measured), "s", at_most=at_most),
        figure(f"{what}: slowest", max(measured), "s"),
    ]
