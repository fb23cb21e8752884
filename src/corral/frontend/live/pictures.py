"""Takes pictures of the fleet. Each part is read only when a topic needs it, and again only when it may be another:
after something was announced, or after its period. A thousand nodes cost as many statements as one.
"""

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

import msgspec

from corral.base.clock import Clock
from corral.base.ids import NodeId, OperationId
from corral.frontend.access.sealing import SealingKeys
from corral.frontend.backends.decide.backend import Inventory
from corral.frontend.backends.decide.drift import Drift, drift_of
from corral.frontend.backends.room import BackendsRoom
from corral.frontend.diagnosis.readiness import ControlReadiness
from corral.frontend.live.decide.picture import (
    BRAKE,
    ControlHealth,
    FleetPicture,
    OutdatedBackend,
    SeenNodes,
    SlowFacts,
)
from corral.frontend.models.catalogue import Models
from corral.frontend.nodes.decide.node import Node, SeenNode
from corral.frontend.nodes.room import NodesRoom
from corral.frontend.nodes.store.nodes import mark_of
from corral.frontend.operations.decide.intent import IntentKind
from corral.frontend.operations.progress import ALL
from corral.frontend.operations.room import OperationsRoom
from corral.frontend.operations.watch import WatchedOperation
from corral.frontend.record.feed import Feed
from corral.frontend.serving.decide.load_job import LoadJob
from corral.frontend.serving.decide.replica import ON_THE_WAY, Replica
from corral.frontend.serving.room import ServingRoom

_NEWEST: Final = 30
"""Operations that are shown when they are over, too."""
_AT_ONCE: Final = 5
"""Operations whose targets are read together: an operation may have a thousand of them."""
_LOADED_AT_ONCE: Final = 500
"""Nodes that are read together. Turning them into values takes milliseconds in which nobody else is served."""
_MOVING: Final = timedelta(milliseconds=400)
_BRIEFLY: Final = timedelta(milliseconds=900)
"""A little less than the hub waits between looks, so that each look finds it due."""
_CALMLY: Final = timedelta(seconds=5)
_SELDOM: Final = timedelta(seconds=60)
_SLOW_SPACING: Final = timedelta(seconds=5)
"""Between looks at what takes long to find out, however much is announced."""
_SLOW_SHARE: Final = 60
"""The pause is also at least this many times as long as the last look took, so that in a large fleet other parts rarely
wait for it."""


class PicturePart(StrEnum):
    """What a topic may need of the fleet. Nodes are read for all of them: everything has a node."""

    REPLICAS = "replicas"
    JOBS = "jobs"
    OPERATIONS = "operations"
    SLOW = "slow"


EVERY_PART: Final = frozenset(PicturePart)


class _KeptPart:
    """One part, as it was when it was last read."""

    def __init__(self, clock: Clock, *, spacing: timedelta = timedelta(0)) -> None:
        self._clock = clock
        self._spacing = spacing.total_seconds()
        self._mark: Hashable = None
        self._read_at: float | None = None
        self._took = 0.0

    def is_due(self, mark: Hashable, period: timedelta) -> bool:
        """Whether it may be another by now: because of what the mark tells, or after so long."""
        if self._read_at is None:
            return True
        passed = self._clock.monotonic() - self._read_at
        spacing = self._spacing and max(self._spacing, self._took * _SLOW_SHARE)
        return passed >= max(period.total_seconds(), spacing) or (mark != self._mark and passed >= spacing)

    def read(self, mark: Hashable, took: float) -> None:
        """Note that the part was read as of this mark, and how many seconds that took."""
        self._mark, self._read_at, self._took = mark, self._clock.monotonic(), took


class PictureSources(msgspec.Struct, frozen=True, kw_only=True):
    feed: Feed
    nodes: NodesRoom
    operations: OperationsRoom
    backends: BackendsRoom
    models: Models
    serving: ServingRoom
    readiness: ControlReadiness
    sealing: SealingKeys


class Pictures:
    """One at a time may take a picture: the hub sees to it."""

    def __init__(self, sources: PictureSources, clock: Clock) -> None:
        self._sources = sources
        self._clock = clock
        self._nodes: dict[NodeId, Node] = {}
        self._order: list[NodeId] = []
        self._statuses = SeenNodes(sources.nodes.fleet.policy)
        self._replicas: Sequence[Replica] = ()
        self._jobs: Sequence[LoadJob] = ()
        self._slow: SlowFacts | None = None
        self.operations: Sequence[WatchedOperation] = ()
        """The operations of the last picture with their views: those that are not over, and the newest."""
        self._noticed: dict[str, datetime] = {}
        self._parts = {
            name: _KeptPart(clock) for name in ("nodes", PicturePart.REPLICAS, PicturePart.JOBS, PicturePart.OPERATIONS)
        }
        self._parts[PicturePart.SLOW] = _KeptPart(clock, spacing=_SLOW_SPACING)

    async def take(self, parts: frozenset[PicturePart], *, moved: int = 0) -> FleetPicture:
        """`moved` differs when operations or loads went on since the last time."""
        rings = self._sources.feed.rings
        await self._update("nodes", self._read_nodes, rings, _BRIEFLY)
        if PicturePart.REPLICAS in parts:
            is_moving = any(replica.state in ON_THE_WAY for replica in self._replicas)
            await self._update(PicturePart.REPLICAS, self._read_replicas, rings, _BRIEFLY if is_moving else _CALMLY)
        if PicturePart.JOBS in parts:
            period = _BRIEFLY if self._jobs else _CALMLY
            await self._update(PicturePart.JOBS, self._read_jobs, (rings, moved), period)
        if PicturePart.OPERATIONS in parts:
            period = _MOVING if self.is_moving else _CALMLY
            await self._update(PicturePart.OPERATIONS, self._read_operations, (rings, moved), period)
        if PicturePart.SLOW in parts:
            return await self.take_slow()
        return self.picture()

    async def take_slow(self) -> FleetPicture:
        """The last picture, with what takes long to find out as it is now."""
        await self._update(PicturePart.SLOW, self._read_slow, self._sources.feed.rings, _SELDOM)
        return self.picture()

    @property
    def is_slow_due(self) -> bool:
        """Whether what takes long may be another by now."""
        return self._parts[PicturePart.SLOW].is_due(self._sources.feed.rings, _SELDOM)

    @property
    def is_moving(self) -> bool:
        """Whether operations are under way, as far as was seen."""
        return self._sources.operations.watch.is_under_way(ALL)

    @property
    def has_slow(self) -> bool:
        """Whether what takes long was read before."""
        return self._slow is not None

    def picture(self) -> FleetPicture:
        """The fleet as of what was read last, and of now where nothing has to be read."""
        sources, now, gateways = self._sources, self._clock.now(), self._sources.serving.gateways
        catalogue = sources.models.catalogue
        return FleetPicture(
            at=now,
            policy=sources.nodes.fleet.policy,
            nodes=self._seen(now),
            replicas=tuple(self._replicas),
            jobs=tuple(self._jobs),
            operations=tuple(watched.operation for watched in self.operations),
            in_flight=gateways.in_flight(),
            waiting=gateways.waiting(),
            is_load_known=gateways.silent() == 0,
            models=sum(not spec.alias_of for spec in catalogue.models.values()),
            disk_needs=self._disk_needs(),
            has_answer=gateways.has_answered,
            control=self._control(now),
            slow=self._slow or SlowFacts(),
        )

    async def _update(self, name: str, read: Callable[[], Awaitable[None]], mark: Hashable, period: timedelta) -> None:
        part = self._parts[name]
        if part.is_due(mark, period):
            began = self._clock.monotonic()
            await read()
            part.read(mark, self._clock.monotonic() - began)

    # Parts.

    async def _read_nodes(self) -> None:
        """Whole nodes are read only of those that changed."""
        store = self._sources.nodes.store
        marks = await store.marks()
        nodes_by_id = {id: node for id, node in self._nodes.items() if id in marks}
        changed = [id for id, mark in marks.items() if id not in nodes_by_id or mark_of(nodes_by_id[id]) != mark]
        for start in range(0, len(changed), _LOADED_AT_ONCE):
            nodes_by_id |= await store.load_many(changed[start : start + _LOADED_AT_ONCE])
        if changed or len(nodes_by_id) != len(self._nodes):
            self._nodes = nodes_by_id
            self._order = sorted(nodes_by_id, key=lambda id: (nodes_by_id[id].name, id))

    def _seen(self, now: datetime) -> tuple[SeenNode, ...]:
        nodes = self._nodes
        return self._statuses.of([nodes[id] for id in self._order], now, self._sources.nodes.hearing.current)

    async def _read_replicas(self) -> None:
        self._replicas = await self._sources.serving.replicas.outlines()

    async def _read_jobs(self) -> None:
        self._jobs = await self._sources.serving.loads.jobs()

    async def _read_operations(self) -> None:
        watch, store = self._sources.operations.watch, self._sources.operations.stores.operations
        current = await watch.current()
        living = {watched.operation.id for watched in current}
        latest = [id for id in await store.latest(_NEWEST) if id not in living]
        over: list[WatchedOperation] = []
        for start in range(0, len(latest), _AT_ONCE):
            over += await watch.look_at_some(latest[start : start + _AT_ONCE])
        self.operations = [*reversed(current), *over]

    async def _read_slow(self) -> None:
        sources, nodes = self._sources, self._seen(self._clock.now())
        inventories = await sources.backends.inventory.known([seen.node.id for seen in nodes])
        findings = await sources.backends.upgrades.findings_of(nodes, inventories)
        outdated = [
            OutdatedBackend(
                backend=compared.backend,
                nodes=tuple(node.holding.seen.node.name for node in compared.outdated),
                offered="" if compared.offer is None else compared.offer.version or compared.offer.digest,
                since=None if findings.check is None else findings.check.at,
            )
            for compared in findings.backends
            if compared.outdated
        ]
        self._slow = SlowFacts(
            drift=tuple(await self._drifts(nodes, inventories)),
            upgrades=tuple(outdated),
            has_backend=any(inventory.entries for inventory in inventories.values()),
            frontends=await sources.sealing.frontends(),
        )

    async def _drifts(self, nodes: Sequence[SeenNode], inventories: Mapping[NodeId, Inventory]) -> list[Drift]:
        """What was proven once and does not hold any more, by the names of nodes and backends."""
        proven = await self._sources.operations.stores.intents.satisfied(IntentKind.BACKEND)
        seen_by_id = {seen.node.id: seen for seen in nodes}
        drifts = [
            drift_of(intent, seen_by_id[intent.node_id], inventories.get(intent.node_id))
            for intent in proven
            if intent.node_id in seen_by_id
        ]
        return sorted(filter(None, drifts), key=lambda drift: (drift.seen.node.name, drift.backend))

    def _disk_needs(self) -> Mapping[str, int]:
        models = self._sources.models
        specs = {job.model: models.catalogue.models.get(job.model) for job in self._jobs}
        return {name: models.needs_of(spec).disk for name, spec in specs.items() if spec is not None}

    def _control(self, now: datetime) -> ControlHealth:
        brake, readiness = self._sources.nodes.brake.reason, self._sources.readiness
        problems, warnings = tuple(readiness.known()), tuple(readiness.warnings())
        noticed = {BRAKE if brake else "", *problems, *warnings} - {""}  # why the brake holds counts the seconds
        self._noticed = {text: self._noticed.get(text, now) for text in noticed}
        return ControlHealth(brake=brake, problems=problems, warnings=warnings, since=self._noticed)

    def node(self, id: NodeId) -> SeenNode | None:
        """A node of the last picture."""
        node = self._nodes.get(id)
        return None if node is None else self._sources.nodes.fleet.see(node)

    async def operation(self, id: OperationId) -> WatchedOperation | None:
        return await self._sources.operations.watch.look_at(id)
