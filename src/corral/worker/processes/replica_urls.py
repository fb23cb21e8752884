"""Gives processes of backends an OpenAI URL: at a port of their own, or through the node's adapter."""

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
        """Return the port of the process's own HTTP server, or None."""
        return self._adapters.port_of(launch.http_key) if launch.http_port is None else launch.http_port

    async def give_or_undo(self, launch: Launch, request: InstallRequest) -> None:
        """Give the URL, and stop the process on failure: the frontend would not know it, and nobody would stop it."""
        try:
            await self.give(launch, request)
        except CorralError:
            await self._supervisor.end(launch)
            raise

    async def give(self, launch: Launch, request: InstallRequest) -> None:
        """Return the URL. An engine without its own port is registered with the adapter, or updated there."""
        model = request.corral.model if isinstance(request.corral, CorralInstall) else UNSET
        if launch.http_port is not None or not isinstance(model, AdapterModel):
            return
        if not self._supervisor.runs(launch):
            raise Conflict(f"backend {launch.key} ended before it had a URL")
        replica = AdapterReplica(key=launch.http_key, address=launch.address, token=launch.token, model=model)
        await self._adapters.serve(replica)
