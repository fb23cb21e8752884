"""What commands say about fleet rules: what they demand, what changes, and what that would lead to."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from corral.cli.backend_tables import plan_table
from corral.cli.humane import age
from corral.cli.operation_words import SHORT_ID
from corral.cli.output import Column, plain, table
from corral.wire.fleet_rule_views import RuleAsk, RuleChanges, RulesPlan, RuleView, UnmetView

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


def rule_table(rules: Sequence[RuleView], now: datetime, *, width: int) -> "Table":
    columns: list[Column[RuleView]] = [
        Column(title="NAME", cell=lambda one: plain(one.name)),
        Column(title="BACKEND", cell=lambda one: plain(one.backend)),
        Column(title="ON", cell=lambda one: plain(where(one.labels))),
        Column(title="NODES", cell=lambda one: plain(_counts(one))),
        Column(title="MADE", cell=lambda one: f"{age(one.made_at, now)} by {plain(one.made_by)}", least_width=100),
        Column(title="FROM", cell=lambda one: plain(one.uri or "–"), least_width=120),
    ]
    return table(columns, rules, width=width)


def _counts(rule: RuleView) -> str:
    return ", ".join(f"{number} {status}" for status, number in rule.counts.items()) or "none"


def where(labels: Mapping[str, str]) -> str:
    """`zone=a, disk=ssd`."""
    return ", ".join(f"{key}={value}" for key, value in labels.items()) or "every node"


def changes(change: RuleChanges, rules: Sequence[RuleAsk]) -> list[str]:
    """A line for each rule that changes, with what it demands from then on."""
    wanted = {one.name: f"{one.backend} on {where(one.labels)}" for one in rules}
    return [
        *(f"+ {name}: {wanted.get(name, '')}" for name in change.added),
        *(f"~ {name}: {wanted.get(name, '')}" for name in change.changed),
        *(f"- {name}" for name in change.removed),
    ]


def plan_parts(plan: RulesPlan, *, width: int) -> "list[RenderableType]":
    """Which nodes, and which are blocked and why."""
    parts: list[RenderableType] = []
    for act in plan.acts:
        because = f" because of {act.rule}" if act.rule else ""
        parts += [plain(f"{act.verb} {act.backend}{because}:"), plan_table(act.nodes, act.verb, width=width), ""]
    if plan.unmet:
        parts.append("under way already:")
        parts += [plain(_unmet(one)) for one in plan.unmet]
        parts.append("")
    return parts


def _unmet(one: UnmetView) -> str:
    why = f": {one.message}" if one.message else ""
    return f"{one.node_name}: {one.status} because of {one.rule}, operation {one.operation[:SHORT_ID]}{why}"


def problems(rules: Sequence[RuleView]) -> list[str]:
    unmet = [f"{rule.name}: {node}: {why}" for rule in rules for node, why in sorted(rule.unmet.items())]
    return [*unmet, *doubt_lines({rule.name: rule.doubt for rule in rules if rule.doubt})]


def doubt_lines(doubts: Mapping[str, str]) -> list[str]:
    """A sentence for each rule that perhaps nobody can satisfy."""
    return [f"{rule}: {why}" for rule, why in sorted(doubts.items())]
