"""The worker process: builds its parts, runs them until a stop, and returns an exit code."""

import asyncio
import dataclasses
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Final

import msgspec
import uvloop
from aiohttp import ClientSession
from msgspec.structs import replace

from corral import __version__
from corral.base.clock import Clock, SystemClock
from corral.base.disclosure import basic_environment
from corral.base.errors import CorralError, PeerRefused
from corral.base.http_client import open_session
from corral.base.ids import Incarnation, NodeId, new_incarnation
from corral.base.private_files import held, make_private_directory
from corral.base.processes import ChildCommand, allow_descriptors, look_for_garbage_rarely
from corral.base.tasks import running, stop_on_signals
from corral.bus.client import NatsBus
from corral.bus.port import Handler, Message
from corral.oci.manifests import this_platform
from corral.processes.adapter_child import child_argv
from corral.processes.exit_codes import ExitCode, exit_code_of, sole_cause
from corral.processes.worker_backends import Surrounding, open_backends, open_confiner
from corral.wire import subjects
from corral.wire.joining import fingerprint_of
from corral.wire.keys import hash_secret
from corral.wire.registration import CorralHello, Feature, NatsLogin, features
from corral.worker.callers import CallerLimits, fitting
from corral.worker.config import FrontendConfig, WorkerConfig
from corral.worker.confinement.confiner import Confiner
from corral.worker.door.entrance import Entrance, PlainEntrance
from corral.worker.files.keys import refuse_private
from corral.worker.files.object_cache import ObjectPlaces
from corral.worker.files.object_files import ObjectFetches, ObjectFiles, object_handlers
from corral.worker.files.serving import FileMember, FileServing
from corral.worker.hardware.gpus import MachineGpus, detectors_of_this_machine
from corral.worker.hardware.machine import CapabilityRule, Cgroup, Hardware, Machine, memory_pool, on_one_disk, read_ram
from corral.worker.http import HttpServer, readiness_problems, try_to_listen
from corral.worker.membership import addresses
from corral.worker.membership.frontend_client import FrontendClient
from corral.worker.membership.heartbeat import HeartbeatLoop
from corral.worker.membership.identity import JoinedFleet, Memory, NatsUser, NodeIdentity, node_name
from corral.worker.membership.lifecycle import Departure, Membership, NodeSubscriptions, Subject, run_member
from corral.worker.membership.own_addresses import OwnAddresses, host_towards
from corral.worker.membership.registration import Presence, Profile, Registrar
from corral.worker.membership.reports import InventoryReports
from corral.worker.membership.trust import NoPin, Trust
from corral.worker.processes.backend_logs import BackendLogs, LogRoutes

log = logging.getLogger(__name__)

LOCK_FILE: Final = "worker.lock"
_DESCRIPTORS: Final = 65536
"""Files and sockets that a worker may open, where the machine allows so many: as many as its door."""


def main(config: WorkerConfig) -> ExitCode:
    """Run one worker to its end. The first SIGTERM or SIGINT makes it leave in order, the second at once."""

    async def run_until_signalled() -> ExitCode:
        stop, hurry = asyncio.Event(), asyncio.Event()
        with stop_on_signals(stop, hurry=hurry.set):
            return await run_worker(config, stop, hurry=hurry)

    look_for_garbage_rarely()
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
    places = addresses.decide(config.addresses, await _own_host(config))
    refuse_private(models=config.models_path, staging=config.files.staging_path, private=config.data_path)
    if not config.data_path.exists():
        try_to_listen(places.http_bind)  # a refused start leaves nothing behind
    async with AsyncExitStack() as stack:
        stack.enter_context(_data_held(config.data_path))
        node = await _node(config, places, clock)
        entrance = _entrance(config, places, node.presence, clock)
        files = await _open_files(stack, node, entrance)
        http = await _open_http(stack, node, entrance, files)
        await stack.enter_async_context(node.bus)
        surrounding = Surrounding(
            config=config,
            places=entrance.places,
            presence=node.presence,
            bus=node.bus,
            clock=clock,
            logs=node.logs,
            cards=lambda: node.hardware.cards,
            confiner=node.confiner,
        )
        backends = await open_backends(stack, surrounding, capability=(await node.hardware.measure()).capability)
        # By the machine's own clock: what the network does has nothing to do with policy.
        tried = () if config.fleet_tls else backends.port_ranges  # behind the door nobody reaches them from outside
        own_addresses = OwnAddresses(
            entrance.places, tried, backends.ports.is_free, me=node.hello.incarnation, clock=SystemClock()
        )
        await stack.enter_async_context(running(own_addresses.run(), name="own addresses"))
        session = open_session(timeout=config.frontend.timeout, connect_timeout=config.frontend.connect_timeout)
        fleet = _trusted(config, await stack.enter_async_context(session))
        frontend = FrontendClient(session, config.frontend.urls, fleet)
        await entrance.join(stack, frontend, backends.ports)
        handlers = {
            subjects.node_stop: _stopper(stop),
            **backends.handlers,
            **_object_handlers(config, files, clock, stack),
        }
        membership = _membership(
            node,
            frontend,
            fleet,
            handlers,
            backends.inventory,
            lambda: (*own_addresses.problems, *entrance.problems(), *node.user.problems()),
        )
        departure = Departure(
            frontend=frontend, calls=backends.calls, clock=clock, config=config.departure, hurry=hurry
        )
        await run_member(stop, membership=membership, departure=departure, presence=node.presence)
        # Before NATS is drained, so that waiting requests still get an answer.
        await backends.close(force=hurry.is_set())
        await http.close()  # before the drain too, so that no new request arrives meanwhile


class _OwnNode(msgspec.Struct, frozen=True, kw_only=True):
    """Who this worker is, and what it knows of its machine."""

    config: WorkerConfig
    clock: Clock
    identity: NodeIdentity
    presence: Presence
    profile: Profile
    user: NatsUser
    bus: NatsBus
    logs: BackendLogs
    hardware: Hardware
    confiner: Confiner

    @property
    def hello(self) -> CorralHello:
        return self.profile.hello


async def _node(config: WorkerConfig, places: addresses.Addresses, clock: Clock) -> _OwnNode:
    identity, presence = NodeIdentity(config.data_path), Presence()
    remembered = identity.remembered()
    needs_login = config.nats_require_auth or config.frontend.require_auth
    user = NatsUser(clock, backoff=config.nats_user_retry, settings=config.bus, needs_login=needs_login)
    hello = _hello(config, identity.secret(), new_incarnation(), user.login)
    profile = _profile(config, places, hello, was_admitted=remembered is not None)
    confiner = await open_confiner(config, presence)
    hello.confinement = await asyncio.to_thread(confiner.report)
    hardware = _hardware(config)
    _introduce(profile, hardware.machine(), remembered)
    for name in config.withheld_tokens:
        log.warning(
            "backends do not get %s; if some of them fetch models that need it, name it in backend_environment "
            "(CORRAL_BACKEND_ENVIRONMENT=%s)",
            name,
            name,
            extra={"event": "worker.withholds"},
        )
    bus = NatsBus(
        dataclasses.replace(config.bus, url=user.first_url),
        name=f"corral worker {profile.name}",
        credentials=user.provider,
        overlaps=True,
    )
    user.follow(bus)
    return _OwnNode(
        config=config,
        clock=clock,
        identity=identity,
        presence=presence,
        profile=profile,
        user=user,
        bus=bus,
        logs=BackendLogs(clock),
        hardware=hardware,
        confiner=confiner,
    )


async def _open_files(stack: AsyncExitStack, node: _OwnNode, entrance: Entrance) -> FileServing:
    """Open the file server. It uses the machine's clock even in tests, because files have the machine's times."""
    config = node.config
    member = replace(_file_member(config, node.profile, node.presence), tls=entrance.context)
    serving = FileServing(config.files, models=config.models_path, clock=SystemClock(), member=member)
    return await stack.enter_async_context(serving)


async def _open_http(stack: AsyncExitStack, node: _OwnNode, entrance: Entrance, files: FileServing) -> HttpServer:
    presence, profile = node.presence, node.profile
    serve_health = partial(
        HttpServer,
        readiness=lambda: [*readiness_problems(presence, node.bus), *entrance.problems()],
        bearers=tuple,
        me=node.hello.incarnation,
        limits=fitting(CallerLimits(), allow_descriptors(_DESCRIPTORS)),
    )
    serve = partial(
        serve_health,
        # The shared token is used only with a frontend that supports no other: LocalAI's.
        bearers=lambda: (profile.hello.secret, presence.bearer),
        routes=(*files.routes, LogRoutes(node.logs)),
        admits=files.admits,
        is_open=lambda: not profile.token and presence.is_with_localai,
    )
    return await entrance.open(stack, lambda at: serve(address=at), lambda at: serve_health(address=at))


def _membership(
    node: _OwnNode,
    frontend: FrontendClient,
    fleet: Trust,
    handlers: Mapping[Subject, Handler],
    inventory: InventoryReports,
    problems: Callable[[], Sequence[str]],
) -> Membership:
    config, profile = node.config, node.profile
    heartbeat = HeartbeatLoop(
        frontend=frontend,
        gauge=node.hardware,
        clock=node.clock,
        interval=config.heartbeat_interval,
        incarnation=Incarnation(node.hello.incarnation),
        inventory=inventory.tell,
        problems=problems,
        on_status=node.user.note_status,
    )
    return Membership(
        registrar=_registrar(config, frontend, profile, node.hardware, node.clock),
        subscriptions=NodeSubscriptions(node.bus, handlers),
        heartbeat=heartbeat,
        presence=node.presence,
        remember=lambda node_id: _remember(node.identity, node_id, profile.name, config.frontend, fleet),
        nats_user=node.user,
    )


def _entrance(config: WorkerConfig, places: addresses.Addresses, presence: Presence, clock: Clock) -> Entrance:
    """How this worker is reached. Where TLS is off, the library of certificates is not even imported."""
    if not config.fleet_tls:
        return PlainEntrance(places)
    from corral.worker.door.tls_entrance import TlsEntrance

    def command(orders: int, listener: int) -> ChildCommand:
        words = ["--orders", str(orders), "--listener", str(listener), "--log-name", f"{config.log_name}-door"]
        argv = child_argv("corral.processes.door", words, config.logs)
        environment = basic_environment(config.backend_environment)
        return ChildCommand(argv=argv, env=environment, handed_over=[orders], shared=[listener])

    return TlsEntrance(places, command, presence, clock)


async def _own_host(config: WorkerConfig) -> str:
    """How others reach this machine, unless the settings say it. Of a machine that joins by a URL alone, nobody may
    know the name, but the frontend's network knows its address."""
    host = await host_towards(config.frontend.urls) if config.frontend.is_joining else ""
    return host or socket.gethostname()


def _data_held(path: Path) -> AbstractContextManager[None]:
    """Lock the data directory: two workers with one secret would be one node in two places."""
    make_private_directory(path)
    return held(path / LOCK_FILE, f"another worker uses the data directory {path}; give each worker its own")


def _hello(config: WorkerConfig, secret: str, incarnation: Incarnation, nats_login: NatsLogin) -> CorralHello:
    return CorralHello(
        version=__version__,
        features=features(Feature.FLEET_TLS) if config.fleet_tls else features(),
        secret=secret,
        incarnation=incarnation,
        heartbeat_seconds=config.heartbeat_interval.total_seconds(),
        platform=str(this_platform()),
        one_disk=on_one_disk(config.models_path, config.backends_path),
        memory_pool=memory_pool(read_ram(), Cgroup()),
        nats_login=nats_login,
    )


def _profile(config: WorkerConfig, places: addresses.Addresses, hello: CorralHello, *, was_admitted: bool) -> Profile:
    return Profile(
        name=node_name(config.node.name, hostname=socket.gethostname(), pid=os.getpid()),
        addresses=places,
        token=_presented(config.frontend, hello.secret),
        hello=hello,
        has_code=config.frontend.is_joining and bool(config.frontend.join_code),
        labels=config.node.labels,
        max_replicas_per_model=config.node.max_replicas_per_model,
        vram_budget=config.node.vram_budget,
        was_admitted=was_admitted,
    )


def _presented(frontend: FrontendConfig, secret: str) -> str:
    """The credential to use until the node has its own secret. A worker that joins by a code has no registration
    token."""
    if frontend.is_joining:
        return frontend.join_code or secret
    return frontend.registration_token


def _trusted(config: WorkerConfig, session: ClientSession) -> Trust:
    """Decide which URLs may get this machine's secrets.

    The library of signatures is imported only if a fleet is pinned.
    """
    if not config.frontend.is_joining and not config.frontend.fleet_pin:
        return NoPin()
    from corral.worker.membership.pinned_fleet import PinnedFleet

    return PinnedFleet(session, config.frontend.fleet_pin)


def _remember(identity: NodeIdentity, node_id: NodeId, name: str, frontend: FrontendConfig, fleet: Trust) -> None:
    identity.remember(node_id, name)
    if frontend.is_joining and fleet.pin:
        identity.remember_fleet(JoinedFleet(urls=frontend.urls, pin=fleet.pin))


def _file_member(config: WorkerConfig, profile: Profile, presence: Presence) -> FileMember:
    """Who the file server is for other workers, as far as that is known at a moment."""

    def may_ask() -> bool:
        frontend = presence.member
        return frontend is not None and frontend.is_corral and Feature.FILE_FETCHES in frontend.features

    return FileMember(
        node_id=lambda: "" if presence.member is None else presence.member.node_id,
        secret=lambda: profile.hello.secret,
        network=config.images.network,
        environment=config.images.environment,
        may_ask=may_ask,
    )


def _hardware(config: WorkerConfig) -> Hardware:
    return Hardware(
        models_path=config.models_path,
        disk_timeout=config.disk_timeout,
        capability=CapabilityRule(forced=config.node.capability, run_file=config.node.capability_run_file),
        # NVML is imported only on machines with NVIDIA GPUs.
        gpus=MachineGpus(detectors_of_this_machine(lambda: import_module("pynvml")), timeout=config.gpu_timeout),
        cgroup=Cgroup(),
        environment=config.backend_environment,
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
        token_patience=config.frontend.token_patience,
    )


def _object_handlers(
    config: WorkerConfig, file_server: FileServing, clock: Clock, stack: AsyncExitStack
) -> Mapping[Subject, Handler]:
    """Return the handlers for object storage. Without storage there are none, and frontends send files over HTTP."""
    if config.storage is None:
        return {}
    from corral.files.s3 import S3Objects

    storage = S3Objects(config.storage)
    files = ObjectFiles(storage, ObjectPlaces.beside(config.models_path), clock)
    fetches = ObjectFetches(storage, file_server.store, file_server.threads)
    stack.push_async_callback(files.close)
    stack.push_async_callback(fetches.close)
    return object_handlers(files, fetches)


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
        "fingerprint": fingerprint_of(hash_secret(profile.hello.secret)),
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
