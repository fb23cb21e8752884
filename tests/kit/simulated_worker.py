"""A worker that exists only as its messages, with backends on a disk in memory and processes that run for models."""

from dataclasses import dataclass, field

import msgspec
from msgspec import UNSET

from corral.bus.port import Bus, Message
from corral.wire import subjects
from corral.wire.backends import ChangeReply, DeleteRequest, InstallReply, InstallRequest, UpgradeRequest
from corral.wire.models import ModelCommandReply, ModelDeleteRequest
from corral.wire.replicas import ReplicaAccess, RunningModel, RunningReply, StopRequest
from tests.kit.simulated_backends import DiskChange, SimulatedBackends


@dataclass(kw_only=True)
class _Process:
    backend: str
    report: RunningModel


@dataclass
class SimulatedWorker(SimulatedBackends):
    """Its processes have keys and ports of their own. One of LocalAI's gives them no URL."""

    processes: dict[str, _Process] = field(default_factory=dict)
    """Processes by key."""
    models: set[str] = field(default_factory=set)
    """Models whose files it has."""
    tells_stopped: bool = True
    """Names the processes that ended for a change; old workers do not."""
    _started: int = 0

    async def listen(self, bus: Bus) -> None:
        await super().listen(bus)
        for subject, handler in (
            (subjects.models_running(self.node_id), self._on_running),
            (subjects.backend_stop(self.node_id), self._on_stop),
            (subjects.model_delete(self.node_id), self._on_model_delete),
        ):
            subscription = await bus.subscribe(subject, handler)
            self._subscriptions.push_async_callback(subscription.close)

    async def _on_install(self, message: Message) -> None:
        request = msgspec.json.decode(message.data, type=InstallRequest)
        self.requests.append(("load" if request.model_id else "install", request))
        if request.force:
            self._end(request.name or request.backend)
        write = self._download(request)
        error = await self._do(request.name or request.backend, lambda: "" if self._is_there(request) else write())
        process = None if error or not request.model_id else self._start(request)
        reply = InstallReply(success=not error, error=error)
        if process is not None:
            reply.address, reply.corral = process.report.address, process.report.corral
        await self._answer(message, reply)

    async def _on_upgrade(self, message: Message) -> None:
        request = msgspec.json.decode(message.data, type=UpgradeRequest)
        self.requests.append(("upgrade", request))
        await self._change(message, request.name or request.backend, self._download(request))

    async def _on_delete(self, message: Message) -> None:
        request = msgspec.json.decode(message.data, type=DeleteRequest)
        self.requests.append(("delete", request))
        await self._change(message, request.backend, lambda: self._delete(request.backend))

    async def _change(self, message: Message, name: str, deed: DiskChange) -> None:
        """Ends processes before it does anything else, as real ones do, and starts none."""
        stopped = self._end(name)
        error = await self._do(name, deed)
        reply = ChangeReply(success=not error, error=error, reports_stopped_processes=self.tells_stopped)
        reply.stopped_process_keys = stopped if self.tells_stopped else []
        await self._answer(message, reply)

    async def _on_running(self, message: Message) -> None:
        reports = [process.report for process in self.processes.values()]
        await message.respond(msgspec.json.encode(RunningReply(models=reports)))

    async def _on_stop(self, message: Message) -> None:
        self.processes.pop(msgspec.json.decode(message.data, type=StopRequest).backend, None)

    async def _on_model_delete(self, message: Message) -> None:
        name = msgspec.json.decode(message.data, type=ModelDeleteRequest).model_name
        self.requests.append(("remove", name))
        if not self.faults.refusal:
            self.models.discard(name)
        await self._answer(message, ModelCommandReply(success=not self.faults.refusal, error=self.faults.refusal))

    def _start(self, request: InstallRequest) -> _Process:
        key = str(request.process_key)
        if key not in self.processes:
            self._started += 1
            port = 7000 + 10 * self._started
            access = ReplicaAccess(url=f"http://127.0.0.1:{port + 1}", key=f"k{self._started}")
            report = RunningModel(
                model_id=request.process_key.model_id,
                replica_index=request.process_key.replica_index,
                address=f"127.0.0.1:{port}",
                corral=access if self.is_corral else UNSET,
            )
            self.processes[key] = _Process(backend=request.backend, report=report)
        return self.processes[key]

    def _end(self, backend: str) -> list[str]:
        ended = [key for key, process in self.processes.items() if process.backend == backend]
        for key in ended:
            del self.processes[key]
        return ended
