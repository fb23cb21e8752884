"""Fleet rules: a backend that every node with certain labels shall have, those too that join later.

Only rules are enforced for ever. Whatever a person asks for is brought about once and then only compared.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from corral.base.ids import FleetRuleId
from corral.domain.backend import Artefact, Inventory, Verb
from corral.domain.intent import Intent, IntentState
from corral.domain.labels import matches


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRule:
    id: FleetRuleId
    artefact: Artefact
    selector: Mapping[str, str] = field(default_factory=dict)
    """Labels that a node must have; none mean every node."""
    made_by: str
    made_at: datetime

    def demands(self, labels: Mapping[str, str]) -> bool:
        return matches(labels, self.selector)


def demanding(rules: Iterable[FleetRule], names: Iterable[str], labels: Mapping[str, str]) -> FleetRule | None:
    """The rule that wants a backend, by any of its names, on a node with these labels."""
    meant = set(names)
    return next((rule for rule in rules if rule.artefact.backend in meant and rule.demands(labels)), None)


def needs_intent(rule: FleetRule, key: str, intent: Intent | None, inventory: Inventory | None) -> bool:
    """Whether a node that a rule demands a backend of has to be told so."""
    if intent is None or intent.state is IntentState.CANCELLED or intent.wish.verb is Verb.DELETE:
        return True
    gone = inventory is not None and inventory.seen_at > intent.changed_at and inventory.find(key) is None
    return intent.state is IntentState.SATISFIED and gone
