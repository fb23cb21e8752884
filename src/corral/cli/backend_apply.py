"""`corral backends apply` and `corral backends rules`: what the fleet shall have, from now on."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import click

from corral.base.errors import PeerRefused, PeerUnavailable
from corral.cli.connection import connected, open_client
from corral.cli.operation_watch import Watching, wait_options, watched_all
from corral.cli.options import CorralCommand, warn
from corral.cli.output import console, json_option, print_json, say, show
from corral.processes.exit_codes import ExitCode

if TYPE_CHECKING:
    from corral.cli.client import ApiClient
    from corral.wire.fleet_rule_views import AppliedRules, RuleAsk, RulesAsk, RuleSetView
    from corral.wire.operation_views import OperationView

_PATH: Final = "/api/v1/fleet-rules"
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
@json_option
@connected
def apply(
    path: str, dry_run: bool, prune: str | None, no_wait: bool, within: timedelta | None, as_json: bool
) -> int | None:
    """Make the rules in a file those of the fleet.

    Watches until its nodes have what they demand. A rule names a backend that every node with certain labels shall
    have. It stays in force: nodes that join later, come back or get the label get the backend as well, and where
    somebody takes it away it is put back. Applying a file again changes nothing. Rules that are not in the file stay,
    unless --prune is given. Ends with 0 when all is well, 1 when something failed, 2 when it goes on, or when a rule
    names a backend that nobody knows.
    """
    import msgspec

    from corral.cli.fleet_file import read_fleet_file
    from corral.cli.fleet_rule_words import doubt_lines

    rules = read_fleet_file(path)
    client = open_client()
    if dry_run:
        _show_plan(client, rules, prune or "", as_json=as_json)
        return None
    applied, kept = _put(client, rules, prune or "")
    if not as_json:
        _tell_changes(applied, rules, kept)

    def document(last: "list[OperationView]") -> object:
        return msgspec.structs.replace(applied, operations=last)

    warn(doubt_lines(applied.doubts))
    watching = Watching(wait=not no_wait, within=within, as_json=as_json)
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
    from corral.cli.fleet_rule_words import problems, rule_table

    found = _known(open_client())
    if as_json:
        print_json(found)
        return
    if not found.items:
        say("There are no fleet rules; `corral backends apply` makes some.")
        return
    show(rule_table(found.items, datetime.now(UTC), width=console().width))
    for problem in problems(found.items):
        say(problem)


@rules.command("delete", cls=CorralCommand)
@click.argument("name")
@connected
def delete_rule(name: str) -> None:
    """Delete a rule. Where its backend is installed, it stays; `corral backends delete` deletes it."""
    open_client().delete(f"{_PATH}/{quote(name, safe='')}")
    say(f"The fleet rule {name} is deleted. What it demanded is left as it is.")


def _known(client: "ApiClient") -> "RuleSetView":
    from corral.wire.fleet_rule_views import RuleSetView

    return client.get(_PATH, RuleSetView)


def _put(client: "ApiClient", rules: "Sequence[RuleAsk]", prune: str) -> "tuple[AppliedRules, list[str]]":
    """What came of it, and which rules were kept. Whoever changes the rules at the same time loses nothing."""
    from corral.wire.fleet_rule_views import AppliedRules

    for left in reversed(range(_TRIES)):
        known = _known(client)
        body, kept = _whole_set(known, rules, prune)
        try:
            return client.put(_PATH, AppliedRules, body, headers={"If-Match": f'"{known.revision}"'}), kept
        except PeerRefused as error:
            if error.status != _CHANGED_MEANWHILE or not left:
                raise
        except PeerUnavailable:
            if not left:
                raise
            time.sleep(_PAUSE_SECONDS)  # it may have been stored, and the answer lost: the same again does no harm
    raise AssertionError("unreachable")


def _whole_set(known: "RuleSetView", rules: "Sequence[RuleAsk]", prune: str) -> "tuple[RulesAsk, list[str]]":
    """The file's rules, and those that are there beside them."""
    from corral.wire.fleet_rule_views import RuleAsk, RulesAsk

    named = {one.name for one in rules}
    others = [] if prune else [one for one in known.items if one.name not in named]
    beside = [
        RuleAsk(name=one.name, backend=one.backend, labels=one.labels, uri=one.uri, alias=one.alias) for one in others
    ]
    return RulesAsk(rules=[*rules, *beside], prune=prune), [one.name for one in beside]


def _show_plan(client: "ApiClient", rules: "Sequence[RuleAsk]", prune: str, *, as_json: bool) -> None:
    from corral.cli.fleet_rule_words import changes, doubt_lines, plan_parts
    from corral.wire.fleet_rule_views import RulesPlan

    body, kept = _whole_set(_known(client), rules, prune)
    plan = client.post(f"{_PATH}/plan", RulesPlan, body)
    if as_json:
        print_json(plan)
        return
    for line in changes(plan.changes, rules):
        say(line)
    _tell_kept(kept)
    for part in plan_parts(plan, width=console().width):
        show(part)
    warn(doubt_lines(plan.doubts))
    say("Nothing was changed." if plan.acts or changes(plan.changes, rules) else "Nothing would change.")


def _tell_changes(applied: "AppliedRules", rules: "Sequence[RuleAsk]", kept: Sequence[str]) -> None:
    from corral.cli.fleet_rule_words import changes

    for line in changes(applied.changes, rules) or ["The rules are as they were."]:
        say(line)
    _tell_kept(kept)
    if not applied.operations and not applied.doubts:
        say("Nothing is left to do.")


def _tell_kept(kept: Sequence[str]) -> None:
    from corral.base.words import listed

    if kept:
        say(f"Not in the file, and kept: {listed(kept)}. --prune removes them.")
