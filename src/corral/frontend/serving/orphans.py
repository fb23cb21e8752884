"""Stops processes that nothing explains: no living replica has their place, and no load is about to take it.

A node's report may be older than what the database says, so it takes two reports in a row, and the database is read
after each of them: whoever loads reserves a place before the node is asked. One frontend at a time does this.
"""

import asyncio
import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from corral.base.clock import Clock
from corral.base.errors import CorralError
from corral.base.ids import NodeId
from corral.frontend.nodes.brake import Brake
from corral.frontend.nodes.client import NodeClient
from corral.frontend.nodes.decide.node import Node, NodeStatus, NodeType
from corral.frontend.nodes.decide.reports import ReportedProcess
from corral.frontend.nodes.fleet import Fleet, NodeFilter
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.feed import Feed
from corral.frontend.record.store import Events
from corral.frontend.serving.decide.replica import Explained
from corral.frontend.serving.store.load_jobs import LoadJobs
from corral.frontend.serving.store.replicas import ReplicaStore
from corral.frontend.store.leases import Leader

log = logging.getLogger(__name__)

PERIOD: Final = timedelta(seconds=10)
_NODES_AT_ONCE: Final = 200
"""Looked at in one sweep; a larger fleet takes several."""
_ASKED_AT_ONCE: Final = 32
_PRESENT: Final = NodeFilter(
    statuses=frozenset({NodeStatus.HEALTHY, NodeStatus.DRAINING}), types=frozenset({NodeType.BACKEND})
)

ProcessReports = Mapping[NodeId, list[ReportedProcess]]


class Orphans:
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
        self._told: dict[NodeId, frozenset[ReportedProcess]] = {}
        """Those that were asked to end, and have an event already."""

    async def sweep(self) -> None:
        """Look at the next nodes; stop what was unexplained in their last two reports."""
        if self._brake.holds or not await self._leader.holds("orphans", lasts=PERIOD * 6, left=PERIOD * 2):
            self._suspects.clear()
            return
        page = await self._fleet.page(_PRESENT, limit=_NODES_AT_ONCE, cursor=self._cursor)
        self._cursor = page.next_cursor
        nodes = {seen.node.id: seen.node for seen in page.items}
        reports = await self._reports(nodes)
        explained = await self._explained() if any(reports.values()) else Explained.by([], [])
        for node_id, processes in reports.items():
            unexplained = frozenset(one for one in processes if not explained.covers(node_id, one))
            orphans = unexplained & self._suspects.get(node_id, frozenset())
            self._suspects[node_id] = unexplained
            await self._stop(nodes[node_id], orphans)
            self._told[node_id] = orphans

    async def _explained(self) -> Explained:
        return Explained.by(await self._replicas.living(), await self._jobs.all())

    async def _reports(self, nodes: Mapping[NodeId, Node]) -> ProcessReports:
        slots = asyncio.Semaphore(_ASKED_AT_ONCE)
        found: dict[NodeId, list[ReportedProcess]] = {}

        async def look(node_id: NodeId) -> None:
            async with slots:
                try:
                    found[node_id] = await self._client.glimpse(node_id)
                except CorralError as error:
                    log.debug("no report from a node: %s", error, extra={"event": "orphans.no_report"})
                    self._suspects.pop(node_id, None)  # in a row means in a row

        async with asyncio.TaskGroup() as group:
            for node_id in nodes:
                group.create_task(look(node_id), name=f"look at {node_id}")
        return found

    async def _stop(self, node: Node, orphans: frozenset[ReportedProcess]) -> None:
        for process in sorted(orphans, key=lambda one: (one.model, one.index)):
            if not await self._client.stop(node.id, process.process_key):
                continue
            if process in self._told.get(node.id, frozenset()):
                continue
            shown = {"event": "process.orphaned", "node": node.id, "key": process.process_key}
            log.warning("stopping a process that nothing explains", extra=shown)
            data = {
                "name": node.name,
                "process": process.process_key,
                "address": process.address,
                "why": "no replica and no load explains it, in two reports in a row",
            }
            event = Event(
                kind=EventKind.PROCESS_ORPHANED, at=self._clock.now(), actor="control", node_id=node.id, data=data
            )
            await self._events.record([event])
            await self._feed.announce()
