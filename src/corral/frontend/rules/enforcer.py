"""Brings nodes to what fleet rules demand, for ever: finds where something is missing, and starts operations.

One operation for each rule and round. It is started only where nothing else has been wanted since the round looked, so
that frontends which look at the same moment, or a person who is faster, never lead to two. One frontend at a time makes
rounds: whoever has the lease.
"""

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final, Protocol

from corral.base.clock import Clock
from corral.base.errors import CorralError
from corral.base.ids import NodeId, OperationId
from corral.base.tasks import Poke, poke_or_period
from corral.frontend.backends.operations import BackendOperations
from corral.frontend.backends.planning import Ask
from corral.frontend.operations.decide.intent import Intent, IntentState, Verb
from corral.frontend.operations.service import Operations
from corral.frontend.operations.store.operations import Overtaken
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.feed import EventCursor
from corral.frontend.record.store import Events
from corral.frontend.rules.decide import FleetRule
from corral.frontend.rules.places import RulePlace, RulePlaces
from corral.frontend.store.leader_lease import Leader

log = logging.getLogger(__name__)

PERIOD: Final = timedelta(seconds=15)
NOTICE_PERIOD: Final = timedelta(seconds=30)
"""Without a ring of the feed, which also looks for events whose ring was lost."""
_REST: Final = timedelta(seconds=1)
"""Between rounds: reports and pokes come in swarms."""
_JUDGED_EVERY: Final = timedelta(minutes=5)
_OF_NODES: Final = frozenset(
    {
        EventKind.NODE_REGISTERED,
        EventKind.NODE_REREGISTERED,
        EventKind.NODE_APPROVED,
        EventKind.NODE_LABELS,
        EventKind.NODE_STATUS,
    }
)


class RuleStore(Protocol):
    async def all(self) -> list[FleetRule]: ...


class RuleEnforcer:
    def __init__(  # noqa: PLR0913 - each is a collaborator
        self,
        rules: RuleStore,
        places: RulePlaces,
        operations: Operations,
        backends: BackendOperations,
        events: Events,
        leader: Leader,
        clock: Clock,
    ) -> None:
        self._rules = rules
        self._places = places
        self._operations = operations
        self._backends = backends
        self._cursor = EventCursor(events)
        self._leader = leader
        self._clock = clock
        self._judged_at: datetime | None = None

    async def run(self, poke: Poke) -> None:
        """Rounds over the whole fleet until cancelled. `notice` runs beside it."""

        async def step() -> None:
            await self.sweep()
            await self._clock.sleep(_REST.total_seconds())

        await poke_or_period(step, poke=poke, clock=self._clock, period=PERIOD, name="fleet rules")

    async def sweep(self) -> None:
        """One round over the whole fleet, if it is ours to make."""
        rules = await self._rules.all()
        if not rules or not await self._is_ours():
            return
        places = await self.converge(rules)
        if self._judged_at is None or self._clock.now() - self._judged_at >= _JUDGED_EVERY:
            self._judged_at = self._clock.now()
            await self._judge_again(places)

    async def notice(self) -> None:
        """Make a round for the nodes that events are about. What fails is done again with the next call."""
        await self._cursor.catch_up(self._react)

    async def _react(self, happened: Sequence[Event]) -> None:
        meant = None if any(map(_is_of_all, happened)) else {one.node_id for one in happened if one.kind in _OF_NODES}
        if meant == set():
            return
        rules = await self._rules.all()
        if rules and await self._is_ours():
            await self.converge(rules, None if meant is None else {id for id in meant if id is not None})

    async def converge(self, rules: Sequence[FleetRule], ids: Iterable[NodeId] | None = None) -> list[RulePlace]:
        """Start what is missing, on these nodes or all; returns how it was found. Any frontend may do that."""
        places = await self._places.of(rules, ids)
        for rule, some in missing(rules, places):
            await self._start(rule, some)
        return places

    async def _start(self, rule: FleetRule, missing: Sequence[RulePlace]) -> None:
        shown = {"rule": rule.name, "backend": rule.backend, "nodes": len(missing)}
        try:
            operation = await self._backends.start(ask_of(rule, missing))
        except Overtaken:
            log.debug("something else is wanted there by now", extra={"event": "fleet_rule.overtaken", **shown})
        except CorralError as error:
            if error.retryable:
                raise
            # A node was removed meanwhile, for example: the next round sees what is left.
            log.warning("a fleet rule waits: %s", error, extra={"event": "fleet_rule.waiting", **shown})
        else:
            told = {"event": "fleet_rule.enforced", "operation": operation.id, **shown}
            log.info("the fleet rule %s demands %s", rule.name, rule.backend, extra=told)

    async def _judge_again(self, places: Iterable[RulePlace]) -> None:
        """What was blocked before anything was sent may fit by now: a disk was cleaned, a gallery has a new build."""
        blocked: dict[tuple[str, OperationId], list[RulePlace]] = {}
        for place in places:
            if place.intent is not None and _is_judged(place.intent):
                blocked.setdefault((place.rule.name, place.intent.operation_id), []).append(place)
        for (_, operation), some in blocked.items():
            rule = some[0].rule
            try:
                planned = await self._backends.plan(ask_of(rule, some))
            except CorralError as error:
                if error.retryable:
                    raise
                continue
            fitting = [one.node.node.id for one in planned if not one.hindrance]
            if fitting:
                await self._operations.retry(operation, by=rule.asks_as, nodes=fitting)

    async def _is_ours(self) -> bool:
        return await self._leader.holds("fleet rules", lasts=PERIOD * 2)


def missing(rules: Iterable[FleetRule], places: Iterable[RulePlace]) -> list[tuple[FleetRule, list[RulePlace]]]:
    """What has to be started because of which rule; each place once, however many rules demand it."""
    taken: set[tuple[NodeId, str]] = set()
    found: list[tuple[FleetRule, list[RulePlace]]] = []
    lacking = [one for one in places if one.is_missing]
    # Those that say from where are met by nothing else, so they come first where several want the same backend.
    for rule in sorted(rules, key=lambda one: (not one.artefact.uri, one.name)):
        some = [one for one in lacking if one.rule is rule and one.spot not in taken]
        if some:
            taken.update(one.spot for one in some)
            found.append((rule, some))
    return found


def ask_of(rule: FleetRule, places: Iterable[RulePlace]) -> Ask:
    """What a rule asks for at some places, as they were seen."""
    seen = {one.intent_key: one.generation for one in places}
    return Ask(
        verb=Verb.INSTALL,
        ref=rule.artefact,
        nodes=tuple(node_id for node_id, _, _ in seen),
        by=rule.asks_as,
        seen=seen,
    )


def _is_of_all(event: Event) -> bool:
    return event.kind is EventKind.FLEET_RULES_CHANGED


def _is_judged(intent: Intent) -> bool:
    """Whether a verdict blocks it, and not what the node answered."""
    return intent.state is IntentState.BLOCKED and intent.verb is Verb.INSTALL and intent.before is None
