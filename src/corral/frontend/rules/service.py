"""Setting and removing fleet rules, and guarding what they demand against other operations."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import msgspec

from corral.base.clock import Clock
from corral.base.errors import AccessDenied, Conflict, InvalidInput, NotFound
from corral.base.ids import OperationId
from corral.base.words import listed
from corral.frontend.backends.catalogue import CatalogueSource
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
    uri_changes,
)
from corral.frontend.rules.enforcer import Prune, RuleEnforcer, RulePlace, RulePlaces, ask_of, missing, pruning_asks
from corral.frontend.rules.store import FleetRuleStore
from corral.frontend.store.db import ConstraintViolated


class RuleDemands(Conflict):
    """A fleet rule demands something else."""


InForce = Callable[[], Awaitable[Sequence[FleetRule]]]


class RuleGuard:
    def __init__(self, in_force: InForce, galleries: CatalogueSource) -> None:
        self._in_force = in_force
        self._galleries = galleries

    def under(self, rules: Sequence[FleetRule]) -> "RuleGuard":
        """A guard of these rules instead of those in force."""

        async def these() -> Sequence[FleetRule]:
            return rules

        return RuleGuard(these, self._galleries)

    async def refuse_cancel(self, operation: Operation, targets: Sequence[tuple[SeenNode, Target]]) -> None:
        """RuleDemands when a rule would start again what is cancelled: only installs can be demanded."""
        if operation.verb is not Verb.INSTALL:
            return
        artefact = artefact_of(operation.payload)
        wishes = [(seen, Wish(verb=Verb.DELETE, key=target.subject, artefact=artefact)) for seen, target in targets]
        await self.refuse(wishes)

    async def refuse(self, wishes: Sequence[tuple[SeenNode, Wish]]) -> None:
        """RuleDemands names the first rule that is in the way, and its nodes."""
        if sentences := await self.against(wishes):
            raise RuleDemands(sentences[0])

    async def against(self, wishes: Sequence[tuple[SeenNode, Wish]]) -> list[str]:
        """A sentence for each rule that is in the way of these wishes, with its nodes."""
        in_force = await self._in_force()
        if not in_force or not wishes:
            return []
        names = NameResolver(catalogue=await self._galleries.catalogue())
        against: dict[str, tuple[FleetRule, list[str]]] = {}
        for seen, wish in wishes:
            labels, capability = seen.node.labels.effective, traits_of(seen.node).effective_capability
            rule = contradicting(in_force, wish, labels, names, capability)
            if rule is not None:
                against.setdefault(rule.name, (rule, []))[1].append(seen.node.name)
        return [_demand(rule, nodes) for rule, nodes in against.values()]


def _demand(rule: FleetRule, nodes: Sequence[str]) -> str:
    source = f" from {rule.artefact.uri}" if rule.artefact.uri else ""
    return (
        f"the fleet rule {rule.name} demands {rule.backend}{source} on {listed(nodes)}; change or delete the rule first"
    )


ANY_REVISION: Final = "*"
_TRIES: Final = 5


class RulesChanged(Conflict):
    """The fleet rules were changed meanwhile."""

    code = "precondition_failed"


class RuleStanding(msgspec.Struct, frozen=True, kw_only=True):
    rule: FleetRule
    places: tuple[RulePlace, ...]
    doubt: str = ""
    """Why perhaps nobody can satisfy it; empty when there is no reason to think so."""


class PlannedAct(msgspec.Struct, frozen=True, kw_only=True):
    """What would be done because of a rule, or because there no longer is one."""

    verb: Verb
    backend: str
    rule: str
    """Name of the rule that demands the act; empty for a delete."""
    planned: tuple[Planned, ...]


class Diff(msgspec.Struct, frozen=True, kw_only=True):
    """What a set of rules would lead to."""

    revision: str
    """Revision of the rule set that this was decided on."""
    change: SetChange
    acts: tuple[PlannedAct, ...]
    unmet: tuple[RulePlace, ...]
    """What is demanded and wanted there already, and not reached yet."""
    doubts: Mapping[str, str]
    """Rules that perhaps nobody can satisfy, and why."""


class RuleSetResult(msgspec.Struct, frozen=True, kw_only=True):
    change: SetChange
    operations: tuple[Operation, ...]
    """All that brings about what is demanded, or deletes what is not, and is not over."""
    doubts: Mapping[str, str]
    """Rules that perhaps nobody can satisfy, and why."""


class FleetRules:
    def __init__(  # noqa: PLR0913 - each is a collaborator
        self,
        store: FleetRuleStore,
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
        self._clock = clock

    async def show(self) -> list[RuleStanding]:
        """All rules, by name, and how far the nodes are with each."""
        rules = await self._store.all()
        places: dict[str, list[RulePlace]] = {rule.name: [] for rule in rules}
        for place in await self._places.of(rules) if rules else []:
            places[place.rule.name].append(place)
        doubts = await self._places.doubts(rules) if rules else {}
        return [
            RuleStanding(rule=rule, places=tuple(places[rule.name]), doubt=doubts.get(rule.name, "")) for rule in rules
        ]

    async def plan(self, rules: Sequence[FleetRule], *, prune: Prune, may_trust: bool = False) -> Diff:
        """What `put` would do; nothing is stored or sent."""
        _check(rules)
        current = await self._store.all()
        becomes = change(current, rules)
        _check_trust(current, becomes, may_trust=may_trust)
        places = await self._places.of(becomes.rules)
        asks = [(ask_of(rule, lacking), rule.name) for rule, lacking in missing(becomes.rules, places)]
        asks += [(ask, "") for ask in await pruning_asks(self._places, current, places, prune, by="")]
        acts = [
            PlannedAct(
                verb=ask.verb,
                backend=ask.ref.backend,
                rule=rule,
                planned=tuple(await self._backends.plan(ask, guard=self._guard.under(becomes.rules))),
            )
            for ask, rule in asks
        ]
        unmet = [place for place in places if not place.is_missing and place.standing is not TargetStatus.SUCCESS]
        doubts = await self._places.doubts(becomes.rules)
        return Diff(revision=revision_of(current), change=becomes, acts=tuple(acts), unmet=tuple(unmet), doubts=doubts)

    async def put(
        self, rules: Sequence[FleetRule], *, revision: str, prune: Prune, by: str, may_trust: bool = False
    ) -> RuleSetResult:
        """Put this set in place of the one of that revision; RulesChanged when it is another one by now.

        `may_trust`: who asks for it may decide which builds from anywhere run.
        """
        _check(rules)
        for _ in range(_TRIES):
            current = await self._store.all()
            stored_revision = revision_of(current)
            if revision not in (ANY_REVISION, stored_revision):
                raise RulesChanged(f"the fleet rules have the revision {stored_revision} by now, not {revision}")
            becomes = change(current, rules)
            _check_trust(current, becomes, may_trust=may_trust)
            places = [] if prune is Prune.NOTHING else await self._places.of(becomes.rules)
            asks = await pruning_asks(self._places, current, places, prune, by=by)
            guard = self._guard.under(becomes.rules)
            deletes = [await self._backends.prepare(ask, guard=guard) for ask in asks]
            if await self._is_stored(becomes, deletes, revision=stored_revision, by=by):
                await self._operations.tell([delete.operation for delete in deletes])
                return await self._enforced(becomes, [delete.operation.id for delete in deletes])
        raise RulesChanged("the fleet rules are being changed by others; try again")

    async def delete(self, name: str, *, by: str, may_trust: bool = False) -> None:
        """Demand it no longer. What is installed stays."""
        for _ in range(_TRIES):
            current = await self._store.all()
            remaining = [rule for rule in current if rule.name != name]
            if len(remaining) == len(current):
                raise NotFound(f"there is no fleet rule {name}")
            becomes = change(current, remaining)
            _check_trust(current, becomes, may_trust=may_trust)
            if await self._is_stored(becomes, [], revision=revision_of(current), by=by):
                await self._operations.tell([])
                return
        raise RulesChanged("the fleet rules are being changed by others; try again")

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
                started=[(delete.operation, delete.intents) for delete in deletes],
                events=[changed, *(started_event(delete.operation) for delete in deletes)],
            )
        except ConstraintViolated:
            return False

    async def _enforced(self, becomes: SetChange, deletes: Sequence[OperationId]) -> RuleSetResult:
        """Start what the rules demand at once, and return it with the deletes."""
        await self._enforcer.converge(becomes.rules)
        unreached = (IntentState.OPEN, IntentState.BLOCKED)
        intents = [place.intent for place in await self._places.of(becomes.rules) if place.intent is not None]
        ids = dict.fromkeys(intent.operation_id for intent in intents if intent.state in unreached)
        operations = [await self._operations.get(id) for id in (ids | dict.fromkeys(deletes))]
        return RuleSetResult(
            change=becomes,
            operations=tuple(sorted(operations, key=lambda operation: (operation.accepted_at, operation.id))),
            doubts=await self._places.doubts(becomes.rules),
        )


def _check_trust(current: Sequence[FleetRule], becomes: SetChange, *, may_trust: bool) -> None:
    """AccessDenied when rules about builds from anywhere would change; those that stay as they are need nothing."""
    if not may_trust and (names := uri_changes(current, becomes)):
        raise AccessDenied(
            f"this adds, changes or removes fleet rules with a uri ({listed(names)}); that needs the permission "
            "backends.trust, which keys of scope admin have"
        )


def _check(rules: Sequence[FleetRule]) -> None:
    for place, rule in enumerate(rules):
        if (wrong := rule_problem(rule)) is not None:
            field, problem = wrong
            raise InvalidInput(f"rules[{place}].{field}", problem)
        try:
            checked(ask_of(rule, []))
        except InvalidInput as error:
            raise InvalidInput(f"rules[{place}].{error.field}", error.problem) from error
    if (clash := set_problem(rules)) is not None:
        raise InvalidInput("rules", clash)
