"""What people ask for must not go against a fleet rule: the rule would only undo it."""

from collections.abc import Sequence
from typing import Protocol

from corral.base.errors import Conflict
from corral.base.words import listed
from corral.domain.backend import Wish, traits_of
from corral.domain.backend_catalogue import BackendCatalogue
from corral.domain.fleet_rule import FleetRule, NameResolver, contradicting
from corral.domain.node import SeenNode


class RuleDemands(Conflict):
    """A fleet rule demands something else."""


class Rules(Protocol):
    """Where fleet rules are looked up."""

    async def all(self) -> list[FleetRule]: ...


class Catalogues(Protocol):
    """Where names of backends are looked up."""

    async def catalogue(self) -> BackendCatalogue | None: ...


class RuleGuard:
    def __init__(self, rules: Rules, catalogues: Catalogues) -> None:
        self._rules = rules
        self._catalogues = catalogues

    async def refuse(self, wishes: Sequence[tuple[SeenNode, Wish]], rules: Sequence[FleetRule] | None = None) -> None:
        """RuleDemands names the first rule that is in the way, and its nodes. Those in force, if not these, count."""
        in_force = await self._rules.all() if rules is None else rules
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
