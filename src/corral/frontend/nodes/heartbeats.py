"""Takes in heartbeats. Those that arrive within a tenth of a second after a transaction share the next one.

So a quiet fleet is answered at once, and a large one costs ten transactions per second however many nodes beat.
An answer is given only after its heartbeat is stored.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from corral.base.clock import Clock
from corral.base.errors import AccessDenied, CorralError, DatabaseUnavailable, NotFound
from corral.base.ids import NodeId
from corral.base.tasks import Poke
from corral.frontend.nodes.decide.node import Heartbeat, LivenessPolicy, Node, beat, next_look, status_of
from corral.frontend.nodes.hearing import HearingKeeper
from corral.frontend.nodes.store.nodes import AcceptedHeartbeat, Nodes

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
        self, nodes: Nodes, hearing: HearingKeeper, clock: Clock, policy: LivenessPolicy, *, health: Poke
    ) -> None:
        self._nodes = nodes
        self._hearing = hearing
        self._clock = clock
        self._policy = policy
        self._health = health
        self._queue: list[_WaitingHeartbeat] = []
        self._arrived = asyncio.Event()
        self.taken = 0

    async def beat(self, node_id: NodeId, claim: Claim, read: Callable[[], Heartbeat]) -> Node:
        """Store one heartbeat. NotFound and AccessDenied say why it was not taken: then it is not even read, which
        takes longer than all the rest."""
        waiting = _WaitingHeartbeat(node_id=node_id, claim=claim, read=read)
        self._queue.append(waiting)
        self._arrived.set()
        return await waiting.answer

    async def run(self) -> None:
        """Until cancelled; whoever still waits then is told to come again."""
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
            known = await self._nodes.load_many({waiting.node_id for waiting in batch})
            accepted = [waiting for waiting in batch if await self._accepts(waiting, known)]
            await self._store(accepted, known)
        except CorralError as error:
            log.warning("heartbeats were not stored", extra={"event": "heartbeats.failed", "reason": str(error)})
            _refuse_all(batch, error)
        except Exception as error:
            log.exception("heartbeats were not stored", extra={"event": "heartbeats.failed"})
            _refuse_all(batch, error)

    async def _accepts(self, waiting: _WaitingHeartbeat, known: dict[NodeId, Node]) -> bool:
        node = known.get(waiting.node_id)
        if node is not None and await waiting.claim.fits(node.secret_hash):
            return True
        if node is None and await waiting.claim.may_ask():
            _refuse(waiting, NotFound("node not found"))
        else:
            _refuse(waiting, AccessDenied("invalid registration token"))
        return False

    async def _store(self, accepted: Sequence[_WaitingHeartbeat], known: dict[NodeId, Node]) -> None:
        after = dict(known)
        for waiting in accepted:
            after[waiting.node_id] = beat(after[waiting.node_id], waiting.read(), self._policy, self._hearing.current)
        beats = [self._beat_of(known[id], after[id]) for id in {waiting.node_id for waiting in accepted}]
        stored = await self._nodes.beat(beats)
        for waiting in accepted:
            if waiting.node_id in stored:
                self._answer(waiting, after[waiting.node_id])
            else:
                _refuse(waiting, NotFound("node not found"))
        if any(self._is_news(beat.node) for beat in beats):
            self._health.ring()

    def _beat_of(self, before: Node, after: Node) -> AcceptedHeartbeat:
        """Health looks at once when there is something to announce, be it a change that was made before this beat."""
        now = self._clock.now()
        look = now if self._is_news(after) else next_look(after.facts, now, self._policy, self._hearing.current)
        return AcceptedHeartbeat(before=before, node=after, next_look=look)

    def _is_news(self, node: Node) -> bool:
        """Is its status another one than everybody was last told?"""
        return status_of(node.facts, self._clock.now(), self._policy, self._hearing.current) is not node.announced

    def _answer(self, waiting: _WaitingHeartbeat, node: Node) -> None:
        self.taken += 1
        if not waiting.answer.done():
            waiting.answer.set_result(node)


def _refuse_all(batch: Sequence[_WaitingHeartbeat], error: Exception) -> None:
    for waiting in batch:
        _refuse(waiting, error)


def _refuse(waiting: _WaitingHeartbeat, error: Exception) -> None:
    if not waiting.answer.done():
        waiting.answer.set_exception(error)
