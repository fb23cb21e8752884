"""The control process: everything wired by hand, started, and ended in reverse order."""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, NamedTuple

from corral.admin.app import build_app
from corral.admin.context import AdminContext
from corral.admin.operation_watch import OperationWatch
from corral.admin.server import AdminServer, bind, bind_socket
from corral.auth.principals import Authenticator
from corral.base.clock import Clock, SystemClock
from corral.base.errors import DatabaseUnavailable, SecretsKeyMismatch
from corral.base.ids import FrontendId, new_frontend_id
from corral.base.private_files import make_private_directory
from corral.base.retry import Backoff
from corral.base.tasks import Poke, poke_or_period, run_services
from corral.bus.client import NatsBus
from corral.bus.port import Bus
from corral.control import brake as braking
from corral.control import (
    health,
    hearing,
    housekeeping,
    inventory,
    model_removal,
    models,
    orphans,
    replica_health,
    restoring,
    unloading,
    upgrades,
    view,
)
from corral.control import progress as progress_board
from corral.control.artefacts import MovedTags, RegistryImages
from corral.control.brake import Brake
from corral.control.broadcasts import Broadcasts
from corral.control.catalogue import GalleryCatalogue
from corral.control.config import ControlConfig
from corral.control.credentials import Credentials, FirstKeys
from corral.control.dispatcher import RETURNS_PERIOD, Dispatcher, DispatchStores, DispatchTools
from corral.control.feed import Feed
from corral.control.fleet import Fleet
from corral.control.fleet_rules import FleetRules
from corral.control.gateway_reports import GatewayReports
from corral.control.gateway_shares import GatewayShares
from corral.control.happenings import Happenings
from corral.control.health import Health
from corral.control.hearing import HearingKeeper
from corral.control.heartbeats import Heartbeats
from corral.control.housekeeping import Housekeeping, Retention
from corral.control.intent_requests import IntentRequests
from corral.control.inventory import InventoryKeeper
from corral.control.key_ring import KeyRing
from corral.control.load_jobs import Loads, LoadStores
from corral.control.load_needs import LoadNeeds
from corral.control.loading import BackendLoader, GrpcLoader, Loading, Tokens
from corral.control.model_removal import ModelRemoval
from corral.control.models import Models
from corral.control.node_client import NodeClient
from corral.control.operations import Operations
from corral.control.orphans import Orphans
from corral.control.peer_operations import PeerOperations
from corral.control.planning import Lookups, Planner
from corral.control.progress import ProgressBoard
from corral.control.readiness import Readiness
from corral.control.registry import Registry
from corral.control.replica_exits import ReplicaExits
from corral.control.replica_health import ReplicaHealth
from corral.control.restoring import Restoring
from corral.control.rollout import Rollout
from corral.control.rule_enforcer import NOTICE_PERIOD, RuleEnforcer
from corral.control.rule_guard import RuleGuard
from corral.control.rule_places import RulePlaces
from corral.control.scheduler import Scheduler
from corral.control.unloading import Unloading
from corral.control.upgrades import Upgrades, UpgradeStores
from corral.control.view import ViewKeeper, ViewSources
from corral.domain.brake import BrakePolicy
from corral.galleries.artefacts import RegistryArtefacts
from corral.galleries.galleries import open_galleries
from corral.protocol.subjects import GATEWAY_SHARES, INVENTORIES, POKE_EVENTS, REPLICAS_EXITED
from corral.state.db import Database
from corral.state.events import Events
from corral.state.fleet_rules import FleetRules as FleetRuleStore
from corral.state.hearing import HearingPeriods
from corral.state.intents import Intents
from corral.state.inventories import Inventories
from corral.state.keys import Keys
from corral.state.leases import Leases
from corral.state.load_jobs import LoadJobs
from corral.state.migrations import upgrade
from corral.state.model_removals import ModelRemovals
from corral.state.nodes import Nodes
from corral.state.operations import Operations as OperationStore
from corral.state.replicas import Replicas
from corral.state.restorations import Restorations
from corral.state.secrets import Secrets, was_sealed
from corral.state.secrets_key import SecretsKey
from corral.state.upgrade_checks import UpgradeChecks

log = logging.getLogger(__name__)

_DATABASE_PATIENCE: Final = timedelta(seconds=60)
"""How long a start waits for a database that does not answer, before it says so and ends."""


_NOWHERE: Final = Lookups()


class Stores(NamedTuple):
    database: Database
    secrets: Secrets


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """Everything the control process consists of, wired and not yet running."""

    context: AdminContext
    credentials: Credentials
    dispatcher: Dispatcher
    rule_enforcer: RuleEnforcer
    broadcasts: Broadcasts
    health: Health
    replica_health: ReplicaHealth
    replica_exits: ReplicaExits
    unloading: Unloading
    restoring: Restoring
    orphans: Orphans
    housekeeping: Housekeeping

    async def run(self, stop: asyncio.Event, server: AdminServer) -> None:
        """Until `stop`: then event streams end, requests under way finish, loops are cancelled."""
        context = self.context
        await context.bus.subscribe(POKE_EVENTS, context.feed.on_message)
        await context.bus.subscribe(GATEWAY_SHARES, context.shares.on_message)
        await context.bus.subscribe(REPLICAS_EXITED, self.replica_exits.on_message)
        await context.bus.subscribe(INVENTORIES, context.inventory.on_message)
        for subject, handler in context.peers.handlers().items():
            await context.bus.subscribe(subject, handler)
        await run_services(stop, server=server.run(ending=self._end_streams), **self.loops())

    def loops(self) -> dict[str, Coroutine[None, None, None]]:
        """What runs beside the server; a table of contents of the process."""
        context = self.context
        return {
            "heartbeats": context.heartbeats.run(),
            "hearing": self._every(hearing.PERIOD, Poke(), context.hearing.tick, "hearing"),
            "health": self._every(health.PERIOD, self.health.poke, self.health.sweep, "health"),
            "brake": self._every(braking.PERIOD, Poke(), context.brake.look, "brake"),
            "models": self._every(models.PERIOD, Poke(), context.models.look, "models"),
            "removals": self._remove_models(),
            "loads": context.loads.run(),
            "dispatcher": self.dispatcher.run(),
            "intents": self._every(self.dispatcher.renewed_every, Poke(), self.dispatcher.renew, "leases of intents"),
            "returns": self._notice_returns(),
            "fleet rules": self.rule_enforcer.run(context.inventory.told),
            "noticed by fleet rules": self._notice_for_rules(),
            "upgrades": self._every(upgrades.PERIOD, context.upgrades.poke, context.upgrades.tick, "upgrades"),
            "inventory": self._every(inventory.PERIOD, context.inventory.poke, context.inventory.sweep, "inventory"),
            "reports": self._every(inventory.PERIOD, context.inventory.news, context.inventory.take_news, "reports"),
            "progress": self._every(progress_board.PERIOD, context.progress.poke, context.progress.tend, "progress"),
            "broadcasts": self.broadcasts.run(),
            "replicas": self._every(
                replica_health.PERIOD, self.replica_health.poke, self.replica_health.sweep, "replicas"
            ),
            "unloading": self._every(unloading.PERIOD, Poke(), self.unloading.sweep, "unloading"),
            "restoring": self._every(restoring.PERIOD, Poke(), self.restoring.sweep, "restoring"),
            "orphans": self._every(orphans.PERIOD, Poke(), self.orphans.sweep, "orphans"),
            "view": self._keep_view(),
            "housekeeping": self._every(housekeeping.PERIOD, Poke(), self.housekeeping.tidy, "housekeeping"),
        }

    async def _notice_returns(self) -> None:
        with self.context.feed.listener() as poke:
            await self._every(RETURNS_PERIOD, poke, self.dispatcher.notice_returns, "returning nodes")

    async def _notice_for_rules(self) -> None:
        with self.context.feed.listener() as poke:
            await self._every(NOTICE_PERIOD, poke, self.rule_enforcer.notice, "noticed by fleet rules")

    async def _remove_models(self) -> None:
        """What one frontend removes, the others hide at once."""
        with self.context.feed.listener() as poke:
            await self._every(model_removal.PERIOD, poke, self.context.model_removal.sweep, "removed models")

    async def _keep_view(self) -> None:
        """Made anew with everything that is announced, in this frontend or another one."""
        with self.context.feed.listener() as poke:
            await self._every(view.PERIOD, poke, self.context.view.refresh, "view")

    async def _every(self, period: timedelta, poke: Poke, step: Callable[[], Awaitable[None]], name: str) -> None:
        await poke_or_period(step, poke=poke, clock=self.context.clock, period=period, name=name)

    def _end_streams(self) -> None:
        self.context.stopping.set()
        self.context.feed.ring()
        self.context.view.ring()


@asynccontextmanager
async def open_control(
    config: ControlConfig, *, clock: Clock | None = None
) -> AsyncIterator[tuple[Control, AdminServer]]:
    """Bind, open the database, make the first keys, connect to NATS. Nothing is served yet."""
    the_clock = clock or SystemClock()
    async with AsyncExitStack() as stack:
        make_private_directory(config.data)
        with ExitStack() as early:
            # A taken port is told before anything else; a socket is taken last, when the database is ours.
            port = early.enter_context(bind(config.host, config.port)) if config.socket is None else None
            database = await stack.enter_async_context(open_database(config.database_url))
            listener = stack.enter_context(port or bind_socket(config.socket or config.data / "control.sock"))
            early.pop_all()
        key = await load_secrets_key(config, database)
        stores = Stores(database, await Secrets.open(database, key, at=the_clock.now()))
        bus = await stack.enter_async_context(NatsBus(config.bus, name="corral-control"))
        lookups = await stack.enter_async_context(_open_lookups(config, the_clock))
        control = await wire(config, the_clock, stores, bus, lookups=lookups)
        yield control, AdminServer(build_app(control.context), listener)


@asynccontextmanager
async def _open_lookups(config: ControlConfig, clock: Clock) -> AsyncIterator[Lookups]:
    if config.galleries is None or config.images is None:
        yield Lookups()
        return
    registry, images = RegistryArtefacts(config.images, clock=clock), RegistryImages(config.images, clock)
    async with open_galleries(config.galleries, registry=registry, clock=clock) as galleries:
        yield Lookups(galleries=GalleryCatalogue(galleries), images=images)


async def wire(
    config: ControlConfig,
    clock: Clock,
    stores: Stores,
    bus: Bus,
    *,
    loader: BackendLoader | None = None,
    lookups: Lookups = _NOWHERE,
) -> Control:
    """Who works with whom; the first keys are made here, since the authenticator needs them."""
    policy = config.liveness
    database = stores.database
    nodes, keys, events = Nodes(database), Keys(database), Events(database)
    credentials = await FirstKeys(keys, stores.secrets, clock.now).ensure(
        configured_token=config.registration_token, file=config.credentials_file
    )
    frontend_id = FrontendId(config.instance_id) if config.instance_id else new_frontend_id()
    feed, readiness = Feed(bus), Readiness(database, bus)
    replicas, models = Replicas(database, stores.secrets), Models(config.models_path)
    keeper = HearingKeeper(HearingPeriods(database), bus, clock, policy)
    watch = Health(nodes, keeper, feed, clock, policy)
    models.scan()  # before the first view, which would otherwise take all models away from the gateways
    fleet = Fleet(nodes, keeper, clock, policy)
    client = NodeClient(bus, nodes, clock)
    leases = Leases(database)
    brake = Brake(
        nodes, events, leases, keeper, feed, clock, policy=BrakePolicy(share=config.brake_share), holder=frontend_id
    )
    watch_replicas = ReplicaHealth(replicas, nodes, fleet, client, feed, clock, brake=brake)
    happenings = Happenings(events)
    await happenings.begin()
    tokens = Tokens(stores.secrets, credentials.registration_token)
    jobs = LoadJobs(database, stores.secrets)
    intents, inventories, progress = Intents(database), Inventories(database), ProgressBoard(bus, clock)
    keeper_of_inventory = InventoryKeeper(inventories, intents, fleet, client, clock)
    gateways, restorations = GatewayReports(watch_replicas, clock), Restorations(database)
    dispatcher = Dispatcher(
        DispatchStores(intents=intents, nodes=nodes, events=events),
        DispatchTools(
            inventory=keeper_of_inventory,
            requests=IntentRequests(client, config.intents),
            progress=progress,
            tags=MovedTags(lookups.images),
            rollout=Rollout(restorations, replicas, fleet, lookups.galleries, gateways, watch_replicas, feed, clock),
        ),
        fleet,
        clock,
        config.intents,
    )
    operation_store = OperationStore(database)
    rules = FleetRuleStore(database)
    broadcasts = Broadcasts(bus, operation_store, progress, clock, frontend=frontend_id)
    removal = ModelRemoval(
        ModelRemovals(database, operation_store),
        operation_store,
        models,
        replicas,
        fleet,
        feed,
        clock,
        dispatcher=dispatcher.poke,
    )
    await removal.sweep()  # nor would it show what was removed
    operations = Operations(
        operation_store,
        fleet,
        keeper_of_inventory,
        Planner(lookups),
        feed,
        clock,
        rules=RuleGuard(rules, lookups.galleries),
        progress=progress,
        broadcasts=broadcasts,
        dispatcher=dispatcher.poke,
    )
    places = RulePlaces(fleet, keeper_of_inventory, intents, lookups.galleries)
    rule_enforcer = RuleEnforcer(rules, places, operations, events, leases, clock, holder=frontend_id)
    loads = Loads(
        LoadStores(jobs=jobs, replicas=replicas, nodes=nodes),
        models,
        Scheduler(fleet, replicas),
        Loading(client, models, tokens, loader or GrpcLoader(), LoadNeeds(intents, operations), threads=config.threads),
        feed,
        clock,
        policy=config.loads,
    )
    context = AdminContext(
        config=config,
        frontend_id=frontend_id,
        clock=clock,
        bus=bus,
        database=database,
        authenticator=Authenticator(
            keys,
            clock,
            registration_token=credentials.registration_token,
            trusted_token=config.trusted_registration_token,
            gateway_key=config.gateway_key,
        ),
        registry=Registry(nodes, stores.secrets, feed, clock, health=watch.poke, auto_approve=config.auto_approve),
        fleet=fleet,
        heartbeats=Heartbeats(nodes, keeper, clock, policy, health=watch.poke),
        hearing=keeper,
        key_ring=KeyRing(keys, feed, clock),
        models=models,
        model_removal=removal,
        loads=loads,
        replicas=replicas,
        operations=operations,
        fleet_rules=FleetRules(rules, places, rule_enforcer, operations, clock),
        inventory=keeper_of_inventory,
        upgrades=Upgrades(
            UpgradeStores(checks=UpgradeChecks(database), leases=leases),
            fleet,
            keeper_of_inventory,
            lookups,
            operations,
            clock,
            holder=frontend_id,
            policy=config.upgrades,
        ),
        galleries=lookups.galleries,
        progress=progress,
        watch=OperationWatch(operations, progress, clock, frontend=frontend_id),
        peers=PeerOperations(operations, progress, clock, frontend=frontend_id, inventory=keeper_of_inventory.poke),
        view=ViewKeeper(
            ViewSources(
                models=models,
                replicas=replicas,
                nodes=nodes,
                keys=keys,
                fleet=fleet,
                readiness=readiness,
                brake=brake,
                metrics_public=config.metrics_public,
            ),
            clock,
        ),
        readiness=readiness,
        brake=brake,
        gateways=gateways,
        shares=GatewayShares(bus, gateways, frontend_id),
        events=events,
        happenings=happenings,
        feed=feed,
        stopping=asyncio.Event(),
    )
    return Control(
        context=context,
        credentials=credentials,
        dispatcher=dispatcher,
        rule_enforcer=rule_enforcer,
        broadcasts=broadcasts,
        health=watch,
        replica_health=watch_replicas,
        replica_exits=ReplicaExits(replicas, watch_replicas),
        unloading=Unloading(replicas, models, loads, gateways, client, feed, clock),
        restoring=Restoring(restorations, replicas, intents, nodes, fleet, models, loads, clock),
        orphans=Orphans(replicas, jobs, events, leases, fleet, client, feed, clock, brake=brake, holder=frontend_id),
        housekeeping=Housekeeping(
            events,
            operation_store,
            leases,
            clock,
            holder=frontend_id,
            retention=Retention(events=config.event_retention, operations=config.operation_retention),
        ),
    )


def _dialled(host: str) -> str:
    """How a client on this machine writes the address that we listen on."""
    if host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        return "127.0.0.1" if host == "0.0.0.0" else "[::1]"  # noqa: S104
    return f"[{host}]" if ":" in host else host


@asynccontextmanager
async def open_database(url: str) -> AsyncIterator[Database]:
    """Open and migrate. One that does not answer yet gets a minute, with a word in the log for every try."""
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
    """A new key is made for a new database only: in place of a lost one it would fit nothing."""
    if config.secrets_key:
        return SecretsKey.from_text(config.secrets_key)
    if not config.secrets_key_file.exists() and await was_sealed(database):
        raise SecretsKeyMismatch(
            f"the secrets key {config.secrets_key_file} is missing, and this database was sealed with it;"
            " restore it from a backup or copy it from another frontend, or set CORRAL_SECRETS_KEY"
        )
    return SecretsKey.load_or_create(config.secrets_key_file)


async def run_control(config: ControlConfig, stop: asyncio.Event, *, say: Callable[[str], None]) -> None:
    """The whole life of a control process. `say` prints to people: the first keys are shown here and nowhere else."""
    async with open_control(config) as (control, server):
        for line in _first_words(control.credentials, config):
            say(line)
        url = f"unix:{config.socket}" if config.socket else f"http://{_dialled(config.host)}:{server.port}"
        log.info("control is ready", extra={"event": "control.ready", "url": url})
        await control.run(stop, server)
        log.info("control stops", extra={"event": "control.stopping"})


def _first_words(credentials: Credentials, config: ControlConfig) -> list[str]:
    """Keys are printed once, and only when nobody keeps them in a file."""
    if config.credentials_file is not None:
        return []
    lines = []
    if credentials.new_admin_key is not None:
        lines.append(f"Administrator key (shown once, keep it): {credentials.new_admin_key}")
    if credentials.new_registration_token:
        lines.append(f"Registration token for workers (shown once): {credentials.registration_token}")
    return lines


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
