"""Control on a real database, with workers that are only their messages and backends that only say yes or no."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import msgspec

from corral.base.ids import NodeId
from corral.base.tls import TlsPeer
from corral.bus.port import Bus, Message
from corral.files.storage import SharedStorage
from corral.frontend.backends.catalogue import Lookups
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.serving.decide.replica import Replica
from corral.frontend.serving.loading.load_jobs import Loads
from corral.frontend.store.db import Database
from corral.frontend.store.secrets import Secrets, SecretsKey
from corral.processes.control import Control, Stores, build_control
from corral.rpc.errors import BackendGone, LoadFailed
from corral.rpc.messages import ModelOptions
from corral.wire import subjects
from corral.wire.backends import InstallReply, InstallRequest
from corral.wire.models import ModelStopReply, ModelStopRequest
from corral.wire.registration import FEATURES, CorralHello
from corral.wire.replicas import ProcessKey, ReplicaAccess, RunningModel, RunningReply, StopRequest
from corral.wire.view import View
from tests.kit.clock import ManualClock
from tests.kit.frontend import TRUSTED_TOKEN, Frontend, frontend_config, open_frontend
from tests.kit.simulated_backends import SimulatedBackends
from tests.kit.simulated_worker import SimulatedWorker

MODEL = "name: small\nbackend: echo\nparameters:\n  model: small.gguf\n"
SECRET = "s" * 40


class FakeLoader:
    """Loads models, or fails, as a test says."""

    def __init__(self) -> None:
        self.loads: list[tuple[str, str, str]] = []
        self.options: list[list[str]] = []
        self.files: list[str] = []
        """The path of the weights in each, as the backend was told."""
        self.told: list[ModelOptions] = []
        """Everything that the backend was told in each."""
        self.error: str = ""
        self.fails_at: set[str] | None = None
        """Only these addresses fail; None means all."""
        self.gone = 0
        """For so many loads nobody serves at the address."""
        self.missed = asyncio.Event()
        """Set by the first of them."""

    async def load(
        self, address: str, *, token: str, options: ModelOptions, timeout: timedelta, tls: TlsPeer | None
    ) -> None:
        self.loads.append((address, token, options.Model))
        self.options.append(list(options.Options))
        self.files.append(options.ModelFile)
        self.told.append(options)
        if self.gone:
            self.gone -= 1
            self.missed.set()
            raise BackendGone(address)
        if self.error and (self.fails_at is None or address in self.fails_at):
            raise LoadFailed(address, self.error)


@dataclass
class FakeNode:
    """A worker that exists only as its messages."""

    id: NodeId
    installs: list[InstallRequest] = field(default_factory=list)
    stops: list[bytes] = field(default_factory=list)
    running: list[RunningModel] = field(default_factory=list)
    error: str = ""
    deaf: bool = False
    """Ignores stop requests."""
    adapts: bool = False
    """Its processes are reached through an adapter."""
    routes: list[str] | None = None
    """What its processes say they answer."""
    has_urls: bool = True
    """Its processes have a URL and a key; those of LocalAI's workers have neither."""
    host: str = "127.0.0.1"
    """Where its processes are, as it says."""
    url_host: str = "127.0.0.1"
    """Where their URLs are, as it says."""
    exact_stops: list[ModelStopRequest] = field(default_factory=list)
    """Processes that it was asked to end by key and address, if it understands that."""
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by the first install that it is asked for."""
    held: asyncio.Event | None = None
    """Until this is set, no install is answered."""
    _started: int = 0

    async def on_install(self, message: Message) -> None:
        request = msgspec.json.decode(message.data, type=InstallRequest)
        self.installs.append(request)
        self.asked.set()
        if self.held is not None:
            await self.held.wait()
        if self.error:
            reply = InstallReply(success=False, error=self.error)
        else:
            process = self.find(request.process_key) or self.start(
                *request.process_key, has_token=request.wants_own_token
            )
            reply = InstallReply(success=True, address=process.address, corral=process.corral)
        await message.respond(msgspec.json.encode(reply))

    def find(self, key: ProcessKey) -> RunningModel | None:
        return next((model for model in self.running if (model.model_id, model.replica_index) == key), None)

    def start(self, model: str, index: int, *, has_token: bool = False) -> RunningModel:
        """With a key and ports of its own; the first has the key `k1`, the ports 7000 and 7001, and the token `t1`."""
        self._started += 1
        port = 7000 + 10 * (self._started - 1)
        access = ReplicaAccess(
            url=f"http://{self.url_host}:{port + 1}",
            key=f"k{self._started}",
            adapted=self.adapts,
            routes=self.routes,
            front_port=port + 2,
            token=f"t{self._started}" if has_token else "",
        )
        process = RunningModel(
            model_id=model,
            replica_index=index,
            address=f"{self.host}:{port}",
            corral=access if self.has_urls else msgspec.UNSET,
        )
        self.running.append(process)
        return process

    async def on_running(self, message: Message) -> None:
        await message.respond(msgspec.json.encode(RunningReply(models=self.running)))

    async def on_list(self, message: Message) -> None:
        await message.respond(b'{"backends":null}')

    async def on_stop(self, message: Message) -> None:
        self.stops.append(message.data)
        name = msgspec.json.decode(message.data, type=StopRequest).backend
        if not self.deaf:
            self.running = [model for model in self.running if f"{model.model_id}#{model.replica_index}" != name]

    async def on_model_stop(self, message: Message) -> None:
        request = msgspec.json.decode(message.data, type=ModelStopRequest)
        self.exact_stops.append(request)
        key = ProcessKey.parse(request.process_key)
        process = None if key is None else self.find(key)
        is_other = process is not None and process.address != request.expected_address
        if process is not None and not self.deaf and not is_other:
            self.running.remove(process)
        is_gone = process is None or process not in self.running
        reply = ModelStopReply(matched=process is not None, terminated=is_gone, process_key=request.process_key)
        await message.respond(msgspec.json.encode(reply))

    @property
    def stopped(self) -> list[str]:
        """Names that it was asked to stop."""
        return [msgspec.json.decode(data, type=StopRequest).backend for data in self.stops]


@dataclass(kw_only=True)
class World:
    frontend: Frontend
    control: Control
    loader: FakeLoader
    bus: Bus
    clock: ManualClock
    stores: Stores
    models: Path
    lookups: Lookups
    stack: AsyncExitStack

    @property
    def loads(self) -> Loads:
        return self.control.context.serving.loads

    async def loaded(self, model: str = "small") -> Replica:
        """A replica that serves, after a load on a node that has joined."""
        await self.loads.ensure(model)
        await self.loads.tick()
        living = await self.control.context.serving.replicas.living()
        (replica,) = [replica for replica in living if replica.model == model]
        return replica

    async def write(self, text: str, name: str = "small.yaml") -> None:
        """Put a model file there, and have it read."""
        (self.models / name).write_text(text, encoding="utf-8")
        await self.control.context.models.watch.look()

    async def delete(self, name: str = "small.yaml") -> None:
        (self.models / name).unlink()
        await self.control.context.models.watch.look()

    async def events(self, kind: EventKind) -> list[Event]:
        stored = await self.control.context.record.events.after(0, limit=1000)
        return [entry.event for entry in stored if entry.event.kind is kind]

    async def node(
        self,
        name: str,
        *,
        features: Sequence[str] = FEATURES,
        address: str = "127.0.0.1:50051",
        http_address: str = "",
        cards: object = None,
        disk: tuple[int, int] | None = None,
        ram: int = 0,
        stops_exactly: bool = False,
        is_old: bool = False,
    ) -> FakeNode:
        """`disk` is its size and what is free there; all of its memory is free. An old one cannot say what runs there,
        and says what it has installed instead."""
        node = FakeNode(await self.register(name, features, address, http_address, disk, cards, ram))
        handlers = [
            (subjects.backend_install(node.id), node.on_install),
            (subjects.backend_stop(node.id), node.on_stop),
        ]
        if is_old:
            handlers.append((subjects.backend_list(node.id), node.on_list))
        else:
            handlers.append((subjects.models_running(node.id), node.on_running))
        if stops_exactly:
            handlers.append((subjects.model_stop(node.id), node.on_model_stop))
        for subject, handler in handlers:
            subscription = await self.bus.subscribe(subject, handler)
            self.stack.push_async_callback(subscription.close)
        return node

    async def register(
        self,
        name: str,
        features: Sequence[str],
        address: str,
        http_address: str,
        disk: tuple[int, int] | None,
        cards: object = None,
        ram: int = 0,
    ) -> NodeId:
        """A node says what it has; again, if it is known."""
        hello = CorralHello(version="1", features=list(features), secret=SECRET + name, incarnation="1", cards=cards)
        body: dict[str, object] = {"name": name, "address": address, "corral": msgspec.to_builtins(hello)}
        if http_address:
            body["http_address"] = http_address
        if disk is not None:
            body |= {"total_disk": disk[0], "available_disk": disk[1]}
        if ram:
            body |= {"total_ram": ram, "available_ram": ram}
        answer = await self.frontend.register(body, token=TRUSTED_TOKEN)
        return NodeId(msgspec.json.decode(answer.body)["id"])

    async def backends(
        self, name: str, *, is_corral: bool = True, platform: str = "", free_disk: int | None = None, **labels: str
    ) -> SimulatedBackends:
        """A node that has joined and answers for its backends."""
        node = SimulatedBackends(await self._join(name, is_corral, labels, platform, free_disk), self.clock, is_corral)
        await self._listen(node)
        return node

    async def worker(self, name: str, *backends: str, is_corral: bool = True, **labels: str) -> SimulatedWorker:
        """A node that has joined, has these backends, and runs processes for models."""
        node = SimulatedWorker(await self._join(name, is_corral, labels), self.clock, is_corral)
        for backend in backends:
            node.put(backend)
        await self._listen(node)
        return node

    async def _join(
        self, name: str, is_corral: bool, labels: Mapping[str, str], platform: str = "", free_disk: int | None = None
    ) -> NodeId:
        body: dict[str, object] = {"name": name, "address": "127.0.0.1:50051", "labels": labels}
        if free_disk is not None:
            body |= {"total_disk": 2**40, "available_disk": free_disk}
        if is_corral:
            hello = CorralHello(
                version="1",
                features=list(FEATURES),
                secret=SECRET + name,
                incarnation="1",
                platform=platform,
                one_disk=free_disk is not None,
            )
            body["corral"] = msgspec.to_builtins(hello)
        answer = await self.frontend.register(body, token=TRUSTED_TOKEN)
        await self.frontend.settle()
        return NodeId(msgspec.json.decode(answer.body)["id"])

    async def _listen(self, node: SimulatedBackends) -> None:
        await node.listen(self.bus)
        self.stack.push_async_callback(node.stop)

    async def beat(self, node_id: NodeId, name: str) -> None:
        """A heartbeat of the Corral node of this name, and all that follows at once from it."""
        answer = await self.frontend.call("POST", f"/api/node/{node_id}/heartbeat", {}, key=SECRET + name)
        assert answer.status == 200, answer.body
        await self.frontend.settle()

    async def again(self, *, storage: SharedStorage | None = None) -> Control:
        """Start another control on the same database."""
        control = await build_control(
            self.control.context.config,
            self.clock,
            self.stores,
            self.bus,
            loader=self.loader,
            lookups=self.lookups,
            storage=storage,
        )
        await control.context.nodes.hearing.tick()
        return control


@asynccontextmanager
async def open_world(
    database: Database,
    clock: ManualClock,
    bus: Bus,
    folder: Path,
    *,
    lookups: Lookups | None = None,
    **settings: object,
) -> AsyncIterator[World]:
    """Its models directory holds `small`."""
    models = folder / "models"
    models.mkdir()
    (models / "small.yaml").write_text(MODEL, encoding="utf-8")
    key, loader = SecretsKey(bytes(32)), FakeLoader()
    config = frontend_config(folder, gateway_key="key-of-the-gateways", **settings)
    async with AsyncExitStack() as stack:
        frontend = await stack.enter_async_context(
            open_frontend(database, clock, bus, config, key=key, loader=loader, lookups=lookups)
        )
        yield World(
            frontend=frontend,
            control=frontend.control,
            loader=loader,
            bus=bus,
            clock=clock,
            stores=Stores(database, Secrets(database, key)),
            models=models,
            lookups=lookups or Lookups(),
            stack=stack,
        )


async def view_of(control: Control) -> View:
    await control.context.serving.view.refresh()
    assert control.context.serving.view.current is not None
    return control.context.serving.view.current
