"""Builds serving: where models run, what gateways know of it, and the loops that keep replicas as they should be."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from corral.base.ids import NodeId
from corral.base.tasks import Poke
from corral.bus.port import Handler
from corral.files.file_peer import FilePeer
from corral.frontend.access.store import Keys
from corral.frontend.backends.room import BackendsRoom
from corral.frontend.models.room import ModelsRoom
from corral.frontend.nodes.room import NodesRoom
from corral.frontend.operations.room import OperationsRoom
from corral.frontend.record.room import Foundation, Loop, RecordRoom
from corral.frontend.serving import replica_health, unloading, view
from corral.frontend.serving.adapted import AdaptedReplicas
from corral.frontend.serving.decide.load_job import LoadPolicy
from corral.frontend.serving.gateway_reports import GatewayReports, GatewayShares
from corral.frontend.serving.load_jobs import Loads
from corral.frontend.serving.loading import LoadStores, LoadWork
from corral.frontend.serving.model_loader import BackendLoader, ModelLoader, UsualLimits
from corral.frontend.serving.replica_health import ReplicaExits, ReplicaHealth
from corral.frontend.serving.rollout import RESTORING_PERIOD, Restoring, Rollout
from corral.frontend.serving.staging import Staging
from corral.frontend.serving.store.load_jobs import LoadJobs
from corral.frontend.serving.store.replicas import ReplicaStore, Restorations
from corral.frontend.serving.unloading import ORPHANS_PERIOD, NodeModels, Orphans, Unloading
from corral.frontend.serving.view import ViewKeeper, ViewSources
from corral.wire.subjects import GATEWAY_SHARES, REPLICAS_EXITED


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSettings:
    loads: LoadPolicy
    usual: UsualLimits
    admin_keys: Sequence[str] = field(repr=False)
    metrics_public: bool
    adapter_socket: Path | None
    adapter_secret: bytes = field(repr=False)
    """What the keys of this frontend's adapter are made of; the same after a restart of control."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierRooms:
    """The rooms that serving stands on."""

    record: RecordRoom
    nodes: NodesRoom
    operations: OperationsRoom
    backends: BackendsRoom
    models: ModelsRoom


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRoom:
    replicas: ReplicaStore
    adapted: AdaptedReplicas
    loads: Loads
    node_models: NodeModels
    view: ViewKeeper
    gateways: GatewayReports
    shares: GatewayShares
    health: ReplicaHealth
    exits: ReplicaExits
    rollout: Rollout
    unloading: Unloading
    restoring: Restoring
    orphans: Orphans

    @classmethod
    def build(
        cls,
        foundation: Foundation,
        rooms: EarlierRooms,
        settings: ServingSettings,
        replicas: ReplicaStore,
        *,
        loader: BackendLoader,
        problems: Callable[[], Sequence[str]],
    ) -> Self:
        """`problems` are what control lacks at the moment; the gateways are told."""
        nodes, models, intents = rooms.nodes, rooms.models.catalogue, rooms.operations.stores.intents
        events, feed, clock = rooms.record.events, rooms.record.feed, foundation.clock
        fleet, client, brake = nodes.fleet, nodes.client, nodes.brake
        jobs, restorations = LoadJobs(foundation.database, foundation.secrets), Restorations(foundation.database)
        health = ReplicaHealth(replicas, nodes.store, fleet, client, feed, clock, brake=brake)
        gateways = GatewayReports(health, clock)
        adapted = AdaptedReplicas(
            settings.adapter_socket,
            models,
            nodes.tokens,
            settings.usual,
            feed,
            clock,
            secret=settings.adapter_secret,
        )
        stores = LoadStores(jobs=jobs, replicas=replicas, nodes=nodes.store)
        loads = _build_loads(rooms, stores, settings, loader, adapted)
        sources = ViewSources(
            models=models,
            replicas=replicas,
            adapted=adapted,
            nodes=nodes.store,
            keys=Keys(foundation.database),
            admin_keys=settings.admin_keys,
            fleet=fleet,
            problems=problems,
            brake=brake,
            metrics_public=settings.metrics_public,
        )
        return cls(
            replicas=replicas,
            adapted=adapted,
            loads=loads,
            node_models=NodeModels(replicas, fleet, client, feed, clock),
            view=ViewKeeper(sources, clock),
            gateways=gateways,
            shares=GatewayShares(foundation.bus, gateways, foundation.frontend_id, clock),
            health=health,
            exits=ReplicaExits(replicas, health, clock),
            rollout=Rollout(restorations, replicas, fleet, rooms.backends.galleries, gateways, health, feed, clock),
            unloading=Unloading(replicas, models, loads, gateways, client, feed, clock),
            restoring=Restoring(restorations, replicas, intents, nodes.store, fleet, models, loads, clock),
            orphans=Orphans(replicas, jobs, events, foundation.leader, fleet, client, feed, clock, brake=brake),
        )

    def subscriptions(self) -> dict[str, Handler]:
        return {GATEWAY_SHARES: self.shares.on_message, REPLICAS_EXITED: self.exits.on_message}

    def loops(self, record: RecordRoom) -> dict[str, Loop]:
        unload, restore = record.when_new(self.unloading.sweep), record.when_new(self.restoring.sweep)
        refresh = record.when_new(self.view.refresh, mark=self.view.mark)
        return {
            "adapter": self.adapted.run,
            "loads": self.loads.run,
            "replicas": record.every(replica_health.PERIOD, self.health.poke, self.health.sweep, "replicas"),
            "unloading": record.every(unloading.PERIOD, Poke(), unload, "unloading"),
            "restoring": record.every(RESTORING_PERIOD, Poke(), restore, "restoring"),
            "orphans": record.every(ORPHANS_PERIOD, Poke(), self.orphans.sweep, "orphans"),
            "view": record.follow(view.PERIOD, refresh, "view"),
        }


def _build_loads(
    rooms: EarlierRooms,
    stores: LoadStores,
    settings: ServingSettings,
    loader: BackendLoader,
    adapted: AdaptedReplicas,
) -> Loads:
    nodes, models, clock = rooms.nodes, rooms.models.catalogue, rooms.record.clock
    intents, operations = rooms.operations.stores.intents, rooms.backends.operations

    async def file_server(node_id: NodeId) -> FilePeer | None:
        address = (await nodes.contacts.of(node_id)).http_address
        return FilePeer(address=address, token=await nodes.tokens.of(node_id)) if address else None

    staging = Staging(models.directory, file_server)
    work = LoadWork(
        stores,
        models,
        nodes.fleet,
        ModelLoader(nodes.client, models, nodes.tokens, loader, intents, operations, staging, usual=settings.usual),
        rooms.record.feed,
        clock,
        policy=settings.loads,
        board=rooms.operations.progress,
        logs=nodes.logs,
    )
    return Loads(
        stores,
        models,
        work,
        clock,
        settings.loads,
        rooms.operations.progress,
        adapter_problem=lambda: adapted.problem,
    )
