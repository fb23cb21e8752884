"""Whether replicas live: nodes report processes that ended, and are asked about those that they say nothing of."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

from corral.base.clock import Clock
from corral.base.errors import CorralError, InvalidInput
from corral.base.ids import NodeId, ReplicaId
from corral.base.tasks import Poke
from corral.bus.port import Message
from corral.frontend.nodes.client import MOST_BYTES, NodeClient
from corral.frontend.nodes.decide.node import Node, NodeStatus
from corral.frontend.nodes.decide.reports import ReportedProcess, port_of
from corral.frontend.nodes.fleet import Fleet
from corral.frontend.nodes.liveness import Brake
from corral.frontend.nodes.report_intake import ReportIntake, ReportLimits
from corral.frontend.nodes.store.nodes import Nodes
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.feed import Feed
from corral.frontend.serving.decide.replica import Replica, ReplicaState
from corral.frontend.serving.store.replicas import ReplicaStore
from corral.wire import go_json, subjects
from corral.wire.keys import hash_secret, same
from corral.wire.replicas import ReplicaExited
from corral.wire.view import MODEL_GONE

log = logging.getLogger(__name__)

PERIOD: Final = timedelta(seconds=5)
REPORTS: Final = 2
"""Reports in a row without a process before its replica is lost."""
KEEP_ENDED: Final = timedelta(days=1)
_TRIM_EVERY: Final = timedelta(minutes=10)
_AT_ONCE: Final = 32
_CHECK_WITHIN: Final = timedelta(seconds=2)


class ReplicaHealth:
    def __init__(  # noqa: PLR0913 - each is a collaborator
        self,
        replicas: ReplicaStore,
        nodes: Nodes,
        fleet: Fleet,
        client: NodeClient,
        feed: Feed,
        clock: Clock,
        *,
        brake: Brake,
    ) -> None:
        self._replicas = replicas
        self._nodes = nodes
        self._fleet = fleet
        self._client = client
        self._feed = feed
        self._clock = clock
        self._brake = brake
        self._missing: dict[ReplicaId, int] = {}
        self._suspects: set[ReplicaId] = set()
        self._empty: set[ReplicaId] = set()
        self._trimmed_at: datetime | None = None
        self.poke = Poke()

    def suspect(self, ids: Iterable[str]) -> None:
        """A gateway could not reach these; look at them now."""
        self._suspects.update(map(ReplicaId, ids))
        if self._suspects:
            self.poke.ring()

    def empty(self, ids: Iterable[str]) -> None:
        """Note replicas that answered a gateway that they have no model, or another one."""
        self._empty.update(map(ReplicaId, ids))

    async def sweep(self) -> None:
        """Look at all living replicas, and at the suspects among them more closely."""
        suspects, self._suspects = self._suspects, set()
        living = await self._replicas.living()
        empty, self._empty = self._empty, set()
        # The next request for their model has it loaded again, into the same process if that still runs.
        if lost := [replica for replica in living if replica.id in empty]:
            await self.lose(lost, MODEL_GONE)
            living = [replica for replica in living if replica.id not in empty]
        by_node: dict[NodeId, list[Replica]] = defaultdict(list)
        for replica in living:
            by_node[replica.node_id].append(replica)
        self._missing = {replica.id: self._missing[replica.id] for replica in living if replica.id in self._missing}
        slots = asyncio.Semaphore(_AT_ONCE)
        nodes = await self._nodes.load_many(by_node) if by_node else {}
        async with asyncio.TaskGroup() as group:
            for node_id, on_node in by_node.items():
                look = self._look(nodes.get(node_id), on_node, suspects, slots)
                group.create_task(look, name=f"look at {node_id}")
        now = self._clock.now()
        if self._trimmed_at is None or now - self._trimmed_at >= _TRIM_EVERY:
            await self._replicas.trim(now - KEEP_ENDED)
            self._trimmed_at = now

    async def _look(
        self, node: Node | None, on_node: list[Replica], suspects: set[ReplicaId], slots: asyncio.Semaphore
    ) -> None:
        if node is None:
            await self.lose(on_node, "its node is gone")
            return
        status = self._fleet.see(node).status
        if status is NodeStatus.PENDING:
            await self.lose(on_node, f"its node {node.name} waits for approval again")
            return
        if node.facts.deregistered_at is not None:
            await self.lose(on_node, f"its node {node.name} has left", level=logging.INFO)
            return
        if status is NodeStatus.OFFLINE:
            if not self._brake.holds:  # while it does, silence proves little
                await self.lose(on_node, f"its node {node.name} is offline")
            return
        loaded = [replica for replica in on_node if replica.state is ReplicaState.LOADED]
        if loaded:
            async with slots:
                reported = await self._report_of(node.id)
            for replica in loaded:
                if reported is not None:
                    await self._compare(replica, reported)
                if replica.id in suspects and await nobody_listens(replica):
                    await self.lose([replica], "nobody serves at its address any more")

    async def _report_of(self, node_id: NodeId) -> list[ReportedProcess] | None:
        """What runs on a node; None when it does not answer."""
        try:
            return await self._client.running(node_id)
        except CorralError as error:
            log.info("no report from a node: %s", error, extra={"event": "replica.no_report", "node": node_id})
            return None

    async def _compare(self, replica: Replica, reported: list[ReportedProcess]) -> None:
        same = next((process for process in reported if replica.is_process(process)), None)
        if same is not None:
            self._missing.pop(replica.id, None)
            knows_more = bool(same.url) or bool(same.token and not replica.url)
            if knows_more and await self._replicas.learn(replica, same, at=self._clock.now()):
                await self._feed.announce()  # no event tells it
            return
        if any((process.model, process.index) == (replica.model, replica.index) for process in reported):
            await self.lose([replica], "another process runs in its place")
            return
        self._missing[replica.id] = self._missing.get(replica.id, 0) + 1
        if self._missing[replica.id] >= REPORTS:
            await self.lose([replica], "its node reports that it does not run")
        else:
            self.poke.ring()

    async def lose(self, lost: list[Replica], why: str, *, level: int = logging.WARNING, **details: object) -> None:
        """Record replicas as lost. They leave the view at once; the next request for their model loads it again."""
        now = self._clock.now()
        events = [
            Event(
                kind=EventKind.REPLICA_LOST,
                at=now,
                actor="control",
                node_id=replica.node_id,
                data={"replica": replica.id, "model": replica.model, "before": replica.state.value, "why": why}
                | details,
            )
            for replica in lost
        ]
        if await self._replicas.lose([replica.id for replica in lost], reason=why, at=now, events=events):
            for replica in lost:
                log_details = {"event": "replica.lost", "model": replica.model, "node": replica.node_id, "why": why}
                log.log(level, "replica lost", extra=log_details)
            await self._feed.announce()


async def nobody_listens(replica: Replica) -> bool:
    """Whether the address of the replica refuses connections. A busy process does not."""
    host, _, port = replica.address.rpartition(":")
    try:
        async with asyncio.timeout(_CHECK_WITHIN.total_seconds()):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError, ValueError):
        return False
    writer.close()
    return False


_SHOWN_LINES: Final = 20
_SHOWN_CHARACTERS: Final = 500
EXIT_LIMITS: Final = ReportLimits(reports_per_node=100, reports_in_all=1000, bytes_per_node=8 * MOST_BYTES)
"""Each report costs a read of all living replicas. A hundred processes that end at once on a node, as when its memory
is full, and ten nodes of that kind, are heard; what is dropped is found by the next look at all replicas."""


class ReplicaExits:
    """Takes the reports of nodes about processes of replicas that ended."""

    def __init__(self, replicas: ReplicaStore, health: ReplicaHealth, clock: Clock) -> None:
        self._replicas = replicas
        self._health = health

        def warn(node_id: NodeId, why: str) -> None:
            log.warning("an exit report is dropped: %s", why, extra={"event": "replica.exits_dropped", "node": node_id})

        self._intake = ReportIntake(clock, EXIT_LIMITS, warn)

    async def on_message(self, message: Message) -> None:
        """Duplicates, late ones and unknown ones change nothing."""
        node_id = subjects.node_of(message.subject)
        if not self._intake.takes(node_id, message.data):
            return
        try:
            report = go_json.decode(message.data, ReplicaExited)
            await self._take(node_id, report)
        except InvalidInput as error:
            log.warning("ignoring an exit report: %s", error, extra={"event": "replica.exit_unread", "node": node_id})
        except CorralError as error:
            log.info("an exit is looked at later: %s", error, extra={"event": "replica.exit_later", "node": node_id})
            self._health.poke.ring()

    async def _take(self, node_id: NodeId, report: ReplicaExited) -> None:
        on_node = [replica for replica in await self._replicas.living() if replica.node_id == node_id]
        exited = [replica for replica in on_node if _is_of(report, replica)]
        loaded = [replica for replica in exited if replica.state is ReplicaState.LOADED]
        if loaded:
            errors = [line[:_SHOWN_CHARACTERS] for line in report.tail[-_SHOWN_LINES:]]
            await self._health.lose(loaded, report.reason[:_SHOWN_CHARACTERS] or "its process ended", errors=errors)
        elif exited:
            self._health.poke.ring()


def _is_of(report: ReplicaExited, replica: Replica) -> bool:
    """Whether a report is about this replica.

    Keys are new at every start, and only the node and control know them, so nobody else can report an exit. A replica
    without a key is known by its port, which may be used again later.
    """
    if (report.model_id, report.replica_index) != (replica.model, replica.index):
        return False
    if replica.state is not ReplicaState.LOADED:
        return True
    if replica.key:
        return same(report.key_hash, hash_secret(replica.key))
    return port_of(report.address) == port_of(replica.address)
