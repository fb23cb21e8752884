"""Brings about what fleet rules demand: on which nodes, by which operations, and removing what no rule needs."""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

import msgspec

from corral.base.clock import Clock
from corral.base.errors import CorralError, Overtaken
from corral.base.ids import NodeId, OperationId
from corral.base.tasks import Poke, poke_or_period
from corral.frontend.backends.catalogue import CatalogueSource, NoCatalogue
from corral.frontend.backends.decide.backend import Artefact, Inventory, traits_of
from corral.frontend.backends.inventory import InventoryKeeper
from corral.frontend.backends.operations import BackendOperations
from corral.frontend.backends.planning import Ask
from corral.frontend.nodes.decide.node import NodeStatus, NodeType, SeenNode
from corral.frontend.nodes.fleet import Fleet
from corral.frontend.operations.decide.intent import Intent, IntentKind, IntentState, Verb
from corral.frontend.operations.decide.operation import TargetStatus
from corral.frontend.operations.service import Operations
from corral.frontend.operations.store.intents import Intents
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.feed import EventCursor
from corral.frontend.record.store import Events
from corral.frontend.rules.decide import FleetRule, NameResolver, bare, is_met, is_missing, may_have, standing
from corral.frontend.rules.store import FleetRuleStore
from corral.frontend.store.leases import Leader
from corral.galleries.build_uris import BackendRef

log = logging.getLogger(__name__)

PERIOD: Final = timedelta(seconds=15)
NOTICE_PERIOD: Final = timedelta(seconds=30)
"""Without a ring of the feed, which also looks for events whose ring was lost."""
_REST: Final = timedelta(seconds=1)
"""Between rounds: reports and pokes come in swarms."""
_JUDGED_EVERY: Final = timedelta(minutes=5)
_BATCH: Final = 200
"""Nodes that are looked at without letting others take their turn."""
_NODE_EVENTS: Final = frozenset(
    {
        EventKind.NODE_REGISTERED,
        EventKind.NODE_REREGISTERED,
        EventKind.NODE_APPROVED,
        EventKind.NODE_LABELS,
        EventKind.NODE_STATUS,
    }
)

Spot = tuple[NodeId, str]
_Demand = tuple[FleetRule, SeenNode, str]


class RulePlace(msgspec.Struct, frozen=True, kw_only=True):
    """One backend on one node, because of one rule."""

    rule: FleetRule
    seen: SeenNode
    key: str
    """The canonical name of the backend on this node."""
    intent: Intent | None
    """Not always read where the backend is there as wanted."""
    inventory: Inventory | None
    is_missing: bool
    """Whether an install has to be sent to the node."""

    @property
    def spot(self) -> Spot:
        return self.seen.node.id, self.key

    @property
    def standing(self) -> TargetStatus:
        return standing(self.rule, self.key, self.intent, self.inventory)


class RulePlaces:
    """Finds the nodes that fleet rules mean, and what each has of a rule's backend. Writes nothing."""

    def __init__(self, fleet: Fleet, inventory: InventoryKeeper, intents: Intents, galleries: CatalogueSource) -> None:
        self._fleet = fleet
        self._inventory = inventory
        self._intents = intents
        self._galleries = galleries

    async def of(self, rules: Sequence[FleetRule], ids: Iterable[NodeId] | None = None) -> list[RulePlace]:
        """What these rules demand, on these nodes or all. What a rule means on a node is left out while galleries
        cannot tell."""
        nodes, names = await self.nodes(ids), await self.names()
        places: list[RulePlace] = []
        for start in range(0, len(nodes), _BATCH):
            demands: list[_Demand] = []
            for seen in nodes[start : start + _BATCH]:
                labels, capability = seen.node.labels.effective, traits_of(seen.node).effective_capability
                for rule in rules:
                    if rule.applies_to(labels) and (key := names.key(rule.artefact, capability)) is not None:
                        demands.append((rule, seen, key))
            places += await self._places(demands)
        return places

    async def _places(self, demands: Sequence[_Demand]) -> list[RulePlace]:
        if not demands:
            return []
        ids = sorted({seen.node.id for _, seen, _ in demands})
        reports = await self._inventory.known(ids)
        met = [is_met(rule, key, reports.get(seen.node.id)) for rule, seen, key in demands]
        lacking = {seen.node.id for (_, seen, _), has_backend in zip(demands, met, strict=True) if not has_backend}
        backends = sorted({key for _, _, key in demands})
        unsettled = await self._intents.unsettled(IntentKind.BACKEND, ids, backends, whole=sorted(lacking))
        intents = {(intent.node_id, intent.subject): intent for intent in unsettled}
        places = []
        for (rule, seen, key), has_backend in zip(demands, met, strict=True):
            intent, report = intents.get((seen.node.id, key)), reports.get(seen.node.id)
            # Most are there, and nothing else is wanted: that needs no second look.
            missing = not (has_backend and intent is None) and is_missing(rule, key, intent, report)
            places.append(RulePlace(rule=rule, seen=seen, key=key, intent=intent, inventory=report, is_missing=missing))
        return places

    async def nodes(self, ids: Iterable[NodeId] | None = None) -> list[SeenNode]:
        """Return the nodes that may have backends, among these ids or in the fleet: never pending or agent nodes."""
        nodes = await self._fleet.all() if ids is None else (await self._fleet.some(ids)).values()
        return [seen for seen in nodes if seen.node.type is NodeType.BACKEND and seen.status is not NodeStatus.PENDING]

    async def names(self) -> NameResolver:
        catalogue = await self._galleries.catalogue()
        if isinstance(self._galleries, NoCatalogue):
            return NameResolver(catalogue=None)  # nothing will ever be looked up here: names are what they are
        is_complete = catalogue is not None and all(gallery.entries for gallery in catalogue.galleries)
        return NameResolver(catalogue=catalogue, is_complete=is_complete)

    async def doubts(self, rules: Iterable[FleetRule]) -> dict[str, str]:
        """Rules that perhaps nobody can satisfy because nobody knows their backend, by name, and why."""
        nodes, names = await self.nodes(), await self.names()
        reports = await self.inventories(nodes)
        held = {entry.name for report in reports.values() for entry in report.entries}
        return {rule.name: doubt for rule in rules if (doubt := names.doubt(rule.artefact, held))}

    async def inventories(self, nodes: Iterable[SeenNode]) -> Mapping[NodeId, Inventory]:
        return await self._inventory.known([seen.node.id for seen in nodes])


class Prune(StrEnum):
    """What a change of the rules deletes."""

    NOTHING = ""
    DEMANDED = "demanded"
    """What the rules demanded before, and do not any more."""
    ALL = "all"
    """Delete every backend that no rule demands."""


async def pruning_asks(
    places: RulePlaces, before: Sequence[FleetRule], after: Iterable[RulePlace], prune: Prune, *, by: str
) -> list[Ask]:
    """What deletes the backends that a change of rules leaves without a rule, one ask for each backend.

    `before` are the rules until now, `after` is where something is demanded from now on.
    """
    if prune is Prune.NOTHING:
        return []
    demanded = {place.spot for place in after}
    unneeded = {
        place.spot: bare(place.rule.backend)
        for place in (await places.of(before) if before else [])
        if place.spot not in demanded and may_have(place.key, place.intent, place.inventory)
    }
    if prune is Prune.ALL:
        unneeded |= await _never_demanded(places, demanded | unneeded.keys())
    backends: dict[str, list[NodeId]] = {}
    for (node_id, _), backend in unneeded.items():
        backends.setdefault(backend, []).append(node_id)
    return [
        Ask(verb=Verb.DELETE, ref=BackendRef(backend=backend), nodes=tuple(nodes), by=by)
        for backend, nodes in sorted(backends.items())
    ]


async def _never_demanded(places: RulePlaces, demanded: Collection[Spot]) -> dict[Spot, str]:
    """Backends that nodes report, and that are not at one of these spots, by where they are."""
    nodes, names = await places.nodes(), await places.names()
    reports = await places.inventories(nodes)
    unneeded: dict[Spot, str] = {}
    for seen in nodes:
        id, capability = seen.node.id, traits_of(seen.node).effective_capability
        entries = reports[id].entries if id in reports else ()
        # A meta backend comes first: it goes together with the build that it points to.
        for entry in sorted(entries, key=lambda entry: not entry.is_meta):
            key = names.key(Artefact(backend=entry.name), capability) or entry.name
            if not entry.is_system and not {(id, key), (id, entry.name)} & {*demanded, *unneeded}:
                unneeded[id, key] = entry.name
    return unneeded


class RuleEnforcer:
    def __init__(  # noqa: PLR0913 - each is a collaborator
        self,
        rules: FleetRuleStore,
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

        async def react(events: Sequence[Event]) -> None:
            if any(event.kind is EventKind.FLEET_RULES_CHANGED for event in events):
                ids = None
            else:
                ids = {event.node_id for event in events if event.kind in _NODE_EVENTS and event.node_id is not None}
                if not ids:
                    return
            rules = await self._rules.all()
            if rules and await self._is_ours():
                await self.converge(rules, ids)

        await self._cursor.catch_up(react)

    async def converge(self, rules: Sequence[FleetRule], ids: Iterable[NodeId] | None = None) -> list[RulePlace]:
        """Start what is missing, on these nodes or all; returns how it was found. Any frontend may do that."""
        places = await self._places.of(rules, ids)
        for rule, lacking in missing(rules, places):
            details = {"rule": rule.name, "backend": rule.backend, "nodes": len(lacking)}
            try:
                operation = await self._backends.start(ask_of(rule, lacking))
            except Overtaken:
                log.debug("something else is wanted there by now", extra={"event": "fleet_rule.overtaken", **details})
            except CorralError as error:
                if error.retryable:
                    raise
                # A node was removed meanwhile, for example: the next round sees what is left.
                log.warning("a fleet rule waits: %s", error, extra={"event": "fleet_rule.waiting", **details})
            else:
                details |= {"event": "fleet_rule.enforced", "operation": operation.id}
                log.info("the fleet rule %s demands %s", rule.name, rule.backend, extra=details)
        return places

    async def _judge_again(self, places: Iterable[RulePlace]) -> None:
        """What was blocked before anything was sent may fit by now: a disk was cleaned, a gallery has a new build."""
        blocked: dict[tuple[str, OperationId], list[RulePlace]] = {}
        for place in places:
            intent = place.intent
            if intent is None or intent.before is not None:
                continue  # what the node answered blocks it, and no verdict of ours
            if (intent.state, intent.verb) == (IntentState.BLOCKED, Verb.INSTALL):
                blocked.setdefault((place.rule.name, intent.operation_id), []).append(place)
        for (_, operation), blocked_places in blocked.items():
            rule = blocked_places[0].rule
            try:
                planned = await self._backends.plan(ask_of(rule, blocked_places))
            except CorralError as error:
                if error.retryable:
                    raise
                continue
            fitting = [target.node.node.id for target in planned if not target.hindrance]
            if fitting:
                await self._operations.retry(operation, by=rule.asks_as, nodes=fitting)

    async def _is_ours(self) -> bool:
        return await self._leader.holds("fleet rules", duration=PERIOD * 2)


def missing(rules: Iterable[FleetRule], places: Iterable[RulePlace]) -> list[tuple[FleetRule, list[RulePlace]]]:
    """What has to be started because of which rule; each place once, however many rules demand it."""
    assigned: set[Spot] = set()
    by_rule: list[tuple[FleetRule, list[RulePlace]]] = []
    lacking = [place for place in places if place.is_missing]
    # Those that say from where are met by nothing else, so they come first where several want the same backend.
    for rule in sorted(rules, key=lambda rule: (not rule.artefact.uri, rule.name)):
        if rule_places := [place for place in lacking if place.rule is rule and place.spot not in assigned]:
            assigned.update(place.spot for place in rule_places)
            by_rule.append((rule, rule_places))
    return by_rule


def ask_of(rule: FleetRule, places: Iterable[RulePlace]) -> Ask:
    """What a rule asks for at some places, as they were seen."""
    generations = {
        (place.seen.node.id, IntentKind.BACKEND, place.key): 0 if place.intent is None else place.intent.generation
        for place in places
    }
    nodes = tuple(node_id for node_id, _, _ in generations)
    return Ask(verb=Verb.INSTALL, ref=rule.artefact, nodes=nodes, by=rule.asks_as, seen=generations)
