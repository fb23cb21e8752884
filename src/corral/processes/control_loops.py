"""Control once it is put together: its parts, and the loops that keep the fleet as it should be."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from dataclasses import dataclass
from datetime import timedelta

from corral.base.tasks import Poke, poke_or_period, run_services
from corral.frontend.access.credentials import Credentials
from corral.frontend.api.context import AdminContext
from corral.frontend.api.server import AdminServer
from corral.frontend.backends import inventory, upgrades
from corral.frontend.models import catalogue as models
from corral.frontend.models import removal as model_removal
from corral.frontend.nodes import brake as braking
from corral.frontend.nodes import health, hearing
from corral.frontend.nodes.health import Health
from corral.frontend.operations import progress as progress_board
from corral.frontend.operations import service as housekeeping
from corral.frontend.operations.broadcasts import Broadcasts
from corral.frontend.operations.dispatcher import RETURNS_PERIOD, Dispatcher
from corral.frontend.operations.service import Housekeeping
from corral.frontend.record import feed
from corral.frontend.record.feed import Attention, LostRings
from corral.frontend.rules.enforcer import NOTICE_PERIOD, RuleEnforcer
from corral.frontend.serving import orphans, replica_health, unloading, view
from corral.frontend.serving import rollout as restoring
from corral.frontend.serving.orphans import Orphans
from corral.frontend.serving.replica_health import ReplicaExits, ReplicaHealth
from corral.frontend.serving.rollout import Restoring
from corral.frontend.serving.unloading import Unloading
from corral.wire.subjects import GATEWAY_SHARES, INVENTORIES, POKE_EVENTS, REPLICAS_EXITED


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """Everything the control process consists of, wired and not yet running."""

    context: AdminContext
    credentials: Credentials
    dispatcher: Dispatcher
    rule_enforcer: RuleEnforcer
    broadcasts: Broadcasts
    health: Health
    lost_rings: LostRings
    replica_health: ReplicaHealth
    replica_exits: ReplicaExits
    unloading: Unloading
    restoring: Restoring
    orphans: Orphans
    housekeeping: Housekeeping

    async def run(self, stop: asyncio.Event, server: AdminServer) -> None:
        """Until `stop`: then event streams end, requests under way finish, loops are cancelled."""
        context = self.context
        await context.bus.subscribe(POKE_EVENTS, context.feed.on_message)
        await context.bus.subscribe(GATEWAY_SHARES, context.shares.on_message)
        await context.bus.subscribe(REPLICAS_EXITED, self.replica_exits.on_message)
        await context.bus.subscribe(INVENTORIES, context.inventory.on_message)
        for subject, handler in {**context.peers.handlers(), **context.staging.handlers()}.items():
            await context.bus.subscribe(subject, handler)
        await run_services(stop, server=server.run(ending=self._end_streams), **self.loops())

    def loops(self) -> dict[str, Coroutine[None, None, None]]:
        """What runs beside the server; a table of contents of the process."""
        context = self.context
        return {
            "heartbeats": context.heartbeats.run(),
            "hearing": self._every(hearing.PERIOD, Poke(), self._hear, "hearing"),
            "lost rings": self._every(feed.PERIOD, Poke(), self.lost_rings.look, "events"),
            "health": self._every(health.PERIOD, self.health.poke, self.health.sweep, "health"),
            "brake": self._every(
                braking.PERIOD, Poke(), self._when_new(context.brake.look, mark=context.brake.mark), "brake"
            ),
            "models": self._every(models.PERIOD, context.models.poke, self._look_at_models, "models"),
            "removals": self._remove_models(),
            "loads": context.loads.run(),
            "dispatcher": self.dispatcher.run(),
            "intents": self._every(self.dispatcher.renewed_every, Poke(), self.dispatcher.renew, "leases of intents"),
            "returns": self._notice_returns(),
            "fleet rules": self.rule_enforcer.run(context.inventory.told),
            "noticed by fleet rules": self._notice_for_rules(),
            "upgrades": self._every(upgrades.PERIOD, context.upgrades.poke, context.upgrades.tick, "upgrades"),
            "inventory": self._every(inventory.PERIOD, context.inventory.poke, context.inventory.sweep, "inventory"),
            "reports": self._every(inventory.PERIOD, context.inventory.news, context.inventory.take_news, "reports"),
            "progress": self._every(progress_board.PERIOD, context.progress.poke, context.progress.tend, "progress"),
            "broadcasts": self.broadcasts.run(),
            "replicas": self._every(
                replica_health.PERIOD, self.replica_health.poke, self.replica_health.sweep, "replicas"
            ),
            "unloading": self._every(unloading.PERIOD, Poke(), self._when_new(self.unloading.sweep), "unloading"),
            "restoring": self._every(restoring.PERIOD, Poke(), self._when_new(self.restoring.sweep), "restoring"),
            "orphans": self._every(orphans.PERIOD, Poke(), self.orphans.sweep, "orphans"),
            "view": self._keep_view(),
            "housekeeping": self._every(housekeeping.PERIOD, Poke(), self.housekeeping.tidy, "housekeeping"),
        }

    async def _notice_returns(self) -> None:
        with self.context.feed.listener() as poke:
            await self._every(RETURNS_PERIOD, poke, self.dispatcher.notice_returns, "returning nodes")

    async def _notice_for_rules(self) -> None:
        with self.context.feed.listener() as poke:
            await self._every(NOTICE_PERIOD, poke, self.rule_enforcer.notice, "noticed by fleet rules")

    async def _hear(self) -> None:
        """After the clock was set, health looks at all nodes anew."""
        jumps = self.context.hearing.jumps
        await self.context.hearing.tick()
        if self.context.hearing.jumps != jumps:
            self.health.poke.ring()

    async def _look_at_models(self) -> None:
        """Whatever follows from a model's file looks at it at once."""
        models = self.context.models
        known = models.catalogue
        await models.look()
        if models.catalogue is not known:
            self.context.feed.ring()

    async def _remove_models(self) -> None:
        """What one frontend removes, the others hide at once."""
        with self.context.feed.listener() as poke:
            sweep = self._when_new(self.context.model_removal.sweep)
            await self._every(model_removal.PERIOD, poke, sweep, "removed models")

    async def _keep_view(self) -> None:
        """Made anew with everything that is announced, in this frontend or another one."""
        with self.context.feed.listener() as poke:
            refresh = self._when_new(self.context.view.refresh, mark=self.context.view.mark)
            await self._every(view.PERIOD, poke, refresh, "view")

    def _when_new(
        self, step: Callable[[], Awaitable[bool]], *, mark: Callable[[], Hashable] = lambda: None
    ) -> Callable[[], Awaitable[None]]:
        """The step, as far as there may be something to find: an idle fleet costs no statements."""
        return Attention(self.context.feed, self.context.clock, step, mark=mark).look

    async def _every(
        self, period: timedelta, poke: Poke, step: Callable[[], Awaitable[timedelta | None]], name: str
    ) -> None:
        await poke_or_period(step, poke=poke, clock=self.context.clock, period=period, name=name)

    def _end_streams(self) -> None:
        self.context.stopping.set()
        self.context.feed.ring()
        self.context.view.ring()
