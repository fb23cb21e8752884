"""`corral nodes`: see and steer the machines of the fleet."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from corral.base.errors import Conflict, InvalidInput, PeerUnavailable
from corral.base.words import printable
from corral.cli.client import ApiClient, api_path
from corral.cli.connection import connected, open_client
from corral.cli.names import all_nodes, find_node, node_argument, read_labels
from corral.cli.nodes.cards import list_cards, put_card
from corral.cli.nodes.drains import begin_drain, watched_drain
from corral.cli.nodes.invitations import invite, list_invitations, uninvite
from corral.cli.nodes.tables import files_table, node_facts, node_summary, node_table
from corral.cli.operations.plans import plan_option, show_act_plan, tell_act_plan
from corral.cli.operations.watch import within_option
from corral.cli.options import CorralCommand, confirm, need_terminal, warn
from corral.cli.output import (
    answer,
    json_option,
    keep_showing,
    print_json_list,
    show,
    show_view,
)
from corral.frontend.nodes.decide.node import NodeStatus
from corral.processes.exit_codes import ExitCode
from corral.wire.model_files import NodeFilesView
from corral.wire.nodes import NodeDetail
from corral.wire.plans import ActPlanView, DrainAsk
from corral.wire.state_words import Subject, state_word

if TYPE_CHECKING:
    from rich.console import RenderableType


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
    nodes = list(all_nodes(client, query, on_alarm=lambda alarm: warn([_alarm_text(alarm)])))
    if as_json:
        print_json_list(nodes)
    else:
        show(_listing(nodes, filtered=bool(query)))


def _alarm_text(alarm: str) -> str:
    return f"ALARM: {alarm}; nothing is evicted or rescheduled until that is over"


def _listing(nodes: Sequence[NodeDetail], *, filtered: bool) -> "RenderableType":
    if nodes:
        return node_table(nodes)
    return "No node fits." if filtered else "No node has registered yet; `corral worker` starts one."


def _watch(client: ApiClient, query: Sequence[tuple[str, str]]) -> None:
    """Show the list again every second, also while the frontend does not answer."""
    from rich.console import Group
    from rich.text import Text

    def look() -> "RenderableType":
        alarms: list[str] = []
        try:
            nodes = list(all_nodes(client, query, on_alarm=alarms.append))
        except PeerUnavailable as error:
            return Text(error.message, style="red")
        warnings = [Text(printable(_alarm_text(alarm)), style="bold red") for alarm in alarms]
        return Group(*warnings, _listing(nodes, filtered=bool(query)), Text(node_summary(nodes), style="dim"))

    keep_showing(look)


@nodes.command("show", cls=CorralCommand)
@node_argument
@json_option
@connected
def show_node(node: str, as_json: bool) -> None:
    """Show everything about one node."""
    client = open_client()
    detail = client.get(api_path("nodes", find_node(client, node).id), NodeDetail)
    show_view(detail, lambda: node_facts(detail, datetime.now(UTC)), as_json=as_json)


@nodes.command("files", cls=CorralCommand)
@node_argument
@json_option
@connected
def node_files(node: str, as_json: bool) -> None:
    """Show the files of models that were brought to a node.

    With their sizes, their last use, and what may go when room is needed for others.
    """
    client = open_client()
    view = client.get(api_path("nodes", find_node(client, node).id, "files"), NodeFilesView)
    show_view(view, lambda: files_table(view), as_json=as_json)


for command in (invite, list_invitations, uninvite, list_cards, put_card):
    nodes.add_command(command)


@nodes.command("approve", cls=CorralCommand)
@node_argument
@json_option
@connected
def approve_node(node: str, as_json: bool) -> None:
    """Let a pending node take part in the fleet.

    Its worker shows a fingerprint on its own screen; `corral nodes list` and this command show it, too. If they differ,
    it is another machine: remove it again.
    """
    client = open_client()
    changed = client.post(api_path("nodes", find_node(client, node).id, "approve"), NodeDetail)
    known_by = f", fingerprint {changed.fingerprint}," if changed.fingerprint else ""
    sentence = f"{changed.name} ({changed.id}){known_by} is approved; its status is {changed.status}"
    answer(changed, sentence, as_json=as_json)


@nodes.command("drain", cls=CorralCommand)
@node_argument
@click.option("--wait", is_flag=True, help="Show how far it is, and end when nothing is left on the node.")
@click.option(
    "--force", is_flag=True, help="Also end what no other node can take; its model is loaded when there is room."
)
@plan_option
@within_option
@json_option
@connected
def drain_node(node: str, wait: bool, force: bool, only_plan: bool, within: timedelta | None, as_json: bool) -> int:
    """Empty a node, without losing requests.

    It gets no new work, its models are loaded elsewhere, and its replicas end after their requests. What no other node
    can take stays and serves on. `corral nodes resume` ends the drain.
    """
    if within is not None and not wait:
        raise InvalidInput("--within", "is for --wait")
    if only_plan and wait:
        raise InvalidInput("--plan", "shows what would happen and does nothing, so there is nothing to --wait for")
    client = open_client()
    if only_plan:
        path = api_path("nodes", find_node(client, node).id, "drain", "plan")
        show_act_plan(client.post(path, ActPlanView, DrainAsk(force=force)), as_json=as_json)
        return ExitCode.OK
    changed = begin_drain(client, find_node(client, node).id, is_forced=force)
    if wait:
        return watched_drain(client, changed.id, is_forced=force, within=within, as_json=as_json)
    answer(changed, f"{changed.name} ({changed.id}) is draining; its status is {changed.status}", as_json=as_json)
    return ExitCode.OK


@nodes.command("resume", cls=CorralCommand)
@node_argument
@json_option
@connected
def resume_node(node: str, as_json: bool) -> None:
    """End a drain."""
    client = open_client()
    changed = client.post(api_path("nodes", find_node(client, node).id, "resume"), NodeDetail)
    sentence = f"{changed.name} ({changed.id}) is no longer draining; its status is {changed.status}"
    answer(changed, sentence, as_json=as_json)


@nodes.command("remove", cls=CorralCommand)
@node_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@plan_option
@json_option
@connected
def remove_node(node: str, yes: bool, only_plan: bool, as_json: bool) -> None:
    """Forget a node, with its approval and its labels. A worker that still runs there may register again.

    Before it asks, it shows what would happen. If that is something else by the time of the answer, nothing is done,
    and the new plan is shown.
    """
    client = open_client()
    detail, query = find_node(client, node), ""
    if not only_plan and not yes:
        need_terminal()
    if only_plan or not yes:
        plan = client.post(api_path("nodes", detail.id, "removal", "plan"), ActPlanView)
        if only_plan:
            show_act_plan(plan, as_json=as_json)
            return
        tell_act_plan(plan)
        confirm(f"Remove {detail.name} ({detail.id}, {state_word(Subject.NODE, detail.status).inline})?")
        query = f"?plan_hash={plan.hash}"
    client.delete(api_path("nodes", detail.id) + query)
    answer({"removed": detail.id}, f"{detail.name} ({detail.id}) is removed", as_json=as_json)


@nodes.command("label", cls=CorralCommand)
@node_argument
@click.argument("changes", nargs=-1, required=True, metavar="KEY=VALUE|KEY-…")
@json_option
@connected
def label_node(node: str, changes: Sequence[str], as_json: bool) -> None:
    """Set labels with KEY=VALUE and remove them with KEY-. They stay when the worker registers again."""
    added, removed = read_label_changes(changes)
    client = open_client()
    changed = find_node(client, node)
    missing = [key for key in removed if key not in changed.labels]
    if missing:
        raise Conflict(f"{changed.name} has no label {', '.join(missing)}; nothing was changed")
    if added:
        changed = client.patch(api_path("nodes", changed.id, "labels"), NodeDetail, added)
    for key in removed:
        client.delete(api_path("nodes", changed.id, "labels", key))
    if removed:
        changed = client.get(api_path("nodes", changed.id), NodeDetail)
    labels = ", ".join(f"{key}={value}" for key, value in changed.labels.items()) or "none"
    answer(changed, f"Labels of {changed.name} ({changed.id}): {labels}", as_json=as_json)


def read_label_changes(changes: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Which labels to set and which to remove; InvalidInput for anything else."""
    added: dict[str, str] = {}
    removed: list[str] = []
    for change in changes:
        key, equals, value = change.partition("=")
        if equals and key:
            added[key] = value
        elif not equals and len(change) > 1 and change.endswith("-"):
            removed.append(change[:-1])
        else:
            raise InvalidInput(change, "is no change of a label; write KEY=VALUE to set one, KEY- to remove one")
    if both := added.keys() & set(removed):
        raise InvalidInput(", ".join(sorted(both)), "cannot be set and removed at once")
    return added, removed
