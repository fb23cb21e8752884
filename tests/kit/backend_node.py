"""The part of a worker that has to do with backends, without the rest: directories, processes, handlers."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from corral.base.ids import NodeId
from corral.bus.port import Handler, Message
from corral.rpc.adapter_keeper import Adapters
from corral.rpc.backend import Backend
from corral.wire.backends import InstallRequest
from corral.worker.backends import Backends
from corral.worker.config import SupervisionConfig
from corral.worker.handlers import BackendHandlers, ModelHandlers
from corral.worker.hardware.gpus import MeasuredGpu
from corral.worker.installing.backend_directory import BackendDirectory
from corral.worker.installing.directory_source import DirectorySource
from corral.worker.installing.installer import Installer
from corral.worker.installing.orders import InstallSource, KeepPrevious
from corral.worker.installing.progress import InstallReports, InstallStep, Publisher
from corral.worker.membership.registration import ProcessToken
from corral.worker.models import ModelFiles, WorkerModels
from corral.worker.processes.backend_logs import BackendLogs
from corral.worker.processes.ports import Ports, accepts_connections, can_listen
from corral.worker.processes.process import MARK_VARIABLE, Confinement, Connect, Ending, Launch, Unconfined
from corral.worker.processes.remains import Remains
from corral.worker.processes.supervisor import ProcessDefaults, Supervisor, UnusedProcesses
from tests.kit.adapters import adapters_on
from tests.kit.backends import BACKENDS
from tests.kit.clock import ManualClock

NODE = NodeId("11111111-2222-4333-8444-555555555555")


class RecordedExits:
    """Hears of processes that ended by themselves."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[tuple[Launch, Ending]] = asyncio.Queue()

    async def tell(self, launch: Launch, ending: Ending) -> None:
        self.heard.put_nowait((launch, ending))


class Published:
    """A bus that records what is published, and delivers nothing."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, bytes]] = []

    async def publish(self, subject: str, data: bytes) -> None:
        self.messages.append((subject, data))


def connect_to_backend(address: str, token: str) -> Backend:
    return Backend(address, token=token)


@dataclass(kw_only=True)
class BackendNode:
    """Used as a context; what it is made of may be replaced before that."""

    folder: Path
    clock: ManualClock
    ranges: Sequence[range]
    limits: SupervisionConfig = field(default_factory=SupervisionConfig)
    token: str = "node-secret"
    tokens: Callable[[InstallRequest], ProcessToken] | None = None
    """What decides the tokens of processes instead, as a worker's membership does."""
    environment: Mapping[str, str] = field(default_factory=lambda: {"PATH": os.defpath})
    is_free: Callable[[int], bool] = field(default_factory=lambda: lambda port: can_listen("127.0.0.1", port))
    listens: Callable[[str], Awaitable[bool]] = accepts_connections
    connect: Connect = connect_to_backend
    system: Path = BACKENDS
    sources: Sequence[InstallSource] = field(default_factory=lambda: [DirectorySource()])
    keep: KeepPrevious = field(default_factory=KeepPrevious)
    capability: str = "default"
    advertised: str = "127.0.0.1:1"
    publisher: Publisher = field(default_factory=Published)
    adapters: Callable[[Ports], Adapters] | None = None
    cards: Sequence[MeasuredGpu] = ()
    """The GPUs of the machine."""
    confinement: Confinement = field(default_factory=Unconfined)
    is_with_localai: bool = False

    def __post_init__(self) -> None:
        self.installed = self.folder / "backends"
        self.models_folder = self.folder / "models"
        self.logs = BackendLogs(self.clock)
        self.exits = RecordedExits()
        self.remains = Remains(self.folder / "processes", mark_variable=MARK_VARIABLE)
        ports = Ports(self.ranges, clock=self.clock, is_free=self.is_free)
        self.supervisor = self._supervisor(ports)
        self.installer = Installer(self.installed, sources=self.sources, clock=self.clock, keep=self.keep)
        self.unused = UnusedProcesses(self.supervisor.end, clock=self.clock, after=self.limits.unused_after)
        adapters = self.adapters(ports) if self.adapters is not None else adapters_on(ports, self.clock)
        directory = BackendDirectory(installed=self.installed, system=(self.system,), capability=self.capability)
        self.backends = Backends(
            directory=directory,
            supervisor=self.supervisor,
            adapters=adapters,
            installer=self.installer,
            unused=self.unused,
            is_with_localai=lambda: self.is_with_localai,
        )
        self.changes = 0
        self.handlers = self._handlers()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._stack.enter_async_context(self.supervisor)
        await self._stack.enter_async_context(self.installer)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def note_change(self) -> None:
        self.changes += 1

    async def install(self, backend: str, model: str = "", replica: int = 0, **more: object) -> Launch:
        request = InstallRequest(backend=backend, model_id=model, replica_index=replica, **more)  # type: ignore[arg-type]
        return await self.deliver(request)

    async def deliver(self, request: InstallRequest) -> Launch:
        return await self.backends.install(request, _unheard)

    def running(self) -> list[str]:
        return [str(launch.key) for launch in self.supervisor.running()]

    async def ask(self, subject: str, data: bytes) -> bytes | None:
        """The answer of a handler, called by its subject without the node; None when there was none."""
        answers: list[bytes] = []

        async def reply(_: str, answer: bytes) -> None:
            answers.append(answer)

        full = f"nodes.{NODE}.{subject}"
        await self.handlers[full](Message(subject=full, data=data, reply_to="inbox", reply=reply))
        assert len(answers) <= 1
        return answers[0] if answers else None

    def _supervisor(self, ports: Ports) -> Supervisor:
        surroundings = ProcessDefaults(
            bind_host="127.0.0.1",
            environment=self.environment,
            token=self.tokens or (lambda _: ProcessToken(self.token, is_own=False)),
            limits=self.limits,
            listens=self.listens,
            cards=lambda: self.cards,
            confinement=self.confinement,
        )
        return Supervisor(
            surroundings=surroundings,
            ports=ports,
            connect=self.connect,
            logs=self.logs,
            remains=self.remains,
            exits=self.exits,
        )

    def _handlers(self) -> dict[str, Handler]:
        reports = InstallReports(self.publisher, self.clock)
        of_backends = BackendHandlers(
            self.backends, reports=reports, changed=self.note_change, advertised=self.advertised
        )
        models = WorkerModels(self.supervisor, connect=self.connect, free_within=self.limits.free_within)
        of_models = ModelHandlers(models, ModelFiles(self.models_folder))
        return {subject(NODE): handler for subject, handler in {**of_backends.table(), **of_models.table()}.items()}


def _unheard(_: InstallStep) -> None:
    """Ignore progress: the default callback."""


async def _listens(_: str) -> bool:
    return True


@dataclass(kw_only=True)
class SleepingNode(BackendNode):
    """A node whose backends only sleep, so that nothing listens at their ports: those are the recorded worker's."""

    clock: ManualClock = field(default_factory=ManualClock)
    ranges: Sequence[range] = field(default_factory=lambda: [range(22301, 22401)])
    is_free: Callable[[int], bool] = field(default_factory=lambda: lambda _: True)
    listens: Callable[[str], Awaitable[bool]] = _listens
    advertised: str = "127.0.0.3:22301"
