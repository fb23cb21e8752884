"""Whether engines that somebody else runs answer: every frontend looks itself, as its gateways ask themselves."""

import asyncio
import logging
from collections.abc import Hashable, Iterable
from datetime import timedelta
from typing import Final

from corral.base.clock import Clock
from corral.base.retry import Backoff
from corral.frontend.engines.decide import (
    EngineLook,
    EngineObservation,
    EngineState,
    ExternalEngine,
    after_failed_request,
    after_look,
)
from corral.frontend.engines.looking import EngineLooks
from corral.frontend.engines.service import ExternalEngines
from corral.frontend.record.feed import Feed
from corral.wire.view import ReplicaFailure

log = logging.getLogger(__name__)

PERIOD: Final = timedelta(seconds=15)
"""Without any engine to look at: a ring tells of new ones."""
_WHEN_UP: Final = Backoff(first=timedelta(seconds=10), cap=timedelta(seconds=10))
_OTHERWISE: Final = Backoff(first=timedelta(seconds=2), cap=timedelta(seconds=15))
_SOONEST: Final = timedelta(milliseconds=50)
_AT_ONCE: Final = 16
_NOTHING: Final = EngineObservation()


class EngineWatch:
    def __init__(self, engines: ExternalEngines, looks: EngineLooks, feed: Feed, clock: Clock) -> None:
        self._engines = engines
        self._looks = looks
        self._feed = feed
        self._clock = clock
        self._observed: dict[str, EngineObservation] = {}
        self._looked_at: dict[str, ExternalEngine] = {}
        """What each engine was when it was last looked at."""
        self._due: dict[str, float] = {}

    def of(self, id: str) -> EngineObservation:
        return self._observed.get(id, _NOTHING)

    def mark(self) -> Hashable:
        """Changes with what gateways are told of engines."""
        return tuple(sorted((id, observed.state) for id, observed in self._observed.items()))

    def suspect(self, failures: Iterable[ReplicaFailure]) -> None:
        """A gateway got no answer from these; those that are engines are looked at now."""
        known = {engine.id for engine in self._engines.current}
        for failure in failures:
            if failure.replica in known:
                now = self._clock.now()
                self._learn(failure.replica, after_failed_request(self.of(failure.replica), failure.reason, now))
                self._due.pop(failure.replica, None)
                self._engines.poke.ring()

    async def sweep(self) -> timedelta | None:
        """Look at all engines that are due; how long until the next is."""
        engines = {engine.id: engine for engine in self._engines.current if engine.is_enabled}
        self._forget_others(engines)
        now = self._clock.monotonic()
        slots = asyncio.Semaphore(_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for engine in engines.values():
                if self._due.get(engine.id, now) <= now:
                    group.create_task(self._look_at(engine, slots), name=f"look at {engine.name}")
        if not engines:
            return None
        return max(timedelta(seconds=min(self._due.values()) - self._clock.monotonic()), _SOONEST)

    async def try_out(self, engine: ExternalEngine) -> EngineLook:
        """Look at an engine now, for somebody who wants to know. What is known of it becomes that, too."""
        look = await self._looks.look(engine)
        if engine.is_enabled:
            self._learn(engine.id, after_look(self.of(engine.id), look, self._clock.now()))
        return look

    async def _look_at(self, engine: ExternalEngine, slots: asyncio.Semaphore) -> None:
        async with slots:
            look = await self._looks.look(engine)
        self._looked_at[engine.id] = engine
        observed = after_look(self.of(engine.id), look, self._clock.now())
        self._learn(engine.id, observed)
        backoff = _WHEN_UP if observed.state is EngineState.UP else _OTHERWISE
        self._due[engine.id] = self._clock.monotonic() + backoff.delay(max(observed.failures, 1)).total_seconds()

    def _forget_others(self, engines: dict[str, ExternalEngine]) -> None:
        """Forget engines that are gone, and what was seen of engines that are asked in another way now."""
        for id in list(self._observed):
            engine, before = engines.get(id), self._looked_at.get(id)
            if engine is None or (before is not None and not engine.is_asked_alike(before)):
                for known in (self._observed, self._looked_at, self._due):
                    known.pop(id, None)

    def _learn(self, id: str, observed: EngineObservation) -> None:
        before, self._observed[id] = self.of(id).state, observed
        if observed.state is not before:
            self._feed.ring()  # the gateways of this frontend hear of it at once
            level = logging.INFO if observed.state is EngineState.UP else logging.WARNING
            named = next((f"{each.model}/{each.name}" for each in self._engines.current if each.id == id), id)
            shown = {"event": "engine.state", "engine": named, "state": observed.state.value}
            log.log(level, "an engine is %s: %s", observed.state.value, observed.reason or "it answers", extra=shown)
