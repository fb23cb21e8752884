"""The control process: what it opens, its rooms, built in order, and their end in reverse order."""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from typing import Final, NamedTuple

import msgspec

from corral.base.clock import Clock, SystemClock
from corral.base.ids import FrontendId, new_frontend_id
from corral.base.private_files import bind_private_socket, make_private_directory
from corral.base.tasks import run_services
from corral.bus.client import NatsBus
from corral.bus.port import Bus
from corral.files.storage import SharedStorage
from corral.frontend.access.fleet_tls import FleetTls, NoAuthority
from corral.frontend.access.keys import Credentials, FirstKeys
from corral.frontend.access.room import AccessRoom
from corral.frontend.access.sealing import SealingKeys
from corral.frontend.access.store.keys import Keys
from corral.frontend.api.route import AdminContext
from corral.frontend.app import AdminServer, bind, build_app
from corral.frontend.backends.catalogue import Lookups
from corral.frontend.backends.decide.backend import with_alias_kept
from corral.frontend.backends.operations import BackendKind
from corral.frontend.backends.room import BackendsRoom
from corral.frontend.backends.store import write_reports
from corral.frontend.config import ControlConfig
from corral.frontend.diagnosis.readiness import ControlReadiness
from corral.frontend.engines.addresses import place_of
from corral.frontend.engines.room import EnginesRoom
from corral.frontend.live.pictures import PictureSources
from corral.frontend.live.room import LiveRoom
from corral.frontend.models.removal import ModelKind
from corral.frontend.models.room import DownloadSettings, ModelsRoom, PullRoom
from corral.frontend.models.store.models import ModelRemovals
from corral.frontend.models.store.stores import ModelStores
from corral.frontend.models.stores import StoreKeeper
from corral.frontend.nodes.fleet_key import FleetKey
from corral.frontend.nodes.room import NodeSettings, NodesRoom
from corral.frontend.nodes.store.nats_users import revoke_users_of
from corral.frontend.nodes.store.nodes import Nodes
from corral.frontend.operations.decide.intent import IntentKind
from corral.frontend.operations.room import OperationsRoom, OperationStores
from corral.frontend.operations.service import Retention
from corral.frontend.operations.store.intents import Intents, cancel_intents_of
from corral.frontend.operations.store.operations import OperationStore
from corral.frontend.record.room import Foundation, RecordRoom
from corral.frontend.rules.room import RulesRoom
from corral.frontend.rules.service import RuleGuard
from corral.frontend.rules.store import FleetRuleStore
from corral.frontend.serving.gateways.reports import KeySpread, ModelSpread
from corral.frontend.serving.loading.model_loader import BackendLoader, GrpcLoader, UsualLimits
from corral.frontend.serving.room import EarlierRooms, ServingRoom, ServingSettings
from corral.frontend.serving.scheduling import read_seed_file
from corral.frontend.serving.staging.store import forget_staged_model, forget_staged_of
from corral.frontend.serving.store.load_jobs import stop_serving
from corral.frontend.serving.store.replicas import ReplicaStore, lose_replicas_of, move_replicas_of
from corral.frontend.store.db import Database
from corral.frontend.store.leases import free_all
from corral.frontend.store.secrets import Secrets
from corral.oci.limits import Network
from corral.processes.control_data import data_disk, fleet_data, load_secrets_key, open_database
from corral.processes.control_links import frontend_user, nats_offer, open_lookups, open_storage, warn_of_shared_logins
from corral.processes.probe import http_url
from corral.wire.view import AffinityEntry

log = logging.getLogger(__name__)

_NOWHERE: Final = Lookups()


class Stores(NamedTuple):
    database: Database
    secrets: Secrets


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the control process consists of, built and not yet running."""

    context: AdminContext
    credentials: Credentials

    async def run(self, stop: asyncio.Event, server: AdminServer) -> None:
        """Run until `stop`; then end event streams, finish the requests in progress, and cancel the loops."""
        context = self.context
        for room in (context.record, context.operations, context.backends, context.serving):
            for subject, handler in room.subscriptions().items():
                await context.bus.subscribe(subject, handler)

        def end_streams() -> None:
            context.stopping.set()
            context.record.feed.ring()
            context.serving.view.ring()
            context.live.hub.ring()

        await run_services(stop, server=server.run(ending=end_streams), **self.loops())

    def loops(self) -> dict[str, Coroutine[None, None, None]]:
        """Return what runs beside the server, by the name that it has in logs."""
        context, record = self.context, self.context.record
        loops = record.loops()
        rooms = (context.nodes, context.operations, context.backends, context.models, context.pulls, context.engines)
        for room in (*rooms, context.serving, context.rules, context.live):
            loops |= room.loops(record)
        loops |= context.access.loops(record) | context.readiness.loops(record)
        return {name: loop() for name, loop in loops.items()}


async def build_control(  # noqa: PLR0913 - what control stands on
    config: ControlConfig,
    clock: Clock,
    stores: Stores,
    bus: Bus,
    *,
    loader: BackendLoader | None = None,
    lookups: Lookups = _NOWHERE,
    storage: SharedStorage | None = None,
) -> Control:
    """Build all rooms, each from those before it. What later rooms do for earlier ones is passed in or plugged here.

    The first keys are made here too, since nodes and callers are known by them.
    """
    database, secrets = stores
    frontend_id = FrontendId(config.instance_id) if config.instance_id else new_frontend_id()
    foundation = Foundation.build(database, secrets, bus, clock, frontend_id)
    sealing = SealingKeys.build(foundation, None if config.secrets_key else config.secrets_key_file)
    await sealing.look()  # before anything is sealed: from here on no change of the key ends without this frontend
    credentials = await FirstKeys(Keys(database), secrets, clock.now).ensure(
        configured_token=config.registration_token, file=config.credentials_file
    )
    guard = RuleGuard(FleetRuleStore(database).all, lookups.galleries)
    replicas, readiness = ReplicaStore(database, secrets), ControlReadiness(database, bus, data_disk(config))
    keeper = StoreKeeper(ModelStores(database), config.models_path, clock, frontend_id=frontend_id)

    rooms = await _build_earlier_rooms(
        config, foundation, lookups, replicas, keeper, credentials=credentials, guard=guard
    )
    serving = _build_serving(
        config, foundation, rooms, replicas, readiness, loader=loader or GrpcLoader(), storage=storage
    )
    _plug_kinds(config, rooms, serving, lookups)
    spread = ModelSpread(serving.view, serving.gateways, clock)
    rooms.models.changes.on_changed.append(spread.reach)
    await _seed_scheduling(config, serving)
    access = _build_access(config, foundation, rooms.record, serving, credentials, sealing)
    serving.gateways.on_news.append(access.key_use.hear_report)
    context = AdminContext(
        config=config,
        database=database,
        secrets=secrets,
        bus=bus,
        clock=clock,
        frontend_id=frontend_id,
        record=rooms.record,
        access=access,
        nodes=rooms.nodes,
        operations=rooms.operations,
        backends=rooms.backends,
        models=rooms.models,
        pulls=_build_pulls(config, foundation, rooms.operations, rooms.models, keeper, lookups),
        engines=rooms.engines,
        serving=serving,
        rules=_build_rules(foundation, rooms, guard),
        live=_build_live(config, foundation, rooms, serving, readiness, sealing),
        readiness=readiness,
        stopping=asyncio.Event(),
    )
    return Control(context=context, credentials=credentials)


async def _build_earlier_rooms(  # noqa: PLR0913 - each is a collaborator
    config: ControlConfig,
    foundation: Foundation,
    lookups: Lookups,
    replicas: ReplicaStore,
    keeper: StoreKeeper,
    *,
    credentials: Credentials,
    guard: RuleGuard,
) -> EarlierRooms:
    """Build the rooms that serving stands on, each from those before it."""
    record = await RecordRoom.build(foundation)
    fleet_key = await FleetKey.load(
        foundation.secrets, [config.tls_cert, config.public_cert], _public_key_hash, at=foundation.clock.now()
    )
    nodes = await _build_nodes(config, foundation, record, credentials, fleet_key)
    await keeper.measure()
    operations = _build_operations(config, foundation, record, nodes, guard, keeper)
    backends = BackendsRoom.build(
        foundation, nodes, operations, lookups, guard=guard, policy=config.upgrades, feed=record.feed
    )
    models = await _build_models(config, foundation, record, nodes, operations, replicas, lookups)
    engines = _build_engines(config, foundation, record, nodes, models, replicas)
    return EarlierRooms(
        record=record, nodes=nodes, operations=operations, backends=backends, models=models, engines=engines
    )


def _build_serving(  # noqa: PLR0913 - each is a collaborator
    config: ControlConfig,
    foundation: Foundation,
    rooms: EarlierRooms,
    replicas: ReplicaStore,
    readiness: ControlReadiness,
    *,
    loader: BackendLoader,
    storage: SharedStorage | None,
) -> ServingRoom:
    settings = _serving_settings(config)
    return ServingRoom.build(
        foundation, rooms, settings, replicas, loader=loader, problems=readiness.known, storage=storage
    )


def _build_rules(foundation: Foundation, rooms: EarlierRooms, guard: RuleGuard) -> RulesRoom:
    return RulesRoom.build(foundation, rooms.record, rooms.nodes, rooms.operations, rooms.backends, guard=guard)


def _build_live(
    config: ControlConfig,
    foundation: Foundation,
    rooms: EarlierRooms,
    serving: ServingRoom,
    readiness: ControlReadiness,
    sealing: SealingKeys,
) -> LiveRoom:
    sources = PictureSources(
        feed=rooms.record.feed,
        nodes=rooms.nodes,
        operations=rooms.operations,
        backends=rooms.backends,
        models=rooms.models.catalogue,
        serving=serving,
        readiness=readiness,
        sealing=sealing,
    )
    return LiveRoom.build(foundation, rooms.record, sources, drain_within=config.room.drain)


async def _build_nodes(
    config: ControlConfig,
    foundation: Foundation,
    record: RecordRoom,
    credentials: Credentials,
    fleet_key: FleetKey,
) -> NodesRoom:
    settings = NodeSettings(
        liveness=config.liveness,
        admission=config.admission,
        brake_share=config.brake_share,
        minter=config.minter,
        nats_offer=None if config.minter is None else nats_offer(config),
        revoker=config.revoker,
    )
    forget = (lose_replicas_of, cancel_intents_of, forget_staged_of, revoke_users_of)
    nodes = Nodes(
        foundation.database,
        on_removal=forget,
        on_suspicion=(lose_replicas_of, revoke_users_of),
        on_move=(move_replicas_of,),
    )
    token = credentials.registration_token
    tls = await _fleet_tls(config, foundation)
    return NodesRoom.build(foundation, record, settings, nodes, registration_token=token, fleet_key=fleet_key, tls=tls)


def _public_key_hash(pem: bytes) -> str:
    """Hash the public key of a certificate. The library of certificates is imported with the first one."""
    from corral.base.tls_keys import public_key_hash

    return public_key_hash(pem)


async def _fleet_tls(config: ControlConfig, foundation: Foundation) -> FleetTls:
    """TLS inside the fleet. Where it is off, the library of certificates is not even imported."""
    if not config.tls.is_on:
        return FleetTls(NoAuthority(), config.tls, foundation.clock)
    from corral.frontend.access.authority import FleetAuthority

    authority = await FleetAuthority.load(foundation.secrets, foundation.clock)
    return FleetTls(authority, config.tls, foundation.clock)


async def _build_models(  # noqa: PLR0913 - each is a collaborator
    config: ControlConfig,
    foundation: Foundation,
    record: RecordRoom,
    nodes: NodesRoom,
    operations: OperationsRoom,
    replicas: ReplicaStore,
    lookups: Lookups,
) -> ModelsRoom:
    return await ModelsRoom.build(
        foundation,
        record,
        nodes,
        operations,
        config.models_path,
        removals=ModelRemovals(
            foundation.database, operations.stores.operations, on_removal=(stop_serving, forget_staged_model)
        ),
        is_served=replicas.serve,
        lookups=lookups,
        replicas=replicas.revisions_of,
    )


def _build_engines(
    config: ControlConfig,
    foundation: Foundation,
    record: RecordRoom,
    nodes: NodesRoom,
    models: ModelsRoom,
    replicas: ReplicaStore,
) -> EnginesRoom:
    async def places() -> set[tuple[str, int]]:
        """Where nodes and replicas listen."""
        addresses = [address for node in await nodes.store.all() for address in (node.address, node.http_address)]
        addresses += [address for each in await replicas.living() for address in (each.address, each.url)]
        return {place for address in addresses if (place := place_of(address)) is not None}

    servers = (place_of(url.strip()) for url in config.bus.url.split(","))
    ports = {config.port, *(place[1] for place in servers if place is not None)} - {0}
    return EnginesRoom.build(foundation, record, models, fleet=places, own_ports=ports)


def _build_operations(
    config: ControlConfig,
    foundation: Foundation,
    record: RecordRoom,
    nodes: NodesRoom,
    guard: RuleGuard,
    stores_there: StoreKeeper,
) -> OperationsRoom:
    return OperationsRoom.build(
        foundation,
        record,
        nodes,
        OperationStores(
            operations=OperationStore(foundation.database, with_alias_kept),
            intents=Intents(foundation.database, write_reports),
        ),
        guard=guard,
        stores_there=stores_there,
        policy=config.intents,
        retention=Retention(events=config.event_retention, operations=config.operation_retention),
    )


def _build_pulls(
    config: ControlConfig,
    foundation: Foundation,
    operations: OperationsRoom,
    models: ModelsRoom,
    keeper: StoreKeeper,
    lookups: Lookups,
) -> PullRoom:
    settings = DownloadSettings(
        policy=config.pulls,
        network=Network() if config.hubs is None else config.hubs.network,
        may_redirect_inside=config.hubs is not None and config.hubs.private_redirects,
        environment={} if config.images is None else config.images.environment,
        private=config.data,
    )
    return PullRoom.build(foundation, operations, models, keeper, settings, hub=lookups.hub)


def _serving_settings(config: ControlConfig) -> ServingSettings:
    return ServingSettings(
        loads=config.loads,
        staging=config.staging,
        scaling=config.scaling,
        room=config.room,
        usual=UsualLimits(threads=config.threads, most_tokens=config.most_tokens),
        admin_keys=config.admin_keys,
        affinity=AffinityEntry(seconds=config.prefix_memory.total_seconds()) if config.prefix_routing else None,
        metrics_public=config.metrics_public,
        adapter_socket=config.adapter_socket,
        adapter_secret=config.gateway_key.encode() or os.urandom(32),
    )


async def _seed_scheduling(config: ControlConfig, serving: ServingRoom) -> None:
    """Write the rules of scheduling that settings name; those of a file come after those of a text."""
    file = config.model_scheduling_file
    declared = () if file is None else await asyncio.to_thread(read_seed_file, file)
    await serving.scheduling.seed((*config.model_scheduling, *declared))


def _plug_kinds(config: ControlConfig, rooms: EarlierRooms, serving: ServingRoom, lookups: Lookups) -> None:
    """Two kinds move replicas out of the way before they act on a node, which only serving can do."""
    client, moves, policy = rooms.nodes.client, serving.rollout, config.intents
    policies = rooms.backends.policies
    backend_kind = BackendKind(
        rooms.backends.inventory, client, lookups.images, moves, policy=policy, policies=policies
    )
    rooms.operations.dispatcher.handle(IntentKind.BACKEND, backend_kind)
    rooms.operations.dispatcher.handle(IntentKind.MODEL, ModelKind(client, moves, policy))
    rooms.operations.dispatcher.handle(IntentKind.STAGING, serving.staging_kind)


def _build_access(
    config: ControlConfig,
    foundation: Foundation,
    record: RecordRoom,
    serving: ServingRoom,
    credentials: Credentials,
    sealing: SealingKeys,
) -> AccessRoom:
    return AccessRoom.build(
        foundation,
        record,
        audience=KeySpread(serving.view, serving.gateways, foundation.clock),
        registration_token=credentials.registration_token,
        joins_by_token=config.admission.registration_by_token,
        trusted_token=config.trusted_registration_token,
        gateway_key=config.gateway_key,
        admin_keys=config.admin_keys,
        logins=config.logins,
        sealing=sealing,
    )


@asynccontextmanager
async def open_control(
    config: ControlConfig, *, clock: Clock | None = None
) -> AsyncIterator[tuple[Control, AdminServer]]:
    """Bind, open the database, make the first keys, connect to NATS. Nothing is served yet."""
    the_clock = clock or SystemClock()
    async with AsyncExitStack() as stack:
        make_private_directory(config.data)
        fleet = fleet_data(config)
        with ExitStack() as early:
            # A taken port is reported before anything else; a socket is taken last, when the database is ours.
            port = early.enter_context(bind(config.host, config.port)) if config.socket is None else None
            database = await stack.enter_async_context(open_database(fleet))
            if database.is_ours_alone:
                await free_all(database, at=the_clock.now())
            listener = stack.enter_context(port or bind_private_socket(config.socket or config.data / "control.sock"))
            early.pop_all()
        key = await load_secrets_key(config, database)
        stores = Stores(database, await Secrets.open(database, key, at=the_clock.now()))
        warn_of_shared_logins(config)
        credentials = frontend_user(config, the_clock)
        bus = await stack.enter_async_context(NatsBus(config.bus, name="corral-control", credentials=credentials))
        lookups = await stack.enter_async_context(open_lookups(config, the_clock))
        storage = await stack.enter_async_context(open_storage(config.storage))
        control = await build_control(config, the_clock, stores, bus, lookups=lookups, storage=storage)
        await fleet.confirm(stores.secrets, at=the_clock.now())
        yield control, AdminServer(build_app(control.context), listener)


async def run_control(
    config: ControlConfig, stop: asyncio.Event, *, announce_keys: Callable[[Credentials, ControlConfig], None]
) -> None:
    """Run a control process to its end. `announce_keys` gets the keys that this start made, which may be none."""
    async with open_control(config) as (control, server):
        announce_keys(control.credentials, config)
        url = f"unix:{config.socket}" if config.socket else http_url(config.host, server.port)
        log.info("control is ready", extra={"event": "control.ready", "url": url})
        await control.run(stop, server)
        log.info("control stops", extra={"event": "control.stopping"})
