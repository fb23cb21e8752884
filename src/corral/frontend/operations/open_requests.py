"""Requests that workers were sent and have not answered: given up when the worker was started anew meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from corral.base.errors import CorralError
from corral.base.ids import NodeId
from corral.frontend.operations.decide.intent import Intent, IntentKey


class WorkerRestarted(CorralError):
    """The worker was started anew meanwhile."""

    code = "worker_restarted"
    retryable = True


class OpenRequests:
    def __init__(self) -> None:
        self._open: dict[IntentKey, tuple[str, asyncio.Timeout]] = {}

    @property
    def nodes(self) -> set[NodeId]:
        return {node_id for node_id, _, _ in self._open}

    @asynccontextmanager
    async def waiting(self, intent: Intent) -> AsyncIterator[None]:
        """While inside, the answer to what the intent sent is waited for. WorkerRestarted when it cannot come."""
        life = "" if intent.outstanding is None else intent.outstanding.life
        try:
            async with asyncio.timeout(None) as patience:
                self._open[intent.key] = (life, patience)
                yield
        except TimeoutError:
            raise WorkerRestarted(node_id=intent.node_id) from None
        finally:
            self._open.pop(intent.key, None)

    def give_up(self, node_id: NodeId, *, life: str) -> None:
        """What earlier lives of this node were asked for is not waited for any longer."""
        now = asyncio.get_running_loop().time()
        for (asked, _, _), (earlier, patience) in self._open.items():
            if asked == node_id and earlier and earlier != life and not patience.expired():
                patience.reschedule(now)
