"""`corral ops`: which operations there are, how far they are, and how to retry or cancel them."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from corral.base.errors import Conflict, NotFound
from corral.base.words import listed
from corral.cli.client import ApiClient, api_path
from corral.cli.connection import connected, open_client
from corral.cli.names import (
    complete_node,
    complete_operation,
    find_operation,
    newest_operations,
    node_filter,
    nodes_option,
)
from corral.cli.operations.watch import Watching, wait_options, watched, within_option
from corral.cli.operations.words import advice, counts, situation, summary
from corral.cli.options import CorralCommand
from corral.cli.output import (
    Column,
    answer,
    facts,
    json_option,
    plain,
    print_json_list,
    say,
    show,
    show_view,
    state_text,
    table,
    word_text,
)
from corral.cli.units import SHORT_ID, age, moment
from corral.frontend.operations.decide.intent import Verb
from corral.frontend.operations.decide.operation import OperationState
from corral.processes.exit_codes import ExitCode
from corral.wire.operation_views import Changed, NodesAsk, OperationView, TargetView
from corral.wire.state_words import Subject, target_word

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


_operation = click.argument("operation", default="", shell_complete=complete_operation)
_named_operation = click.argument("operation", shell_complete=complete_operation)


@click.group()
def ops() -> None:
    """See and steer what was asked of the fleet.

    Installs, upgrades and deletes of backends, and pulls and removals of models.

    OPERATION is its id, or a unique beginning of it. Without one, show and watch mean the newest.
    """


@ops.command("list", cls=CorralCommand)
@click.option("--last", default=20, show_default=True, type=click.IntRange(1, 1000), help="At most so many.")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state.value for state in OperationState]),
    help="Only those in this state; may be given several times.",
)
@click.option(
    "--verb",
    "verbs",
    multiple=True,
    type=click.Choice([verb.value for verb in Verb]),
    help="Only those with this verb; may be given several times.",
)
@click.option("--backend", default="", metavar="NAME", help="Only those about this backend or model.")
@click.option(
    "--node", default="", metavar="NODE", shell_complete=complete_node, help="Only those that concern this node."
)
@click.option("--by", "asked_by", default="", metavar="NAME", help="Only those that this user or key asked for.")
@click.option("--text", default="", metavar="TEXT", help="Only those with this text in backend, uri, asker or id.")
@json_option
@connected
def list_operations(
    last: int,
    states: Sequence[str],
    verbs: Sequence[str],
    backend: str,
    node: str,
    asked_by: str,
    text: str,
    as_json: bool,
) -> None:
    """List the operations, the newest first. All that is said about which ones must hold together."""
    client = open_client()
    texts = {"backend": backend, "asked_by": asked_by, "text": text}
    query = [("state", state) for state in states] + [("verb", verb) for verb in verbs]
    query += [(name, value) for name, value in texts.items() if value]
    query += [("node", node_filter(client, node))] if node else []
    operations = list(newest_operations(client, query, limit=last))
    if as_json:
        print_json_list(operations)
    elif operations:
        show(operation_table(operations, datetime.now(UTC)))
    else:
        say("No operation fits." if query else "There is no operation yet; `corral backends install` starts one.")


@ops.command("show", cls=CorralCommand)
@_operation
@json_option
@connected
def show_operation(operation: str, as_json: bool) -> None:
    """Show one operation, how each node stands, and what to do next."""
    view = find_operation(open_client(), operation)
    show_view(view, lambda: operation_facts(view, datetime.now(UTC)), as_json=as_json)


@ops.command(cls=CorralCommand)
@_operation
@within_option
@json_option
@connected
def watch(operation: str, within: timedelta | None, as_json: bool) -> int:
    """Watch an operation until it is over, with a bar for each node. Ctrl-C ends only the watching.

    Ends with 0 when all is well (what waits for absent nodes included), 1 when it failed somewhere, 2 when it goes on.
    """
    client = open_client()
    view = find_operation(client, operation)
    return watched(client, view, Watching(wait=True, within=within, as_json=as_json))


@ops.command(cls=CorralCommand)
@_named_operation
@nodes_option()
@wait_options
@connected
def retry(operation: str, nodes: Sequence[str], watching: Watching) -> int:
    """Try again at once what failed or is blocked, and watch that."""
    client = open_client()
    changed = _change(client, find_operation(client, operation), "retry", nodes)
    if not changed.nodes:
        sentence = "Nothing to retry: only what failed or is blocked can be."
        answer(changed, sentence, as_json=watching.as_json)
        return ExitCode.FAILED
    return watched(client, changed.operation, watching)


@ops.command(cls=CorralCommand)
@_named_operation
@nodes_option()
@json_option
@connected
def cancel(operation: str, nodes: Sequence[str], as_json: bool) -> int:
    """Cancel what is not done yet. A node may still finish what was already sent to it: those nodes are named."""
    client = open_client()
    changed = _change(client, find_operation(client, operation), "cancel", nodes)
    sentence = f"Cancelled on {listed(changed.nodes)}." if changed.nodes else "Nothing to cancel: all of it is over."
    answer(changed, sentence, as_json=as_json)
    if changed.already_sent and not as_json:
        say(f"May still finish, since it had been sent already: {listed(changed.already_sent)}.")
    return ExitCode.OK if changed.nodes else ExitCode.FAILED


def _change(client: ApiClient, operation: OperationView, verb: str, nodes: Sequence[str]) -> Changed:
    """Retry or cancel the operation, on all its nodes or on those named."""
    request = NodesAsk(nodes=[_target(operation, name) for name in nodes])
    return client.post(api_path("operations", operation.id, verb), Changed, request)


def _target(operation: OperationView, reference: str) -> str:
    """The id of the operation's node with this name or beginning of an id; the node itself may be gone."""
    targets = operation.targets
    by_name = [target.node_id for target in targets if target.node_name == reference]
    by_id = [target.node_id for target in targets if target.node_id.startswith(reference.lower())]
    ids = by_name or by_id
    if not ids:
        raise NotFound(f"{reference} is no node of this operation; `corral ops show {operation.id}` lists them")
    if len(set(ids)) > 1:
        raise Conflict(f"{reference} may mean {', '.join(ids[:10])}; name one by its id")
    return ids[0]


def operation_table(operations: Sequence[OperationView], now: datetime, *, width: int | None = None) -> "Table":
    columns: list[Column[OperationView]] = [
        Column(title="ID", cell=lambda operation: plain(operation.id[:SHORT_ID])),
        Column(title="STATE", cell=lambda operation: state_text(Subject.OPERATION, operation.state)),
        Column(title="WHAT", cell=lambda operation: plain(f"{operation.verb} {operation.backend}")),
        Column(title="STARTED", cell=lambda operation: age(operation.accepted_at, now), least_width=60),
        Column(title="TARGETS", cell=lambda operation: plain(counts(operation)), least_width=80),
        Column(title="BY", cell=lambda operation: plain(operation.asked_by), least_width=110),
        Column(title="URI", cell=lambda operation: plain(operation.uri), least_width=140),
    ]
    return table(columns, operations, width=width)


def operation_facts(operation: OperationView, now: datetime, *, width: int | None = None) -> "RenderableType":
    """One operation, its targets, and what to do next."""
    from rich.console import Group

    pairs = [
        ("Id", plain(operation.id)),
        ("What", plain(f"{operation.verb} {operation.backend}")),
        ("Uri", plain(operation.uri)),
        ("State", state_text(Subject.OPERATION, operation.state)),
        ("So far", plain(summary(operation))),
        ("Asked by", f"{plain(operation.asked_by)}, {moment(operation.accepted_at, now)}"),
        ("Changed", moment(operation.changed_at, now)),
    ]
    known_pairs = [(name, value) for name, value in pairs if value]
    parts: list[RenderableType] = [facts(known_pairs), "", target_table(operation, now, width=width)]
    if steps := advice(operation):
        parts += ["", "[bold]What to do[/]", facts([(plain(names), plain(sentence)) for names, sentence in steps])]
    return Group(*parts)


def target_table(operation: OperationView, now: datetime, *, width: int | None = None) -> "Table":
    columns: list[Column[TargetView]] = [
        Column(title="NODE", cell=lambda target: plain(target.node_name)),
        Column(title="STATUS", cell=lambda target: word_text(target_word(target.status, operation.verb))),
        Column(title="CHANGED", cell=lambda target: age(target.changed_at, now), least_width=60),
        Column(title="BACKEND", cell=lambda target: plain(target.backend), least_width=130),
        Column(title="DETAIL", cell=lambda target: plain(situation(target, operation.verb)), wraps=True),
    ]
    return table(columns, operation.targets, width=width)
