"""Brings about what fleet rules demand: on which nodes, by which operations, and removing what no rule needs."""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Protocol

from corral.base.clock import Clock
from corral.base.errors import CorralError
from corral.base.ids import NodeId, OperationId
from corral.base.tasks import Poke, poke_or_period
from corral.frontend.backends.catalogue import CatalogueSource, NoCatalogue
from corral.frontend.backends.decide.backend import Artefact, Inventory, traits_of
from corral.frontend.backends.inventory import InventoryKeeper
from corral.frontend.backends.operations import BackendOperations
from corral.frontend.backends.planning import Ask
from corral.frontend.nodes.decide.node import NodeStatus, NodeType, SeenNode
from corral.frontend.nodes.fleet import Fleet
from corral.frontend.operations.decide.intent import Intent, IntentKey, IntentKind, IntentState, Verb
from corral.frontend.operations.decide.operation import TargetStatus
from corral.frontend.operations.service import Operations
from corral.frontend.operations.store.intents import Intents
from corral.frontend.operations.store.operations import Overtaken
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.feed import EventCursor
from corral.frontend.record.store import Events
from corral.frontend.rules.decide import FleetRule, NameResolver, bare, is_met, is_missing, may_have, standing
from corral.frontend.store.leases import Leader
from corral.galleries.build_uris import BackendRef

_BATCH: Final = 200
"""Nodes that are looked at without letting others take their turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RulePlace:
    """One backend on one node, because of one rule."""

    rule: FleetRule
    seen: SeenNode
    key: str
    intent: Intent | None
    """Not always read where the backend is there as wanted."""
    inventory: Inventory | None
    is_missing: bool
    """Whether the node has to be told."""

    @property
    def spot(self) -> tuple[NodeId, str]:
        return self.seen.node.id, self.key

    @property
    def intent_key(self) -> IntentKey:
        return self.seen.node.id, IntentKind.BACKEND, self.key

    @property
    def standing(self) -> TargetStatus:
        return standing(self.rule, self.key, self.intent, self.inventory)

    @property
    def may_have(self) -> bool:
        return may_have(self.key, self.intent, self.inventory)

    @property
    def generation(self) -> int:
        return 0 if self.intent is None else self.intent.generation


class RulePlaces:
    """Reads only."""

    def __init__(self, fleet: Fleet, inventory: InventoryKeeper, intents: Intents, galleries: CatalogueSource) -> None:
        self._fleet = fleet
        self._inventory = inventory
        self._intents = intents
        self._galleries = galleries

    async def of(self, rules: Sequence[FleetRule], ids: Iterable[NodeId] | None = None) -> list[RulePlace]:
        """On these nodes or all. What a rule means on a node is left out while galleries cannot tell."""
        nodes, names = await self.nodes(ids), await self.names()
        places: list[RulePlace] = []
        for start in range(0, len(nodes), _BATCH):
            places += await self._places(_demands(rules, nodes[start : start + _BATCH], names))
        return places

    async def _places(self, demands: Sequence["_Demand"]) -> list[RulePlace]:
        if not demands:
            return []
        ids = sorted({seen.node.id for _, seen, _ in demands})
        reports = await self._inventory.known(ids)
        met = [is_met(rule, key, reports.get(seen.node.id)) for rule, seen, key in demands]
        lacking = {seen.node.id for (_, seen, _), there in zip(demands, met, strict=True) if not there}
        backends = sorted({key for _, _, key in demands})
        found = await self._intents.unsettled(IntentKind.BACKEND, ids, backends, whole=sorted(lacking))
        intents = {(one.node_id, one.subject): one for one in found}
        places = []
        for (rule, seen, key), there in zip(demands, met, strict=True):
            intent, report = intents.get((seen.node.id, key)), reports.get(seen.node.id)
            # Most are there, and nothing else is wanted: that needs no second look.
            missing = not (there and intent is None) and is_missing(rule, key, intent, report)
            places.append(RulePlace(rule=rule, seen=seen, key=key, intent=intent, inventory=report, is_missing=missing))
        return places

    async def nodes(self, ids: Iterable[NodeId] | None = None) -> list[SeenNode]:
        """Those that may have backends: never pending or agent nodes."""
        found = await self._fleet.all() if ids is None else (await self._fleet.some(ids)).values()
        return [one for one in found if one.node.type is NodeType.BACKEND and one.status is not NodeStatus.PENDING]

    async def names(self) -> NameResolver:
        catalogue = await self._galleries.catalogue()
        if isinstance(self._galleries, NoCatalogue):
            return NameResolver(catalogue=None)  # nothing will ever be looked up here: names are what they are
        is_complete = catalogue is not None and all(one.entries for one in catalogue.galleries)
        return NameResolver(catalogue=catalogue, is_complete=is_complete)

    async def doubts(self, rules: Iterable[FleetRule]) -> dict[str, str]:
        """Rules that perhaps nobody can satisfy because nobody knows their backend, by name, and why."""
        nodes, names = await self.nodes(), await self.names()
        reports = await self.inventories(nodes)
        held = {entry.name for one in reports.values() for entry in one.entries}
        found = {rule.name: names.doubt(rule.artefact, held) for rule in rules}
        return {name: doubt for name, doubt in found.items() if doubt}

    async def inventories(self, nodes: Iterable[SeenNode]) -> Mapping[NodeId, Inventory]:
        return await self._inventory.known([one.node.id for one in nodes])


_Demand = tuple[FleetRule, SeenNode, str]


def _demands(rules: Sequence[FleetRule], nodes: Iterable[SeenNode], names: NameResolver) -> list[_Demand]:
    demands: list[_Demand] = []
    for seen in nodes:
        labels, capability = seen.node.labels.effective, traits_of(seen.node).effective_capability
        for rule in rules:
            if rule.applies_to(labels) and (key := names.key(rule.artefact, capability)) is not None:
                demands.append((rule, seen, key))
    return demands


Spot = tuple[NodeId, str]


class Prune(StrEnum):
    """What a change of the rules deletes."""

    NOTHING = ""
    DEMANDED = "demanded"
    """What the rules demanded before, and do not any more."""
    ALL = "all"
    """Whatever no rule demands."""


class RulePruning:
    def __init__(self, places: RulePlaces) -> None:
        self._places = places

    async def asks(
        self, before: Sequence[FleetRule], after: Iterable[RulePlace], prune: Prune, *, by: str
    ) -> list[Ask]:
        """One for each backend: `before` is what was demanded until now, `after` where something is from now on."""
        if prune is Prune.NOTHING:
            return []
        kept = {one.spot for one in after}
        found = await self._no_longer_demanded(before, kept)
        if prune is Prune.ALL:
            found |= await self._never_demanded(kept | found.keys())
        backends: dict[str, list[NodeId]] = {}
        for (node_id, _), backend in found.items():
            backends.setdefault(backend, []).append(node_id)
        return [
            Ask(verb=Verb.DELETE, ref=BackendRef(backend=backend), nodes=tuple(nodes), by=by)
            for backend, nodes in sorted(backends.items())
        ]

    async def _no_longer_demanded(self, before: Sequence[FleetRule], kept: Collection[Spot]) -> dict[Spot, str]:
        places = await self._places.of(before) if before else []
        return {one.spot: bare(one.rule.backend) for one in places if one.spot not in kept and one.may_have}

    async def _never_demanded(self, known: Collection[Spot]) -> dict[Spot, str]:
        nodes, names = await self._places.nodes(), await self._places.names()
        reports = await self._places.inventories(nodes)
        found: dict[Spot, str] = {}
        for seen in nodes:
            id, capability = seen.node.id, traits_of(seen.node).effective_capability
            entries = reports[id].entries if id in reports else ()
            # A meta backend comes first: it goes together with the build that it points to.
            for entry in sorted(entries, key=lambda one: not one.is_meta):
                key = names.key(Artefact(backend=entry.name), capability) or entry.name
                if not entry.is_system and not {(id, key), (id, entry.name)} & {*known, *found}:
                    found[id, key] = entry.name
        return found


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
