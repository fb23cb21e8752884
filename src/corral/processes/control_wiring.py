"""Puts control together: every part of it, with the others that it needs."""

import asyncio
from typing import Final, NamedTuple

from corral.base.clock import Clock
from corral.base.ids import FrontendId, new_frontend_id
from corral.base.tasks import Poke
from corral.bus.port import Bus
from corral.frontend.access.credentials import FirstKeys
from corral.frontend.access.key_ring import KeyRing
from corral.frontend.access.principals import Authenticator
from corral.frontend.access.store import Keys
from corral.frontend.api.context import AdminContext
from corral.frontend.backends.decide.backend import with_alias_kept
from corral.frontend.backends.inventory import InventoryKeeper
from corral.frontend.backends.kind import BackendKind
from corral.frontend.backends.operations import BackendOperations
from corral.frontend.backends.planning import Lookups, Planner
from corral.frontend.backends.store import Inventories, UpgradeChecks, write_reports
from corral.frontend.backends.upgrades import Upgrades
from corral.frontend.config import ControlConfig
from corral.frontend.diagnosis.readiness import ControlReadiness
from corral.frontend.models.catalogue import Models
from corral.frontend.models.removal import ModelKind, ModelRemoval
from corral.frontend.models.store import ModelRemovals
from corral.frontend.nodes.brake import Brake
from corral.frontend.nodes.client import NodeClient, NodeContacts, NodeTokens
from corral.frontend.nodes.decide.brake import BrakePolicy
from corral.frontend.nodes.fleet import Fleet
from corral.frontend.nodes.health import Health
from corral.frontend.nodes.hearing import HearingKeeper
from corral.frontend.nodes.heartbeats import Heartbeats
from corral.frontend.nodes.logs import NodeLogs
from corral.frontend.nodes.registry import NodeRegistry
from corral.frontend.nodes.store.hearing import HearingPeriods
from corral.frontend.nodes.store.nodes import Nodes
from corral.frontend.operations.broadcasts import Broadcasts
from corral.frontend.operations.decide.intent import IntentKind
from corral.frontend.operations.dispatcher import Dispatcher, DispatchStores, DispatchTools
from corral.frontend.operations.peer_operations import Caches, PeerOperations
from corral.frontend.operations.peer_staging import PeerStaging
from corral.frontend.operations.progress import ProgressBoard
from corral.frontend.operations.service import Housekeeping, Operations, Retention
from corral.frontend.operations.shapes import operation_view
from corral.frontend.operations.store.intents import Intents, cancel_intents_of
from corral.frontend.operations.store.operations import OperationStore
from corral.frontend.operations.watch import OperationWatch
from corral.frontend.record.feed import EventCounts, Feed, LostRings
from corral.frontend.record.store import Events
from corral.frontend.rules.enforcer import RuleEnforcer, RulePlaces
from corral.frontend.rules.service import FleetRules, RuleGuard
from corral.frontend.rules.store import FleetRuleStore
from corral.frontend.serving.gateway_reports import GatewayReports, GatewayShares, KeySpread
from corral.frontend.serving.load_jobs import Loads, LoadStores
from corral.frontend.serving.loading import BackendLoader, GrpcLoader, LoadNeeds, ModelLoader, Scheduler, UsualLimits
from corral.frontend.serving.orphans import Orphans
from corral.frontend.serving.replica_health import ReplicaExits, ReplicaHealth
from corral.frontend.serving.rollout import Restoring, Rollout
from corral.frontend.serving.store.load_jobs import LoadJobs, stop_serving
from corral.frontend.serving.store.replicas import ReplicaStore, lose_replicas_of
from corral.frontend.serving.store.restorations import Restorations
from corral.frontend.serving.unloading import NodeModels, Unloading
from corral.frontend.serving.view import ViewKeeper, ViewSources
from corral.frontend.store.db import Database
from corral.frontend.store.leases import Leader, Leases
from corral.frontend.store.secrets import Secrets
from corral.processes.control_loops import Control

_NOWHERE: Final = Lookups()


class Stores(NamedTuple):
    database: Database
    secrets: Secrets


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
    nodes = Nodes(database, on_removal=(lose_replicas_of, cancel_intents_of), on_suspicion=(lose_replicas_of,))
    keys, events = Keys(database), Events(database)
    credentials = await FirstKeys(keys, stores.secrets, clock.now).ensure(
        configured_token=config.registration_token, file=config.credentials_file
    )
    frontend_id = FrontendId(config.instance_id) if config.instance_id else new_frontend_id()
    feed, readiness = Feed(bus), ControlReadiness(database, bus)
    replicas, models = ReplicaStore(database, stores.secrets), Models(config.models_path)
    keeper = HearingKeeper(HearingPeriods(database), bus, clock, policy)
    watch = Health(nodes, keeper, feed, clock, policy)
    models.scan()  # before the first view, which would otherwise take all models away from the gateways
    fleet = Fleet(nodes, keeper, clock, policy)
    contacts = NodeContacts(nodes)
    client = NodeClient(bus, nodes, clock, contacts=contacts, health=watch.poke)
    leader = Leader(Leases(database), clock, holder=frontend_id)
    brake = Brake(nodes, events, leader, keeper, feed, clock, policy=BrakePolicy(share=config.brake_share))
    watch_replicas = ReplicaHealth(replicas, nodes, fleet, client, feed, clock, brake=brake)
    event_counts = EventCounts(events)
    await event_counts.begin()
    tokens = NodeTokens(stores.secrets, credentials.registration_token)
    jobs = LoadJobs(database, stores.secrets)
    intents, inventories, progress = Intents(database, write_reports), Inventories(database), ProgressBoard(bus, clock)
    intents_due = Poke()
    keeper_of_inventory = InventoryKeeper(inventories, intents, fleet, client, clock, dispatcher=intents_due)
    gateways, restorations = GatewayReports(watch_replicas, clock), Restorations(database)
    rollout = Rollout(restorations, replicas, fleet, lookups.galleries, gateways, watch_replicas, feed, clock)
    dispatcher = Dispatcher(
        DispatchStores(intents=intents, nodes=nodes, events=events),
        DispatchTools(
            kinds={
                IntentKind.BACKEND: BackendKind(
                    keeper_of_inventory, client, lookups.images, rollout, policy=config.intents
                ),
                IntentKind.MODEL: ModelKind(client, rollout, config.intents),
            },
            progress=progress,
        ),
        fleet,
        clock,
        config.intents,
        poke=intents_due,
    )
    operation_store = OperationStore(database, with_alias_kept)
    rules = FleetRuleStore(database)
    guard = RuleGuard(rules, lookups.galleries)
    broadcasts = Broadcasts(bus, operation_store, progress, clock, frontend=frontend_id)
    removal = ModelRemoval(
        ModelRemovals(database, operation_store, on_removal=(stop_serving,)),
        operation_store,
        models,
        fleet,
        feed,
        clock,
        broadcasts=broadcasts,
        dispatcher=dispatcher.poke,
        is_served=replicas.serve,
    )
    await removal.sweep()  # nor would it show what was removed
    operations = Operations(
        operation_store,
        fleet,
        feed,
        clock,
        guard=guard,
        progress=progress,
        broadcasts=broadcasts,
        dispatcher=dispatcher.poke,
    )
    backend_operations = BackendOperations(operations, fleet, keeper_of_inventory, Planner(lookups), guard)
    places = RulePlaces(fleet, keeper_of_inventory, intents, lookups.galleries)
    rule_enforcer = RuleEnforcer(rules, places, operations, backend_operations, events, leader, clock)
    node_logs = NodeLogs(contacts, tokens)
    loads = Loads(
        LoadStores(jobs=jobs, replicas=replicas, nodes=nodes),
        models,
        Scheduler(fleet, replicas),
        ModelLoader(
            client,
            models,
            tokens,
            loader or GrpcLoader(),
            LoadNeeds(intents, backend_operations),
            usual=UsualLimits(threads=config.threads, most_tokens=config.most_tokens),
        ),
        feed,
        clock,
        policy=config.loads,
        board=progress,
        engines=node_logs,
    )
    upgrades = Upgrades(
        UpgradeChecks(database),
        leader,
        fleet,
        keeper_of_inventory,
        lookups,
        backend_operations,
        clock,
        policy=config.upgrades,
    )
    registry = NodeRegistry(
        nodes,
        stores.secrets,
        feed,
        clock,
        fleet=fleet,
        health=watch.poke,
        policy=config.admission,
        credentials_last=None if config.minter is None else config.minter.lifetime,
    )
    caches = Caches(models=models.poke.ring, inventory=keeper_of_inventory.poke.ring, upgrades=upgrades.ask)
    view = ViewKeeper(
        ViewSources(
            models=models,
            replicas=replicas,
            nodes=nodes,
            keys=keys,
            admin_keys=config.admin_keys,
            fleet=fleet,
            problems=readiness.known,
            brake=brake,
            metrics_public=config.metrics_public,
        ),
        clock,
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
            admin_keys=config.admin_keys,
        ),
        registry=registry,
        fleet=fleet,
        heartbeats=Heartbeats(nodes, keeper, clock, policy, health=watch.poke),
        hearing=keeper,
        key_ring=KeyRing(
            keys, feed, clock, audience=KeySpread(view, gateways, clock), has_set_admins=bool(config.admin_keys)
        ),
        models=models,
        model_removal=removal,
        node_models=NodeModels(replicas, fleet, client, feed, clock),
        node_logs=node_logs,
        loads=loads,
        replicas=replicas,
        operations=operations,
        backend_operations=backend_operations,
        fleet_rules=FleetRules(rules, places, rule_enforcer, operations, backend_operations, guard, clock),
        inventory=keeper_of_inventory,
        upgrades=upgrades,
        galleries=lookups.galleries,
        progress=progress,
        watch=OperationWatch(operations, progress, clock, frontend=frontend_id, view_of=operation_view),
        peers=PeerOperations(operations, progress, clock, frontend=frontend_id, caches=caches),
        staging=PeerStaging(clock),
        view=view,
        readiness=readiness,
        brake=brake,
        gateways=gateways,
        shares=GatewayShares(bus, gateways, frontend_id, clock),
        events=events,
        event_counts=event_counts,
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
        lost_rings=LostRings(events, feed),
        replica_health=watch_replicas,
        replica_exits=ReplicaExits(replicas, watch_replicas, clock),
        unloading=Unloading(replicas, models, loads, gateways, client, feed, clock),
        restoring=Restoring(restorations, replicas, intents, nodes, fleet, models, loads, clock),
        orphans=Orphans(replicas, jobs, events, leader, fleet, client, feed, clock, brake=brake),
        housekeeping=Housekeeping(
            events,
            operation_store,
            leader,
            registry,
            clock,
            retention=Retention(events=config.event_retention, operations=config.operation_retention),
        ),
    )
