"""Ends replicas whose model was deleted or changed, and has a changed one loaded anew.

A replica is first taken out of the view, then gets time for its requests, then is stopped by its exact key; only its
node's report that it is gone frees its place. Files are edited in several steps, so a change must last for a moment.
"""

import logging
from datetime import datetime, timedelta
from typing import Final

from corral.base.clock import Clock
from corral.base.errors import CorralError, NotFound
from corral.base.ids import ReplicaId
from corral.frontend.models.catalogue import Models
from corral.frontend.nodes.client import NodeClient
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.feed import Feed
from corral.frontend.serving.decide.reconcile import Outgrown, outgrown
from corral.frontend.serving.decide.replica import Replica, ReplicaState
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
