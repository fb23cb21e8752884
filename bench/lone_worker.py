"""One worker for the benches: a real process on a real NATS server, with a frontend that says yes to everything."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final

from aiohttp import web

from bench.up import READY_WITHIN_SECONDS, corral, environment
from corral.base.errors import BusUnavailable, ChildFailed
from corral.base.ids import NodeId
from corral.base.processes import ChildCommand, ChildProcess, Output, start_process
from corral.bus.client import NatsBus
from corral.bus.config import BusConfig
from corral.wire import subjects
from tests.kit.plain_nats import PlainNats
from tests.kit.ports import lasting_port

HOST: Final = "127.0.0.1"
NODE: Final = NodeId("11111111-2222-4333-8444-555555555555")
TOKEN: Final = "bench-token"
_LOOK_SECONDS: Final = 0.05


@dataclass(slots=True)
class Frontend:
    """Takes heartbeats, and remembers when they came."""

    came: list[float] = field(default_factory=list)

    async def answer(self, request: web.BaseRequest) -> web.Response:
        if request.path.endswith("/heartbeat"):
            self.came.append(time.monotonic())
        if request.path.endswith("/register"):
            return web.json_response({"id": NODE, "status": "healthy"}, status=201)
        return web.json_response([] if request.path.endswith("/models") else {"message": "ok"})


@dataclass(frozen=True, slots=True, kw_only=True)
class LoneWorker:
    process: ChildProcess
    frontend: Frontend
    bus: NatsBus
    """A frontend's side of it."""
    http_port: int


@asynccontextmanager
async def lone_worker(folder: Path, settings: Mapping[str, str] | None = None) -> AsyncIterator[LoneWorker]:
    """Registered and connected. Its models and backends are in the folder."""
    port = lasting_port()
    async with (
        PlainNats(folder / "nats", port=lasting_port()) as nats,
        _listening(frontend := Frontend()) as url,
        start_process(_command(folder, port, {**_reached(url, nats), **(settings or {})})) as process,
        NatsBus(BusConfig(url=nats.frontend_url)) as bus,
    ):
        await _until_heard(bus, process)
        yield LoneWorker(process=process, frontend=frontend, bus=bus, http_port=port)


def _reached(frontend: str, nats: PlainNats) -> dict[str, str]:
    return {"CORRAL_REGISTER_TO": frontend, "CORRAL_REGISTRATION_TOKEN": TOKEN, "CORRAL_NATS_URL": nats.worker_url}


def _command(folder: Path, http_port: int, settings: Mapping[str, str]) -> ChildCommand:
    own = {
        "CORRAL_DATA": str(folder / "private"),
        "CORRAL_BACKENDS_PATH": str(folder / "backends"),
        "CORRAL_MODELS_PATH": str(folder / "models"),
        "CORRAL_ADDRESS": f"{HOST}:{lasting_port()}",
        "CORRAL_HTTP_ADDRESS": f"{HOST}:{http_port}",
    }
    return ChildCommand(argv=corral("worker"), env=environment({**own, **settings}), output=Output.TAIL)


@asynccontextmanager
async def _listening(frontend: Frontend) -> AsyncIterator[str]:
    runner = web.ServerRunner(web.Server(frontend.answer, access_log=None))
    await runner.setup()
    try:
        await web.TCPSite(runner, HOST, 0).start()
        yield f"http://{HOST}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def _until_heard(bus: NatsBus, process: ChildProcess) -> None:
    deadline = time.monotonic() + READY_WITHIN_SECONDS
    while True:
        try:
            await bus.request(subjects.models_running(NODE), b"", timeout=timedelta(seconds=1))
        except BusUnavailable:
            if process.returncode is not None or time.monotonic() > deadline:
                raise ChildFailed("the worker did not become ready:\n" + "\n".join(process.tail)) from None
            await asyncio.sleep(_LOOK_SECONDS)
        else:
            return
