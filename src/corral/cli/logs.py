"""`corral logs`: what the processes of a model, or of all models of a node, have written."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

import click
from click.shell_completion import CompletionItem

from corral.base.errors import Conflict, NotFound, PeerRefused
from corral.base.words import printable
from corral.cli.client import ApiClient, FrontendFailed, api_path
from corral.cli.connection import connected, open_client
from corral.cli.log_follow import LogFollower, LogSource, SourcedLine
from corral.cli.names import all_nodes, choose_node, complete_model, complete_node
from corral.cli.options import CorralCommand, warn
from corral.cli.output import json_option, print_json_line
from corral.cli.units import parse_moment
from corral.wire.models import ModelView
from corral.wire.nodes import LogPage, NodeDetail

_MOST_LINES: Final = 1000
"""As many as workers keep."""
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


def complete_model_or_node(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [*complete_model(context, parameter, incomplete), *complete_node(context, parameter, incomplete)]


@click.command(cls=CorralCommand)
@click.argument("name", metavar="MODEL|NODE", shell_complete=complete_model_or_node)
@click.option("--follow", "-f", is_flag=True, help="Go on with what is written from now on, until Ctrl-C.")
@click.option(
    "--last", default=100, show_default=True, type=click.IntRange(0, 1000), help="How many past lines to begin with."
)
@click.option("--since", default="", metavar="TIME", help="Only lines since a time, or since so long ago: 10m.")
@click.option("--search", default="", metavar="TEXT", help="Only lines with this text, whatever its case.")
@json_option
@connected
def logs(name: str, follow: bool, last: int, since: str, search: str, as_json: bool) -> None:
    """Show what the processes of a model wrote, or those of a node.

    Workers keep the last 1000 lines of each process, also of those that have ended. With several processes each line
    begins with its node and its process. With --json each line is an object.
    """
    client = open_client()
    texts = {"since": since, "search": search}
    query = [("lines", str(_MOST_LINES)), *((field, text) for field, text in texts.items() if text)]
    try:
        sources = sources_of(client, name)
        lines = read_lines(client, sources, query)
        has_prefix = len(sources) > 1
        _print(lines[-last:] if last else [], as_json=as_json, has_prefix=has_prefix)
        if follow:
            places = {source: line.id for source, line in lines}
            follower = LogFollower(client, query)
            for sourced in follower.follow(lambda: sources_of(client, name), places):
                has_prefix = has_prefix or sourced[0] not in sources
                _print([sourced], as_json=as_json, has_prefix=has_prefix)
    except KeyboardInterrupt:
        return
    if not lines:
        warn([f"nothing was written by {name} yet"])


def read_lines(
    client: ApiClient, sources: Iterable[LogSource], query: Sequence[tuple[str, str]] = ()
) -> list[SourcedLine]:
    """What the processes wrote, in the order of time. One that cannot be asked is named, and the others are shown."""
    written: list[SourcedLine] = []
    for source in sources:
        try:
            written += [(source, line) for line in client.get(source.path, LogPage, query).items]
        except (FrontendFailed, NotFound, PeerRefused) as error:  # its worker failed, is gone, or waits for approval
            warn([f"{source.node} cannot be asked: {error.message}"])
    return sorted(written, key=lambda sourced: _moment(sourced[1].at))


def _moment(at: str) -> datetime:
    """When a line was written; one whose time makes no sense comes first."""
    return parse_moment(at) or _LONG_AGO


def sources_of(client: ApiClient, name: str) -> list[LogSource]:
    """The processes that a name stands for: a model's on all nodes, or all processes of a node."""
    nodes = list(all_nodes(client))
    of_model = _of_model(client, name, nodes)
    if of_model is None:
        try:
            node = choose_node(nodes, name)
            processes = client.get(api_path("nodes", node.id, "logs"), list[str])
            return [LogSource(node.id, node.name, process) for process in processes]
        except NotFound as unknown:
            raise NotFound(f"there is no model {name}, and {unknown.message}") from None
    if namesakes := [node for node in nodes if node.name == name]:
        raise Conflict(f"{name} is a model and a node; name the node by its id, {namesakes[0].id}")
    return of_model


def _of_model(client: ApiClient, name: str, nodes: Iterable[NodeDetail]) -> list[LogSource] | None:
    """The processes of a model's replicas, also of those that are gone; None when there is no such model."""
    try:
        model = client.get(api_path("models", name), ModelView)
    except NotFound:
        return None
    names = {node.id: node.name for node in nodes}
    process = model.alias_of or model.name
    processes = {
        (replica.node_id, f"{process}#{replica.index}") for replica in model.replicas if replica.node_id in names
    }
    return [
        LogSource(id, names[id], key) for id, key in sorted(processes, key=lambda entry: (names[entry[0]], entry[1]))
    ]


def _print(written: Iterable[SourcedLine], *, as_json: bool, has_prefix: bool) -> None:
    for source, line in written:
        if as_json:
            fields = {"timestamp": line.at, "stream": line.stream, "text": line.text, "truncated": line.truncated}
            fields |= {"length": line.length}
            print_json_line({"node": source.node, "process": source.process, **fields})
        else:
            prefix = f"{source.node} {source.process} | " if has_prefix else ""
            more = f" … ({line.length} bytes)" if line.truncated else ""
            click.echo(printable(prefix + line.text.expandtabs()) + more)
