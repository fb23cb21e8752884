"""What people ask for must not go against a fleet rule: the rule would only undo it."""

from collections.abc import Iterable, Sequence
from typing import Final

from corral.base.errors import Conflict
from corral.control.fleet import SeenNode
from corral.domain.backend import Wish
from corral.domain.fit import traits_of
from corral.domain.fleet_rule import FleetRule, Names, contradicting

_NAMED: Final = 5


class RuleDemands(Conflict):
    """A fleet rule demands something else."""


def refuse_contradictions(wishes: Iterable[tuple[SeenNode, Wish]], rules: Sequence[FleetRule], names: Names) -> None:
    """RuleDemands names the first rule that is in the way, and its nodes."""
    against: dict[str, list[str]] = {}
    demands: dict[str, FleetRule] = {}
    for seen, wish in wishes if rules else ():
        node = seen.node
        rule = contradicting(rules, wish, node.labels.effective, names, traits_of(node).effective_capability)
        if rule is not None:
            demands[rule.name] = rule
            against.setdefault(rule.name, []).append(node.name)
    if against:
        name, nodes = next(iter(against.items()))
        raise RuleDemands(_sentence(demands[name], nodes))


def _sentence(rule: FleetRule, nodes: Sequence[str]) -> str:
    more = len(nodes) - _NAMED
    where = ", ".join(nodes[:_NAMED]) + (f" and {more} more" if more > 0 else "")
    source = f" from {rule.artefact.uri}" if rule.artefact.uri else ""
    return f"the fleet rule {rule.name} demands {rule.backend}{source} on {where}; change or delete the rule first"
