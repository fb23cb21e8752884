"""The plan of a set of fleet rules in words: the same for the command line and for the API. Pure."""

from collections.abc import Mapping

from corral.base.words import aligned, printable
from corral.frontend.backends.decide.plan_words import cells
from corral.wire.fleet_rules import PlannedActView, RuleChanges, RulesPlan, UnmetView
from corral.wire.state_words import Subject, state_word

_SHORT_ID = 8


def selector_text(labels: Mapping[str, str]) -> str:
    """The labels of a rule as `zone=a, disk=ssd`."""
    return ", ".join(f"{key}={value}" for key, value in labels.items()) or "every node"


def rule_change_lines(change: RuleChanges, texts: Mapping[str, str]) -> list[str]:
    """A line for each rule that changes; `texts` has what rules require now, by their names."""
    return [
        *(f"+ {name}: {texts.get(name, '')}" for name in change.added),
        *(f"~ {name}: {texts.get(name, '')}" for name in change.changed),
        *(f"- {name}" for name in change.removed),
    ]


def act_title(act: PlannedActView) -> str:
    because = f" because of {act.rule}" if act.rule else ""
    return f"{act.verb} {act.backend}{because}:"


def unmet_line(unmet: UnmetView) -> str:
    """What is wanted on a node already, and how far that is."""
    why = f": {unmet.message}" if unmet.message else ""
    cause = f"because of {unmet.rule}, operation {unmet.operation[:_SHORT_ID]}"
    return f"{unmet.node_name}: {state_word(Subject.TARGET, unmet.status).inline} {cause}{why}"


def doubt_lines(doubts: Mapping[str, str]) -> list[str]:
    """A sentence for each rule that names a backend nobody knows."""
    return [f"{rule}: {why}" for rule, why in sorted(doubts.items())]


def rules_plan_text(plan: RulesPlan, texts: Mapping[str, str]) -> str:
    """The whole plan. `texts` has what rules require now, by their names."""
    lines = [printable(line) for line in rule_change_lines(plan.changes, texts)]
    for act in plan.acts:
        lines += [printable(act_title(act)), *aligned([cells(node, act.verb) for node in act.nodes])]
    if plan.unmet:
        lines += ["under way already:", *(printable(unmet_line(unmet)) for unmet in plan.unmet)]
    lines += [printable(line) for line in doubt_lines(plan.doubts)]
    return "\n".join(lines or ["Nothing would change."])
