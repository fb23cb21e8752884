"""The backends of a worker process: everything that installs, starts, confines and stops them, in dependency order."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack

import msgspec

from corral.base.clock import Clock
from corral.base.disclosure import basic_environment
from corral.base.processes import ChildCommand
from corral.base.tasks import running
from corral.bus.client import NatsBus
from corral.bus.port import Handler
from corral.processes.adapter_child import adapter_argv
from corral.processes.installing import InstallingConfig, open_installer
from corral.rpc.adapter_keeper import Adapters
from corral.worker.backends import Backends
from corral.worker.config import WorkerConfig
from corral.worker.confinement.confiner import Confiner
from corral.worker.confinement.granted_files import BackendPlaces
from corral.worker.confinement.machine import look
from corral.worker.files.keys import Area, served_directories
from corral.worker.files.object_cache import ObjectPlaces
from corral.worker.handlers import BackendHandlers, ModelHandlers
from corral.worker.hardware.gpus import MeasuredGpu
from corral.worker.installing.backend_directory import BackendDirectory
from corral.worker.installing.installer import Installer
from corral.worker.installing.progress import InstallReports
from corral.worker.membership import addresses
from corral.worker.membership.lifecycle import Subject
from corral.worker.membership.registration import Presence
from corral.worker.membership.reports import ExitReports, InventoryReports
from corral.worker.models import ModelFiles, WorkerModels
from corral.worker.processes.adapters import AdapterProcesses
from corral.worker.processes.backend_logs import BackendLogs
from corral.worker.processes.ports import Ports, can_listen, count_connections, ephemeral_ports, ranges_of
from corral.worker.processes.process import MARK_VARIABLE, BackendLink
from corral.worker.processes.remains import Remains
from corral.worker.processes.supervisor import ProcessDefaults, Supervisor, UnusedProcesses


class Surrounding(msgspec.Struct, frozen=True, kw_only=True):
    """What the backend part needs from the rest of the worker."""

    config: WorkerConfig
    places: addresses.Addresses
    presence: Presence
    bus: NatsBus
    clock: Clock
    logs: BackendLogs
    cards: Callable[[], Sequence[MeasuredGpu]]
    """The GPUs of the machine, as of now."""
    confiner: Confiner


class BackendPart(msgspec.Struct, frozen=True, kw_only=True):
    supervisor: Supervisor
    installer: Installer
    inventory: InventoryReports
    handlers: Mapping[Subject, Handler]
    ports: Ports
    port_ranges: Sequence[range]

    async def calls(self) -> int:
        """Count the open connections to backends."""
        return await count_connections({launch.port for launch in self.supervisor.running()})

    async def close(self, *, force: bool) -> None:
        """Start nothing more and stop everything. Waiting requests get an answer."""
        self.installer.close()
        await self.supervisor.close(force=force)


async def open_backends(stack: AsyncExitStack, surrounding: Surrounding, *, capability: str) -> BackendPart:
    """Build the parts in dependency order."""
    config, clock = surrounding.config, surrounding.clock
    places = surrounding.places
    # One range of ports for backends, their own HTTP ports and the adapter.
    ranges = ranges_of(places, ephemeral_ports())
    ports = Ports(ranges, clock=clock, is_free=lambda port: can_listen(places.backend_bind, port))
    adapters = await stack.enter_async_context(_adapters(config, places, ports, clock))
    supervisor = await stack.enter_async_context(_supervisor(surrounding, ports))
    installing = InstallingConfig(
        backends=config.backends_path,
        galleries=config.galleries,
        images=config.images,
        system=config.system_backends,
    )
    installer = await open_installer(stack, installing, capability=capability, clock=clock)
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
        is_with_localai=lambda: surrounding.presence.is_with_localai,
    )
    reports = InstallReports(surrounding.bus, clock, is_with_localai=lambda: surrounding.presence.is_with_localai)
    inventory = InventoryReports(backends.listing, surrounding.bus, surrounding.presence)
    await stack.enter_async_context(running(inventory.run(), name="inventory"))
    of_backends = BackendHandlers(backends, reports=reports, changed=inventory.ring, advertised=places.advertise)
    models = WorkerModels(supervisor, connect=_connect, free_within=config.supervision.free_within)
    # The cache of object storage holds model files too; LocalAI's worker omits it.
    cached = () if config.storage is None else ObjectPlaces.beside(config.models_path).cached_models
    of_models = ModelHandlers(models, ModelFiles(config.models_path, *cached))
    handlers = {**of_backends.table(), **of_models.table()}
    return BackendPart(
        supervisor=supervisor,
        installer=installer,
        inventory=inventory,
        handlers=handlers,
        ports=ports,
        port_ranges=ranges,
    )


def _adapters(config: WorkerConfig, places: addresses.Addresses, ports: Ports, clock: Clock) -> Adapters:
    def command(descriptor: int, place: addresses.HostPort) -> ChildCommand:
        orders, name = ["--orders", str(descriptor)], f"{config.log_name}-adapter"
        argv = adapter_argv(orders, listen=str(place), logs=config.logs, log_name=name)
        return ChildCommand(argv=argv, env=basic_environment(config.backend_environment), handed_over=[descriptor])

    source = AdapterProcesses(bind_host=places.backend_bind, command=command, ports=ports, config=config.adapter)
    return Adapters(source, clock, config.adapter)


def _supervisor(surrounding: Surrounding, ports: Ports) -> Supervisor:
    config, presence = surrounding.config, surrounding.presence
    return Supervisor(
        surroundings=ProcessDefaults(
            bind_host=surrounding.places.backend_bind,
            environment=config.backend_environment,
            token=presence.process_token,
            limits=config.supervision,
            cards=surrounding.cards,
            confinement=surrounding.confiner,
        ),
        ports=ports,
        connect=_connect,
        logs=surrounding.logs,
        remains=Remains(config.data_path / "processes", mark_variable=MARK_VARIABLE),
        exits=ExitReports(surrounding.bus, presence),
    )


async def open_confiner(config: WorkerConfig, presence: Presence) -> Confiner:
    """Find out what the machine offers, and confine backends with it."""
    abilities = await asyncio.to_thread(look, config.confinement.users.start)
    served = served_directories(models=config.models_path, staging=config.files.staging_path)
    # Models in the cache of an object storage are read where they are.
    objects = ObjectPlaces.beside(config.models_path)
    if config.storage is not None:
        await asyncio.to_thread(objects.make)
    places = BackendPlaces(
        data=config.data_path,
        models=(config.models_path, *objects.cached_models),
        exchanged=(served[Area.STAGING], served[Area.DATA], *objects.exchanged),
    )
    return Confiner(
        config.confinement, places=places, abilities=abilities, is_with_localai=lambda: presence.is_with_localai
    )


def _connect(address: str, token: str) -> BackendLink:
    """Connect to a backend. gRPC is imported only here: it costs memory and time that an idle worker saves."""
    from corral.rpc.backend import Backend

    return Backend(address, token=token)
