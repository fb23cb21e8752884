"""Setting and removing fleet rules, and guarding what they demand against other operations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from corral.base.clock import Clock
from corral.base.errors import Conflict, InvalidInput, NotFound
from corral.base.words import listed
from corral.frontend.backends.decide.backend import Wish, artefact_of, traits_of
from corral.frontend.backends.operations import BackendOperations, checked
from corral.frontend.backends.planning import Planned
from corral.frontend.nodes.decide.node import SeenNode
from corral.frontend.operations.decide.intent import IntentState, Verb
from corral.frontend.operations.decide.operation import Operation, Target, TargetStatus
from corral.frontend.operations.service import Operations, Prepared, started_event
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.rules.decide import (
    FleetRule,
    NameResolver,
    SetChange,
    change,
    contradicting,
    revision_of,
    rule_problem,
    set_problem,
)
from corral.frontend.rules.enforcer import Prune, RuleEnforcer, RulePlace, RulePlaces, RulePruning, ask_of, missing
from corral.frontend.rules.store import FleetRuleStore as RuleStore
from corral.frontend.store.failures import ConstraintViolated
from corral.galleries.catalogue import BackendCatalogue


class RuleDemands(Conflict):
    """A fleet rule demands something else."""


class Rules(Protocol):
    """Where fleet rules are looked up."""

    async def all(self) -> list[FleetRule]: ...


class Catalogues(Protocol):
    """Where names of backends are looked up."""

    async def catalogue(self) -> BackendCatalogue | None: ...


@dataclass(frozen=True, slots=True)
class TheseRules:
    """A set of rules that is not in force yet."""

    rules: Sequence[FleetRule]

    async def all(self) -> list[FleetRule]:
        return list(self.rules)


class RuleGuard:
    def __init__(self, rules: Rules, catalogues: Catalogues) -> None:
        self._rules = rules
        self._catalogues = catalogues

    def under(self, rules: Sequence[FleetRule]) -> "RuleGuard":
        """A guard of these rules instead of those in force."""
        return RuleGuard(TheseRules(rules), self._catalogues)

    async def refuse_cancel(self, operation: Operation, left: Sequence[tuple[SeenNode, Target]]) -> None:
        """RuleDemands when a rule would start again what is cancelled: only installs can be demanded."""
        if operation.verb is not Verb.INSTALL:
            return
        artefact = artefact_of(operation.payload)
        await self.refuse(
            [(seen, Wish(verb=Verb.DELETE, key=target.subject, artefact=artefact)) for seen, target in left]
        )

    async def refuse(self, wishes: Sequence[tuple[SeenNode, Wish]]) -> None:
        """RuleDemands names the first rule that is in the way, and its nodes."""
        in_force = await self._rules.all()
        if not in_force or not wishes:
            return
        names = NameResolver(catalogue=await self._catalogues.catalogue())
        against: dict[str, tuple[FleetRule, list[str]]] = {}
        for seen, wish in wishes:
            node = seen.node
            capability = traits_of(node).effective_capability
            rule = contradicting(in_force, wish, node.labels.effective, names, capability)
            if rule is not None:
                against.setdefault(rule.name, (rule, []))[1].append(node.name)
        if against:
            raise RuleDemands(_sentence(*next(iter(against.values()))))


def _sentence(rule: FleetRule, nodes: Sequence[str]) -> str:
    source = f" from {rule.artefact.uri}" if rule.artefact.uri else ""
    return (
        f"the fleet rule {rule.name} demands {rule.backend}{source} on {listed(nodes)}; change or delete the rule first"
    )


ANY_REVISION: Final = "*"
_TRIES: Final = 5


class RulesChanged(Conflict):
    """The fleet rules were changed meanwhile."""

    code = "precondition_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleStanding:
    rule: FleetRule
    places: tuple[RulePlace, ...]
    doubt: str = ""
    """Why perhaps nobody can satisfy it; empty when there is no reason to think so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSet:
    revision: str
    standings: tuple[RuleStanding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedAct:
    """What would be done because of a rule, or because there no longer is one."""

    verb: Verb
    backend: str
    rule: str
    """Empty for a delete."""
    planned: tuple[Planned, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """What a set of rules would lead to."""

    change: SetChange
    acts: tuple[PlannedAct, ...]
    unmet: tuple[RulePlace, ...]
    """What is demanded and wanted there already, and not reached yet."""
    doubts: Mapping[str, str]
    """Rules that perhaps nobody can satisfy, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleSetResult:
    change: SetChange
    operations: tuple[Operation, ...]
    """All that brings about what is demanded, or deletes what is not, and is not over."""
    doubts: Mapping[str, str]
    """Rules that perhaps nobody can satisfy, and why."""


class FleetRules:
    def __init__(  # noqa: PLR0913 - each is a collaborator
        self,
        store: RuleStore,
        places: RulePlaces,
        enforcer: RuleEnforcer,
        operations: Operations,
        backends: BackendOperations,
        guard: RuleGuard,
        clock: Clock,
    ) -> None:
        self._store = store
        self._places = places
        self._enforcer = enforcer
        self._operations = operations
        self._backends = backends
        self._guard = guard
        self._pruning = RulePruning(places)
        self._clock = clock

    async def show(self) -> RuleSet:
        rules = await self._store.all()
        places: dict[str, list[RulePlace]] = {one.name: [] for one in rules}
        for place in await self._places.of(rules) if rules else []:
            places[place.rule.name].append(place)
        doubts = await self._places.doubts(rules) if rules else {}
        standings = [
            RuleStanding(rule=one, places=tuple(places[one.name]), doubt=doubts.get(one.name, "")) for one in rules
        ]
        return RuleSet(revision=revision_of(rules), standings=tuple(standings))

    async def plan(self, wanted: Sequence[FleetRule], *, prune: Prune) -> Diff:
        """What `put` would do; nothing is stored or sent."""
        _check(wanted)
        known = await self._store.all()
        becomes = change(known, wanted)
        places = await self._places.of(becomes.rules)
        asks = [(ask_of(rule, some), rule.name) for rule, some in missing(becomes.rules, places)]
        asks += [(ask, "") for ask in await self._pruning.asks(known, places, prune, by="")]
        acts = [
            PlannedAct(
                verb=ask.verb,
                backend=ask.ref.backend,
                rule=rule,
                planned=tuple(await self._backends.plan(ask, guard=self._guard.under(becomes.rules))),
            )
            for ask, rule in asks
        ]
        unmet = [one for one in places if not one.is_missing and one.standing is not TargetStatus.SUCCESS]
        doubts = await self._places.doubts(becomes.rules)
        return Diff(change=becomes, acts=tuple(acts), unmet=tuple(unmet), doubts=doubts)

    async def put(self, wanted: Sequence[FleetRule], *, revision: str, prune: Prune, by: str) -> RuleSetResult:
        """Put this set in place of the one of that revision; RulesChanged when it is another one by now."""
        _check(wanted)
        for _ in range(_TRIES):
            known = await self._store.all()
            found = revision_of(known)
            if revision not in (ANY_REVISION, found):
                raise RulesChanged(f"the fleet rules have the revision {found} by now, not {revision}")
            becomes = change(known, wanted)
            deletes = await self._deletes(known, becomes, prune, by=by)
            if await self._is_stored(becomes, deletes, revision=found, by=by):
                await self._operations.tell([one.operation for one in deletes])
                return await self._brought_about(becomes, deletes)
        raise RulesChanged("the fleet rules are being changed by others; try again")

    async def delete(self, name: str, *, by: str) -> None:
        """Demand it no longer. What is installed stays."""
        for _ in range(_TRIES):
            known = await self._store.all()
            left = [one for one in known if one.name != name]
            if len(left) == len(known):
                raise NotFound(f"there is no fleet rule {name}")
            if await self._is_stored(change(known, left), [], revision=revision_of(known), by=by):
                await self._operations.tell([])
                return
        raise RulesChanged("the fleet rules are being changed by others; try again")

    async def _deletes(
        self, known: Sequence[FleetRule], becomes: SetChange, prune: Prune, *, by: str
    ) -> list[Prepared]:
        places = [] if prune is Prune.NOTHING else await self._places.of(becomes.rules)
        asks = await self._pruning.asks(known, places, prune, by=by)
        return [await self._backends.prepare(ask, guard=self._guard.under(becomes.rules)) for ask in asks]

    async def _is_stored(self, becomes: SetChange, deletes: Sequence[Prepared], *, revision: str, by: str) -> bool:
        """Whether nobody was faster. Nothing to change: nothing is written."""
        if becomes.is_nothing and not deletes:
            return True
        data = {"added": list(becomes.added), "changed": list(becomes.changed), "removed": list(becomes.removed)}
        changed = Event(kind=EventKind.FLEET_RULES_CHANGED, at=self._clock.now(), actor=by, data=data)
        try:
            return await self._store.replace(
                becomes.rules,
                revision=revision,
                started=[(one.operation, one.intents) for one in deletes],
                events=[changed, *(started_event(one.operation) for one in deletes)],
            )
        except ConstraintViolated:
            return False

    async def _brought_about(self, becomes: SetChange, deletes: Sequence[Prepared]) -> RuleSetResult:
        await self._enforcer.converge(becomes.rules)
        places = await self._places.of(becomes.rules)
        ids = {one.intent.operation_id: None for one in places if one.intent is not None and _is_unreached(one)}
        ids |= {one.operation.id: None for one in deletes}
        operations = [await self._operations.get(id) for id in ids]
        return RuleSetResult(
            change=becomes,
            operations=tuple(sorted(operations, key=lambda one: (one.accepted_at, one.id))),
            doubts=await self._places.doubts(becomes.rules),
        )


def _is_unreached(place: RulePlace) -> bool:
    return place.intent is not None and place.intent.state in (IntentState.OPEN, IntentState.BLOCKED)


def _check(wanted: Sequence[FleetRule]) -> None:
    for place, rule in enumerate(wanted):
        if (found := rule_problem(rule)) is not None:
            field, problem = found
            raise InvalidInput(f"rules[{place}].{field}", problem)
        try:
            checked(ask_of(rule, []))
        except InvalidInput as error:
            raise InvalidInput(f"rules[{place}].{error.field}", error.problem) from error
    if (clash := set_problem(wanted)) is not None:
        raise InvalidInput("rules", clash)
