"""The worker process: builds its parts, runs them until a stop, and returns an exit code."""

import asyncio
import logging
import os
import socket
from collections.abc import Mapping
from contextlib import AbstractContextManager, AsyncExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

import uvloop

from corral import __version__
from corral.base.clock import Clock, SystemClock
from corral.base.errors import CorralError, PeerRefused
from corral.base.http_client import open_session
from corral.base.ids import Incarnation, new_incarnation
from corral.base.private_files import held, make_private_directory
from corral.base.processes import ChildCommand
from corral.base.tasks import running, stop_on_signals
from corral.bus.client import NatsBus
from corral.bus.credentials import names_user
from corral.bus.port import Handler, Message
from corral.oci.manifests import this_platform
from corral.processes.adapter_child import adapter_argv
from corral.processes.exit_codes import ExitCode, exit_code_of, sole_cause
from corral.processes.installing import InstallingConfig, open_installer
from corral.rpc.adapter_keeper import Adapters
from corral.wire import subjects
from corral.wire.registration import FEATURES, CorralHello
from corral.worker.backends import Backends
from corral.worker.config import WorkerConfig
from corral.worker.files.keys import refuse_private
from corral.worker.files.object_cache import ObjectPlaces
from corral.worker.files.object_files import ObjectFiles, object_handlers
from corral.worker.files.routes import FileServing
from corral.worker.handlers import BackendHandlers, ModelHandlers
from corral.worker.hardware.gpus import MachineGpus, detectors_of_this_machine
from corral.worker.hardware.machine import CapabilityRule, Cgroup, Hardware, Machine, on_one_disk
from corral.worker.http import HttpServer, readiness_problems, try_to_listen
from corral.worker.installing.backend_directory import BackendDirectory
from corral.worker.installing.installer import Installer
from corral.worker.installing.progress import InstallReports
from corral.worker.membership import addresses
from corral.worker.membership.frontend_client import FrontendClient
from corral.worker.membership.heartbeat import HeartbeatLoop
from corral.worker.membership.identity import Memory, NatsUser, NodeIdentity, node_name
from corral.worker.membership.lifecycle import Departure, Membership, NodeSubscriptions, Subject, run_member
from corral.worker.membership.registration import Presence, Profile, Registrar
from corral.worker.membership.reports import ExitReports, InventoryReports
from corral.worker.models import ModelFiles, WorkerModels
from corral.worker.processes.adapters import AdapterProcesses
from corral.worker.processes.backend_logs import BackendLogs, LogRoutes
from corral.worker.processes.ports import Ports, can_listen, count_connections, ephemeral_ports, usable_ranges
from corral.worker.processes.process import MARK_VARIABLE, BackendLink
from corral.worker.processes.remains import Remains
from corral.worker.processes.supervisor import ProcessDefaults, Supervisor, UnusedProcesses

log = logging.getLogger(__name__)

LOCK_FILE: Final = "worker.lock"


def main(config: WorkerConfig) -> ExitCode:
    """Run one worker to its end. The first SIGTERM or SIGINT makes it leave in order, the second at once."""

    async def run_until_signalled() -> ExitCode:
        stop, hurry = asyncio.Event(), asyncio.Event()
        with stop_on_signals(stop, hurry=hurry.set):
            return await run_worker(config, stop, hurry=hurry)

    return uvloop.run(run_until_signalled())


async def run_worker(
    config: WorkerConfig, stop: asyncio.Event, *, hurry: asyncio.Event | None = None, clock: Clock | None = None
) -> ExitCode:
    """Run one worker until `stop` is set or a final error; log the reason and return the exit code."""
    try:
        await _live(config, stop, hurry or asyncio.Event(), clock or SystemClock())
    except (CorralError, ExceptionGroup) as failure:
        error = sole_cause(failure) if isinstance(failure, ExceptionGroup) else failure
        log.error("%s", error, extra={"event": "worker.failed", "code": error.code})  # noqa: TRY400 - it says it all
        code = exit_code_of(error)
        return ExitCode.UNAVAILABLE if isinstance(error, PeerRefused) and code is ExitCode.FAILED else code
    log.info("worker ended", extra={"event": "worker.ended"})
    return ExitCode.OK


async def _live(config: WorkerConfig, stop: asyncio.Event, hurry: asyncio.Event, clock: Clock) -> None:
    """Build the parts in dependency order, run them, and close them in reverse order."""
    places = addresses.decide(config.addresses, socket.gethostname())
    refuse_private(models=config.models_path, staging=config.files.staging_path, private=config.data_path)
    if not config.data_path.exists():
        try_to_listen(places.http_bind)  # a refused start leaves nothing behind
    identity, presence, incarnation = NodeIdentity(config.data_path), Presence(), new_incarnation()
    async with AsyncExitStack() as stack:
        stack.enter_context(_data_held(config.data_path))
        remembered = identity.remembered()
        profile = _profile(config, places, identity.secret(), incarnation, was_admitted=remembered is not None)
        hardware = _hardware(config)
        _introduce(profile, hardware.machine(), remembered)
        user = NatsUser(clock, backoff=config.nats_user_retry, is_wanted=not names_user(config.bus))
        bus = NatsBus(config.bus, name=f"corral worker {profile.name}", credentials=user.provider)
        user.follow(bus)
        logs = BackendLogs(clock)
        file_server = FileServing(config.files, models=config.models_path, clock=SystemClock())  # files have its times
        files = await stack.enter_async_context(file_server)
        http = await stack.enter_async_context(
            HttpServer(
                address=places.http_bind,
                readiness=lambda: readiness_problems(presence, bus),
                # The shared token is used only with a frontend that supports no other: LocalAI's.
                bearers=lambda: (profile.hello.secret, presence.bearer),
                routes=(files.routes, LogRoutes(logs)),
                is_open=lambda: not profile.token and presence.is_with_localai,
            )
        )
        await stack.enter_async_context(bus)
        surrounding = Surrounding(config=config, places=places, presence=presence, bus=bus, clock=clock, logs=logs)
        backends = await open_backends(stack, surrounding, capability=(await hardware.measure()).capability)
        session = open_session(timeout=config.frontend.timeout, connect_timeout=config.frontend.connect_timeout)
        frontend = FrontendClient(await stack.enter_async_context(session), config.frontend.urls)
        membership = Membership(
            registrar=_registrar(config, frontend, profile, hardware, clock),
            subscriptions=NodeSubscriptions(
                bus, {subjects.node_stop: _stopper(stop), **backends.handlers, **_object_handlers(config, clock, stack)}
            ),
            heartbeat=HeartbeatLoop(
                frontend=frontend,
                gauge=hardware,
                clock=clock,
                interval=config.heartbeat_interval,
                incarnation=incarnation,
                inventory=backends.inventory.tell,
            ),
            presence=presence,
            remember=lambda node_id: identity.remember(node_id, profile.name),
            nats_user=user,
        )
        departure = Departure(
            frontend=frontend, calls=backends.calls, clock=clock, config=config.departure, hurry=hurry
        )
        await run_member(stop, membership=membership, departure=departure, presence=presence)
        # Before NATS is drained, so that waiting requests still get an answer.
        await backends.close(force=hurry.is_set())
        await http.close()  # before the drain too, so that no new request arrives meanwhile


def _data_held(path: Path) -> AbstractContextManager[None]:
    """Lock the data directory: two workers with one secret would be one node in two places."""
    make_private_directory(path)
    return held(path / LOCK_FILE, f"another worker uses the data directory {path}; give each worker its own")


def _profile(
    config: WorkerConfig, places: addresses.Addresses, secret: str, incarnation: Incarnation, *, was_admitted: bool
) -> Profile:
    hello = CorralHello(
        version=__version__,
        features=list(FEATURES),
        secret=secret,
        incarnation=incarnation,
        heartbeat_seconds=config.heartbeat_interval.total_seconds(),
        platform=str(this_platform()),
        one_disk=on_one_disk(config.models_path, config.backends_path),
    )
    return Profile(
        name=node_name(config.node.name, hostname=socket.gethostname(), pid=os.getpid()),
        addresses=places,
        token=config.frontend.registration_token,
        hello=hello,
        labels=config.node.labels,
        max_replicas_per_model=config.node.max_replicas_per_model,
        vram_budget=config.node.vram_budget,
        was_admitted=was_admitted,
    )


def _hardware(config: WorkerConfig) -> Hardware:
    return Hardware(
        models_path=config.models_path,
        disk_timeout=config.disk_timeout,
        capability=CapabilityRule(forced=config.node.capability, run_file=config.node.capability_run_file),
        # NVML is imported only on machines with NVIDIA GPUs.
        gpus=MachineGpus(detectors_of_this_machine(lambda: import_module("pynvml")), timeout=config.gpu_timeout),
        cgroup=Cgroup(),
    )


def _registrar(
    config: WorkerConfig, frontend: FrontendClient, profile: Profile, hardware: Hardware, clock: Clock
) -> Registrar:
    return Registrar(
        frontend=frontend,
        profile=profile,
        gauge=hardware,
        clock=clock,
        backoff=config.frontend.backoff,
        token_attempts=config.frontend.token_attempts,
    )


def _object_handlers(config: WorkerConfig, clock: Clock, stack: AsyncExitStack) -> Mapping[Subject, Handler]:
    """Return the handlers for object storage. Without storage there are none, and frontends send files over HTTP."""
    if config.storage is None:
        return {}
    from corral.files.s3 import S3Objects

    files = ObjectFiles(S3Objects(config.storage), ObjectPlaces.beside(config.models_path), clock)
    stack.push_async_callback(files.close)
    return object_handlers(files)


def _stopper(stop: asyncio.Event) -> Handler:
    """Return the handler of `nodes.<id>.stop`, which ignores the payload and may be called repeatedly."""

    async def handle(_: Message) -> None:
        if not stop.is_set():
            log.info("asked to stop over NATS", extra={"event": "worker.stopping"})
        stop.set()

    return handle


def _introduce(profile: Profile, machine: Machine, last: Memory | None) -> None:
    """Log who starts where, and a warning when the node would not be reachable."""
    facts = {
        "event": "worker.starting",
        "node_name": profile.name,
        "address": profile.addresses.advertise,
        "version": __version__,
        "os": machine.os,
        "architecture": machine.architecture,
        "cpus": machine.cpus,
        "cpu_model": machine.cpu_model,
        "last_node_id": last.id if last else None,
    }
    log.info("worker starting", extra={name: fact for name, fact in facts.items() if fact is not None})
    if not profile.token:
        log.warning(
            "no registration token: with a LocalAI frontend that has none either, everybody who reaches this worker "
            "may read and write its files and use its backends; set one on both sides (LOCALAI_REGISTRATION_TOKEN)",
            extra={"event": "worker.open"},
        )
    if addresses.is_wildcard(profile.addresses.advertise):
        log.warning(
            "advertising %s, which other machines cannot reach; set advertise_address (LOCALAI_ADVERTISE_ADDR)",
            profile.addresses.advertise,
            extra={"event": "worker.unreachable"},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Surrounding:
    """What the backend part needs from the rest of the worker."""

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
    inventory: InventoryReports
    handlers: Mapping[Subject, Handler]

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
    ranges = usable_ranges(places.base_port, places.max_port, ephemeral_ports())
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
    )
    reports = InstallReports(surrounding.bus, clock)
    inventory = InventoryReports(backends.listing, surrounding.bus, surrounding.presence)
    await stack.enter_async_context(running(inventory.run(), name="inventory"))
    of_backends = BackendHandlers(backends, reports=reports, changed=inventory.ring, advertised=places.advertise)
    models = WorkerModels(supervisor, connect=_connect, free_within=config.supervision.free_within)
    # The cache of object storage holds model files too; LocalAI's worker omits it.
    cached = () if config.storage is None else ObjectPlaces.beside(config.models_path).cached_models
    of_models = ModelHandlers(models, ModelFiles(config.models_path, *cached))
    handlers = {**of_backends.table(), **of_models.table()}
    return BackendPart(supervisor=supervisor, installer=installer, inventory=inventory, handlers=handlers)


def _adapters(config: WorkerConfig, places: addresses.Addresses, ports: Ports, clock: Clock) -> Adapters:
    def command(descriptor: int, place: addresses.HostPort) -> ChildCommand:
        orders, name = ["--orders", str(descriptor)], f"{config.log_name}-adapter"
        argv = adapter_argv(orders, listen=str(place), logs=config.logs, log_name=name)
        return ChildCommand(argv=argv, env=config.backend_environment, handed_over=[descriptor])

    source = AdapterProcesses(bind_host=places.backend_bind, command=command, ports=ports, config=config.adapter)
    return Adapters(source, clock, config.adapter)


def _supervisor(surrounding: Surrounding, ports: Ports) -> Supervisor:
    config, presence = surrounding.config, surrounding.presence
    return Supervisor(
        surroundings=ProcessDefaults(
            bind_host=surrounding.places.backend_bind,
            environment=config.backend_environment,
            token=lambda: presence.bearer,
            limits=config.supervision,
        ),
        ports=ports,
        connect=_connect,
        logs=surrounding.logs,
        remains=Remains(config.data_path / "processes", mark_variable=MARK_VARIABLE),
        exits=ExitReports(surrounding.bus, presence),
    )


def _connect(address: str, token: str) -> BackendLink:
    """Connect to a backend. gRPC is imported only here: it costs memory and time that an idle worker saves."""
    from corral.rpc.backend import Backend

    return Backend(address, token=token)
