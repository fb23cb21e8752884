"""`corral nodes`: see and steer the machines of the fleet."""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from corral.base.errors import Conflict, InvalidInput, PeerUnavailable
from corral.cli.backend_asks import read_labels
from corral.cli.connection import connected, open_client
from corral.cli.node_names import all_nodes, complete_node, find_node
from corral.cli.options import CorralCommand, confirm, warn
from corral.cli.output import console, json_option, print_json, print_json_list, printable, say, show
from corral.frontend.nodes.decide.node import NodeStatus

if TYPE_CHECKING:
    from rich.console import RenderableType

    from corral.cli.client import ApiClient
    from corral.wire.node_views import NodeDetail

F = TypeVar("F", bound=Callable[..., Any])
_WATCH_SECONDS = 1.0


def node_argument(function: F) -> F:
    return click.argument("node", shell_complete=complete_node)(function)


@click.group()
def nodes() -> None:
    """See and steer the machines of the fleet.

    NODE is a node's id, a unique beginning of it, or a unique name.
    """


@nodes.command("list", cls=CorralCommand)
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice([status.value for status in NodeStatus]),
    help="Only nodes in this status.",
)
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Only nodes with this label.")
@click.option("--name", default="", metavar="TEXT", help="Only nodes whose name contains this.")
@click.option("--watch", is_flag=True, help="Keep showing the list as it changes, until Ctrl-C.")
@json_option
@connected
def list_nodes(statuses: Sequence[str], labels: Sequence[str], name: str, watch: bool, as_json: bool) -> None:
    """List the nodes. Filters of one kind add up: --status may be given several times, --label too."""
    read_labels(labels)
    query = [("status", status) for status in statuses] + [("label", label) for label in labels]
    query += [("name", name)] if name else []
    client = open_client()
    if watch:
        if as_json:
            raise InvalidInput("--watch", "cannot be combined with --json; use `corral events --follow --json`")
        _watch(client, query)
        return
    found = list(all_nodes(client, query, on_alarm=_warn))
    if as_json:
        print_json_list(found)
    else:
        show(_listing(found, filtered=bool(query)))


def _warn(alarm: str) -> None:
    warn([_alarm_text(alarm)])


def _alarm_text(alarm: str) -> str:
    return f"ALARM: {alarm}; nothing is evicted or rescheduled until that is over"


def _listing(found: "Sequence[NodeDetail]", *, filtered: bool) -> "RenderableType":
    from corral.cli.node_tables import node_table

    if found:
        return node_table(found, width=console().width)
    return "No node fits." if filtered else "No node has registered yet; `corral worker` starts one."


def _watch(client: "ApiClient", query: Sequence[tuple[str, str]]) -> None:
    """Ask again and again; a frontend that is away for a moment does not end the view."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from corral.cli.node_tables import summary

    def look() -> "RenderableType":
        alarms: list[str] = []
        try:
            found = list(all_nodes(client, query, on_alarm=alarms.append))
        except PeerUnavailable as error:
            return Text(error.message, style="red")
        warnings = [Text(printable(_alarm_text(one)), style="bold red") for one in alarms]
        return Group(*warnings, _listing(found, filtered=bool(query)), Text(summary(found), style="dim"))

    try:
        with Live(look(), console=console(), auto_refresh=False) as live:
            while True:
                time.sleep(_WATCH_SECONDS)
                live.update(look(), refresh=True)
    except KeyboardInterrupt:
        return


@nodes.command("show", cls=CorralCommand)
@node_argument
@json_option
@connected
def show_node(node: str, as_json: bool) -> None:
    """Show everything about one node."""
    from corral.cli.node_tables import node_facts

    found = find_node(open_client(), node)
    if as_json:
        print_json(found)
    else:
        show(node_facts(found, datetime.now(UTC)))


def _steer(node: str, verb: str, done: str, *, as_json: bool) -> None:
    """Call one of the verbs on a node and tell what became of it."""
    from corral.cli.client import node_path
    from corral.wire.node_views import NodeDetail

    client = open_client()
    found = find_node(client, node)
    changed = client.post(node_path(found.id, verb), NodeDetail)
    if as_json:
        print_json(changed)
    else:
        say(f"{changed.name} ({changed.id}) {done}; its status is {changed.status}")


@nodes.command("approve", cls=CorralCommand)
@node_argument
@json_option
@connected
def approve_node(node: str, as_json: bool) -> None:
    """Let a pending node take part in the fleet."""
    _steer(node, "approve", "is approved", as_json=as_json)


@nodes.command("drain", cls=CorralCommand)
@node_argument
@json_option
@connected
def drain_node(node: str, as_json: bool) -> None:
    """Give a node no new work; what it does now, it finishes."""
    _steer(node, "drain", "is draining", as_json=as_json)


@nodes.command("resume", cls=CorralCommand)
@node_argument
@json_option
@connected
def resume_node(node: str, as_json: bool) -> None:
    """End a drain."""
    _steer(node, "resume", "is not draining", as_json=as_json)


@nodes.command("remove", cls=CorralCommand)
@node_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@connected
def remove_node(node: str, yes: bool, as_json: bool) -> None:
    """Forget a node, with its approval and its labels. A worker that still runs there may register again."""
    from corral.cli.client import node_path

    client = open_client()
    found = find_node(client, node)
    if not yes:
        confirm(f"Remove {found.name} ({found.id}, {found.status})?")
    client.delete(node_path(found.id))
    if as_json:
        print_json({"removed": found.id})
    else:
        say(f"{found.name} ({found.id}) is removed")


@nodes.command("label", cls=CorralCommand)
@node_argument
@click.argument("changes", nargs=-1, required=True, metavar="KEY=VALUE|KEY-…")
@json_option
@connected
def label_node(node: str, changes: Sequence[str], as_json: bool) -> None:
    """Set labels with KEY=VALUE and remove them with KEY-. They stay when the worker registers again."""
    from corral.cli.client import node_path
    from corral.wire.node_views import NodeDetail

    wanted, unwanted = read_label_changes(changes)
    client = open_client()
    changed = find_node(client, node)
    missing = [key for key in unwanted if key not in changed.labels]
    if missing:
        raise Conflict(f"{changed.name} has no label {', '.join(missing)}; nothing was changed")
    if wanted:
        changed = client.patch(node_path(changed.id, "labels"), NodeDetail, wanted)
    for key in unwanted:
        client.delete(node_path(changed.id, "labels", key))
    if unwanted:
        changed = client.get(node_path(changed.id), NodeDetail)
    if as_json:
        print_json(changed)
    else:
        listed = ", ".join(f"{key}={value}" for key, value in changed.labels.items()) or "none"
        say(f"Labels of {changed.name} ({changed.id}): {listed}")


def read_label_changes(changes: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Which labels to set and which to remove; InvalidInput for anything else."""
    wanted: dict[str, str] = {}
    unwanted: list[str] = []
    for change in changes:
        key, equals, value = change.partition("=")
        if equals and key:
            wanted[key] = value
        elif not equals and len(change) > 1 and change.endswith("-"):
            unwanted.append(change[:-1])
        else:
            raise InvalidInput(change, "is no change of a label; write KEY=VALUE to set one, KEY- to remove one")
    if both := wanted.keys() & set(unwanted):
        raise InvalidInput(", ".join(sorted(both)), "cannot be set and removed at once")
    return wanted, unwanted
