"""Control as a whole: its rooms, built in order, and the life that they have together."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Final, NamedTuple

from corral.base.clock import Clock
from corral.base.ids import FrontendId, new_frontend_id
from corral.base.tasks import run_services
from corral.bus.port import Bus
from corral.frontend.access.credentials import Credentials, FirstKeys
from corral.frontend.access.room import AccessRoom
from corral.frontend.access.store import Keys
from corral.frontend.api.context import AdminContext
from corral.frontend.api.server import AdminServer
from corral.frontend.backends.catalogue import Lookups
from corral.frontend.backends.decide.backend import with_alias_kept
from corral.frontend.backends.operations import BackendKind
from corral.frontend.backends.room import BackendsRoom
from corral.frontend.backends.store import write_reports
from corral.frontend.config import ControlConfig
from corral.frontend.diagnosis.readiness import ControlReadiness
from corral.frontend.models.removal import ModelKind
from corral.frontend.models.room import ModelsRoom
from corral.frontend.models.store import ModelRemovals
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
from corral.frontend.serving.loading import BackendLoader, GrpcLoader, UsualLimits
from corral.frontend.serving.room import EarlierRooms, ServingRoom, ServingSettings
from corral.frontend.serving.store.load_jobs import stop_serving
from corral.frontend.serving.store.replicas import ReplicaStore, lose_replicas_of
from corral.frontend.store.db import Database
from corral.frontend.store.secrets import Secrets

_NOWHERE: Final = Lookups()


class Stores(NamedTuple):
    database: Database
    secrets: Secrets


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """Everything the control process consists of, built and not yet running."""

    context: AdminContext
    credentials: Credentials

    async def run(self, stop: asyncio.Event, server: AdminServer) -> None:
        """Until `stop`: then event streams end, requests under way finish, loops are cancelled."""
        context = self.context
        for room in (context.record, context.operations, context.backends, context.serving):
            for subject, handler in room.subscriptions().items():
                await context.foundation.bus.subscribe(subject, handler)
        await run_services(stop, server=server.run(ending=self._end_streams), **self.loops())

    def loops(self) -> dict[str, Coroutine[None, None, None]]:
        """What runs beside the server, by the name that it has in logs."""
        context, record = self.context, self.context.record
        loops = record.loops()
        for room in (
            context.nodes,
            context.operations,
            context.backends,
            context.models,
            context.serving,
            context.rules,
        ):
            loops |= room.loops(record)
        return {name: loop() for name, loop in loops.items()}

    def _end_streams(self) -> None:
        self.context.stopping.set()
        self.context.record.feed.ring()
        self.context.serving.view.ring()


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
    operations = _build_operations(config, foundation, record, nodes, guard)
    backends = BackendsRoom.build(foundation, nodes, operations, lookups, guard=guard, policy=config.upgrades)
    removals = ModelRemovals(database, operations.stores.operations, on_removal=(stop_serving,))
    models = await ModelsRoom.build(
        foundation, record, nodes, operations, config.models_path, removals=removals, is_served=replicas.serve
    )
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
        foundation=foundation,
        record=record,
        access=_build_access(config, foundation, record, serving, credentials),
        nodes=nodes,
        operations=operations,
        backends=backends,
        models=models,
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


def _build_operations(
    config: ControlConfig, foundation: Foundation, record: RecordRoom, nodes: NodesRoom, guard: RuleGuard
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
        policy=config.intents,
        retention=Retention(events=config.event_retention, operations=config.operation_retention),
    )


def _serving_settings(config: ControlConfig) -> ServingSettings:
    return ServingSettings(
        loads=config.loads,
        usual=UsualLimits(threads=config.threads, most_tokens=config.most_tokens),
        admin_keys=config.admin_keys,
        metrics_public=config.metrics_public,
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
