"""What handlers work with: the services, passed in once, and who is calling."""

import asyncio
from dataclasses import dataclass

from corral.base.clock import Clock
from corral.base.ids import FrontendId
from corral.bus.port import Bus
from corral.frontend.access.key_ring import KeyRing
from corral.frontend.access.principals import Authenticator, NodeClaim, Principal
from corral.frontend.backends.inventory import InventoryKeeper
from corral.frontend.backends.operations import BackendOperations
from corral.frontend.backends.planning import CatalogueSource
from corral.frontend.backends.upgrades import Upgrades
from corral.frontend.config import ControlConfig
from corral.frontend.diagnosis.readiness import ControlReadiness
from corral.frontend.models.catalogue import Models
from corral.frontend.models.removal import ModelRemoval
from corral.frontend.nodes.brake import Brake
from corral.frontend.nodes.fleet import Fleet
from corral.frontend.nodes.hearing import HearingKeeper
from corral.frontend.nodes.heartbeats import Heartbeats
from corral.frontend.nodes.logs import NodeLogs
from corral.frontend.nodes.registry import NodeRegistry
from corral.frontend.operations.peer_operations import PeerOperations
from corral.frontend.operations.peer_staging import PeerStaging
from corral.frontend.operations.progress import ProgressBoard
from corral.frontend.operations.service import Operations
from corral.frontend.operations.watch import OperationWatch
from corral.frontend.record.feed import EventCounts, Feed
from corral.frontend.record.store import Events
from corral.frontend.rules.service import FleetRules
from corral.frontend.serving.gateway_reports import GatewayReports, GatewayShares
from corral.frontend.serving.load_jobs import Loads
from corral.frontend.serving.store.replicas import ReplicaStore
from corral.frontend.serving.unloading import NodeModels
from corral.frontend.serving.view import ViewKeeper
from corral.frontend.store.db import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminContext:
    """The admin API's collaborators, wired in `processes/control.py`."""

    config: ControlConfig
    frontend_id: FrontendId
    clock: Clock
    bus: Bus
    database: Database
    authenticator: Authenticator
    registry: NodeRegistry
    fleet: Fleet
    heartbeats: Heartbeats
    hearing: HearingKeeper
    key_ring: KeyRing
    models: Models
    model_removal: ModelRemoval
    node_models: NodeModels
    node_logs: NodeLogs
    loads: Loads
    replicas: ReplicaStore
    operations: Operations
    backend_operations: BackendOperations
    fleet_rules: FleetRules
    inventory: InventoryKeeper
    upgrades: Upgrades
    galleries: CatalogueSource
    progress: ProgressBoard
    watch: OperationWatch
    peers: PeerOperations
    staging: PeerStaging
    view: ViewKeeper
    readiness: ControlReadiness
    brake: Brake
    gateways: GatewayReports
    shares: GatewayShares
    events: Events
    event_counts: EventCounts
    feed: Feed
    stopping: asyncio.Event
    """Set when the process is about to end, so that open event streams end first."""

    @property
    def metrics_public(self) -> bool:
        return self.config.metrics_public

    @property
    def max_body(self) -> int:
        return self.config.max_body


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who calls: an administrator, a worker, or anybody on public routes."""

    principal: Principal | None = None
    claim: NodeClaim | None = None

    @property
    def name(self) -> str:
        return self.principal.name if self.principal is not None else "anonymous"
