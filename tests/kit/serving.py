"""A serving fleet of separately started processes. A killed process stays dead until a test restarts it."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
import msgspec
import psutil

from corral.base.ids import new_secret
from corral.frontend.nodes.decide.node import NodeStatus
from corral.frontend.serving.decide.replica import ReplicaState
from corral.wire.models import ModelView
from corral.wire.replicas import ReplicaView
from tests.kit.admin_api import open_session
from tests.kit.backends import BACKENDS
from tests.kit.load_clients import StreamRequest
from tests.kit.models import write_model
from tests.kit.plain_nats import PlainNats
from tests.kit.ports import lasting_port
from tests.kit.processes import ControlProcess, GatewayProcess, WorkerProcess, said_once, words_of
from tests.kit.waiting import eventually

MODEL: Final = "chat"
WORKERS: Final = ("w1", "w2")
_ADDRESS: Final = "--addr"
"""The argument that a worker passes to every backend, and nobody else does."""
INTERVAL_SECONDS: Final = 0.5
"""Interval of heartbeats: silent workers are offline after six of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingFleet:
    """Control, a gateway, NATS and workers. The administrator's key is the clients' too."""

    control: ControlProcess
    gateway: GatewayProcess
    workers: Mapping[str, WorkerProcess]
    nats: PlainNats
    session: aiohttp.ClientSession
    models: Path
    """The directory of model files, which control and all workers share, unless workers have their own."""
    backends: Path
    """The directory of backends that all workers share, beside those that ship with Corral."""
    folder: Path
    worker_environment: Mapping[str, str]

    def another_worker(self, name: str) -> WorkerProcess:
        """One more, which the caller starts and ends."""
        return WorkerProcess(name, self.folder / name, self.worker_environment)

    def models_of(self, worker: str) -> Path:
        """The models directory of a worker that has its own."""
        return self.folder / worker / "models"

    def question(self, *, model: str = MODEL, tokens: int = 4) -> StreamRequest:
        """Return a chat request to the gateway."""
        return StreamRequest(
            session=self.session, url=self.gateway.url, key=self.gateway.admin_key, model=model, tokens=tokens
        )

    async def model(self, name: str = MODEL) -> ModelView:
        """As control sees it, with its replicas of the last day."""
        answer = await self.control.call("GET", f"/api/v1/models/{name}")
        if answer.status != 200:
            raise AssertionError(f"the model {name}: {answer.status} {answer.body!r}")
        return msgspec.json.decode(answer.body, type=ModelView)

    async def loaded(self, name: str = MODEL) -> list[ReplicaView]:
        return [replica for replica in (await self.model(name)).replicas if replica.state == ReplicaState.LOADED]

    async def serving(self, name: str = MODEL) -> WorkerProcess:
        """The worker that has the only loaded replica."""
        [replica] = await self.loaded(name)
        return self.workers[replica.node]

    async def events(self, kind: str) -> list[Mapping[str, object]]:
        """What the record says of this kind, oldest first."""
        return [event.data for event in await self.control.record() if event.kind == kind]

    def backend_processes(self) -> dict[int, str]:
        """Pids and command lines of all backends, and of what these started."""
        return {
            process.pid: " ".join(words_of(process))
            for worker in self.workers.values()
            if worker.is_running
            for backend in worker.started()
            if _ADDRESS in words_of(backend)
            for process in [backend, *backend.children(recursive=True)]
        }

    async def until_healthy(self, *names: str) -> None:
        async def are_healthy() -> bool:
            seen = {node.name: node.status for node in (await self.control.nodes()).values()}
            return all(seen.get(name) == NodeStatus.HEALTHY for name in names)

        await eventually(are_healthy, f"{', '.join(names)} to be healthy", seconds=60)


@asynccontextmanager
async def serving_fleet(
    folder: Path,
    *,
    database: str | None = None,
    beat_seconds: float = INTERVAL_SECONDS,
    names: Sequence[str] = WORKERS,
    own_models: bool = False,
    settings: Mapping[str, str] | None = None,
    worker_settings: Mapping[str, str] | None = None,
) -> AsyncIterator[ServingFleet]:
    """Start two healthy nodes and a model that is not loaded; on SQLite unless another database is given. Workers may
    have models directories of their own, which are empty. `settings` are for control, `worker_settings` for
    all workers."""
    models, backends = folder / "models", folder / "backends"
    write_model(models, MODEL)
    backends.mkdir()
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(PlainNats(folder / "nats", port=lasting_port()))
        session = await stack.enter_async_context(open_session())
        token = new_secret()
        control = ControlProcess(session, _of_control(folder, database, nats, token) | dict(settings or {}))
        await stack.enter_async_context(control)
        await control.until_ready()
        control.admin_key = said_once([control], lambda process: process.new_keys)
        gateway = GatewayProcess(
            session, {"CORRAL_CONTROL_URL": control.url, "CORRAL_GATEWAY_KEY": await _gateway_key(control)}
        )
        gateway.admin_key = control.admin_key
        await stack.enter_async_context(gateway)
        of_workers = _of_workers(models, backends, nats, token) | _of_confinement(folder)
        of_workers |= {"CORRAL_REGISTER_TO": gateway.url, "CORRAL_HEARTBEAT_INTERVAL": f"{beat_seconds}s"}
        of_workers |= dict(worker_settings or {})
        if own_models:
            del of_workers["CORRAL_MODELS_PATH"]
        workers = {name: WorkerProcess(name, folder / name, of_workers) for name in names}
        for worker in workers.values():
            await stack.enter_async_context(worker)
        fleet = ServingFleet(
            control=control,
            gateway=gateway,
            workers=workers,
            nats=nats,
            session=session,
            models=models,
            backends=backends,
            folder=folder,
            worker_environment=of_workers,
        )
        await gateway.until_ready()
        await fleet.until_healthy(*names)
        yield fleet


def _of_control(folder: Path, database: str | None, nats: PlainNats, token: str) -> dict[str, str]:
    return {
        "CORRAL_DATA": str(folder / "control"),
        "CORRAL_MODELS_PATH": str(folder / "models"),
        "CORRAL_NATS_URL": nats.frontend_url,
        "CORRAL_REGISTRATION_TOKEN": token,
        "CORRAL_AUTO_APPROVE": "true",
        **({} if database is None else {"CORRAL_DATABASE": database}),
    }


def _of_confinement(folder: Path) -> dict[str, str]:
    """Test backends use the SDK of the checkout, and may tell a test what they do through the pipe `said`."""
    return {"CORRAL_BACKEND_READ_PATHS": str(BACKENDS), "CORRAL_BACKEND_WRITE_PATHS": str(folder / "said")}


def _of_workers(models: Path, backends: Path, nats: PlainNats, token: str) -> dict[str, str]:
    return {
        "CORRAL_MODELS_PATH": str(models),
        "CORRAL_SYSTEM_BACKENDS_PATH": str(backends),
        "CORRAL_REGISTRATION_TOKEN": token,
        "CORRAL_NATS_URL": nats.worker_url,
        "CORRAL_REGISTRATION_RETRY": "500ms",
    }


async def _gateway_key(control: ControlProcess) -> str:
    answer = await control.call("POST", "/api/v1/keys", {"name": "the gateway", "scopes": ["gateway"]})
    if answer.status != 201:
        raise AssertionError(f"no key for the gateway: {answer.status} {answer.body!r}")
    return str(msgspec.json.decode(answer.body)["key"])


async def until_gone(pids: Mapping[int, str]) -> None:
    """None of these processes runs any more."""

    async def are_gone() -> bool:
        return not any(map(_runs, pids))

    await eventually(are_gone, f"the end of {dict(pids)}")


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
