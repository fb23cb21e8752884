"""Builds serving: where models run, what gateways know of it, and the loops that keep replicas as they should be."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import msgspec

from corral.base.tasks import Poke
from corral.base.values import PartlyPrinted
from corral.bus.port import Handler
from corral.files.storage import SharedStorage
from corral.frontend.access.proofs import Proofs
from corral.frontend.access.store.keys import Keys
from corral.frontend.access.store.sessions import SessionStore
from corral.frontend.backends.room import BackendsRoom
from corral.frontend.engines.room import EnginesRoom
from corral.frontend.models.room import ModelsRoom
from corral.frontend.nodes.node_storage import NodeStorage
from corral.frontend.nodes.room import NodesRoom
from corral.frontend.operations.room import OperationsRoom
from corral.frontend.record.room import Foundation, Loop, RecordRoom
from corral.frontend.serving import replica_health, scaling, unloading
from corral.frontend.serving.act_planning import ActPlanner
from corral.frontend.serving.decide.eviction import RoomPolicy
from corral.frontend.serving.decide.load_job import LoadPolicy
from corral.frontend.serving.decide.scaling_state import ScalingPolicy
from corral.frontend.serving.draining import DRAINING_PERIOD, Draining
from corral.frontend.serving.gateways import view
from corral.frontend.serving.gateways.adapted import AdaptedReplicas
from corral.frontend.serving.gateways.reports import GatewayReports, GatewayShares
from corral.frontend.serving.gateways.request_files import LEFT_PERIOD, LeftObjects, RequestFiles
from corral.frontend.serving.gateways.view import ViewKeeper, ViewSources
from corral.frontend.serving.loading.load_jobs import Loads
from corral.frontend.serving.loading.load_watch import LoadWatch
from corral.frontend.serving.loading.load_work import LoadWork
from corral.frontend.serving.loading.model_loader import BackendLoader, ModelLoader, UsualLimits
from corral.frontend.serving.loading.placing import Evicting, LoadStores, Placing
from corral.frontend.serving.replica_health import ReplicaExits, ReplicaHealth
from corral.frontend.serving.rollout import RESTORING_PERIOD, Restoring, Rollout
from corral.frontend.serving.scaling import Scaling
from corral.frontend.serving.scheduling import Scheduling
from corral.frontend.serving.snapshots import Snapshots
from corral.frontend.serving.staging import shared_directories
from corral.frontend.serving.staging.decide.sources import StagingPolicy
from corral.frontend.serving.staging.operations import StagingKind, Stagings
from corral.frontend.serving.staging.room import StagingPart
from corral.frontend.serving.staging.shared_directories import SharedDirectories
from corral.frontend.serving.staging.staged_files import StagedFiles
from corral.frontend.serving.store.load_jobs import LoadJobs
from corral.frontend.serving.store.replicas import ReplicaStore, Restorations
from corral.frontend.serving.store.scheduling import SchedulingStore
from corral.frontend.serving.unloading import ORPHANS_PERIOD, NodeModels, Orphans, Unloading
from corral.wire.keys import hash_secret
from corral.wire.subjects import GATEWAY_SHARES, REPLICAS_EXITED
from corral.wire.view import AffinityEntry


class ServingSettings(PartlyPrinted, frozen=True, kw_only=True):
    unprinted = ("admin_keys", "adapter_secret")

    loads: LoadPolicy
    staging: StagingPolicy
    room: RoomPolicy
    usual: UsualLimits
    scaling: ScalingPolicy
    admin_keys: Sequence[str]
    metrics_public: bool
    affinity: AffinityEntry | None
    adapter_socket: Path | None
    adapter_secret: bytes
    """What the keys of this frontend's adapter are made of; the same after a restart of control."""


class EarlierRooms(msgspec.Struct, frozen=True, kw_only=True):
    """The rooms that serving stands on."""

    record: RecordRoom
    nodes: NodesRoom
    operations: OperationsRoom
    backends: BackendsRoom
    models: ModelsRoom
    engines: EnginesRoom


class ServingRoom(msgspec.Struct, frozen=True, kw_only=True):
    replicas: ReplicaStore
    adapted: AdaptedReplicas
    loads: Loads
    snapshots: Snapshots
    staged: StagedFiles
    shared: SharedDirectories
    stagings: Stagings
    staging_kind: StagingKind
    scheduling: Scheduling
    scaling: Scaling
    plans: ActPlanner
    node_models: NodeModels
    view: ViewKeeper
    gateways: GatewayReports
    shares: GatewayShares
    health: ReplicaHealth
    exits: ReplicaExits
    rollout: Rollout
    unloading: Unloading
    draining: Draining
    restoring: Restoring
    orphans: Orphans
    left_objects: LeftObjects | None
    """None without an object storage."""

    @classmethod
    def build(  # noqa: PLR0913 - each is a collaborator
        cls,
        foundation: Foundation,
        rooms: EarlierRooms,
        settings: ServingSettings,
        replicas: ReplicaStore,
        *,
        loader: BackendLoader,
        problems: Callable[[], Sequence[str]],
        storage: SharedStorage | None = None,
    ) -> Self:
        """`problems` returns what control lacks at the moment, for the gateways. `storage` is for files to nodes."""
        nodes, models, intents = rooms.nodes, rooms.models.catalogue, rooms.operations.stores.intents
        events, feed, clock, leader = rooms.record.events, rooms.record.feed, foundation.clock, foundation.leader
        fleet, client, brake, galleries = nodes.fleet, nodes.client, nodes.brake, rooms.backends.galleries
        jobs, restorations = LoadJobs(foundation.database, foundation.secrets), Restorations(foundation.database)
        health = ReplicaHealth(replicas, nodes.store, fleet, client, feed, clock, brake=brake)
        gateways = GatewayReports(health, clock, engines=rooms.engines.watch)
        adapted = _build_adapted(foundation, rooms, settings, storage)
        stores = LoadStores(jobs=jobs, replicas=replicas, nodes=nodes.store)
        rules = SchedulingStore(foundation.database)
        part = StagingPart.build(
            foundation, rooms.record, nodes, rooms.models, intents, stores, policy=settings.staging, storage=storage
        )
        snapshots = _build_snapshots(rooms, stores, rules, part, restorations, gateways)
        on_node = _build_model_loader(rooms, settings, part, loader)
        loads = _build_loads(rooms, stores, snapshots, settings, on_node, adapted, part.shared)
        sources = _build_sources(foundation, rooms, settings, replicas, adapted, gateways, problems)
        grow, scheduling = settings.scaling, Scheduling(rules, fleet, feed, clock)
        removals = rooms.models.removal
        return cls(
            replicas=replicas,
            adapted=adapted,
            loads=loads,
            snapshots=snapshots,
            staged=part.staged,
            shared=part.shared,
            stagings=Stagings(rooms.operations.service, models, fleet, clock),
            staging_kind=StagingKind(on_node, models, fleet, intents, rooms.operations.progress, clock),
            scheduling=scheduling,
            plans=ActPlanner(snapshots, fleet, intents, models, removals, scheduling, policy=grow),
            scaling=Scaling(snapshots, models, stores, loads, gateways, events, leader, feed, clock, policy=grow),
            node_models=NodeModels(replicas, jobs, fleet, client, feed, clock),
            view=ViewKeeper(sources, clock),
            gateways=gateways,
            shares=GatewayShares(foundation.bus, gateways, foundation.frontend_id, clock),
            health=health,
            exits=ReplicaExits(replicas, health, clock),
            rollout=Rollout(restorations, replicas, fleet, galleries, gateways, health, feed, clock),
            unloading=Unloading(replicas, models, loads, gateways, client, feed, clock, settings.room),
            draining=Draining(replicas, snapshots, loads, fleet, events, leader, feed, clock, brake=brake),
            restoring=Restoring(restorations, replicas, intents, nodes.store, fleet, models, loads, clock),
            orphans=Orphans(replicas, jobs, events, leader, fleet, client, feed, clock, brake=brake),
            left_objects=None if storage is None else LeftObjects(storage, leader, clock),
        )

    def subscriptions(self) -> dict[str, Handler]:
        return {GATEWAY_SHARES: self.shares.on_message, REPLICAS_EXITED: self.exits.on_message}

    def loops(self, record: RecordRoom) -> dict[str, Loop]:
        unload, restore = record.when_new(self.unloading.sweep), record.when_new(self.restoring.sweep)
        scale = record.when_new(self.scaling.sweep, mark=lambda: (self.scaling.mark(), self.shared.nodes))
        share = record.when_new(self.shared.sweep)
        refresh = record.when_new(self.view.refresh, mark=self.view.mark)
        loops = {
            "adapter": self.adapted.run,
            "loads": self.loads.run,
            "replicas": record.every(replica_health.PERIOD, self.health.poke, self.health.sweep, "replicas"),
            "unloading": record.every(unloading.PERIOD, Poke(), unload, "unloading"),
            "drains": record.every(DRAINING_PERIOD, Poke(), record.when_new(self.draining.sweep), "drains"),
            "restoring": record.every(RESTORING_PERIOD, Poke(), restore, "restoring"),
            "scaling": record.follow(scaling.PERIOD, scale, "scaling"),
            "orphans": record.every(ORPHANS_PERIOD, Poke(), self.orphans.sweep, "orphans"),
            "shared models": record.every(shared_directories.PERIOD, Poke(), share, "shared models"),
            "view": record.follow(view.PERIOD, refresh, "view"),
        }
        if (left_objects := self.left_objects) is not None:
            loops["left objects"] = record.every(LEFT_PERIOD, Poke(), left_objects.sweep, "left objects")
        return loops


def _build_adapted(
    foundation: Foundation, rooms: EarlierRooms, settings: ServingSettings, storage: SharedStorage | None
) -> AdaptedReplicas:
    nodes, clock = rooms.nodes, foundation.clock
    return AdaptedReplicas(
        settings.adapter_socket,
        rooms.models.catalogue,
        nodes.tokens,
        settings.usual,
        rooms.record.feed,
        clock,
        secret=settings.adapter_secret,
        files=RequestFiles(storage, NodeStorage(foundation.bus, nodes.contacts.of), clock),
    )


def _build_model_loader(
    rooms: EarlierRooms, settings: ServingSettings, part: StagingPart, loader: BackendLoader
) -> ModelLoader:
    return ModelLoader(
        rooms.nodes.client,
        rooms.models.catalogue,
        rooms.nodes.tokens,
        loader,
        rooms.operations.stores.intents,
        rooms.backends.operations,
        part.staging,
        doors=rooms.nodes.doors,
        usual=settings.usual,
        policies=rooms.backends.policies,
    )


def _build_snapshots(
    rooms: EarlierRooms,
    stores: LoadStores,
    rules: SchedulingStore,
    part: StagingPart,
    restorations: Restorations,
    gateways: GatewayReports,
) -> Snapshots:
    return Snapshots(
        rooms.nodes.fleet,
        rooms.models.catalogue,
        stores.replicas,
        stores.jobs,
        rooms.backends.inventory,
        rooms.backends.galleries,
        gateways,
        rooms.record.clock,
        rules=rules,
        staged=part.store,
        shared=part.shared,
        restorations=restorations,
        brake=rooms.nodes.brake,
    )


def _build_sources(  # noqa: PLR0913 - each is a collaborator
    foundation: Foundation,
    rooms: EarlierRooms,
    settings: ServingSettings,
    replicas: ReplicaStore,
    adapted: AdaptedReplicas,
    gateways: GatewayReports,
    problems: Callable[[], Sequence[str]],
) -> ViewSources:
    return ViewSources(
        models=rooms.models.catalogue,
        replicas=replicas,
        adapted=adapted,
        engines=rooms.engines,
        nodes=rooms.nodes.store,
        proofs=Proofs(
            Keys(foundation.database),
            SessionStore(foundation.database, set_keys=[hash_secret(key) for key in settings.admin_keys]),
            admin_keys=settings.admin_keys,
        ),
        fleet=rooms.nodes.fleet,
        problems=problems,
        brake=rooms.nodes.brake,
        gateways=lambda: len(gateways.connected()),
        metrics_public=settings.metrics_public,
        rules=SchedulingStore(foundation.database),
        affinity=settings.affinity,
    )


def _build_loads(  # noqa: PLR0913 - each is a collaborator
    rooms: EarlierRooms,
    stores: LoadStores,
    snapshots: Snapshots,
    settings: ServingSettings,
    loader: ModelLoader,
    adapted: AdaptedReplicas,
    shared: SharedDirectories,
) -> Loads:
    nodes, models, clock = rooms.nodes, rooms.models.catalogue, rooms.record.clock
    evicting = Evicting(stores.replicas, rooms.record.feed, clock, settings.room)
    work = LoadWork(
        stores,
        loader,
        rooms.record.feed,
        clock,
        policy=settings.loads,
        board=rooms.operations.progress,
        logs=nodes.logs,
        placing=Placing(stores, snapshots, clock, settings.loads, evicting=evicting, shared=shared),
        watch=LoadWatch(nodes.store, stores.replicas, rooms.record.feed, clock),
    )
    return Loads(
        stores,
        models,
        work,
        clock,
        settings.loads,
        rooms.operations.progress,
        rooms.record.feed,
        adapter_problem=lambda: adapted.problem,
    )
