"""`corral logs`: what the processes of a model, or of all models of a node, have written."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final
from urllib.parse import quote

import click
from click.shell_completion import CompletionItem

from corral.base.errors import Conflict, NotFound, PeerRefused, PeerUnavailable
from corral.base.retry import Backoff
from corral.base.words import printable
from corral.cli.client import ApiClient, FrontendFailed, api_path
from corral.cli.connection import connected, open_client
from corral.cli.names import all_nodes, choose_node, complete_model, complete_node
from corral.cli.options import CorralCommand, warn
from corral.cli.output import json_option, print_json_line
from corral.wire.models import ModelView
from corral.wire.nodes import LogLine, NodeDetail

_PERIOD: Final = 1.0
"""Seconds between two requests while following."""
_RECONNECT: Final = Backoff(first=timedelta(seconds=1), cap=timedelta(seconds=5))


@dataclass(frozen=True, slots=True)
class LogSource:
    """One process, or all processes of a model, on one node."""

    node_id: str
    node: str
    process: str

    @property
    def path(self) -> str:
        return f"/api/nodes/{self.node_id}/backend-logs/{quote(self.process, safe='')}"


def complete_model_or_node(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [*complete_model(context, parameter, incomplete), *complete_node(context, parameter, incomplete)]


@click.command(cls=CorralCommand)
@click.argument("name", metavar="MODEL|NODE", shell_complete=complete_model_or_node)
@click.option("--follow", "-f", is_flag=True, help="Go on with what is written from now on, until Ctrl-C.")
@click.option(
    "--last", default=100, show_default=True, type=click.IntRange(0, 1000), help="How many past lines to begin with."
)
@json_option
@connected
def logs(name: str, follow: bool, last: int, as_json: bool) -> None:
    """Show what the processes of a model wrote, or those of a node.

    Workers keep the last 1000 lines of each process, also of those that have ended. With several processes each line
    begins with its node and its process. With --json each line is an object.
    """
    client = open_client()
    following = Following(client, name)
    try:
        lines = following.look()
        past = lines[-last:] if last else []
        _print(past, as_json=as_json, has_prefix=following.is_several)
        if follow:
            for new in following.later():
                _print(new, as_json=as_json, has_prefix=following.is_several)
    except KeyboardInterrupt:
        return
    if not lines:
        warn([f"nothing was written by {name} yet"])


SourcedLine = tuple[LogSource, LogLine]


@dataclass(slots=True)
class Following:
    """Reads the lines of a model or a node, each line once. Warns once about each worker that cannot be asked."""

    client: ApiClient
    name: str
    is_several: bool = False
    _seen: dict[LogSource, LogLine] = field(default_factory=dict)
    _warned: set[str] = field(default_factory=set)

    def look(self) -> list[SourcedLine]:
        """The lines written since the last call, in order of time."""
        sources = sources_of(self.client, self.name)
        self.is_several = len(sources) > 1
        written = [(source, line) for source in sources for line in self._new_lines(source)]
        return sorted(written, key=lambda sourced: sourced[1].timestamp)

    def later(self) -> Iterator[list[SourcedLine]]:
        """New lines every second, for ever. A frontend that does not answer is asked again."""
        failures = 0
        while True:
            time.sleep(_RECONNECT.delay(failures).total_seconds() if failures else _PERIOD)
            try:
                yield self.look()
                failures = 0
            except PeerUnavailable as error:
                if failures == 0:
                    warn([f"{error.message}; trying again"])
                failures += 1

    def _new_lines(self, source: LogSource) -> Sequence[LogLine]:
        """The lines after the last one seen. A source that cannot be asked has none, so that others are still shown."""
        try:
            lines = self.client.get(source.path, list[LogLine])
        except (FrontendFailed, NotFound, PeerRefused) as error:  # its worker failed, is gone, or waits for approval
            text = f"{source.node} cannot be asked: {error.message}"
            if text not in self._warned:
                self._warned.add(text)
                warn([text])
            return []
        last = self._seen.get(source)
        if last in lines:
            lines = lines[len(lines) - lines[::-1].index(last) :]
        elif last is not None:  # the worker no longer keeps it
            lines = [line for line in lines if line.timestamp > last.timestamp]
        if lines:
            self._seen[source] = lines[-1]
        return lines


def sources_of(client: ApiClient, name: str) -> list[LogSource]:
    """The processes that a name stands for: a model's on all nodes, or all processes of a node."""
    nodes = list(all_nodes(client))
    of_model = _of_model(client, name, nodes)
    if of_model is None:
        try:
            node = choose_node(nodes, name)
            processes = client.get(f"/api/nodes/{node.id}/backend-logs", list[str])
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
            fields = {"timestamp": line.timestamp, "stream": line.stream, "text": line.text}
            print_json_line({"node": source.node, "process": source.process, **fields})
        else:
            prefix = f"{source.node} {source.process} | " if has_prefix else ""
            click.echo(printable(prefix + line.text.expandtabs()))
