"""Ends what nodes run for a model because a person wants it so. The next request for the model may load it again.

Replicas are ended as `unloading.py` ends them all: they go out of the view and get time for their requests first.
Processes that no replica stands for, as an install of a backend leaves them, are stopped by their exact key.
"""

from datetime import timedelta
from typing import Final

from corral.base.clock import Clock
from corral.base.errors import Conflict, CorralError
from corral.base.ids import NodeId
from corral.base.tasks import task_group
from corral.frontend.nodes.client import NodeClient
from corral.frontend.nodes.decide.process import ReportedProcess
from corral.frontend.nodes.fleet import Fleet
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.feed import Feed
from corral.frontend.serving.decide.replica import LIVE, Replica, ReplicaState
from corral.frontend.serving.store.replicas import ReplicaStore
from corral.frontend.serving.unloading import DRAIN_WITHIN

WITHIN: Final = DRAIN_WITHIN + timedelta(seconds=15)
"""How long a caller is kept waiting. What was begun goes on in any case."""
_LOOK_SECONDS: Final = 0.5
_ENDING: Final = frozenset({ReplicaState.LOADED, ReplicaState.UNLOADING})


class StillRunning(CorralError):
    """A process did not end in time."""

    code = "still_running"
    retryable = True


class NodeModels:
    def __init__(self, replicas: ReplicaStore, fleet: Fleet, client: NodeClient, feed: Feed, clock: Clock) -> None:
        self._replicas = replicas
        self._fleet = fleet
        self._client = client
        self._feed = feed
        self._clock = clock

    async def unload(self, node_id: NodeId, model: str, *, by: str) -> None:
        """Returns when the node runs nothing for the model any more. NotFound for a node that there is not, Conflict
        while the model is being loaded there, and otherwise fails as calls to nodes do."""
        await self._fleet.get(node_id)
        deadline = self._clock.now() + WITHIN
        while True:
            reported = [one for one in await self._client.running(node_id) if one.model == model]
            living = await self._living(node_id, model)
            if not reported and not living:
                return
            await self._begin(living, by)
            await self._stop_others(node_id, reported, living)
            if self._clock.now() >= deadline:
                names = ", ".join(sorted({one.process_key for one in reported} | {one.process_key for one in living}))
                raise StillRunning(f"{names} did not end within {WITHIN.total_seconds():.0f} s; it stays wanted")
            await self._clock.sleep(_LOOK_SECONDS)

    async def unload_everywhere(self, model: str, *, by: str) -> None:
        """The same for every node that serves it. One that fails holds up none, and is what this then fails with."""
        nodes = sorted({one.node_id for one in await self._replicas.of_model(model) if one.state in LIVE})
        failures: list[CorralError] = []

        async def unload(node_id: NodeId) -> None:
            try:
                await self.unload(node_id, model, by=by)
            except CorralError as error:
                failures.append(error)

        async with task_group() as group:
            for node_id in nodes:
                group.create_task(unload(node_id), name=f"unload {model} at {node_id}")
        if failures:
            raise failures[0]

    async def _living(self, node_id: NodeId, model: str) -> list[Replica]:
        there = [one for one in await self._replicas.on_node(node_id) if one.model == model and one.state in LIVE]
        if any(one.state not in _ENDING for one in there):
            raise Conflict(f"{model} is being loaded there; try again when that is over")
        return there

    async def _begin(self, living: list[Replica], by: str) -> None:
        now, why, has_begun = self._clock.now(), f"unloaded by {by}", False
        for one in living:
            if one.state is ReplicaState.LOADED:
                data = {"replica": one.id, "model": one.model, "why": why}
                event = Event(kind=EventKind.REPLICA_UNLOADING, at=now, actor=by, node_id=one.node_id, data=data)
                has_begun |= await self._replicas.unload(one.id, reason=why, at=now, events=[event])
        if has_begun:
            await self._feed.announce()

    async def _stop_others(self, node_id: NodeId, reported: list[ReportedProcess], living: list[Replica]) -> None:
        known = {one.process_key for one in living}
        for process in reported:
            if process.process_key not in known:
                await self._client.stop(node_id, process.process_key)
