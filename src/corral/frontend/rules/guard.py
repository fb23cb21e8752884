"""What people ask for must not go against a fleet rule: the rule would only undo it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from corral.base.errors import Conflict
from corral.base.words import listed
from corral.frontend.backends.decide.backend import Wish, artefact_of, traits_of
from corral.frontend.nodes.decide.node import SeenNode
from corral.frontend.operations.decide.intent import Verb
from corral.frontend.operations.decide.operation import Operation, Target
from corral.frontend.rules.decide import FleetRule, NameResolver, contradicting
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
