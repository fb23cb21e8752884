"""Giving models back: unloading replicas, and what LocalAI's frontends ask about models on a node."""

import logging
from datetime import datetime, timedelta
from typing import Final

from corral.base.clock import Clock
from corral.base.errors import Conflict, CorralError, NotFound
from corral.base.ids import NodeId, ReplicaId
from corral.base.tasks import task_group
from corral.frontend.models.catalogue import Models
from corral.frontend.nodes.client import NodeClient
from corral.frontend.nodes.decide.reports import ReportedProcess
from corral.frontend.nodes.fleet import Fleet
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.feed import Feed
from corral.frontend.serving.decide.replica import LIVE, Outgrown, Replica, ReplicaState, outgrown
from corral.frontend.serving.gateway_reports import GatewayReports
from corral.frontend.serving.load_jobs import Loads
from corral.frontend.serving.store.replicas import ReplicaStore

log = logging.getLogger(__name__)

PERIOD: Final = timedelta(seconds=2)
SETTLED_AFTER: Final = timedelta(seconds=5)
"""How long the files must say the same before a replica is ended for it."""
HEARD_AFTER: Final = timedelta(seconds=2)
"""Until every gateway that is connected has learned of it, and has reported what it still has under way."""
DRAIN_WITHIN: Final = timedelta(seconds=30)
"""For requests under way, as long as a node that leaves gives them."""


class Unloading:
    def __init__(  # noqa: PLR0913 - each is a collaborator
        self,
        replicas: ReplicaStore,
        models: Models,
        loads: Loads,
        gateways: GatewayReports,
        client: NodeClient,
        feed: Feed,
        clock: Clock,
    ) -> None:
        self._replicas = replicas
        self._models = models
        self._loads = loads
        self._gateways = gateways
        self._client = client
        self._feed = feed
        self._clock = clock
        self._noticed: dict[tuple[ReplicaId, str], datetime] = {}

    async def sweep(self) -> bool:
        """Go on with all that is outgrown; whether there was anything."""
        living = await self._replicas.living()
        for replica, why in self._due([one for one in living if one.state is ReplicaState.LOADED]):
            await self._begin(replica, why)
        for replica in living:
            if replica.state is ReplicaState.UNLOADING:
                await self._go_on(replica)
        return bool(self._noticed) or any(one.state is ReplicaState.UNLOADING for one in living)

    def _due(self, loaded: list[Replica]) -> list[tuple[Replica, Outgrown]]:
        """Those for which the same change was seen for long enough."""
        if not self._models.is_readable:
            self._noticed.clear()
            return []
        now, catalogue = self._clock.now(), self._models.catalogue
        found = [(one, why) for one in loaded if (why := outgrown(one, catalogue)) is not None]
        marks = {(one.id, self._models.revision_of(one.model)): (one, why) for one, why in found}
        self._noticed = {mark: self._noticed.get(mark, now) for mark in marks}
        return [marks[mark] for mark, since in self._noticed.items() if now - since >= SETTLED_AFTER]

    async def _begin(self, replica: Replica, why: Outgrown) -> None:
        now = self._clock.now()
        event = _event(EventKind.REPLICA_UNLOADING, replica, at=now, why=why.value)
        if await self._replicas.unload(replica.id, reason=why.value, at=now, events=[event]):
            shown = {"event": "replica.unloading", "model": replica.model, "node": replica.node_id, "why": why.value}
            log.info("replica is being ended", extra=shown)
            await self._feed.announce()
        if why is Outgrown.CHANGED:
            await self._have_it_again(replica.model)

    async def _have_it_again(self, model: str) -> None:
        """Whoever used it until now will want it."""
        try:
            await self._loads.ensure(model)
        except NotFound:
            log.debug("a model was deleted meanwhile", extra={"event": "model.gone", "model": model})

    async def _go_on(self, replica: Replica) -> None:
        age = self._clock.now() - replica.changed_at
        if age < HEARD_AFTER or (age < DRAIN_WITHIN and self._may_be_busy(replica)):
            return
        await self._client.stop(replica.node_id, replica.process_key)
        if await self._is_gone(replica):
            now = self._clock.now()
            event = _event(EventKind.REPLICA_UNLOADED, replica, at=now, why=replica.reason)
            if await self._replicas.end(replica.id, at=now, events=[event]):
                shown = {"event": "replica.unloaded", "model": replica.model, "node": replica.node_id}
                log.info("replica ended", extra=shown)
                await self._feed.announce()
                self._loads.poke.ring()

    def _may_be_busy(self, replica: Replica) -> bool:
        """What a silent gateway has under way is not known."""
        return bool(self._gateways.in_flight()[replica.id] or self._gateways.silent())

    async def _is_gone(self, replica: Replica) -> bool:
        """By its node's own word; a node that says nothing is asked again."""
        try:
            reported = await self._client.running(replica.node_id)
        except CorralError as error:
            shown = {"event": "replica.no_report", "node": replica.node_id}
            log.info("no report from a node: %s", error, extra=shown)
            return False
        return not any((one.model, one.index) == (replica.model, replica.index) for one in reported)


def _event(kind: EventKind, replica: Replica, *, at: datetime, why: str) -> Event:
    data = {"replica": replica.id, "model": replica.model, "why": why}
    return Event(kind=kind, at=at, actor="control", node_id=replica.node_id, data=data)


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
        """Unload the model on every node that serves it. A node that fails does not stop the others; then its error is
        raised."""
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
