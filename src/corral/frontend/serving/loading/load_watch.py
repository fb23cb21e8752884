"""Ends the work of a load on a node when nobody there will finish it: its worker was restarted, or its place is lost.

A node that goes offline, is removed or has to be approved again loses its replicas (`replica_health.py`), also those
that are being loaded. So looking at the replica tells all of that, and the brake holds here as well.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Final

from corral.base.clock import Clock
from corral.base.errors import CorralError
from corral.base.ids import Incarnation, ReplicaId
from corral.base.tasks import running
from corral.frontend.nodes.store.nodes import Nodes
from corral.frontend.operations.dispatcher import WorkerRestarted
from corral.frontend.record.feed import Feed
from corral.frontend.serving.decide.replica import LIVE, Replica
from corral.frontend.serving.store.replicas import ReplicaStore

log = logging.getLogger(__name__)

PERIOD: Final = timedelta(seconds=5)
"""How late a change is seen whose announcement was lost."""
_PAUSE_SECONDS: Final = 0.2
"""Between two looks: many changes of the fleet may be announced at once."""


class PlaceLost(CorralError):
    """The replica was lost while it was being loaded."""

    code = "place_lost"
    retryable = True


class LoadWatch:
    """Looks at a replica that is being loaded, and at its node, whenever something in the fleet changes."""

    def __init__(self, nodes: Nodes, replicas: ReplicaStore, feed: Feed, clock: Clock) -> None:
        self._nodes = nodes
        self._replicas = replicas
        self._feed = feed
        self._clock = clock

    @asynccontextmanager
    async def over(self, replica: Replica, life: Incarnation) -> AsyncIterator[None]:
        """Cancel the block, and raise PlaceLost when the replica is lost meanwhile, or WorkerRestarted when its worker
        is another process than the one with this incarnation."""
        reasons: list[CorralError] = []
        try:
            async with asyncio.timeout(None) as patience:

                async def watch() -> None:
                    reasons.append(await self._interruption(replica.id, life))
                    patience.reschedule(asyncio.get_running_loop().time())

                async with running(watch(), name=f"watch over {replica.process_key}"):
                    yield
        except TimeoutError:
            if not reasons:
                raise
            raise reasons[0] from None

    async def _interruption(self, id: ReplicaId, life: Incarnation) -> CorralError:
        """Wait until there is a reason not to go on, and return it."""
        with self._feed.listener() as news:
            while True:
                await news.wait(self._clock, PERIOD)
                try:
                    reason = await self._look(id, life)
                except CorralError as error:
                    log.debug("a load is not watched: %s", error, extra={"event": "load.unwatched"})
                    reason = None
                if reason is not None:
                    return reason
                await self._clock.sleep(_PAUSE_SECONDS)

    async def _look(self, id: ReplicaId, life: Incarnation) -> CorralError | None:
        replica = await self._replicas.get(id)
        if replica is None or replica.state not in LIVE:
            return PlaceLost(replica.reason if replica is not None else "")
        node = await self._nodes.get(replica.node_id)
        if node is not None and node.facts.incarnation != life:
            return WorkerRestarted(f"the worker of {node.name} was restarted meanwhile", node_id=node.id)
        return None
