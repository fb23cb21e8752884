"""The part of a worker that has to do with backends: their directories, their processes, and who answers for them."""

import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass

from corral.base.clock import Clock
from corral.base.logs import LogOutput
from corral.base.processes import ChildCommand
from corral.base.tasks import running
from corral.bus.client import NatsBus
from corral.bus.port import Handler
from corral.processes.installing import InstallingConfig, open_installer
from corral.worker.backends import Backends
from corral.worker.config import WorkerConfig
from corral.worker.files.model_files import ModelFiles
from corral.worker.files.object_cache import ObjectPlaces
from corral.worker.handlers import BackendHandlers
from corral.worker.installing.backend_directory import BackendDirectory
from corral.worker.installing.installer import Installer
from corral.worker.installing.progress import InstallReports
from corral.worker.membership import addresses
from corral.worker.membership.exit_reports import ExitReports
from corral.worker.membership.inventory_reports import InventoryReports
from corral.worker.membership.presence import Presence
from corral.worker.membership.subscriptions import Subject
from corral.worker.model_handlers import ModelHandlers
from corral.worker.models import WorkerModels
from corral.worker.processes.adapters import Adapters
from corral.worker.processes.backend_logs import BackendLogs
from corral.worker.processes.connections import BackendConnections
from corral.worker.processes.ports import Ports, can_listen, ephemeral_ports, usable_ranges
from corral.worker.processes.process import MARK_VARIABLE, BackendLink
from corral.worker.processes.remains import Remains
from corral.worker.processes.supervisor import ProcessDefaults, Supervisor
from corral.worker.processes.unused import UnusedProcesses


@dataclass(frozen=True, slots=True, kw_only=True)
class Surrounding:
    """What this part needs of the worker."""

    config: WorkerConfig
    places: addresses.Addresses
    presence: Presence
    bus: NatsBus
    clock: Clock
    logs: BackendLogs


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendPart:
    supervisor: Supervisor
    installer: Installer
    calls: BackendConnections
    inventory: InventoryReports
    handlers: Mapping[Subject, Handler]

    async def close(self, *, force: bool) -> None:
        """Start nothing more and end everything. Whoever waits is answered."""
        self.installer.close()
        await self.supervisor.close(force=force)


async def open_backends(stack: AsyncExitStack, given: Surrounding, *, capability: str) -> BackendPart:
    """Build it in the order in which its parts need each other."""
    config, clock = given.config, given.clock
    ports = _ports(given.places, clock)
    adapters = await stack.enter_async_context(_adapters(config, given.places, ports, clock))
    supervisor = await stack.enter_async_context(_supervisor(given, ports))
    installer = await open_installer(stack, _installing(config), capability=capability, clock=clock)
    unused = UnusedProcesses(supervisor.end, clock=clock, after=config.supervision.unused_after)
    await stack.enter_async_context(running(unused.run(), name="unused processes"))
    backends = Backends(
        directory=BackendDirectory(
            installed=config.backends_path, system=config.system_backends, capability=capability
        ),
        supervisor=supervisor,
        adapters=adapters,
        installer=installer,
        unused=unused,
    )
    reports = InstallReports(given.bus, clock)
    inventory = InventoryReports(backends.listing, given.bus, given.presence)
    await stack.enter_async_context(running(inventory.run(), name="inventory"))
    of_backends = BackendHandlers(backends, reports=reports, changed=inventory.ring, advertised=given.places.advertise)
    models = WorkerModels(supervisor, connect=_connect, free_within=config.supervision.free_within)
    of_models = ModelHandlers(models, _model_files(config))
    handlers = {**of_backends.table(), **of_models.table()}
    calls = BackendConnections(lambda: {launch.port for launch in supervisor.running()})
    return BackendPart(supervisor=supervisor, installer=installer, calls=calls, inventory=inventory, handlers=handlers)


def _installing(config: WorkerConfig) -> InstallingConfig:
    return InstallingConfig(
        backends=config.backends_path,
        galleries=config.galleries,
        images=config.images,
        system=config.system_backends,
    )


def _model_files(config: WorkerConfig) -> ModelFiles:
    """With object storage, files of models come to lie in its cache; LocalAI's worker forgets them there."""
    cached = () if config.storage is None else ObjectPlaces.beside(config.models_path).cached_models
    return ModelFiles(config.models_path, *cached)


def _ports(places: addresses.Addresses, clock: Clock) -> Ports:
    """One range for backends, their own HTTP ports and the adapter."""
    ranges = usable_ranges(places.base_port, places.max_port, ephemeral_ports())
    return Ports(ranges, clock=clock, is_free=lambda port: can_listen(places.backend_bind, port))


def _adapters(config: WorkerConfig, places: addresses.Addresses, ports: Ports, clock: Clock) -> Adapters:
    def command(descriptor: int, place: addresses.HostPort) -> ChildCommand:
        words = ["--orders", str(descriptor), "--listen", str(place), "--log-name", f"{config.log_name}-adapter"]
        argv = [sys.executable, "-P", "-m", "corral.processes.adapter", *words, *_log_words(config.logs)]
        return ChildCommand(argv=argv, env=config.backend_environment, handed_over=[descriptor])

    return Adapters(bind_host=places.backend_bind, command=command, ports=ports, clock=clock, config=config.adapter)


def _log_words(output: LogOutput) -> list[str]:
    """The arguments by which an adapter logs where its worker does."""
    words = ["--log-format", output.format]
    if output.directory is not None:
        words += ["--log-directory", str(output.directory)]
    return [*words, "--verbose"] if output.is_verbose else words


def _supervisor(given: Surrounding, ports: Ports) -> Supervisor:
    config, presence = given.config, given.presence
    return Supervisor(
        surroundings=ProcessDefaults(
            bind_host=given.places.backend_bind,
            environment=config.backend_environment,
            token=lambda: presence.bearer,
            limits=config.supervision,
        ),
        ports=ports,
        connect=_connect,
        logs=given.logs,
        remains=Remains(config.data_path / "processes", mark_variable=MARK_VARIABLE),
        exits=ExitReports(given.bus, presence),
    )


def _connect(address: str, token: str) -> BackendLink:
    """What gRPC needs takes megabytes and a moment to import: an idle worker does without."""
    from corral.rpc.backend import Backend

    return Backend(address, token=token)
