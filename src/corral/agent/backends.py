"""What frontends ask of this node's backends, turned into directories and processes."""

import asyncio
import difflib
import logging
from typing import Protocol

from msgspec import UNSET

from corral.agent.adapters import Adapters
from corral.agent.backend_directory import BackendDirectory, Home, make_executable
from corral.agent.process import Launch
from corral.agent.supervisor import Order, Supervisor
from corral.base.errors import Conflict, CorralError, NotFound
from corral.protocol.adapter import AdapterModel, AdapterReplica
from corral.protocol.install import CorralInstall, InstallRequest
from corral.protocol.inventory import InstalledBackend
from corral.protocol.replica import ProcessKey

log = logging.getLogger(__name__)


class CannotInstall(CorralError):
    """This worker has no way to get that backend."""

    code = "cannot_install"


class Installer(Protocol):
    """Puts backends on the disk."""

    async def install(self, request: InstallRequest) -> None:
        """Return when the backend is there. CannotInstall, or whatever went wrong, otherwise."""

    async def replace(self, request: InstallRequest) -> None:
        """Install again over what is there."""


class NoInstaller:
    """For workers whose backends are all on the disk already."""

    async def install(self, request: InstallRequest) -> None:
        raise CannotInstall(f"backend {request.backend!r} is not on this node, and this worker cannot fetch backends")

    async def replace(self, request: InstallRequest) -> None:
        raise CannotInstall(f"backend {request.backend!r} cannot be replaced: this worker cannot fetch backends")


class Backends:
    """Installs, starts, stops and lists."""

    def __init__(
        self, *, directory: BackendDirectory, supervisor: Supervisor, adapters: Adapters, installer: Installer
    ) -> None:
        self._directory = directory
        self._supervisor = supervisor
        self._adapters = adapters
        self._installer = installer
        supervisor.on_end(lambda launch: adapters.forget(launch.http_key))

    async def install(self, request: InstallRequest) -> Launch:
        """A ready process of the backend, with a URL if one was asked for. What runs already is only looked at."""
        key = request.process_key
        if not request.force and (launch := await self._supervisor.serving(key, request.backend)) is not None:
            await self._give_url(launch, request)
            return launch
        request.galleries()  # a text that cannot be read is said even when no gallery turns out to be needed
        if request.force:
            await self._replace(request)
        home = await self._found(request)
        await asyncio.to_thread(make_executable, home.executable)
        order = Order(key=key, backend=request.backend, model_id=request.model_id, home=home)
        launch = await self._supervisor.ensure(order)
        try:
            await self._give_url(launch, request)
        except CorralError:
            await self._undo(launch)
            raise
        return launch

    def http_port(self, launch: Launch) -> int | None:
        """Where this process speaks OpenAI's HTTP, itself or through the adapter; None when it does not."""
        return self._adapters.port_of(launch.http_key) if launch.http_port is None else launch.http_port

    async def stop(self, name: str, *, force: bool) -> None:
        """Stop what goes by this name: a backend, a model or one process. Nothing to stop is no mistake.

        What memory alone can name is told to stop before anything is awaited, so that an install which comes after the
        stop does not find it still serving.
        """
        named = {launch.key for launch in self._supervisor.launches() if _goes_by(launch, name)}
        self._supervisor.ask_to_stop(named, force=force)
        await self._supervisor.stop(named | await self._keys_of_backend(name), force=force)

    async def stop_all(self, *, force: bool) -> None:
        await self._supervisor.stop([launch.key for launch in self._supervisor.launches()], force=force)

    async def listing(self) -> list[InstalledBackend]:
        """What is on the disk."""
        return await asyncio.to_thread(self._directory.listing)

    def running(self) -> list[Launch]:
        """What is ready."""
        return self._supervisor.running()

    async def _give_url(self, launch: Launch, request: InstallRequest) -> None:
        """Where the engine has no port of its own, the adapter learns how to translate for it, or learns it anew."""
        model = request.corral.model if isinstance(request.corral, CorralInstall) else UNSET
        if launch.http_port is not None or not isinstance(model, AdapterModel):
            return
        if not self._supervisor.runs(launch):
            raise Conflict(f"backend {launch.key} ended before it had a URL")
        replica = AdapterReplica(key=launch.http_key, address=launch.address, token=launch.token, model=model)
        await self._adapters.serve(replica)

    async def _undo(self, launch: Launch) -> None:
        """Nobody was told of this process, so nobody would end it."""
        if self._supervisor.runs(launch):
            await self._supervisor.stop([launch.key], force=False)

    async def _replace(self, request: InstallRequest) -> None:
        """Every process of the backend ends with what it was started from."""
        await self._installer.replace(request)
        keys = {*await self._keys_of_backend(request.backend), request.process_key}
        await self._supervisor.stop(keys, force=True)

    async def _found(self, request: InstallRequest) -> Home:
        if (home := await self._find(request.backend)) is not None:
            return home
        try:
            await self._installer.install(request)
        except CannotInstall as error:
            raise NotFound(f"{error.message}{await self._suggestion(request.backend)}") from error
        if (home := await self._find(request.backend)) is not None:
            return home
        raise NotFound(f"backend {request.backend!r} was not found after its installation")

    async def _suggestion(self, name: str) -> str:
        there = sorted(backend.name for backend in await self.listing())
        near = difflib.get_close_matches(name, there, n=3)
        if near:
            return f"; did you mean {' or '.join(near)}?"
        return f"; it has {', '.join(there)}" if there else "; it has none"

    async def _find(self, name: str) -> Home | None:
        return await asyncio.to_thread(self._directory.find, name)

    async def _keys_of_backend(self, name: str) -> set[ProcessKey]:
        """Processes that were asked for by this name, or run from the directory that it means now."""
        home = await self._find(name)
        directory = None if home is None else home.directory
        launches = self._supervisor.launches()
        return {launch.key for launch in launches if launch.backend == name or launch.home.directory == directory}


def _goes_by(launch: Launch, name: str) -> bool:
    """Frontends say a backend, a model or a key, and do not say which."""
    return name in {str(launch.key), launch.key.model_id, launch.backend} or name in launch.home.names
