"""`corral backends apply` and `corral backends rules`: which backends nodes with certain labels must have."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click
import msgspec

from corral.base.errors import PeerRefused, PeerUnavailable
from corral.base.words import listed
from corral.cli.backends.tables import plan_table
from corral.cli.client import ApiClient, api_path
from corral.cli.connection import connected, open_client
from corral.cli.operations.watch import Watching, wait_options, watched_all
from corral.cli.options import CorralCommand, warn
from corral.cli.output import Column, json_option, plain, print_json, say, show, table
from corral.cli.units import age
from corral.frontend.rules.plan_words import act_title, doubt_lines, rule_change_lines, selector_text, unmet_line
from corral.processes.exit_codes import ExitCode
from corral.wire.fleet_rules import AppliedRules, RuleAsk, RuleChanges, RulesAsk, RuleSetView, RulesPlan, RuleView
from corral.wire.operation_views import OperationView
from corral.wire.scheduling import NamedScheduling, SchedulingChanges, SchedulingList, SchedulingSet, SchedulingView
from corral.wire.state_words import Subject, state_word

if TYPE_CHECKING:
    from corral.cli.backends.fleet_file import DeclaredFleet

_PATH: Final = "/api/v1/fleet-rules"
_MODELS_PATH: Final = "/api/v1/scheduling"
_TRIES: Final = 5
_PAUSE_SECONDS: Final = 0.5
_CHANGED_MEANWHILE: Final = 412


@click.command(cls=CorralCommand)
@click.option("-f", "--file", "path", required=True, metavar="FILE", help="The rules, as YAML; - for standard input.")
@click.option("--dry-run", is_flag=True, help="Only show what would change, on which nodes; nothing is stored or sent.")
@click.option(
    "--prune",
    type=click.Choice(["demanded", "all"]),
    is_flag=False,
    flag_value="demanded",
    help="Also remove rules that are not in the file, and delete what rules demanded until now and none does any more. "
    "--prune=all deletes whatever no rule demands, apart from what came with a machine.",
)
@wait_options
@connected
def apply(path: str, dry_run: bool, prune: str | None, watching: Watching) -> int | None:
    """Make the rules in a file those of the fleet.

    Watches until its nodes have what they demand. A rule names a backend that every node with certain labels shall
    have, or says how many replicas a model has. It stays in force: nodes that join later, come back or get the label
    get the backend as well, and where somebody takes it away it is put back. Applying a file again changes nothing.
    Rules that are not in the file stay, unless --prune is given. Ends with 0 when all is well, 1 when something failed,
    2 when it goes on, or when a rule names a backend that nobody knows.
    """
    from corral.cli.backends.fleet_file import read_fleet_file

    declared, client = read_fleet_file(path), open_client()
    if dry_run:
        _show_plan(client, declared, prune or "", as_json=watching.as_json)
        return None
    models = _declare(client, declared.models, prune or "")
    rules = declared.rules
    if rules is None:
        _say_models(models, declared.models, as_json=watching.as_json)
        return None
    applied, kept_names = _put(client, rules, prune or "")
    if not watching.as_json:
        _say_models(models, declared.models, as_json=False)
        for line in change_lines(applied.changes, rules) or ["The rules are as they were."]:
            say(line)
        _say_kept(kept_names)
        if not applied.operations and not applied.doubts:
            say("Nothing is left to do.")
    warn(doubt_lines(applied.doubts))

    def document(last: list[OperationView]) -> object:
        whole = msgspec.structs.replace(applied, operations=last)
        return whole if models is None else {**msgspec.to_builtins(whole), "models": models}

    code = watched_all(client, applied.operations, watching, document)
    return code or (ExitCode.STILL_RUNNING if applied.doubts and watching.wait else ExitCode.OK)


@click.group()
def rules() -> None:
    """See and delete fleet rules; `corral backends apply` makes them."""


@rules.command("list", cls=CorralCommand)
@json_option
@connected
def list_rules(as_json: bool) -> None:
    """List the rules, and how far their nodes are."""
    rule_set = open_client().get(_PATH, RuleSetView)
    if as_json:
        print_json(rule_set)
        return
    if not rule_set.items:
        say("There are no fleet rules; `corral backends apply` makes some.")
        return
    now = datetime.now(UTC)
    columns: list[Column[RuleView]] = [
        Column(title="NAME", cell=lambda rule: plain(rule.name)),
        Column(title="BACKEND", cell=lambda rule: plain(rule.backend)),
        Column(title="ON", cell=lambda rule: plain(selector_text(rule.labels))),
        Column(
            title="NODES",
            cell=lambda rule: plain(_standings(rule) or "none"),
        ),
        Column(title="MADE", cell=lambda rule: f"{age(rule.made_at, now)} by {plain(rule.made_by)}", least_width=100),
        Column(title="FROM", cell=lambda rule: plain(rule.uri or "–"), least_width=120),
    ]
    show(table(columns, rule_set.items))
    for rule in rule_set.items:
        for node, why in sorted(rule.unmet.items()):
            say(f"{rule.name}: {node}: {why}")
    for line in doubt_lines({rule.name: rule.doubt for rule in rule_set.items if rule.doubt}):
        say(line)


@rules.command("delete", cls=CorralCommand)
@click.argument("name")
@connected
def delete_rule(name: str) -> None:
    """Delete a rule. Where its backend is installed, it stays; `corral backends delete` deletes it."""
    open_client().delete(api_path("fleet-rules", name))
    say(f"The fleet rule {name} is deleted. What it demanded is left as it is.")


def _put(client: ApiClient, rules: Sequence[RuleAsk], prune: str) -> tuple[AppliedRules, list[str]]:
    """Replace the rules without losing a concurrent change; returns the answer and the names of kept rules."""
    for tries_left in reversed(range(_TRIES)):
        current = client.get(_PATH, RuleSetView)
        body, kept_names = _whole_set(current, rules, prune)
        try:
            return client.put(_PATH, AppliedRules, body, headers={"If-Match": f'"{current.revision}"'}), kept_names
        except PeerRefused as error:
            if error.status != _CHANGED_MEANWHILE or not tries_left:
                raise
        except PeerUnavailable:
            if not tries_left:
                raise
            time.sleep(_PAUSE_SECONDS)  # it may have been stored, and the answer lost: the same again does no harm
    raise AssertionError("unreachable")


def _whole_set(current: RuleSetView, rules: Sequence[RuleAsk], prune: str) -> tuple[RulesAsk, list[str]]:
    """The rules in the file together with the fleet's other rules, unless these are pruned."""
    named = {rule.name for rule in rules}
    other_rules = [] if prune else [rule for rule in current.items if rule.name not in named]
    remaining = [
        RuleAsk(name=rule.name, backend=rule.backend, labels=rule.labels, uri=rule.uri, alias=rule.alias)
        for rule in other_rules
    ]
    return RulesAsk(rules=[*rules, *remaining], prune=prune), [rule.name for rule in remaining]


def _declare(client: ApiClient, models: Sequence[NamedScheduling] | None, prune: str) -> SchedulingChanges | None:
    """Make these the rules of their models; None for a file that does not speak of models."""
    if models is None:
        return None
    return client.put(_MODELS_PATH, SchedulingChanges, SchedulingSet(rules=list(models), prune=prune))


def _would_change(client: ApiClient, models: Sequence[NamedScheduling], prune: str) -> SchedulingChanges:
    """The rules that `_declare` would add, change and remove."""
    current = {rule.model: rule for rule in client.get(_MODELS_PATH, SchedulingList).items}
    named = {rule.model for rule in models}
    pruned = [rule for name, rule in current.items() if prune and name not in named]
    return SchedulingChanges(
        added=sorted(named - current.keys()),
        changed=sorted(rule.model for rule in models if rule.model in current and _differs(rule, current[rule.model])),
        removed=sorted(rule.model for rule in pruned if prune == "all" or rule.source == "fleet file"),
    )


def _differs(rule: NamedScheduling, current: SchedulingView) -> bool:
    places = {*(rule.pinned_nodes or ())}
    is_elsewhere = places not in (set(current.pinned_names), set(current.pinned_nodes))
    counts = (rule.min_replicas, rule.max_replicas, rule.spread_all, rule.node_selector, rule.idle_seconds)
    stored = (
        current.min_replicas,
        current.max_replicas,
        current.spread_all,
        current.node_selector,
        current.idle_seconds,
    )
    return is_elsewhere or counts != stored


def _say_models(changes: SchedulingChanges | None, models: Sequence[NamedScheduling] | None, *, as_json: bool) -> None:
    if changes is None or models is None:
        return
    if as_json:
        print_json({"models": changes})
        return
    for line in model_lines(changes, models) or ["The rules of the models are as they were."]:
        say(line)


def model_lines(changes: SchedulingChanges, models: Sequence[NamedScheduling]) -> list[str]:
    """A line for each model whose rule changes, with what it says now."""
    texts = {rule.model: _counts_of(rule) for rule in models}
    return [
        *(f"+ model {name}: {texts.get(name, '')}" for name in changes.added),
        *(f"~ model {name}: {texts.get(name, '')}" for name in changes.changed),
        *(f"- model {name}" for name in changes.removed),
    ]


def _standings(rule: RuleView) -> str:
    """How many nodes are how far with a fleet rule."""
    words = ((state_word(Subject.TARGET, status).inline, count) for status, count in rule.counts.items())
    return ", ".join(f"{count} {word}" for word, count in words)


def _counts_of(rule: NamedScheduling) -> str:
    nodes = rule.pinned_nodes or []
    where = [*([selector_text(rule.node_selector)] if rule.node_selector else []), *nodes]
    if rule.spread_all:
        counts = "one on every node"
    elif not rule.min_replicas and not rule.max_replicas:
        counts = "when asked"
    elif rule.max_replicas:
        counts = f"{rule.min_replicas} to {rule.max_replicas}"
    else:
        counts = f"{rule.min_replicas} or more"
    return f"{counts} on {', '.join(where) or 'any node'}"


def _show_plan(client: ApiClient, declared: "DeclaredFleet", prune: str, *, as_json: bool) -> None:
    """Show which rules would change, which node would do what, and what is blocked and why."""
    models = None if declared.models is None else _would_change(client, declared.models, prune)
    if declared.rules is None:
        _say_models(models, declared.models, as_json=as_json)
        if not as_json:
            say("Nothing was changed.")
        return
    rules = declared.rules
    body, kept_names = _whole_set(client.get(_PATH, RuleSetView), rules, prune)
    plan = client.post(f"{_PATH}/plan", RulesPlan, body)
    if as_json:
        print_json(plan if models is None else {**msgspec.to_builtins(plan), "models": models})
        return
    _say_models(models, declared.models, as_json=False)
    changes = change_lines(plan.changes, rules)
    for line in changes:
        say(line)
    _say_kept(kept_names)
    for act in plan.acts:
        show(plain(act_title(act)))
        show(plan_table(act.nodes, act.verb))
        show("")
    if plan.unmet:
        show("under way already:")
        for unmet in plan.unmet:
            show(plain(unmet_line(unmet)))
        show("")
    warn(doubt_lines(plan.doubts))
    say("Nothing was changed." if plan.acts or changes else "Nothing would change.")


def _say_kept(names: Sequence[str]) -> None:
    if names:
        say(f"Not in the file, and kept: {listed(names)}. --prune removes them.")


def change_lines(change: RuleChanges, rules: Sequence[RuleAsk]) -> list[str]:
    """A line for each rule that changes, with what it requires now."""
    return rule_change_lines(change, {rule.name: f"{rule.backend} on {selector_text(rule.labels)}" for rule in rules})
