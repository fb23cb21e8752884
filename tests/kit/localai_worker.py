"""A worker as LocalAI's is seen from outside: its messages over NATS and HTTP, and real gRPC backends behind them.

It says nothing of Corral: no hello, no URLs, no keys. Every backend has the shared registration token.
"""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from corral.base.clock import SystemClock
from corral.base.ids import NodeId
from corral.base.processes import ChildCommand, ChildProcess, Output, start_process
from corral.base.tasks import running
from corral.bus.client import NatsBus
from corral.bus.config import BusConfig
from corral.bus.credentials import UserJwt
from corral.bus.port import Message
from corral.rpc.backend import Backend
from corral.wire import subjects
from corral.wire.backends import InstallReply, InstallRequest
from corral.wire.replicas import RunningModel, RunningReply, StopRequest
from tests.kit.backends import BACKENDS, until_healthy
from tests.kit.file_worker import FileWorker, open_file_worker
from tests.kit.ports import lasting_port

_LOOPBACK: Final = "127.0.0.1"
_BEAT_SECONDS: Final = 0.5


class LocalAiWorker:
    """Started by `localai_worker`. Its processes die with it."""

    def __init__(self, name: str, frontend_url: str, token: str, *, backends: Path, session: aiohttp.ClientSession):
        self.name = name
        self.starts: list[str] = []
        """Keys of the processes that were started, each as often as it was. Asking for a running one starts none."""
        self.processes: dict[str, ChildProcess] = {}
        """Backend processes by key, such as `model#0`."""
        self.node_id = NodeId("")
        self._running: dict[str, RunningModel] = {}
        self._url = frontend_url
        self._token = token
        self._backends = backends
        self._session = session
        self._stack = AsyncExitStack()
        self._user: UserJwt | None = None

    async def user(self) -> UserJwt | None:
        """What the frontend made for it to log in to NATS with."""
        return self._user

    async def register(self, files: FileWorker) -> None:
        body = {
            "name": self.name,
            "address": f"{_LOOPBACK}:{lasting_port()}",
            "http_address": f"{_LOOPBACK}:{files.port}",
            "token": self._token,
            "max_replicas_per_model": 1,
        }
        status, answer = await self._post("/api/node/register", body)
        if status != 201:
            raise AssertionError(f"not registered: {status} {answer}")
        self.node_id = NodeId(answer["id"])
        if "nats_jwt" in answer:
            self._user = UserJwt(answer["nats_jwt"], answer["nats_user_seed"])

    async def join(self, bus: NatsBus) -> None:
        for subject, handler in (
            (subjects.backend_install(self.node_id), self._on_install),
            (subjects.models_running(self.node_id), self._on_running),
            (subjects.backend_stop(self.node_id), self._on_stop),
        ):
            subscription = await bus.subscribe(subject, handler)
            self._stack.push_async_callback(subscription.close)
        await self._stack.enter_async_context(running(self._beat(), name=f"heartbeats of {self.name}"))

    async def die(self) -> None:
        """As by a power cut: nothing is said to anybody, and all processes are gone."""
        for process in self.processes.values():
            process.kill()
            await process.wait()
        await self._stack.aclose()

    async def _beat(self) -> None:
        while True:
            with suppress(aiohttp.ClientError):  # a real one goes on too, whatever the answer is
                await self._post(f"/api/node/{self.node_id}/heartbeat", {"available_ram": 1})
            await SystemClock().sleep(_BEAT_SECONDS)

    async def _post(self, path: str, body: object) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {self._token}"}
        async with self._session.post(self._url + path, json=body, headers=headers) as response:
            return response.status, await response.json()

    async def _on_install(self, message: Message) -> None:
        request = msgspec.json.decode(message.data, type=InstallRequest)
        key = str(request.process_key)
        if key not in self._running:
            self._running[key] = await self._start(request)
        await message.respond(msgspec.json.encode(InstallReply(success=True, address=self._running[key].address)))

    async def _start(self, request: InstallRequest) -> RunningModel:
        folder = next(path for path in (self._backends / request.backend, BACKENDS / request.backend) if path.is_dir())
        address = f"{_LOOPBACK}:{lasting_port()}"
        self.starts.append(str(request.process_key))
        environment = {
            "PATH": os.defpath,
            "LOCALAI_GRPC_AUTH_TOKEN": self._token,
            "CORRAL_BACKEND_PYTHON": sys.executable,
        }
        command = ChildCommand(argv=["./run.sh", "--addr", address], env=environment, cwd=folder, output=Output.TAIL)
        process = self.processes[str(request.process_key)] = start_process(command)
        async with Backend(address, token=self._token) as client:
            await until_healthy(client, process)
        model, index = request.process_key
        return RunningModel(model_id=model, replica_index=index, address=address)

    async def _on_running(self, message: Message) -> None:
        living = [model for key, model in self._running.items() if self.processes[key].returncode is None]
        await message.respond(msgspec.json.encode(RunningReply(models=living)))

    async def _on_stop(self, message: Message) -> None:
        key = msgspec.json.decode(message.data, type=StopRequest).backend
        if key in self.processes:
            self.processes[key].kill()
            self._running.pop(key, None)


@asynccontextmanager
async def localai_worker(
    name: str, frontend_url: str, token: str, *, nats_url: str, backends: Path, session: aiohttp.ClientSession
) -> AsyncIterator[LocalAiWorker]:
    """A worker that has registered. Its backends are those of the repository and those in a directory.

    Beside that directory is its own, with the models that frontends sent.
    """
    async with AsyncExitStack() as stack:
        folder = backends.parent / name
        files = await stack.enter_async_context(open_file_worker(folder, clock=SystemClock(), secret=token))
        worker = LocalAiWorker(name, frontend_url, token, backends=backends, session=session)
        await worker.register(files)
        bus = NatsBus(BusConfig(url=nats_url), name=name, credentials=worker.user)
        await stack.enter_async_context(bus)
        await bus.wait_connected()
        try:
            await worker.join(bus)
            yield worker
        finally:
            await worker.die()
