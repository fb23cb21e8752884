"""`corral backends`: which backends the fleet has, and how to change that."""

import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import click

from corral.base.errors import InvalidInput, NotFound, PeerRefused
from corral.base.words import listed
from corral.cli.backends.confinement import confine, confined
from corral.cli.backends.rules import apply, rules
from corral.cli.backends.tables import backend_table, only_on, print_drift, print_upgrades, rows
from corral.cli.client import ApiClient
from corral.cli.connection import connected, open_client
from corral.cli.names import (
    BACKENDS_PATH,
    OPERATIONS_PATH,
    all_nodes,
    complete_installed,
    find_nodes,
    nodes_option,
    read_labels,
    unknown_backend_warnings,
)
from corral.cli.operations.plans import plan_option, show_operation_plan
from corral.cli.operations.watch import Watching, accepted_once, wait_options, watched, watched_all
from corral.cli.options import CorralCommand, confirm, print_error, warn
from corral.cli.output import json_option, print_json, say, show
from corral.frontend.backends.decide.backend import BACKEND_VERBS
from corral.frontend.backends.decide.plan_words import notes
from corral.frontend.operations.decide.intent import Verb
from corral.processes.exit_codes import ExitCode
from corral.wire.fleet_rules import DriftList
from corral.wire.galleries import FleetBackends, UpgradesView
from corral.wire.operation_views import OperationAsk, OperationView, Plan

F = TypeVar("F", bound=Callable[..., Any])
_UPGRADES_PATH: Final = "/api/v1/backends/upgrades"
_PAUSE_SECONDS: Final = 0.3
_PATIENCE_SECONDS: Final = 150.0
"""Longer than a frontend waits for galleries that do not answer."""


def target_options(function: F) -> F:
    """Add the options --node and --label, which say on which nodes a command acts."""
    label = click.option(
        "--label",
        "labels",
        multiple=True,
        metavar="KEY=VALUE",
        help="Only on nodes with this label; several must all be there.",
    )
    return nodes_option()(label(function))


def source_options(function: F) -> F:
    """Adds --uri, --name, --alias and --force."""
    uri = click.option("--uri", default="", metavar="URI", help="Install from here instead of from a gallery.")
    name = click.option("--name", default="", metavar="NAME", help="What a backend from a uri shall be called.")
    alias = click.option("--alias", default="", metavar="NAME", help="Another name for a backend from a uri.")
    force = click.option("--force", is_flag=True, help="Fetch it again even where it is installed.")
    return uri(name(alias(force(function))))


@click.group()
def backends() -> None:
    """See and change the backends of the fleet.

    BACKEND is the name of a backend, an alias or a meta backend, alone or as GALLERY@NAME. install, upgrade and delete
    mean every node unless --node or --label says which. They watch until all nodes are done, and end with 0 when all is
    well (what waits for absent nodes included), 1 when it failed somewhere, 2 when it goes on.
    """


@backends.command("list", cls=CorralCommand)
@nodes_option("Only of this node.")
@click.option("--refresh", is_flag=True, help="Ask every node now, instead of telling what each said last.")
@json_option
@connected
def list_backends(nodes: Sequence[str], refresh: bool, as_json: bool) -> None:
    """List the backends that nodes have. Nodes with the same build share a row."""
    listing = _installed(open_client(), nodes, refresh=refresh)
    if as_json:
        print_json(listing)
        return
    if listing.items:
        show(backend_table(rows(listing), datetime.now(UTC)))
    elif not listing.unheard:
        say("No backend is installed; `corral backends install` changes that.")
    if listing.unheard:
        say(f"Not heard yet what they have: {listed(listing.unheard)}. With --refresh they are asked now.")


@backends.command(cls=CorralCommand)
@click.option("--refresh", is_flag=True, help="Ask nodes, galleries and registries now, and wait for what they say.")
@json_option
@connected
def outdated(refresh: bool, as_json: bool) -> int:
    """List what is outdated, or differs between nodes.

    Versions and digests are compared with what galleries and registries had when a frontend last asked them, so that
    a tag which was moved counts as well. Ends with 69 when that is not known, or could not be asked now.
    """
    client = open_client()
    upgrades = _new_check(client) if refresh else client.get(_UPGRADES_PATH, UpgradesView)
    if as_json:
        print_json(upgrades)
    else:
        print_upgrades(upgrades, datetime.now(UTC))
    return ExitCode.OK if upgrades.checked_at and not upgrades.problem else ExitCode.UNAVAILABLE


@backends.command(cls=CorralCommand)
@json_option
@connected
def drift(as_json: bool) -> int:
    """List what nodes do not have as it was asked for.

    By people or by fleet rules: what is wanted, what is there, since when, and why. Ends with 1 when there is any.
    """
    listing = open_client().get("/api/v1/drift", DriftList)
    if as_json:
        print_json(listing)
    else:
        print_drift(listing.items, datetime.now(UTC))
    return ExitCode.FAILED if listing.items else ExitCode.OK


def _new_check(client: ApiClient) -> UpgradesView:
    """The result of a new check, or of the last one when the new one takes too long."""
    before = client.post(f"{_UPGRADES_PATH}/check", UpgradesView)
    until = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < until:
        latest = client.get(_UPGRADES_PATH, UpgradesView)
        if latest.checked_at != before.checked_at:
            return latest
        time.sleep(_PAUSE_SECONDS)
    return before


def _installed(client: ApiClient, nodes: Sequence[str], *, refresh: bool) -> FleetBackends:
    ids = [node.id for node in find_nodes(client, nodes)]
    listing = client.get(BACKENDS_PATH, FleetBackends, [("refresh", "1")] if refresh else [])
    return only_on(listing, ids) if ids else listing


@backends.command(cls=CorralCommand)
@click.argument("backend", default="")
@source_options
@target_options
@wait_options
@connected
def install(
    backend: str,
    uri: str,
    name: str,
    alias: str,
    force: bool,
    nodes: Sequence[str],
    labels: Sequence[str],
    watching: Watching,
) -> int:
    """Install a backend. Where it is installed already, nothing is fetched.

    BACKEND is a name in a gallery; one that no gallery has is refused, with the name that was probably meant. An image
    (oci://…), an archive (https://…) or a directory of the nodes is given with --uri and --name.
    """
    source = external(backend, uri=uri, name=name, alias=alias)
    client = open_client()
    ask = make_ask(client, Verb.INSTALL, nodes=nodes, labels=labels, force=force, **source)
    return watched(client, start(client, ask), watching)


@backends.command(cls=CorralCommand)
@click.argument("names", metavar="[BACKEND]...", nargs=-1, shell_complete=complete_installed)
@click.option("--all", "every", is_flag=True, help="Upgrade everything that is installed.")
@target_options
@wait_options
@connected
def upgrade(
    names: Sequence[str],
    every: bool,
    nodes: Sequence[str],
    labels: Sequence[str],
    watching: Watching,
) -> int:
    """Bring backends to the newest version.

    On the nodes that have them; what is new already is not fetched again. Each backend is an operation of its own;
    --json gives a list of them.
    """
    if bool(names) == every:
        raise click.UsageError("Name the backends to upgrade, or give --all.")
    client = open_client()
    chosen = list(names) or _upgradeable(client, nodes, labels)
    asks = [make_ask(client, Verb.UPGRADE, name, nodes=nodes, labels=labels) for name in dict.fromkeys(chosen)]
    started, refused = [], []
    for ask in asks:
        try:
            started.append(start(client, ask))
        except (PeerRefused, NotFound) as error:
            refused.append(f"{ask.backend}: {error.message}")
    if not asks and not watching.as_json:
        say("No backend is installed that could be upgraded.")
    code = watched_all(client, started, watching)
    for problem in refused:
        print_error(problem)
    return ExitCode.FAILED if refused else code


def _upgradeable(client: ApiClient, nodes: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Names of the backends on these nodes that can be upgraded: neither part of the system nor meta backends."""
    listing = _installed(client, nodes, refresh=False)
    if labels:
        labelled = all_nodes(client, [("label", label) for label in labels])
        listing = only_on(listing, [node.id for node in labelled])
    return [
        backend.name
        for backend in listing.items
        if not backend.is_meta and not all(node.is_system for node in backend.nodes)
    ]


@backends.command(cls=CorralCommand)
@click.argument("backend", shell_complete=complete_installed)
@click.option("--yes", is_flag=True, help="Do not ask.")
@plan_option
@target_options
@wait_options
@connected
def delete(
    backend: str, yes: bool, only_plan: bool, nodes: Sequence[str], labels: Sequence[str], watching: Watching
) -> int:
    """Delete a backend, with its processes.

    On a terminal you are asked first where replicas of models end by it. Where the backend is not installed, nothing is
    deleted, and that is said. The code is 0 also when no node has it.
    """
    client = open_client()
    warn(unknown_backend_warnings(client, backend))
    ask = make_ask(client, Verb.DELETE, backend, nodes=nodes, labels=labels)
    if only_plan:
        return _planned(client, ask, as_json=watching.as_json)
    if sys.stdin.isatty() and not yes:
        _confirm_ends(client, ask)
    return watched(client, start(client, ask), watching)


def _confirm_ends(client: ApiClient, ask: OperationAsk) -> None:
    """Ask, where replicas end. Scripts are not asked: they say what they want, as for every operation."""
    plan = client.post(f"{OPERATIONS_PATH}/plan", Plan, ask)
    if not plan.replicas_end or plan.rules:  # with a rule in its way, the operation is refused
        return
    for line in notes(plan, ask.verb):
        click.echo(line, err=True)
    confirm(f"Delete {ask.backend}?")


@backends.command(cls=CorralCommand)
@click.argument("verb", type=click.Choice([verb.value for verb in BACKEND_VERBS]))
@click.argument("backend", default="", shell_complete=complete_installed)
@source_options
@target_options
@json_option
@connected
def plan(
    verb: str,
    backend: str,
    uri: str,
    name: str,
    alias: str,
    force: bool,
    nodes: Sequence[str],
    labels: Sequence[str],
    as_json: bool,
) -> int:
    """Show what an operation would do on which node.

    Also where it would be blocked, which replicas would end, and which fleet rules are in the way: then it ends with 1.
    Nothing is stored or sent.
    """
    source = external(backend, uri=uri, name=name, alias=alias)
    client = open_client()
    ask = make_ask(client, verb, nodes=nodes, labels=labels, force=force, **source)
    return _planned(client, ask, as_json=as_json)


def _planned(client: ApiClient, ask: OperationAsk, *, as_json: bool) -> int:
    return show_operation_plan(client.post(f"{OPERATIONS_PATH}/plan", Plan, ask), ask.verb, as_json=as_json)


backends.add_command(apply)
backends.add_command(rules)
backends.add_command(confine)
backends.add_command(confined)


def make_ask(
    client: ApiClient, verb: str, backend: str, *, nodes: Sequence[str], labels: Sequence[str], **source: Any
) -> OperationAsk:
    """The request for an operation; `source` has uri, name, alias and force of an install."""
    if nodes and labels:
        raise InvalidInput("--label", "cannot be combined with --node: name the nodes, or say which labels they have")
    ids = [node.id for node in find_nodes(client, nodes)]
    return OperationAsk(verb=verb, backend=backend, nodes=ids, labels=read_labels(labels), **source)


def external(backend: str, *, uri: str, name: str, alias: str) -> dict[str, str]:
    """Where to install from. A backend with a slash in its name is taken as a uri."""
    if not uri and "/" in backend:
        backend, uri = "", backend
    if not uri:
        if name or alias:
            raise InvalidInput("--name" if name else "--alias", "is for uris; a gallery's backend has its own")
        if not backend:
            raise click.UsageError("Name the backend to install, or give --uri and --name.")
        return {"backend": backend}
    if backend and name and backend != name:
        raise InvalidInput("--name", f"is {name!r}, but the backend was called {backend!r}; give one of them")
    if not (name or backend):
        raise InvalidInput("--name", "is needed with a uri: what shall the backend be called?")
    return {"backend": "", "uri": uri, "name": name or backend, "alias": alias}


def start(client: ApiClient, ask: OperationAsk) -> OperationView:
    """Start an operation, once even when the first answer is lost."""
    return accepted_once(lambda headers: client.post(OPERATIONS_PATH, OperationView, ask, headers=headers))
