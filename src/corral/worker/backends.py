"""What frontends ask of this node's backends, turned into directories and processes.

Whatever changes a backend's directory, or starts a process from it, holds the backend's lock meanwhile; waiting for a
process to become ready is not part of that, so that nobody waits behind a slow start. Where a backend comes from is
found out before, since galleries may take their time. A delete waits until that is known of all installs before it,
since it may have another name of the same backend; but only so long, and not for an install that names no backend:
while the directory is looked at that it names instead, a delete may overtake it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from corral.base.errors import Conflict, CorralError, InvalidInput, NotFound
from corral.base.words import near_names
from corral.rpc.adapter_keeper import Adapters
from corral.wire.adapter import AdapterModel, AdapterReplica
from corral.wire.backends import (
    CorralInstall,
    DeleteRequest,
    InstalledBackend,
    InstallRequest,
    RollbackRequest,
    UpgradeRequest,
    read_galleries,
)
from corral.wire.replicas import ProcessKey
from corral.worker.installing.backend_directory import BackendDirectory, Home, Located, make_executable
from corral.worker.installing.installer import BackendLocks, Installer, SourceLookup, SourceLookups
from corral.worker.installing.orders import CannotInstall, InstallableBackend, InstallOrder, NoSuchBackend
from corral.worker.installing.progress import Report, starting
from corral.worker.processes.process import BackendProcess, Launch
from corral.worker.processes.supervisor import Supervisor, UnusedProcesses


class GalleriesUnreadable(CorralError):
    """The request's galleries cannot be read."""

    code = "galleries_unreadable"


class InstallPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The source of an install, or the reason why there is none. Both are empty until something has been looked up."""

    backend: InstallableBackend | None = None
    problem: CorralError | None = None

    @property
    def is_made(self) -> bool:
        return self.backend is not None or self.problem is not None

    @property
    def places(self) -> frozenset[str]:
        """Directories that the install changes; empty if it cannot be installed."""
        return self.backend.places if self.backend is not None else frozenset()

    @property
    def aliases(self) -> frozenset[str]:
        """Further names of what will be installed."""
        return self.backend.aliases if self.backend is not None else frozenset()

    @property
    def key(self) -> str:
        """The backend's name on disk, if it differs from the requested one."""
        return self.backend.key if self.backend is not None else ""

    @property
    def is_for_gpu(self) -> bool:
        """Whether it is a gallery's build for more than processors."""
        metadata = self.backend.metadata if self.backend is not None else None
        return metadata is not None and bool(metadata.uri) and not metadata.name.startswith("cpu-")

    def met(self) -> InstallableBackend:
        """Return the backend, or raise the error that says why there is none."""
        if self.backend is None:
            raise self.problem or CannotInstall()
        return self.backend


def check_galleries(request: InstallRequest | UpgradeRequest) -> None:
    """Refuse galleries that cannot be read, even if no gallery is needed."""
    try:
        read_galleries(request.backend_galleries)
    except InvalidInput as error:
        raise GalleriesUnreadable(f"decoding backend galleries: {error.problem}") from error


class CannotDelete(CorralError):
    """A backend that came with the system cannot be deleted."""

    code = "not_deleted"


@dataclass(slots=True)
class BackendChange:
    """Result of an upgrade or a delete, also when it failed half-way."""

    stopped: list[ProcessKey] = field(default_factory=list)
    problem: CorralError | None = None


async def _unresolved(names: frozenset[str]) -> frozenset[str]:
    return names


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
        is_with_localai: Callable[[], bool] = lambda: False,
    ) -> None:
        self._directory = directory
        self._supervisor = supervisor
        self._adapters = adapters
        self._installer = installer
        self._unused = unused
        self._is_with_localai = is_with_localai
        # The name that a request has is locked before its source is looked for: else a delete that came after an
        # install could overtake it there, find nothing to delete, and be answered before the install lands.
        self._turns = BackendLocks(_unresolved)
        self._locks = BackendLocks(self._identities)
        self._lookups = SourceLookups(self._identities)
        supervisor.on_end(unused.forget)
        supervisor.on_end(lambda launch: adapters.forget(launch.http_key))

    async def install(self, request: InstallRequest, report: Report) -> Launch:
        """A ready process of the backend, with a URL if one was asked for. What runs already is only looked at."""
        self._supervisor.check_cards(request)
        if not request.backend and request.uri:
            # Frontends leave the backend out when an administrator only says where it is.
            plan = await self._plan(request)
            if plan.backend is not None:
                request = replace(request, backend=plan.backend.metadata.name)
        launch = None if request.force else await self._supervisor.join(request)
        if launch is not None:
            await self._give_url(launch, request)
        else:
            launch = await self._started(request, report)
            try:
                await self._give_url(launch, request)
            except CorralError:
                await self._supervisor.end(launch)  # the frontend would not know it, and nobody would stop it
                raise
        self._unused.asked_for(launch, by_model=bool(request.model_id))
        return launch

    async def upgrade(self, request: UpgradeRequest, report: Report) -> BackendChange:
        """Stop every process of the backend and reinstall it. Starts nothing."""
        change = BackendChange()
        try:
            async with self._turns.hold(request.backend):
                with self._lookups.begin() as lookup:
                    plan = await self._plan(request)
                    async with self._locked(request, plan, lookup):
                        keys = await self._keys_of_backend(request.backend, plan.key)
                        keys.add(ProcessKey(request.backend, request.replica_index))
                        await self._ended(keys, change, force=True)
                        await self._put(request, plan, report)
        except CorralError as error:
            change.problem = error
        return change

    async def delete(self, request: DeleteRequest) -> BackendChange:
        """Stop every process of the backend, then remove its files, unless one of the processes does not end."""
        name = request.backend

        async def remove(located: Located, change: BackendChange) -> None:
            if located.is_system:
                raise CannotDelete(f'system backend "{name}" cannot be deleted')
            await self._ended(await self._keys_at(name, located), change, force=False)
            await self._installer.remove(located)

        return await self._changed(name, remove)

    async def roll_back(self, request: RollbackRequest) -> BackendChange:
        """Stop every process of the backend, exchange it for the version before, start nothing."""

        async def exchange(located: Located, change: BackendChange) -> None:
            await self._installer.check_previous(located.concrete)
            await self._ended(await self._keys_at(request.backend, located), change, force=True)
            await self._installer.roll_back(located.concrete)

        return await self._changed(request.backend, exchange)

    def http_port(self, launch: Launch) -> int | None:
        """Return the port that serves OpenAI's HTTP for this process, directly or through the adapter, if any."""
        return self._adapters.port_of(launch.http_key) if launch.http_port is None else launch.http_port

    async def stop(self, name: str, *, force: bool) -> None:
        """Stop whatever has this name: a backend, a model or one process. Idempotent.

        Processes that are known in memory are stopped before anything is awaited, so that an install which follows the
        stop does not find them still serving.
        """
        launches = self._supervisor.launches()
        # Frontends name a backend, a model or a key, and do not say which. A key is not taken for a model's name.
        named = {launch.key for launch in launches if str(launch.key) == name}
        named = named or {launch.key for launch in launches if launch.key.model_id == name}
        named |= {launch.key for launch in launches if name == launch.backend or name in launch.home.names}
        self._supervisor.ask_to_stop(named, force=force)
        await self._supervisor.stop(named | await self._keys_of_backend(name), force=force)

    async def stop_all(self, *, force: bool) -> None:
        await self._supervisor.stop([launch.key for launch in self._supervisor.launches()], force=force)

    async def listing(self) -> list[InstalledBackend]:
        """Return the backends that are on the disk."""
        return await asyncio.to_thread(self._directory.listing)

    def running(self) -> list[Launch]:
        """Return the processes that are ready."""
        return self._supervisor.running()

    # Starting.

    async def _started(self, request: InstallRequest, report: Report) -> Launch:
        """A process that was started for this request, or for another one at the same time."""
        if not request.force:
            check_galleries(request)
        while True:
            async with self._turns.hold(request.backend):
                started = await self._begun(request, report)
            if isinstance(started, Launch):
                return started
            if (launch := await self._supervisor.until_serving(started)) is not None:
                return launch

    async def _begun(self, request: InstallRequest, report: Report) -> Launch | BackendProcess:
        """A process that begins to run what is installed, or a ready one of what replaced it."""
        plan = InstallPlan()
        while True:
            with self._lookups.begin() as lookup:
                home = None if plan.is_made or request.force else await self._find(request.backend)
                if not plan.is_made and (home is None or self._is_stopgap(home, request)):
                    plan = await self._plan(request)
                async with self._locked(request, plan, lookup):
                    if request.force:
                        return await self._replaced(request, plan, report)
                    home = await self._home(request, plan, report)
                    if home is None:
                        continue  # deleted meanwhile under another name, and no source has been looked up for it
                    report(starting(request.backend))
                    return self._supervisor.begin(request, home)

    @asynccontextmanager
    async def _locked(
        self, request: InstallRequest | UpgradeRequest, plan: InstallPlan, lookup: SourceLookup
    ) -> AsyncIterator[None]:
        """Hold the locks of all names of what the plan installs. An alias that another backend has is not locked: that
        one need not wait for this."""
        aliases = {alias for alias in plan.aliases if not await asyncio.to_thread(self._directory.locate, alias)}
        lookup.found(frozenset({request.backend, *plan.places, *plan.aliases}))
        async with self._locks.hold(request.backend, *plan.places, *aliases):
            lookup.end()
            yield

    async def _plan(self, request: InstallRequest | UpgradeRequest) -> InstallPlan:
        """Look for a source, asking galleries if needed. Never raises: the error is reported when the plan is used."""
        try:
            check_galleries(request)
            order = InstallOrder(
                backend=request.backend,
                galleries=request.backend_galleries,
                uri=request.uri,
                name=request.name,
                alias=request.alias,
                wants_newest=isinstance(request, UpgradeRequest) or request.force,
            )
            return InstallPlan(backend=await self._installer.find(order))
        except CorralError as error:
            return InstallPlan(problem=error)

    async def _give_url(self, launch: Launch, request: InstallRequest) -> None:
        """Have the adapter serve a process without an HTTP port of its own, if the request has a model for it."""
        model = request.corral.model if isinstance(request.corral, CorralInstall) else UNSET
        if launch.http_port is not None or not isinstance(model, AdapterModel):
            return
        if not self._supervisor.runs(launch):
            raise Conflict(f"backend {launch.key} ended before it had a URL")
        folder = "" if launch.exchange is None else str(launch.exchange)
        replica = AdapterReplica(
            key=launch.http_key, address=launch.address, token=launch.token, folder=folder, model=model
        )
        await self._adapters.serve(replica)

    async def _replaced(self, request: InstallRequest, plan: InstallPlan, report: Report) -> Launch:
        """Every process of the backend ends with what it was started from. The lock is kept until the new one is
        ready: the same request often comes twice, and the second must not end what the first one started."""
        keys = {*await self._keys_of_backend(request.backend, plan.key), request.process_key}
        await self._ended(keys, BackendChange(), force=True)
        home = await self._installed(request, plan, report)
        report(starting(request.backend))
        return await self._supervisor.ensure(request, home)

    async def _home(self, request: InstallRequest, plan: InstallPlan, report: Report) -> Home | None:
        """Where the backend is, installed if need be. What is there under its own name is not fetched for another."""
        home = await self._find(request.backend)
        is_used = home is not None and not (plan.is_for_gpu and self._is_stopgap(home, request))
        if is_used or not plan.is_made:
            return home
        home = await self._find(plan.key)
        if home is None:
            return await self._installed(request, plan, report)
        if (meta := plan.met().meta) is not None:
            await self._installer.point(meta)
        return home

    def _is_stopgap(self, home: Home, request: InstallRequest) -> bool:
        """Whether a gallery may have something better than this backend, which came with Corral. Frontends of ours
        choose the build themselves; LocalAI's name what they expect their own worker to find."""
        is_asked_by_name = bool(request.backend_galleries) and self._is_with_localai()
        return home.is_shipped and is_asked_by_name and self._directory.prefers_gpu

    async def _installed(self, request: InstallRequest, plan: InstallPlan, report: Report) -> Home:
        await self._put(request, plan, report)
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

    async def _changed(self, name: str, do: Callable[[Located, BackendChange], Awaitable[None]]) -> BackendChange:
        change = BackendChange()
        try:
            async with self._turns.hold(name):
                names = (name, name.rpartition("@")[2])  # what is being installed may be from that gallery
                await self._lookups.wait_for_earlier(*names)
                async with self._locks.hold(*names):
                    located = await asyncio.to_thread(self._directory.locate, name)
                    if located is None:
                        raise NotFound(f'backend "{name}": backend not found')
                    await do(located, change)
        except CorralError as error:
            change.problem = error
        return change

    async def _put(self, request: InstallRequest | UpgradeRequest, plan: InstallPlan, report: Report) -> None:
        """Install or upgrade, and word failures as LocalAI's worker does for every kind of source."""
        put, doing = self._installer.install, "installing"
        if isinstance(request, UpgradeRequest):
            put, doing = self._installer.upgrade, "upgrading"
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
        names = sorted(backend.name for backend in await self.listing())
        if name in names:
            return "; it is on this node, and no source is known to replace it from: give a uri"
        if similar := near_names(name, names):
            return f"; did you mean {' or '.join(similar)}?"
        return f"; this node has {', '.join(names)}" if names else "; this node has none"

    async def _ended(self, keys: set[ProcessKey], change: BackendChange, *, force: bool) -> None:
        """Stop these processes. Conflict when one survives: its files must not be touched."""
        outcome = await self._supervisor.stop(keys, force=force)
        change.stopped += outcome.gone
        if outcome.left:
            raise Conflict(f"still running, although they were killed: {', '.join(map(str, outcome.left))}")

    # Names.

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
        return {launch.key for launch in launches if launch.backend in names or launch.home.executable in executables}
