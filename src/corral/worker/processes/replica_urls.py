"""Where the processes of backends speak OpenAI's HTTP: at a port of their own, or through the node's adapter."""

from msgspec import UNSET

from corral.base.errors import Conflict, CorralError
from corral.wire.adapter import AdapterModel, AdapterReplica
from corral.wire.install import CorralInstall, InstallRequest
from corral.worker.processes.adapters import Adapters
from corral.worker.processes.process import Launch
from corral.worker.processes.supervisor import Supervisor


class ReplicaUrls:
    """Has the adapter translate for processes that cannot do it themselves."""

    def __init__(self, supervisor: Supervisor, adapters: Adapters) -> None:
        self._supervisor = supervisor
        self._adapters = adapters
        supervisor.on_end(lambda launch: adapters.forget(launch.http_key))

    def port_of(self, launch: Launch) -> int | None:
        """None when it has none."""
        return self._adapters.port_of(launch.http_key) if launch.http_port is None else launch.http_port

    async def give_or_undo(self, launch: Launch, request: InstallRequest) -> None:
        """Nobody was told of a process without the URL that was asked for, so nobody would end it."""
        try:
            await self.give(launch, request)
        except CorralError:
            await self._supervisor.end(launch)
            raise

    async def give(self, launch: Launch, request: InstallRequest) -> None:
        """Where the engine has no port of its own, the adapter learns how to translate for it, or learns it anew."""
        model = request.corral.model if isinstance(request.corral, CorralInstall) else UNSET
        if launch.http_port is not None or not isinstance(model, AdapterModel):
            return
        if not self._supervisor.runs(launch):
            raise Conflict(f"backend {launch.key} ended before it had a URL")
        replica = AdapterReplica(key=launch.http_key, address=launch.address, token=launch.token, model=model)
        await self._adapters.serve(replica)
