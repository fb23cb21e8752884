"""What frontends ask of this node's backends, turned into directories and processes.

Whatever changes a backend's directory, or starts a process from it, holds the backend's lock meanwhile; waiting for a
process to become ready is not part of that, so that nobody waits behind a slow start.
"""

import asyncio
import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import UNSET
from msgspec.structs import replace

from corral.agent.adapters import Adapters
from corral.agent.backend_directory import BackendDirectory, Home, make_executable
from corral.agent.backend_locks import BackendLocks
from corral.agent.install_progress import Report
from corral.agent.install_sources.directory import directory_of
from corral.agent.installer import CannotInstall, Installer, InstallOrder, NoSuchBackend
from corral.agent.process import Launch
from corral.agent.supervisor import Order, Supervisor
from corral.agent.unused import UnusedProcesses
from corral.base.errors import Conflict, CorralError, InvalidInput, NotFound
from corral.protocol.adapter import AdapterModel, AdapterReplica
from corral.protocol.backend_changes import DeleteRequest, UpgradeRequest
from corral.protocol.install import CorralInstall, InstallRequest
from corral.protocol.inventory import InstalledBackend
from corral.protocol.replica import ProcessKey


class GalleriesUnreadable(CorralError):
    """The request's galleries cannot be read."""

    code = "galleries_unreadable"


class NotDeleted(CorralError):
    """A backend that came with the system cannot be deleted."""

    code = "not_deleted"


@dataclass(slots=True)
class Change:
    """What became of an upgrade or a delete: told also when it failed half-way."""

    stopped: list[ProcessKey]
    problem: CorralError | None = None


class Backends:
    """Installs, starts, stops, upgrades, deletes and lists."""

    def __init__(
        self,
        *,
        directory: BackendDirectory,
        supervisor: Supervisor,
        adapters: Adapters,
        installer: Installer,
        unused: UnusedProcesses,
    ) -> None:
        self._directory = directory
        self._supervisor = supervisor
        self._adapters = adapters
        self._installer = installer
        self._unused = unused
        self._locks = BackendLocks(self._identities)
        supervisor.on_end(lambda launch: adapters.forget(launch.http_key))
        supervisor.on_end(unused.forget)

    async def install(self, request: InstallRequest, report: Report) -> Launch:
        """A ready process of the backend, with a URL if one was asked for. What runs already is only looked at."""
        request = await _with_name(request)
        launch = None if request.force else await self._supervisor.join(request.process_key, request.backend)
        if launch is not None:
            await self._give_url(launch, request)
        else:
            launch = await self._started(request, report)
            await self._give_url_or_undo(launch, request)
        self._unused.asked_for(launch, by_model=bool(request.model_id))
        return launch

    async def upgrade(self, request: UpgradeRequest, report: Report) -> Change:
        """Stop every process of the backend, install it anew, start nothing."""
        change = Change([])
        try:
            await self._upgrade(request, report, change)
        except CorralError as error:
            change.problem = error
        return change

    async def delete(self, request: DeleteRequest) -> Change:
        """Stop every process of the backend, then remove its files. While one of them lives they stay."""
        change = Change([])
        try:
            async with self._locks.hold(request.backend):
                await self._delete(request.backend, change)
        except CorralError as error:
            change.problem = error
        return change

    def http_port(self, launch: Launch) -> int | None:
        """Where this process speaks OpenAI's HTTP, itself or through the adapter; None when it does not."""
        return self._adapters.port_of(launch.http_key) if launch.http_port is None else launch.http_port

    async def stop(self, name: str, *, force: bool) -> None:
        """Stop what goes by this name: a backend, a model or one process. Nothing to stop is no mistake.

        What memory alone can name is told to stop before anything is awaited, so that an install which comes after the
        stop does not find it still serving.
        """
        named = _going_by(name, {launch.key: launch for launch in self._supervisor.launches()})
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

    # Starting.

    async def _started(self, request: InstallRequest, report: Report) -> Launch:
        """A process that was started for this request, or for another one at the same time."""
        while True:
            order = _order(request)
            async with self._locks.hold(request.backend, *await self._places(order)):
                if request.force:
                    return await self._replaced(request, report)
                home = await self._found(_with_galleries(order, request), report)
                process = self._supervisor.begin(_process_order(request, home))
            if (launch := await self._supervisor.until_serving(process)) is not None:
                return launch

    async def _replaced(self, request: InstallRequest, report: Report) -> Launch:
        """Every process of the backend ends with what it was started from. The lock is kept until the new one is
        ready: the same request often comes twice, and the second must not end what the first one started."""
        keys = {*await self._keys_of_backend(request.backend), request.process_key}
        await self._ended(keys, Change([]), force=True)
        await self._put(_with_galleries(_order(request), request), report, doing="installing")
        home = await self._find_installed(request.backend)
        return await self._supervisor.ensure(_process_order(request, home))

    async def _found(self, order: InstallOrder, report: Report) -> Home:
        if (home := await self._find(order.backend)) is None:
            await self._put(order, report, doing="installing")
            home = await self._find_installed(order.backend)
        return home

    async def _find_installed(self, name: str) -> Home:
        if (home := await self._find(name)) is None:
            raise NotFound(f'backend "{name}" not found after install attempt')
        return home

    async def _find(self, name: str) -> Home | None:
        home = await asyncio.to_thread(self._directory.find, name)
        if home is not None:
            await asyncio.to_thread(make_executable, home.executable)
        return home

    # Changing what is on the disk.

    async def _upgrade(self, request: UpgradeRequest, report: Report, change: Change) -> None:
        order = _order(request)
        async with self._locks.hold(request.backend, *await self._places(order)):
            own = ProcessKey(request.backend, request.replica_index)
            await self._ended({*await self._keys_of_backend(request.backend), own}, change, force=True)
            await self._put(_with_galleries(order, request), report, doing="upgrading")

    async def _delete(self, name: str, change: Change) -> None:
        located = await asyncio.to_thread(self._directory.locate, name)
        if located is None:
            raise NotFound(f'backend "{name}": backend not found')
        if located.is_system:
            raise NotDeleted(f'system backend "{name}" cannot be deleted')
        keys = {launch.key for launch in self._supervisor.launches() if launch.home.directory == located.concrete}
        await self._ended(keys | await self._keys_of_backend(name), change, force=False)
        await self._installer.remove(located)

    async def _put(self, order: InstallOrder, report: Report, *, doing: str) -> None:
        """In the words of LocalAI's worker, which says so wherever it installs from."""
        try:
            await self._installer.install(order, report)
        except NoSuchBackend as error:
            hint = await self._suggestion(order.backend) if order.backend else ""
            raise NoSuchBackend(f"{doing} backend from gallery: {error.message}{hint}") from error
        except CorralError as error:
            raise CannotInstall(f"{doing} backend from gallery: {error.message}") from error

    async def _suggestion(self, name: str) -> str:
        there = sorted(backend.name for backend in await self.listing())
        if name in there:
            return "; it is on this node, and no source is known to replace it from: give a uri"
        near = difflib.get_close_matches(name, there, n=3)
        if near:
            return f"; did you mean {' or '.join(near)}?"
        return f"; this node has {', '.join(there)}" if there else "; this node has none"

    async def _ended(self, keys: set[ProcessKey], change: Change, *, force: bool) -> None:
        """Conflict when one survives: its files must not be touched."""
        outcome = await self._supervisor.stop(keys, force=force)
        change.stopped += outcome.gone
        if outcome.left:
            raise Conflict(f"still running, although they were killed: {', '.join(map(str, outcome.left))}")

    # Names.

    async def _identities(self, names: frozenset[str]) -> frozenset[str]:
        return await asyncio.to_thread(lambda: frozenset(map(self._directory.identity, names)))

    async def _places(self, order: InstallOrder) -> frozenset[str]:
        """Names beside the backend's own that an install would touch. What cannot be installed touches nothing."""
        try:
            return await self._installer.places(order)
        except CorralError:
            return frozenset()

    async def _keys_of_backend(self, name: str) -> set[ProcessKey]:
        """Processes that were asked for by this name, or run what it means now."""
        home = await asyncio.to_thread(self._directory.find, name)
        executable = None if home is None else home.executable
        launches = self._supervisor.launches()
        return {launch.key for launch in launches if launch.backend == name or launch.home.executable == executable}

    # URLs.

    async def _give_url_or_undo(self, launch: Launch, request: InstallRequest) -> None:
        """Nobody was told of a process without the URL that was asked for, so nobody would end it."""
        try:
            await self._give_url(launch, request)
        except CorralError:
            await self._supervisor.end(launch)
            raise

    async def _give_url(self, launch: Launch, request: InstallRequest) -> None:
        """Where the engine has no port of its own, the adapter learns how to translate for it, or learns it anew."""
        model = request.corral.model if isinstance(request.corral, CorralInstall) else UNSET
        if launch.http_port is not None or not isinstance(model, AdapterModel):
            return
        if not self._supervisor.runs(launch):
            raise Conflict(f"backend {launch.key} ended before it had a URL")
        replica = AdapterReplica(key=launch.http_key, address=launch.address, token=launch.token, model=model)
        await self._adapters.serve(replica)


async def _with_name(request: InstallRequest) -> InstallRequest:
    """Frontends leave the backend out when an administrator only says where it is."""
    if request.backend or not request.uri:
        return request
    if request.name:
        return replace(request, backend=request.name)
    path = await asyncio.to_thread(directory_of, request.uri)
    return request if path is None else replace(request, backend=path.name)


def _order(request: InstallRequest | UpgradeRequest) -> InstallOrder:
    return InstallOrder(backend=request.backend, uri=request.uri, name=request.name, alias=request.alias)


def _with_galleries(order: InstallOrder, request: InstallRequest | UpgradeRequest) -> InstallOrder:
    """A text that cannot be read is said even when no gallery turns out to be needed, but not before the stops."""
    try:
        galleries = request.galleries()
    except InvalidInput as error:
        raise GalleriesUnreadable(f"decoding backend galleries: {error.problem}") from error
    return InstallOrder(backend=order.backend, uri=order.uri, name=order.name, alias=order.alias, galleries=galleries)


def _process_order(request: InstallRequest, home: Home) -> Order:
    return Order(key=request.process_key, backend=request.backend, model_id=request.model_id, home=home)


def _going_by(name: str, launches: Mapping[ProcessKey, Launch]) -> set[ProcessKey]:
    """Frontends say a backend, a model or a key, and do not say which. A key is not taken for a model's name."""
    keys = {key for key in launches if str(key) == name} or {key for key in launches if key.model_id == name}
    return keys | {key for key, one in launches.items() if name == one.backend or name in one.home.names}
