"""Notices when a node's computed status changes, and tells everyone once. Writes nothing else."""

from datetime import timedelta
from typing import Final

from corral.base.clock import Clock
from corral.base.tasks import Poke
from corral.frontend.nodes.decide.node import (
    LivenessPolicy,
    Node,
    NodeStatus,
    forget_future,
    next_look,
    silence,
    status_of,
)
from corral.frontend.nodes.hearing import HearingKeeper
from corral.frontend.nodes.store.looks import NodeLook
from corral.frontend.nodes.store.nodes import AcceptedHeartbeat, Nodes
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.feed import Feed

PERIOD: Final = timedelta(seconds=5)
"""Health knows when the next node is due; this is for changes made by a frontend that died before it announced them."""
_SOON: Final = timedelta(seconds=1)
"""After something was due: what another frontend changed at the same moment is looked at again."""
_NOT_BEFORE: Final = timedelta(milliseconds=50)
_BATCH: Final = 500


class Health:
    """Looks only at nodes that are due: those whose facts changed, or whose silence would now change the word."""

    def __init__(self, nodes: Nodes, hearing: HearingKeeper, feed: Feed, clock: Clock, policy: LivenessPolicy) -> None:
        self._nodes = nodes
        self._hearing = hearing
        self._feed = feed
        self._clock = clock
        self._policy = policy
        self._jumps = 0
        self.poke = Poke()

    async def sweep(self) -> timedelta | None:
        """Announce what changed; returns how long until the next node is due."""
        await self._start_over_after_a_jump()
        first = await self._nodes.next_look()
        if first is None or first > self._clock.now():
            return None if first is None else max(first - self._clock.now(), _NOT_BEFORE)
        while True:
            due = await self._nodes.due(self._clock.now(), limit=_BATCH)
            verdicts = [self._look(node) for node in due]
            written = await self._nodes.judge(verdicts, at=self._clock.now()) if verdicts else set()
            if any(one.status is not None and one.node.id in written for one in verdicts):
                await self._feed.announce()
            if len(due) < _BATCH:
                return _SOON

    async def _start_over_after_a_jump(self) -> None:
        """When the clock was set, what was heard in the future was not, and everyone must be looked at anew."""
        jumps = self._hearing.jumps
        if jumps == self._jumps:
            return
        now = self._clock.now()
        nodes = await self._nodes.all()
        await self._nodes.beat(
            [AcceptedHeartbeat(before=node, node=forget_future(node, now=now), next_look=now) for node in nodes]
        )
        self._jumps = jumps

    def _look(self, node: Node) -> NodeLook:
        now = self._clock.now()
        hearing = self._hearing.current
        status = status_of(node.facts, now, self._policy, hearing)
        look = next_look(node.facts, now, self._policy, hearing)
        if status is node.announced:
            return NodeLook(node=node, next_look=look)
        event = Event(
            kind=EventKind.NODE_STATUS,
            at=now,
            actor="control",
            node_id=node.id,
            data={
                "name": node.name,
                "before": node.announced.value if node.announced else None,
                "after": status.value,
                "why": self._why(node, status),
            },
        )
        return NodeLook(node=node, next_look=look, status=status, event=event)

    def _why(self, node: Node, status: NodeStatus) -> str:
        facts = node.facts
        if status is NodeStatus.PENDING:
            return "waits for approval"
        if facts.deregistered_at is not None and status is NodeStatus.OFFLINE:
            return "it deregistered"
        if status is NodeStatus.UNHEALTHY and facts.no_responders_at is not None:
            return "it did not respond on NATS"
        if status in (NodeStatus.UNHEALTHY, NodeStatus.OFFLINE):
            quiet = silence(facts, self._clock.now(), self._policy, self._hearing.current)
            return f"silent for {quiet.total_seconds():.0f} s"
        if status is NodeStatus.DRAINING:
            return f"drained by {facts.draining_by}"
        return "it is heard and approved"
