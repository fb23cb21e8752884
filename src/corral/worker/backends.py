"""What frontends ask of this node's backends, turned into directories and processes.

Whatever changes a backend's directory, or starts a process from it, holds the backend's lock meanwhile; waiting for a
process to become ready is not part of that, so that nobody waits behind a slow start. Where a backend comes from is
found out before, since galleries may take their time.
"""

import asyncio
import difflib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from corral.base.errors import Conflict, CorralError, NotFound
from corral.wire.backends import DeleteRequest, InstalledBackend, InstallRequest, RollbackRequest, UpgradeRequest
from corral.wire.replicas import ProcessKey
from corral.worker.installing.backend_directory import BackendDirectory, Home, Located, make_executable
from corral.worker.installing.installer import BackendLocks, Installer
from corral.worker.installing.orders import CannotInstall, InstallableBackend, NoSuchBackend
from corral.worker.installing.plans import UNMADE, GalleriesUnreadable, InstallPlan, check_galleries
from corral.worker.installing.progress import Report, starting
from corral.worker.processes.adapters import Adapters, ReplicaUrls
from corral.worker.processes.process import Launch
from corral.worker.processes.supervisor import ProcessOrder, Supervisor
from corral.worker.processes.unused import UnusedProcesses


class CannotDelete(CorralError):
    """A backend that came with the system cannot be deleted."""

    code = "not_deleted"


@dataclass(slots=True)
class BackendChange:
    """Result of an upgrade or a delete, also when it failed half-way."""

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
        self._urls = ReplicaUrls(supervisor, adapters)
        self._installer = installer
        self._unused = unused
        self._locks = BackendLocks(self._identities)
        supervisor.on_end(unused.forget)

    async def install(self, request: InstallRequest, report: Report) -> Launch:
        """A ready process of the backend, with a URL if one was asked for. What runs already is only looked at."""
        request = await self._with_name(request)
        launch = None if request.force else await self._supervisor.join(request.process_key, request.backend)
        if launch is not None:
            await self._urls.give(launch, request)
        else:
            launch = await self._started(request, report)
            await self._urls.give_or_undo(launch, request)
        self._unused.asked_for(launch, by_model=bool(request.model_id))
        return launch

    async def upgrade(self, request: UpgradeRequest, report: Report) -> BackendChange:
        """Stop every process of the backend and reinstall it. Starts nothing."""
        change = BackendChange([])
        try:
            await self._upgrade(request, report, change)
        except CorralError as error:
            change.problem = error
        return change

    async def delete(self, request: DeleteRequest) -> BackendChange:
        """Stop every process of the backend, then remove its files. While one of them lives they stay."""
        return await self._changed(request.backend, self._delete)

    async def roll_back(self, request: RollbackRequest) -> BackendChange:
        """Stop every process of the backend, exchange it for the version before, start nothing."""
        return await self._changed(request.backend, self._roll_back)

    def http_port(self, launch: Launch) -> int | None:
        """Return the port that serves OpenAI's HTTP for this process, directly or through the adapter; None without
        one."""
        return self._urls.port_of(launch)

    async def stop(self, name: str, *, force: bool) -> None:
        """Stop whatever has this name: a backend, a model or one process. Idempotent.

        Processes that are known in memory are stopped before anything is awaited, so that an install which follows the
        stop does not find them still serving.
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
        """Return the processes that are ready."""
        return self._supervisor.running()

    # Starting.

    async def _started(self, request: InstallRequest, report: Report) -> Launch:
        """A process that was started for this request, or for another one at the same time."""
        plan = UNMADE
        if not request.force:
            check_galleries(request)
        while True:
            if not plan.is_made and (request.force or await self._find(request.backend) is None):
                plan = await InstallPlan.made(self._installer, request)
            async with self._locks.hold(request.backend, *plan.places):
                if request.force:
                    return await self._replaced(request, plan, report)
                home = await self._home(request, plan, report)
                if home is None:
                    continue  # deleted meanwhile, and no source has been looked up for it
                report(starting(request.backend))
                process = self._supervisor.begin(_process_order(request, home))
            if (launch := await self._supervisor.until_serving(process)) is not None:
                return launch

    async def _replaced(self, request: InstallRequest, plan: InstallPlan, report: Report) -> Launch:
        """Every process of the backend ends with what it was started from. The lock is kept until the new one is
        ready: the same request often comes twice, and the second must not end what the first one started."""
        keys = {*await self._keys_of_backend(request.backend, plan.key), request.process_key}
        await self._ended(keys, BackendChange([]), force=True)
        home = await self._installed(request, plan, report)
        report(starting(request.backend))
        return await self._supervisor.ensure(_process_order(request, home))

    async def _home(self, request: InstallRequest, plan: InstallPlan, report: Report) -> Home | None:
        """Where the backend is, installed if need be. What is there under its own name is not fetched for another."""
        if (home := await self._find(request.backend)) is not None or not plan.is_made:
            return home
        home = await self._find(plan.key)
        if home is None:
            return await self._installed(request, plan, report)
        if (meta := plan.met().meta) is not None:
            await self._installer.point(meta)
        return home

    async def _installed(self, request: InstallRequest, plan: InstallPlan, report: Report) -> Home:
        await self._put(self._installer.install, request, plan, report)
        home = await self._find(request.backend) or await self._find(plan.key)
        if home is None:
            raise NotFound(f'backend "{request.backend}" not found after install attempt')
        return home

    async def _find(self, name: str) -> Home | None:
        home = await asyncio.to_thread(self._directory.find, name)
        if home is not None:
            await asyncio.to_thread(make_executable, home.executable)
        return home

    # Changing what is on the disk.

    async def _upgrade(self, request: UpgradeRequest, report: Report, change: BackendChange) -> None:
        plan = await InstallPlan.made(self._installer, request)
        async with self._locks.hold(request.backend, *plan.places):
            own = ProcessKey(request.backend, request.replica_index)
            await self._ended({*await self._keys_of_backend(request.backend, plan.key), own}, change, force=True)
            await self._put(self._installer.upgrade, request, plan, report)

    async def _changed(self, name: str, do: Callable[[str, Located, BackendChange], Awaitable[None]]) -> BackendChange:
        change = BackendChange([])
        try:
            async with self._locks.hold(name):
                located = await asyncio.to_thread(self._directory.locate, name)
                if located is None:
                    raise NotFound(f'backend "{name}": backend not found')
                await do(name, located, change)
        except CorralError as error:
            change.problem = error
        return change

    async def _delete(self, name: str, located: Located, change: BackendChange) -> None:
        if located.is_system:
            raise CannotDelete(f'system backend "{name}" cannot be deleted')
        await self._ended(await self._keys_at(name, located), change, force=False)
        await self._installer.remove(located)

    async def _roll_back(self, name: str, located: Located, change: BackendChange) -> None:
        await self._installer.check_previous(located.concrete)
        await self._ended(await self._keys_at(name, located), change, force=True)
        await self._installer.roll_back(located.concrete)

    async def _put(
        self,
        put: Callable[[InstallableBackend, Report], Awaitable[None]],
        request: InstallRequest | UpgradeRequest,
        plan: InstallPlan,
        report: Report,
    ) -> None:
        """Install, and word failures as LocalAI's worker does for every kind of source."""
        doing = "upgrading" if isinstance(request, UpgradeRequest) else "installing"
        try:
            await put(plan.met(), report)
        except GalleriesUnreadable:
            raise
        except NoSuchBackend as error:
            hint = await self._suggestion(request.backend) if request.backend else ""
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

    async def _ended(self, keys: set[ProcessKey], change: BackendChange, *, force: bool) -> None:
        """Conflict when one survives: its files must not be touched."""
        outcome = await self._supervisor.stop(keys, force=force)
        change.stopped += outcome.gone
        if outcome.left:
            raise Conflict(f"still running, although they were killed: {', '.join(map(str, outcome.left))}")

    # Names.

    async def _with_name(self, request: InstallRequest) -> InstallRequest:
        """Frontends leave the backend out when an administrator only says where it is."""
        if request.backend or not request.uri:
            return request
        plan = await InstallPlan.made(self._installer, request)
        return request if plan.backend is None else replace(request, backend=plan.backend.metadata.name)

    async def _identities(self, names: frozenset[str]) -> frozenset[str]:
        return await asyncio.to_thread(lambda: frozenset(map(self._directory.identity, names)))

    async def _keys_at(self, name: str, located: Located) -> set[ProcessKey]:
        at = {launch.key for launch in self._supervisor.launches() if launch.home.directory == located.concrete}
        return at | await self._keys_of_backend(name)

    async def _keys_of_backend(self, *names: str) -> set[ProcessKey]:
        """Processes that were asked for by one of these names, or run what it means now."""
        homes = [await asyncio.to_thread(self._directory.find, name) for name in names]
        executables = {home.executable for home in homes if home is not None}
        launches = self._supervisor.launches()
        return {one.key for one in launches if one.backend in names or one.home.executable in executables}


def _process_order(request: InstallRequest, home: Home) -> ProcessOrder:
    return ProcessOrder(key=request.process_key, backend=request.backend, model_id=request.model_id, home=home)


def _going_by(name: str, launches: Mapping[ProcessKey, Launch]) -> set[ProcessKey]:
    """Frontends say a backend, a model or a key, and do not say which. A key is not taken for a model's name."""
    keys = {key for key in launches if str(key) == name} or {key for key in launches if key.model_id == name}
    return keys | {key for key, one in launches.items() if name == one.backend or name in one.home.names}
