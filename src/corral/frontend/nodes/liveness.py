"""Liveness of nodes: proof that control can hear, changes of status, and the brake when many nodes go silent.

Silence of a node counts only over time in which control could hear: its process runs, the database answers, NATS is
connected. All frontends share one row for that, so the restart of one among several resets nothing; after an outage of
all of them every node gets its full time again. Deciding is done in `frontend/nodes/decide/liveness.py`.
"""

import logging
from collections.abc import Hashable
from datetime import datetime, timedelta
from typing import Final

from corral.base.clock import Clock
from corral.base.tasks import Poke
from corral.bus.port import Bus
from corral.frontend.nodes.decide.changes import node_event
from corral.frontend.nodes.decide.liveness import (
    BrakePolicy,
    Hearing,
    LivenessPolicy,
    forget_future,
    judge,
    next_look,
    silence,
    status_of,
)
from corral.frontend.nodes.decide.node import Node, NodeStatus
from corral.frontend.nodes.store.liveness import AcceptedHeartbeat, HearingPeriods, NodeLook
from corral.frontend.nodes.store.nodes import Nodes
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.feed import Feed
from corral.frontend.record.store import Events
from corral.frontend.store.leases import Leader

log = logging.getLogger(__name__)

HEARING_PERIOD: Final = timedelta(seconds=1)
_LARGEST_JUMP: Final = timedelta(seconds=2)
"""A wall clock that moves this much more or less than real time was set by someone."""
HEALTH_PERIOD: Final = timedelta(seconds=5)
"""Health knows when the next node is due; this is for changes made by a frontend that died before it announced them."""
_SOON: Final = timedelta(seconds=1)
"""After something was due: what another frontend changed at the same moment is looked at again."""
_NOT_BEFORE: Final = timedelta(milliseconds=50)
_BATCH: Final = 500
BRAKE_PERIOD: Final = timedelta(seconds=1)
_BRAKE_LEASE_TIME: Final = timedelta(seconds=30)


class HearingKeeper:
    """Confirms once a second that control can receive heartbeats, and starts over when the clock was set."""

    def __init__(self, periods: HearingPeriods, bus: Bus, clock: Clock, policy: LivenessPolicy) -> None:
        self._periods = periods
        self._bus = bus
        self._clock = clock
        self._policy = policy
        now = clock.now()
        self.current = Hearing(since=now, until=now)
        self.jumps = 0
        """How often the wall clock of this machine was set; each time all earlier plans for times became void."""
        self.recovered_at: datetime | None = None
        """When nobody had been able to hear for a while, for the last time in the life of this process."""
        self._wall = now
        self._monotonic = clock.monotonic()
        self._must_restart = False
        """A jump was noticed; kept until the database knows of it."""
        self._is_first = True

    async def tick(self) -> None:
        """Confirm when this process can hear; otherwise learn whether another one can."""
        now, before = self._clock.now(), self.current
        self._must_restart = self._clock_jumped() or self._must_restart
        if self._must_restart or await self._clock_was_set_back_meanwhile(now):
            self.current = await self._periods.restart(now)
            self._must_restart = False
            self.jumps += 1
        elif self._bus.connected:
            self.current = await self._periods.confirm(now, longest_gap=self._policy.tolerated_deafness)
        else:
            self.current = await self._periods.read() or self.current
        if not self._is_first and self.current.since != before.since:
            self.recovered_at = now
        self._is_first = False

    def _clock_jumped(self) -> bool:
        """Whether the wall clock moved otherwise than time itself since the last look."""
        wall, monotonic = self._clock.now(), self._clock.monotonic()
        jump = (wall - self._wall) - timedelta(seconds=monotonic - self._monotonic)
        self._wall, self._monotonic = wall, monotonic
        return _is_jump(jump, _LARGEST_JUMP)

    async def _clock_was_set_back_meanwhile(self, now: datetime) -> bool:
        """Whether the database knows a later time at our start: then the clock was set back while we were away."""
        if not self._is_first:
            return False
        proven = await self._periods.read()
        return proven is not None and _is_jump(min(now - proven.until, timedelta(0)), self._policy.tolerated_skew)


def _is_jump(jump: timedelta, tolerated: timedelta) -> bool:
    if abs(jump) <= tolerated:
        return False
    log.warning(
        "the clock of this machine was set; every node gets its full time again",
        extra={"event": "clock.jumped", "seconds": round(jump.total_seconds(), 3)},
    )
    return True


class Health:
    """Notices when a node's computed status changes, and tells everyone once. Writes nothing else.

    Looks only at nodes that are due: those whose facts changed, or whose silence would now change the word.
    """

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
            looks = [self._look(node) for node in due]
            written = await self._nodes.judge(looks, at=self._clock.now()) if looks else set()
            if any(look.status is not None and look.node.id in written for look in looks):
                await self._feed.announce()
            if len(due) < _BATCH:
                return _SOON

    async def _start_over_after_a_jump(self) -> None:
        """After the clock was set, forget heartbeats with times in the future, and judge all nodes again."""
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
        event = node_event(
            EventKind.NODE_STATUS,
            node,
            "control",
            at=now,
            before=node.announced.value if node.announced else None,
            after=status.value,
            why=self._why(node, status),
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


class Brake:
    """Looks every second whether the mass-failure brake must hold, and says so.

    Every frontend looks for itself; the one that holds the lease writes it into the record of events.
    """

    def __init__(  # noqa: PLR0913 - each is a collaborator
        self,
        nodes: Nodes,
        events: Events,
        leader: Leader,
        hearing: HearingKeeper,
        feed: Feed,
        clock: Clock,
        *,
        policy: BrakePolicy,
    ) -> None:
        self._nodes = nodes
        self._events = events
        self._leader = leader
        self._hearing = hearing
        self._feed = feed
        self._clock = clock
        self._policy = policy
        self.reason = ""
        """Why it holds; empty when it does not."""

    @property
    def holds(self) -> bool:
        return bool(self.reason)

    def mark(self) -> Hashable:
        """Changes with what no event tells: that this control went deaf, or hears again."""
        return self._is_deaf(), self._hearing.recovered_at

    def _is_deaf(self) -> bool:
        return self._clock.now() - self._hearing.current.until > 2 * BRAKE_PERIOD

    async def look(self) -> bool:
        """Judge now; True while only time will change the verdict."""
        now = self._clock.now()
        pulse = await self._nodes.pulse(silent_since=now - self._policy.window)
        recovered_at = self._hearing.recovered_at
        reason = judge(pulse, self._hearing.current, recovered_at=recovered_at, now=now, policy=self._policy)
        before, self.reason = self.reason, reason
        if bool(reason) is not bool(before):
            await self._tell(reason, before)
        return self.holds or self._is_deaf()

    async def _tell(self, reason: str, before: str) -> None:
        if reason:
            log.error("nothing is evicted or rescheduled: %s", reason, extra={"event": "brake.held", "why": reason})
        else:
            log.warning("the brake is released", extra={"event": "brake.released", "was": before})
        if await self._leader.holds("brake", duration=_BRAKE_LEASE_TIME):
            kind = EventKind.BRAKE_HELD if reason else EventKind.BRAKE_RELEASED
            event = Event(kind=kind, at=self._clock.now(), actor="control", data={"why": reason or before})
            await self._events.record([event])
            await self._feed.announce()
