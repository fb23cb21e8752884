"""Fleet rules: a backend that every node with certain labels shall have, those too that join later.

Only rules are enforced for ever. Whatever a person asks for is brought about once and then only compared. A rule
demands that the backend is there, and from its uri if it names one; which version that is, upgrades decide. What a rule
does about a node follows from the intent there and the node's last report:

| intent of the backend     | report           | then                                                              |
|---------------------------|------------------|-------------------------------------------------------------------|
| none, or cancelled        | has it           | nothing                                                           |
| none, or cancelled        | lacks it         | install                                                           |
| delete                    | any              | install: the rule is newer, or the delete would have been refused |
| install of something else | has it not       | install                                                           |
| open                      | any              | nothing: it is under way, at its own pace                         |
| blocked install           | any              | nothing: it stays, and says why                                   |
| satisfied, since then     | lacks it         | install: somebody took it away                                    |

A report that is older than what was proven says nothing. So each thing that happens leads to one operation, and a node
that fails gets no second one.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import msgspec

from corral.frontend.backends.decide.backend import Artefact, Inventory, Wish, artefact_of
from corral.frontend.operations.decide.intent import Intent, IntentState, Verb
from corral.frontend.operations.decide.operation import TargetStatus, status_of
from corral.galleries.build_uris import is_same_source
from corral.galleries.catalogue import BackendCatalogue, Missing, ResolvedBuild
from corral.wire.labels import has_labels, label_problem

MOST_RULES: Final = 500
_ANY_MACHINE: Final = "default"
"""Whether a name is known at all does not depend on the machine."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class FleetRule(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """What people call it; there is one of each name."""
    artefact: Artefact
    selector: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Labels that a node must have; none mean every node."""
    made_by: str
    made_at: datetime

    @property
    def backend(self) -> str:
        """What is demanded, as it was written."""
        return self.artefact.backend

    @property
    def asks_as(self) -> str:
        """Who asked for the operations that follow from it."""
        return f"fleet rule {self.name}"

    def applies_to(self, labels: Mapping[str, str]) -> bool:
        return has_labels(labels, self.selector)

    def is_same_demand(self, other: "FleetRule") -> bool:
        return (self.artefact, dict(self.selector)) == (other.artefact, dict(other.selector))


def demanded(*, backend: str, uri: str, alias: str) -> Artefact:
    """What a rule demands; a build from a uri is installed under the name in the rule."""
    return Artefact(backend=backend, uri=uri, name=backend if uri else "", alias=alias)


# Sets of rules.


def revision_of(rules: Iterable[FleetRule]) -> str:
    """A hash of the demands of these rules; who made them, and when, does not change it."""
    demands = sorted(
        (
            rule.name,
            [rule.artefact.backend, rule.artefact.uri, rule.artefact.name, rule.artefact.alias],
            sorted(rule.selector.items()),
        )
        for rule in rules
    )
    return hashlib.sha256(json.dumps(demands).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def rule_problem(rule: FleetRule) -> tuple[str, str] | None:
    """The field that makes a rule unusable, and why."""
    if _NAME.fullmatch(rule.name) is None:
        return "name", f"{rule.name[:80]!r} is no name: up to 63 letters, digits, dots, dashes and underscores"
    if (problem := label_problem(rule.selector)) is not None:
        return "labels", problem
    return None


def set_problem(rules: Sequence[FleetRule]) -> str | None:
    """Why rules cannot stand beside each other; None when they can."""
    if len(rules) > MOST_RULES:
        return f"there are {len(rules)} rules, and {MOST_RULES} are the most"
    for rule, other in itertools.combinations(rules, 2):
        if rule.name == other.name:
            return f"two rules are called {rule.name}"
        if _clash(rule, other):
            return (
                f"{rule.name} and {other.name} want {rule.backend} from different places, and a node may have the "
                "labels of both; give them a label with different values"
            )
    return None


def _clash(rule: FleetRule, other: FleetRule) -> bool:
    """Whether a node could have to satisfy both, and cannot."""
    if not rule.artefact.uri or not other.artefact.uri or is_same_source(rule.artefact.uri, other.artefact.uri):
        return False
    apart = any(other.selector.get(key, value) != value for key, value in rule.selector.items())
    return rule.artefact.name == other.artefact.name and not apart


class SetChange(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a set of rules, by name."""

    rules: tuple[FleetRule, ...]
    """The set that comes out. A rule that demands what it did keeps its maker."""
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    @property
    def is_nothing(self) -> bool:
        return not (self.added or self.changed or self.removed)


def change(current: Iterable[FleetRule], rules: Iterable[FleetRule]) -> SetChange:
    """What it means to put a set of rules in place of the current one."""
    before = {rule.name: rule for rule in current}
    after = {rule.name: rule for rule in rules}
    unchanged = {name for name, rule in after.items() if name in before and rule.is_same_demand(before[name])}
    return SetChange(
        rules=tuple(before[name] if name in unchanged else after[name] for name in sorted(after)),
        added=tuple(sorted(after.keys() - before.keys())),
        changed=tuple(sorted((after.keys() & before.keys()) - unchanged)),
        removed=tuple(sorted(before.keys() - after.keys())),
    )


def uri_changes(current: Iterable[FleetRule], becomes: SetChange) -> list[str]:
    """The rules about builds from anywhere that are new, other than before, or gone, by name."""
    before, after = ({rule.name: rule for rule in rules} for rules in (current, becomes.rules))
    touched = (*becomes.added, *becomes.changed, *becomes.removed)
    versions = {name: [rules[name] for rules in (before, after) if name in rules] for name in touched}
    return sorted(name for name, rules in versions.items() if any(rule.artefact.uri for rule in rules))


# Which backend a rule means on a node.


@dataclass(frozen=True, slots=True, kw_only=True)
class NameResolver:
    """What leads from the name in a rule to the directory on a node: the galleries, as far as they can be read."""

    catalogue: BackendCatalogue | None
    is_complete: bool = True
    """Not so while some gallery cannot be read: then a name that is not found may yet be one."""
    _keys: dict[tuple[str, str], str | None] = field(default_factory=dict, repr=False, compare=False)

    def key(self, artefact: Artefact, capability: str) -> str | None:
        """The canonical name on a machine of this capability; None when nobody can tell now."""
        if artefact.uri:
            return artefact.name
        name_and_capability = (artefact.backend, capability)
        if name_and_capability not in self._keys:
            build = None if self.catalogue is None else self.catalogue.resolve(*name_and_capability)
            unresolved = bare(artefact.backend) if self.is_complete else None
            self._keys[name_and_capability] = build.key if isinstance(build, ResolvedBuild) else unresolved
        return self._keys[name_and_capability]

    def all(self, artefact: Artefact, capability: str) -> frozenset[str]:
        """Every name that may stand for it there."""
        plain = bare(artefact.backend)
        return frozenset({plain, self.key(artefact, capability) or plain, artefact.alias or plain})

    def doubt(self, artefact: Artefact, held: Container[str]) -> str:
        """Why nobody may be able to satisfy a demand: its name is in no gallery that is known, nor among the backends
        that nodes have. Empty when there is no reason to think so."""
        name = bare(artefact.backend)
        if artefact.uri or name in held or (self.catalogue is None and self.is_complete):
            return ""
        if self.catalogue is None:
            return f"the galleries cannot be read now, so nobody can tell whether one has a backend {name!r}"
        build = self.catalogue.resolve(artefact.backend, _ANY_MACHINE)
        if isinstance(build, ResolvedBuild) or build.missing is not Missing.UNKNOWN:
            return ""
        unread = ", ".join(self.catalogue.unread)
        return self.catalogue.absence(build) or f"{build.reason}, and {unread} cannot be read now"


def bare(backend: str) -> str:
    """The name of a backend without its gallery."""
    return backend.strip().rpartition("@")[2]


def contradicting(
    rules: Iterable[FleetRule], wish: Wish, labels: Mapping[str, str], names: NameResolver, capability: str
) -> FleetRule | None:
    """The rule that a wish for a node with these labels goes against."""

    def is_against(rule: FleetRule) -> bool:
        match wish.verb:
            case Verb.DELETE:
                return True
            case Verb.INSTALL:
                return bool(rule.artefact.uri) and not is_same_source(wish.artefact.uri, rule.artefact.uri)
            case Verb.REMOVE | Verb.UPGRADE | Verb.PULL | Verb.STAGE:
                return False

    against = (rule for rule in rules if is_against(rule) and rule.applies_to(labels))
    return next((rule for rule in against if names.all(rule.artefact, capability) & wish.names), None)


# What a rule does about a node.


def is_met(rule: FleetRule, key: str, inventory: Inventory | None) -> bool:
    """Whether a report shows what the rule demands. A quick form of the proof of an install."""
    entry = None if inventory is None else inventory.find(key)
    uri = rule.artefact.uri
    return entry is not None and (not uri or not entry.uri or is_same_source(entry.uri, uri))


def is_missing(rule: FleetRule, key: str, intent: Intent | None, inventory: Inventory | None) -> bool:
    """Whether an install has to be sent to the node; see the table above."""
    lacks = not is_met(rule, key, inventory)
    if intent is None or intent.state is IntentState.CANCELLED:
        return lacks
    if intent.verb is Verb.DELETE:
        return True
    if rule.artefact.uri and not is_same_source(artefact_of(intent.payload).uri, rule.artefact.uri):
        return lacks
    if intent.state is IntentState.OPEN or (intent.state, intent.verb) == (IntentState.BLOCKED, Verb.INSTALL):
        return False
    return lacks and inventory is not None and inventory.seen_at > intent.changed_at


def standing(rule: FleetRule, key: str, intent: Intent | None, inventory: Inventory | None) -> TargetStatus:
    """How far the node is, in the words of operations; what is about to be started is queued."""
    if is_missing(rule, key, intent, inventory):
        return TargetStatus.QUEUED
    if intent is None or is_met(rule, key, inventory):
        return TargetStatus.SUCCESS
    return status_of(intent)


def may_have(key: str, intent: Intent | None, inventory: Inventory | None) -> bool:
    """Whether there is something to delete on a node, or about to be: never what came with the machine."""
    is_wanted = intent is not None and intent.verb is not Verb.DELETE
    if intent is not None and intent.verb is Verb.DELETE and intent.state is not IntentState.CANCELLED:
        return False
    if intent is not None and is_wanted and intent.state in (IntentState.OPEN, IntentState.BLOCKED):
        return True
    entry = None if inventory is None else inventory.find(key)
    if entry is not None:
        return not entry.is_system
    is_news = inventory is None or (intent is not None and inventory.seen_at <= intent.changed_at)
    return intent is not None and intent.state is IntentState.SATISFIED and is_news
