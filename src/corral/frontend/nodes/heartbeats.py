"""Takes in heartbeats. Those that arrive within a tenth of a second after a transaction share the next one.

So a quiet fleet is answered at once, and a large one costs ten transactions per second however many nodes beat.
An answer is given only after its heartbeat is stored.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from corral.base.clock import Clock
from corral.base.errors import AccessDenied, CorralError, DatabaseUnavailable, NotFound
from corral.base.ids import NodeId
from corral.base.tasks import Poke
from corral.frontend.nodes.decide.changes import HardwareNews, node_event
from corral.frontend.nodes.decide.liveness import Heartbeat, LivenessPolicy, beat, next_look, status_of
from corral.frontend.nodes.decide.node import BY_WORKER, Node
from corral.frontend.nodes.liveness import HearingKeeper
from corral.frontend.nodes.store.liveness import AcceptedHeartbeat
from corral.frontend.nodes.store.nodes import Nodes
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.feed import Feed

log = logging.getLogger(__name__)

_LARGEST_BATCH = 500
_SPACING_SECONDS = 0.1
"""From one transaction to the next. One costs as much as ten heartbeats, and no worker is in a hurry for its answer."""


class Claim(Protocol):
    """What a caller presented, to be held against the node it speaks for."""

    async def fits(self, secret_hash: str | None) -> bool:
        """Whether the caller may speak for a node whose secret has this hash; None: the node has no secret."""

    async def may_ask(self) -> bool:
        """Whether the caller may at least learn that there is no such node."""


@dataclass(slots=True, kw_only=True)
class _WaitingHeartbeat:
    node_id: NodeId
    claim: Claim
    read: Callable[[], Heartbeat]
    answer: asyncio.Future[Node] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Heartbeats:
    """Group commit: `beat()` waits in the queue, `run()` empties it batch by batch."""

    def __init__(
        self, nodes: Nodes, hearing: HearingKeeper, feed: Feed, clock: Clock, policy: LivenessPolicy, *, health: Poke
    ) -> None:
        self._nodes = nodes
        self._hearing = hearing
        self._clock = clock
        self._policy = policy
        self._health = health
        self._feed = feed
        self._hardware = HardwareNews()
        self._queue: list[_WaitingHeartbeat] = []
        self._arrived = asyncio.Event()
        self.taken = 0
        self.on_stored: list[Callable[[Iterable[Node]], None]] = []
        """Called with the nodes whose heartbeats were stored here, as they are after them."""

    async def beat(self, node_id: NodeId, claim: Claim, read: Callable[[], Heartbeat]) -> Node:
        """Store one heartbeat. NotFound and AccessDenied say why it was not taken: then its body is not even parsed,
        which is the most expensive step."""
        waiting = _WaitingHeartbeat(node_id=node_id, claim=claim, read=read)
        self._queue.append(waiting)
        self._arrived.set()
        return await waiting.answer

    async def run(self) -> None:
        """Run until cancelled; callers that still wait then are asked to try again."""
        loop = asyncio.get_running_loop()
        not_before = loop.time()
        batch: list[_WaitingHeartbeat] = []
        try:
            while True:
                await self._arrived.wait()
                if len(self._queue) < _LARGEST_BATCH:
                    await asyncio.sleep(not_before - loop.time())
                not_before = loop.time() + _SPACING_SECONDS
                batch, self._queue = self._queue[:_LARGEST_BATCH], self._queue[_LARGEST_BATCH:]
                if not self._queue:
                    self._arrived.clear()
                await self._take(batch)
        finally:
            for waiting in (*batch, *self._queue):
                _refuse(waiting, DatabaseUnavailable("this frontend is shutting down"))

    async def _take(self, batch: Sequence[_WaitingHeartbeat]) -> None:
        """Answer the whole batch: with the stored node, or with the error that kept it from being stored."""
        try:
            nodes_by_id = await self._nodes.load_many({waiting.node_id for waiting in batch})
            accepted = [waiting for waiting in batch if await self._accepts(waiting, nodes_by_id)]
            await self._store(accepted, nodes_by_id)
        except CorralError as error:
            log.warning("heartbeats were not stored", extra={"event": "heartbeats.failed", "reason": str(error)})
            for waiting in batch:
                _refuse(waiting, error)
        except Exception as error:
            log.exception("heartbeats were not stored", extra={"event": "heartbeats.failed"})
            for waiting in batch:
                _refuse(waiting, error)

    async def _accepts(self, waiting: _WaitingHeartbeat, nodes_by_id: dict[NodeId, Node]) -> bool:
        node = nodes_by_id.get(waiting.node_id)
        if node is not None and await waiting.claim.fits(node.secret_hash):
            return True
        if node is None and await waiting.claim.may_ask():
            _refuse(waiting, NotFound("node not found"))
        else:
            _refuse(waiting, AccessDenied("invalid registration token"))
        return False

    async def _store(self, accepted: Sequence[_WaitingHeartbeat], nodes_by_id: dict[NodeId, Node]) -> None:
        now, policy, hearing = self._clock.now(), self._policy, self._hearing.current
        after: dict[NodeId, Node] = {}
        for waiting in accepted:
            node = after.get(waiting.node_id, nodes_by_id[waiting.node_id])
            after[waiting.node_id] = beat(node, waiting.read(), policy, hearing)
        # Those whose status differs from the last announcement, also by a change that was made before this beat: health
        # looks at them at once.
        news = {id for id, node in after.items() if status_of(node.facts, now, policy, hearing) is not node.announced}
        beats = [
            AcceptedHeartbeat(
                before=nodes_by_id[id],
                node=node,
                next_look=now if id in news else next_look(node.facts, now, policy, hearing),
                event=self._change(nodes_by_id[id], node),
            )
            for id, node in after.items()
        ]
        stored = await self._nodes.beat(beats)
        for waiting in accepted:
            if waiting.node_id not in stored:
                _refuse(waiting, NotFound("node not found"))
                continue
            self.taken += 1
            if not waiting.answer.done():
                waiting.answer.set_result(after[waiting.node_id])
        for tell in self.on_stored:
            tell([after[id] for id in stored if id in after])
        if news:
            self._health.ring()
        if any(beat.event is not None for beat in beats):
            await self._feed.announce()

    def _change(self, before: Node, node: Node) -> Event | None:
        """The event for a node in service whose hardware has changed; None without a change to report."""
        if node.facts.approved_at is None:
            return None
        now = self._clock.now()
        difference = self._hardware.of(before, node, now)
        if difference is None:
            return None
        details = {"event": EventKind.NODE_CHANGED.value, "node": node.id, "node_name": node.name}
        log.warning("a node reports other hardware", extra={**details, "changed": list(difference.after)})
        before_and_after = {"before": dict(difference.before), "after": dict(difference.after)}
        return node_event(EventKind.NODE_CHANGED, node, BY_WORKER, at=now, **before_and_after)


def _refuse(waiting: _WaitingHeartbeat, error: Exception) -> None:
    if not waiting.answer.done():
        waiting.answer.set_exception(error)
