"""The control process: what it opens, its rooms, built in order, and their end in reverse order."""

import asyncio
import itertools
import logging
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, NamedTuple

from corral.base.clock import Clock, SystemClock
from corral.base.errors import DatabaseUnavailable, SecretsKeyMismatch
from corral.base.ids import FrontendId, new_frontend_id
from corral.base.private_files import bind_private_socket, make_private_directory
from corral.base.retry import Backoff
from corral.base.tasks import run_services
from corral.bus.client import NatsBus
from corral.bus.port import Bus
from corral.bus.replies import FRONTEND_INBOX
from corral.frontend.access.keys import Credentials, FirstKeys
from corral.frontend.access.room import AccessRoom
from corral.frontend.access.store import Keys
from corral.frontend.api.route import AdminContext
from corral.frontend.app import AdminServer, bind, build_app
from corral.frontend.backends.catalogue import GalleryCatalogue, Lookups, RegistryImages
from corral.frontend.backends.decide.backend import with_alias_kept
from corral.frontend.backends.operations import BackendKind
from corral.frontend.backends.room import BackendsRoom
from corral.frontend.backends.store import write_reports
from corral.frontend.config import ControlConfig
from corral.frontend.diagnosis.readiness import ControlReadiness
from corral.frontend.models.pull_room import DownloadSettings, PullRoom
from corral.frontend.models.removal import ModelKind
from corral.frontend.models.room import ModelsRoom
from corral.frontend.models.store.removals import ModelRemovals
from corral.frontend.models.store.stores import ModelStores
from corral.frontend.models.stores import StoreKeeper
from corral.frontend.nodes.room import NodeSettings, NodesRoom
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
from corral.frontend.serving.gateway_reports import KeySpread
from corral.frontend.serving.model_loader import BackendLoader, GrpcLoader, UsualLimits
from corral.frontend.serving.room import EarlierRooms, ServingRoom, ServingSettings
from corral.frontend.serving.store.load_jobs import stop_serving
from corral.frontend.serving.store.replicas import ReplicaStore, lose_replicas_of
from corral.frontend.store.db import Database
from corral.frontend.store.leases import free_all
from corral.frontend.store.migrations import upgrade
from corral.frontend.store.secrets import Secrets, SecretsKey, was_sealed
from corral.galleries.fetching import RegistryArtefacts
from corral.galleries.galleries import open_galleries
from corral.galleries.model_galleries import open_model_galleries
from corral.hubs.access import HubAccess
from corral.oci.limits import Network
from corral.processes.probe import http_url

log = logging.getLogger(__name__)

_NOWHERE: Final = Lookups()
_DATABASE_PATIENCE: Final = timedelta(seconds=60)
"""How long a start waits for a database that does not answer, before it says so and ends."""


class Stores(NamedTuple):
    database: Database
    secrets: Secrets


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
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

        await run_services(stop, server=server.run(ending=end_streams), **self.loops())

    def loops(self) -> dict[str, Coroutine[None, None, None]]:
        """Return what runs beside the server, by the name that it has in logs."""
        context, record = self.context, self.context.record
        loops = record.loops()
        rooms = (context.nodes, context.operations, context.backends, context.models, context.pulls)
        for room in (*rooms, context.serving, context.rules):
            loops |= room.loops(record)
        return {name: loop() for name, loop in loops.items()}


async def build_control(
    config: ControlConfig,
    clock: Clock,
    stores: Stores,
    bus: Bus,
    *,
    loader: BackendLoader | None = None,
    lookups: Lookups = _NOWHERE,
) -> Control:
    """Build all rooms, each from those before it. What later rooms do for earlier ones is passed in or plugged here.

    The first keys are made here too, since nodes and callers are known by them.
    """
    database, secrets = stores
    credentials = await FirstKeys(Keys(database), secrets, clock.now).ensure(
        configured_token=config.registration_token, file=config.credentials_file
    )
    frontend_id = FrontendId(config.instance_id) if config.instance_id else new_frontend_id()
    foundation = Foundation.build(database, secrets, bus, clock, frontend_id)
    guard = RuleGuard(FleetRuleStore(database).all, lookups.galleries)
    replicas, readiness = ReplicaStore(database, secrets), ControlReadiness(database, bus)

    record = await RecordRoom.build(foundation)
    nodes = _build_nodes(config, foundation, record, credentials)
    keeper = StoreKeeper(ModelStores(database), config.models_path, clock, frontend_id=frontend_id)
    await keeper.measure()
    operations = _build_operations(config, foundation, record, nodes, guard, keeper)
    backends = BackendsRoom.build(foundation, nodes, operations, lookups, guard=guard, policy=config.upgrades)
    models = await _build_models(config, foundation, record, nodes, operations, replicas, lookups)
    earlier = EarlierRooms(record=record, nodes=nodes, operations=operations, backends=backends, models=models)
    serving = ServingRoom.build(
        foundation,
        earlier,
        _serving_settings(config),
        replicas,
        loader=loader or GrpcLoader(),
        problems=readiness.known,
    )
    _plug_kinds(config, earlier, serving, lookups)
    context = AdminContext(
        config=config,
        database=database,
        bus=bus,
        clock=clock,
        frontend_id=frontend_id,
        record=record,
        access=_build_access(config, foundation, record, serving, credentials),
        nodes=nodes,
        operations=operations,
        backends=backends,
        models=models,
        pulls=_build_pulls(config, foundation, operations, models, keeper, lookups),
        serving=serving,
        rules=RulesRoom.build(foundation, record, nodes, operations, backends, guard=guard),
        readiness=readiness,
        stopping=asyncio.Event(),
    )
    return Control(context=context, credentials=credentials)


def _build_nodes(
    config: ControlConfig, foundation: Foundation, record: RecordRoom, credentials: Credentials
) -> NodesRoom:
    settings = NodeSettings(
        liveness=config.liveness,
        admission=config.admission,
        brake_share=config.brake_share,
        credentials_last=None if config.minter is None else config.minter.lifetime,
    )
    forget = (lose_replicas_of, cancel_intents_of)
    nodes = Nodes(foundation.database, on_removal=forget, on_suspicion=(lose_replicas_of,))
    return NodesRoom.build(foundation, record, settings, nodes, registration_token=credentials.registration_token)


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
        removals=ModelRemovals(foundation.database, operations.stores.operations, on_removal=(stop_serving,)),
        is_served=replicas.serve,
        lookups=lookups,
        replicas=replicas.revisions_of,
    )


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
    )
    return PullRoom.build(foundation, operations, models, keeper, settings, hub=lookups.hub)


def _serving_settings(config: ControlConfig) -> ServingSettings:
    return ServingSettings(
        loads=config.loads,
        usual=UsualLimits(threads=config.threads, most_tokens=config.most_tokens),
        admin_keys=config.admin_keys,
        metrics_public=config.metrics_public,
        adapter_socket=config.adapter_socket,
        adapter_secret=config.gateway_key.encode() or os.urandom(32),
    )


def _plug_kinds(config: ControlConfig, rooms: EarlierRooms, serving: ServingRoom, lookups: Lookups) -> None:
    """Both kinds move replicas out of the way before they act on a node, which only serving can do."""
    client, moves, policy = rooms.nodes.client, serving.rollout, config.intents
    backend_kind = BackendKind(rooms.backends.inventory, client, lookups.images, moves, policy=policy)
    rooms.operations.dispatcher.handle(IntentKind.BACKEND, backend_kind)
    rooms.operations.dispatcher.handle(IntentKind.MODEL, ModelKind(client, moves, policy))


def _build_access(
    config: ControlConfig,
    foundation: Foundation,
    record: RecordRoom,
    serving: ServingRoom,
    credentials: Credentials,
) -> AccessRoom:
    return AccessRoom.build(
        foundation,
        record,
        audience=KeySpread(serving.view, serving.gateways, foundation.clock),
        registration_token=credentials.registration_token,
        trusted_token=config.trusted_registration_token,
        gateway_key=config.gateway_key,
        admin_keys=config.admin_keys,
    )


@asynccontextmanager
async def open_control(
    config: ControlConfig, *, clock: Clock | None = None
) -> AsyncIterator[tuple[Control, AdminServer]]:
    """Bind, open the database, make the first keys, connect to NATS. Nothing is served yet."""
    the_clock = clock or SystemClock()
    async with AsyncExitStack() as stack:
        make_private_directory(config.data)
        with ExitStack() as early:
            # A taken port is reported before anything else; a socket is taken last, when the database is ours.
            port = early.enter_context(bind(config.host, config.port)) if config.socket is None else None
            database = await stack.enter_async_context(open_database(config.database_url))
            if database.is_ours_alone:
                await free_all(database, at=the_clock.now())
            listener = stack.enter_context(port or bind_private_socket(config.socket or config.data / "control.sock"))
            early.pop_all()
        key = await load_secrets_key(config, database)
        stores = Stores(database, await Secrets.open(database, key, at=the_clock.now()))
        bus = await stack.enter_async_context(NatsBus(config.bus, name="corral-control", inbox_prefix=FRONTEND_INBOX))
        lookups = await stack.enter_async_context(_open_lookups(config, the_clock))
        control = await build_control(config, the_clock, stores, bus, lookups=lookups)
        yield control, AdminServer(build_app(control.context), listener)


@asynccontextmanager
async def _open_lookups(config: ControlConfig, clock: Clock) -> AsyncIterator[Lookups]:
    async with AsyncExitStack() as stack:
        hub = None
        if config.hubs is not None:
            hub = await stack.enter_async_context(HubAccess.open(config.hubs, clock=clock))
        if config.galleries is None or config.images is None:
            yield Lookups(hub=hub)
            return
        registry, images = RegistryArtefacts(config.images, clock=clock), RegistryImages(config.images, clock)
        galleries = await stack.enter_async_context(open_galleries(config.galleries, registry=registry, clock=clock))
        models = await stack.enter_async_context(open_model_galleries(config.galleries, registry=registry, clock=clock))
        yield Lookups(galleries=GalleryCatalogue(galleries), images=images, models=models, hub=hub)


@asynccontextmanager
async def open_database(url: str) -> AsyncIterator[Database]:
    """Open and migrate the database. Retry for a minute while it does not answer, and log every attempt."""
    backoff = Backoff(first=timedelta(milliseconds=500), cap=timedelta(seconds=5))
    deadline = asyncio.get_running_loop().time() + _DATABASE_PATIENCE.total_seconds()
    for attempt in itertools.count(1):
        try:
            database = await Database.open(url)
            break
        except DatabaseUnavailable as error:
            if asyncio.get_running_loop().time() > deadline:
                raise
            log.warning("waiting for the database", extra={"event": "database.waiting", "reason": error.message})
            await asyncio.sleep(backoff.delay(attempt).total_seconds())
    try:
        await upgrade(database)
        yield database
    finally:
        await database.close()


async def load_secrets_key(config: ControlConfig, database: Database) -> SecretsKey:
    """Return the key. A new one is made only for a new database: it could not replace a lost one."""
    if config.secrets_key:
        return SecretsKey.from_text(config.secrets_key)
    if not config.secrets_key_file.exists() and await was_sealed(database):
        raise SecretsKeyMismatch(
            f"the secrets key {config.secrets_key_file} is missing, and this database was sealed with it;"
            " restore it from a backup or copy it from another frontend, or set CORRAL_SECRETS_KEY"
        )
    return SecretsKey.load_or_create(config.secrets_key_file)


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


async def reset_admin_key(config: ControlConfig) -> str:
    """Mint an administrator key directly in the database, and revoke the one that was lost."""
    clock = SystemClock()
    database = await Database.open(config.database_url, lock=False)
    try:
        await upgrade(database)
        secrets = await Secrets.open(database, await load_secrets_key(config, database), at=clock.now())
        first_keys = FirstKeys(Keys(database), secrets, clock.now)
        new = await first_keys.reset_admin(by="reset on the machine")
        if config.credentials_file is not None:
            await first_keys.keep(config.credentials_file, new.key)
        return new.key
    finally:
        await database.close()
