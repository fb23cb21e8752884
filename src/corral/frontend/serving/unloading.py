"""Ending what runs on nodes: replicas that are outgrown, models that somebody unloads, processes without a replica."""

import asyncio
import logging
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Final

from corral.base.clock import Clock
from corral.base.errors import Conflict, CorralError
from corral.base.ids import NodeId, ReplicaId
from corral.base.tasks import task_group
from corral.frontend.models.catalogue import Models
from corral.frontend.nodes.client import NodeClient, NodeTooOld, StoppedProcess
from corral.frontend.nodes.decide.node import Node, NodeStatus, NodeType
from corral.frontend.nodes.decide.reports import ReportedProcess, port_of
from corral.frontend.nodes.fleet import Fleet, NodeFilter
from corral.frontend.nodes.liveness import Brake
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.feed import Feed
from corral.frontend.record.store import Events
from corral.frontend.serving.decide.draining import NODE_DRAINED
from corral.frontend.serving.decide.eviction import RoomPolicy
from corral.frontend.serving.decide.replica import LIVE, SERVING, Explained, Outgrown, Replica, ReplicaState, outgrown
from corral.frontend.serving.gateways.reports import GatewayReports
from corral.frontend.serving.loading.load_jobs import Loads
from corral.frontend.serving.replica_health import nobody_listens
from corral.frontend.serving.store.load_jobs import LoadJobs
from corral.frontend.serving.store.replicas import ReplicaStore
from corral.frontend.store.leases import Leader

log = logging.getLogger(__name__)

PERIOD: Final = timedelta(seconds=2)
SETTLED_AFTER: Final = timedelta(seconds=5)
"""How long the files must say the same before a replica is ended for it."""
HEARD_AFTER: Final = timedelta(seconds=2)
"""Until every gateway that is connected has learned of it, and has reported what it still has under way."""
DRAIN_WITHIN: Final = timedelta(seconds=30)
"""For requests under way, as long as a node that leaves gives them."""


class Unloading:
    """Ends replicas whose model was deleted or made an alias, and those that others want to end.

    Those of a model that was changed are exchanged by `scaling.py`.
    """

    def __init__(  # noqa: PLR0913 - each is a collaborator
        self,
        replicas: ReplicaStore,
        models: Models,
        loads: Loads,
        gateways: GatewayReports,
        client: NodeClient,
        feed: Feed,
        clock: Clock,
        policy: RoomPolicy,
    ) -> None:
        self._replicas = replicas
        self._models = models
        self._loads = loads
        self._policy = policy
        self._gateways = gateways
        self._client = client
        self._feed = feed
        self._clock = clock
        self._noticed: dict[tuple[ReplicaId, str], datetime] = {}

    async def sweep(self) -> bool:
        """Go on with all that is outgrown; whether there was anything."""
        living = await self._replicas.living()
        for replica, why in self._due([replica for replica in living if replica.state is ReplicaState.LOADED]):
            await self._begin(replica, why)
        unloading = [replica for replica in living if replica.state is ReplicaState.UNLOADING]
        async with task_group() as group:
            for replica in unloading:
                group.create_task(self._go_on(replica), name=f"end {replica.process_key}")
        return bool(self._noticed or unloading)

    def _due(self, loaded: list[Replica]) -> list[tuple[Replica, Outgrown]]:
        """The replicas for which the same change was seen for long enough."""
        if not self._models.is_readable:
            self._noticed.clear()
            return []
        now, catalogue = self._clock.now(), self._models.catalogue
        marks = {
            (replica.id, self._models.revision_of(replica.model)): (replica, why)
            for replica in loaded
            if (why := outgrown(replica, catalogue)) is not None and why is not Outgrown.CHANGED
        }
        self._noticed = {mark: min(self._noticed.get(mark, now), now) for mark in marks}
        return [marks[mark] for mark, since in self._noticed.items() if now - since >= SETTLED_AFTER]

    async def _begin(self, replica: Replica, why: Outgrown) -> None:
        now = self._clock.now()
        event = _event(EventKind.REPLICA_UNLOADING, replica, at=now, why=why.value)
        if await self._replicas.unload(replica.id, reason=why.value, at=now, events=[event]):
            details = {"event": "replica.unloading", "model": replica.model, "node": replica.node_id, "why": why.value}
            log.info("replica is being ended", extra=details)
            await self._feed.announce()

    async def _go_on(self, replica: Replica) -> None:
        age = replica.age(self._clock.now())
        # What a silent gateway has under way is not known.
        may_be_busy = self._gateways.in_flight()[replica.id] or self._gateways.silent()
        within = self._policy.drain if replica.reason == NODE_DRAINED else DRAIN_WITHIN
        if age < HEARD_AFTER or (age < within and may_be_busy):
            return
        if not await self._stopped_exactly(replica):
            # Another frontend may have ended it while the node was asked: then its place may be another one's by now.
            stored = await self._replicas.get(replica.id)
            if stored is None or stored.state is not ReplicaState.UNLOADING:
                return
            await self._client.stop(replica.node_id, replica.process_key)
        details = {"model": replica.model, "node": replica.node_id}
        try:
            is_gone = await self._is_gone(replica)
        except CorralError as error:  # the node is asked again with the next sweep
            log.info("no report from a node: %s", error, extra={"event": "replica.no_report", **details})
            return
        if not is_gone:
            return
        now = self._clock.now()
        event = _event(EventKind.REPLICA_UNLOADED, replica, at=now, why=replica.reason)
        if await self._replicas.end(replica.id, at=now, events=[event]):
            log.info("replica ended", extra={"event": "replica.unloaded", **details})
            await self._feed.announce()
            await self._loads.look_for_room()

    async def _is_gone(self, replica: Replica) -> bool:
        """Whether its process has ended: the node's own report says that, or where there is none, its port."""
        try:
            reported = await self._client.running(replica.node_id)
        except NodeTooOld:
            return await nobody_listens(replica)
        return all((process.model, process.index) != (replica.model, replica.index) for process in reported)

    async def _stopped_exactly(self, replica: Replica) -> bool:
        port = port_of(replica.address)
        if not port.isdecimal():
            return False
        process = StoppedProcess(
            model=replica.model, process_key=replica.process_key, port=int(port), revision=replica.revision
        )
        return await self._client.stop_exactly(replica.node_id, process)


def _event(kind: EventKind, replica: Replica, *, at: datetime, why: str, by: str = "control") -> Event:
    data = {"replica": replica.id, "model": replica.model, "why": why}
    return Event(kind=kind, at=at, actor=by, node_id=replica.node_id, data=data)


WITHIN: Final = DRAIN_WITHIN + timedelta(seconds=15)
"""How long a caller is kept waiting. What was begun goes on in any case."""
_LOOK_SECONDS: Final = 0.5


class StillRunning(CorralError):
    """A process did not end in time."""

    code = "still_running"
    retryable = True


class NodeModels:
    """Unloads models on request, and waits until nothing runs for them."""

    def __init__(
        self, replicas: ReplicaStore, jobs: LoadJobs, fleet: Fleet, client: NodeClient, feed: Feed, clock: Clock
    ) -> None:
        self._replicas = replicas
        self._jobs = jobs
        self._fleet = fleet
        self._client = client
        self._feed = feed
        self._clock = clock

    async def unload(self, node_id: NodeId, model: str, *, by: str) -> None:
        """Returns when the node runs nothing for the model any more. NotFound for an unknown node, Conflict while the
        model is being loaded there, and otherwise fails as calls to nodes do."""
        await self._fleet.get(node_id)
        deadline = self._clock.now() + WITHIN
        while True:
            running = await self._running(node_id, model)
            on_node = await self._replicas.on_node(node_id)
            living = [replica for replica in on_node if replica.model == model and replica.state in LIVE]
            if any(replica.state not in SERVING for replica in living):
                raise Conflict(f"{model} is being loaded there; try again when that is over")
            if not running and not living:
                return
            await self._begin(living, by)
            stored = {replica.process_key for replica in living}
            for process_key in sorted(running - stored):
                await self._client.stop(node_id, process_key)
            if self._clock.now() >= deadline:
                names = ", ".join(sorted(running | stored))
                raise StillRunning(f"{names} did not end within {WITHIN.total_seconds():.0f} s; it stays wanted")
            await self._clock.sleep(_LOOK_SECONDS)

    async def _running(self, node_id: NodeId, model: str) -> set[str]:
        """The keys of processes that run for the model there; none of a node that is too old to tell them."""
        try:
            return {process.process_key for process in await self._client.running(node_id) if process.model == model}
        except NodeTooOld:
            return set()

    async def unload_everywhere(self, model: str, *, by: str) -> None:
        """Unload the model on every node that serves it, and take back loads that wait for a place. A node that fails
        does not stop the others; then its error is raised."""
        await self._jobs.withdraw_all(model)
        nodes = {replica.node_id for replica in await self._replicas.of_model(model) if replica.state in LIVE}
        failures: list[CorralError] = []

        async def unload(node_id: NodeId) -> None:
            try:
                await self.unload(node_id, model, by=by)
            except CorralError as error:
                failures.append(error)

        async with task_group() as group:
            for node_id in sorted(nodes):
                group.create_task(unload(node_id), name=f"unload {model} at {node_id}")
        if failures:
            raise failures[0]

    async def _begin(self, living: list[Replica], by: str) -> None:
        now, why, has_begun = self._clock.now(), f"unloaded by {by}", False
        for replica in living:
            if replica.state is ReplicaState.LOADED:
                event = _event(EventKind.REPLICA_UNLOADING, replica, at=now, why=why, by=by)
                has_begun |= await self._replicas.unload(replica.id, reason=why, at=now, events=[event])
        if has_begun:
            await self._feed.announce()


ORPHANS_PERIOD: Final = timedelta(seconds=10)
_NODES_AT_ONCE: Final = 200
"""Looked at in one sweep; a larger fleet takes several."""
_ASKED_AT_ONCE: Final = 32
_PRESENT: Final = NodeFilter(
    statuses=frozenset({NodeStatus.HEALTHY, NodeStatus.DRAINING}), types=frozenset({NodeType.BACKEND})
)


class Orphans:
    """Stops processes that nothing explains: no living replica has their place, and no load is about to take it.

    A node's report may be older than what the database says, so it takes two reports in a row, and the database is read
    after each of them: a load reserves its place before the node is asked. One frontend at a time does this.
    """

    def __init__(  # noqa: PLR0913 - each is a collaborator
        self,
        replicas: ReplicaStore,
        jobs: LoadJobs,
        events: Events,
        leader: Leader,
        fleet: Fleet,
        client: NodeClient,
        feed: Feed,
        clock: Clock,
        *,
        brake: Brake,
    ) -> None:
        self._replicas = replicas
        self._jobs = jobs
        self._events = events
        self._leader = leader
        self._fleet = fleet
        self._client = client
        self._feed = feed
        self._clock = clock
        self._brake = brake
        self._cursor: str | None = None
        self._suspects: dict[NodeId, frozenset[ReportedProcess]] = {}
        self._stopped: dict[NodeId, frozenset[ReportedProcess]] = {}
        """Processes that were asked to end, and have an event already."""

    async def sweep(self) -> None:
        """Look at the next nodes; stop what was unexplained in their last two reports."""
        if self._brake.holds or not await self._leader.holds(
            "orphans", duration=ORPHANS_PERIOD * 6, renew_below=ORPHANS_PERIOD * 2
        ):
            self._suspects.clear()
            return
        page = await self._fleet.page(_PRESENT, limit=_NODES_AT_ONCE, cursor=self._cursor)
        self._cursor = page.next_cursor
        nodes = {seen.node.id: seen.node for seen in page.items}
        reports = await self._reports(nodes)
        explained = Explained.by([], [])
        if any(reports.values()):
            explained = Explained.by(await self._replicas.living(), await self._jobs.all())
        for node_id, processes in reports.items():
            unexplained = frozenset(process for process in processes if not explained.covers(node_id, process))
            orphans = unexplained & self._suspects.get(node_id, frozenset())
            self._suspects[node_id] = unexplained
            await self._stop(nodes[node_id], orphans)
            self._stopped[node_id] = orphans

    async def _reports(self, ids: Collection[NodeId]) -> Mapping[NodeId, list[ReportedProcess]]:
        slots = asyncio.Semaphore(_ASKED_AT_ONCE)
        reports: dict[NodeId, list[ReportedProcess]] = {}

        async def look(node_id: NodeId) -> None:
            async with slots:
                try:
                    reports[node_id] = await self._client.glimpse(node_id)
                except CorralError as error:
                    log.debug("no report from a node: %s", error, extra={"event": "orphans.no_report"})
                    self._suspects.pop(node_id, None)  # in a row means in a row

        async with asyncio.TaskGroup() as group:
            for node_id in ids:
                group.create_task(look(node_id), name=f"look at {node_id}")
        return reports

    async def _stop(self, node: Node, orphans: frozenset[ReportedProcess]) -> None:
        for process in sorted(orphans, key=lambda process: (process.model, process.index)):
            was_stopped = await self._client.stop(node.id, process.process_key)
            if not was_stopped or process in self._stopped.get(node.id, frozenset()):
                continue
            details = {"event": "process.orphaned", "node": node.id, "key": process.process_key}
            log.info("stopping a process that nothing explains", extra=details)
            data = {
                "name": node.name,
                "process": process.process_key,
                "address": process.address,
                "why": "no replica and no load explains it, in two reports in a row",
            }
            now = self._clock.now()
            event = Event(kind=EventKind.PROCESS_ORPHANED, at=now, actor="control", node_id=node.id, data=data)
            await self._events.record([event])
            await self._feed.announce()
