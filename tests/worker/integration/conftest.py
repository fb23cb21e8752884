"""A frontend in LocalAI's form, on a real port, that answers as its golden messages say or as a test wants."""

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import aiohttp
import pytest
from aiohttp import web

from corral.base.retry import Backoff
from corral.bus.client import NatsBus
from corral.bus.config import BusConfig
from corral.processes.exit_codes import ExitCode
from corral.processes.worker import run_worker
from corral.worker.config import FrontendConfig, NodeConfig, WorkerConfig
from corral.worker.confinement.config import ConfinementConfig
from corral.worker.membership.addresses import AddressConfig
from tests.kit.clock import ManualClock
from tests.kit.plain_nats import PlainNats
from tests.kit.ports import lasting_port, lasting_range
from tests.kit.worker_client import WorkerClient

EVERY_SECOND = Backoff(first=timedelta(seconds=1), cap=timedelta(seconds=1), spread=0)
"""So that each passing second is one attempt."""
PORTS = 20
GOLDEN_ID = "11111111-2222-4333-8444-555555555555"


@dataclass
class Received:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any

    @property
    def action(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass
class Answer:
    status: int
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)


ANSWERS = {
    "register": Answer(201, {"id": GOLDEN_ID}),
    "heartbeat": Answer(200, {"message": "heartbeat received"}),
    "drain": Answer(200, {"message": "node set to draining"}),
    "resume": Answer(200, {"message": "node resumed"}),
    "deregister": Answer(200, {"message": "node set to offline"}),
    "models": Answer(200, []),
}


class FakeFrontend:
    """Plays its script per action, then answers as a LocalAI frontend does. Says when something arrived."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.url = ""
        self._scripts: dict[str, deque[Answer]] = defaultdict(deque)
        self._usual = dict(ANSWERS)
        self._arrived = asyncio.Condition()
        self._held: dict[str, asyncio.Event] = {}
        self._runner: web.AppRunner | None = None
        self._port = 0

    def will_answer(self, action: str, *answers: Answer) -> None:
        """Answer these first."""
        self._scripts[action].extend(answers)

    def usually_answers(self, action: str, answer: Answer) -> None:
        self._usual[action] = answer

    def hold(self, action: str) -> Callable[[], None]:
        """Keep requests of this kind waiting until the returned function is called."""
        gate = self._held[action] = asyncio.Event()
        return gate.set

    def seen(self, action: str) -> list[Received]:
        return [request for request in self.received if request.action == action]

    @property
    def actions(self) -> list[str]:
        return [request.action for request in self.received]

    async def until_received(self, action: str, count: int = 1) -> Received:
        """Wait for so many requests of a kind; returns the last of them."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.seen(action)) >= count)
        return self.seen(action)[count - 1]

    async def start(self) -> None:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True).start()
        self._port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self._port}"

    async def stop(self) -> None:
        """From now on connections are refused; `start` comes back on the same port."""
        if self._runner is not None:
            await self._runner.cleanup()

    def let_all_go(self) -> None:
        """End what `hold` began."""
        for gate in self._held.values():
            gate.set()

    async def _handle(self, request: web.Request) -> web.Response:
        text = await request.text()
        headers = {name: request.headers[name] for name in ("Authorization", "Content-Type") if name in request.headers}
        body = await request.json() if text else None
        received = Received(method=request.method, path=request.path, headers=headers, body=body)
        async with self._arrived:
            self.received.append(received)
            self._arrived.notify_all()
        if received.action in self._held:
            await self._held[received.action].wait()
        script = self._scripts[received.action]
        answer = script.popleft() if script else self._usual.get(received.action, Answer(404))
        if isinstance(answer.body, bytes):
            return web.Response(status=answer.status, body=answer.body, headers=answer.headers)
        return web.json_response(answer.body, status=answer.status, headers=answer.headers)


@pytest.fixture
async def frontend() -> AsyncIterator[FakeFrontend]:
    fake = FakeFrontend()
    await fake.start()
    yield fake
    fake.let_all_go()
    await fake.stop()


@pytest.fixture
async def second_frontend() -> AsyncIterator[FakeFrontend]:
    fake = FakeFrontend()
    await fake.start()
    yield fake
    fake.let_all_go()
    await fake.stop()


@pytest.fixture
def answer() -> type[Answer]:
    return Answer


@pytest.fixture
def base_port() -> int:
    """A base port for a few backends, whose neighbour below is free."""
    return lasting_range(PORTS).start


@pytest.fixture
def config(frontend: FakeFrontend, base_port: int, tmp_path: Path) -> WorkerConfig:
    """A worker of that frontend, with a NATS server that is not there."""
    return WorkerConfig(
        frontend=FrontendConfig(urls=(frontend.url,), registration_token="tok", backoff=EVERY_SECOND),
        bus=BusConfig(url="nats://127.0.0.1:1"),
        data_path=tmp_path / "private",
        models_path=tmp_path / "models",
        backends_path=tmp_path / "backends",
        confinement=ConfinementConfig(is_on=False),  # backends of these tests write where the tests look
        node=NodeConfig(
            name="w3",
            labels={"tier": "test"},
            max_replicas_per_model=2,
            vram_budget="80%",
            capability_run_file=tmp_path / "capability",
        ),
        addresses=AddressConfig(addr=f"127.0.0.1:{base_port}", http_addr=f"127.0.0.1:{base_port - 1}"),
    )


class RunningWorker:
    """A worker in this event loop, with a clock that the test moves."""

    def __init__(self, config: WorkerConfig) -> None:
        self.config = config
        self.clock = ManualClock()
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        self._task: asyncio.Task[ExitCode] | None = None

    async def __aenter__(self) -> Self:
        running = run_worker(self.config, self.stop, hurry=self.hurry, clock=self.clock)
        self._task = asyncio.create_task(running, name="worker")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait({self._task})

    async def ended(self) -> ExitCode:
        assert self._task is not None
        return await self._task

    async def pass_time(self, **duration: float) -> None:
        """Let policy time pass, once the worker waits for it."""
        await self.clock.until_sleeping(1)
        await self.clock.advance(timedelta(**duration))

    async def ask(self, path: str) -> tuple[int, str]:
        url = f"http://{self.config.addresses.http_addr}{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            return answer.status, await answer.text()

    async def until_answers(self, path: str, expected: tuple[int, str]) -> None:
        while await self.ask(path) != expected:
            pass


@pytest.fixture
def worker() -> type[RunningWorker]:
    return RunningWorker


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[PlainNats]:
    async with PlainNats(tmp_path / "nats", port=lasting_port()) as server:
        yield server


@pytest.fixture
def on_nats(config: WorkerConfig, nats: PlainNats) -> WorkerConfig:
    """The same worker with a NATS server that is there."""
    return replace(config, bus=BusConfig(url=nats.worker_url))


@pytest.fixture
async def joined(worker: type[RunningWorker], on_nats: WorkerConfig) -> AsyncIterator[RunningWorker]:
    """That worker, registered and listening."""
    async with worker(on_nats) as running:
        await running.clock.until_sleeping(1)
        yield running


@pytest.fixture
async def bus_client(control: NatsBus) -> WorkerClient:
    return WorkerClient(control)


@pytest.fixture
async def control(nats: PlainNats) -> AsyncIterator[NatsBus]:
    """What a frontend asks through."""
    async with NatsBus(BusConfig(url=nats.frontend_url)) as bus:
        await bus.wait_connected()
        yield bus
