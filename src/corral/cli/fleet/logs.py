"""`corral logs`: shows and follows what the processes of a model, or all processes of a node, write."""

import queue
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import urlencode

import click
import msgspec
from click.shell_completion import CompletionItem

from corral.base.errors import AccessDenied, Conflict, CorralError, InvalidInput, NotFound, PeerRefused, PeerUnavailable
from corral.base.retry import Backoff
from corral.base.words import parse_duration, printable, sentences
from corral.cli.client import ApiClient, FrontendFailed, api_path
from corral.cli.connection import connected, open_client
from corral.cli.names import all_nodes, choose_node, complete_model, complete_node
from corral.cli.options import CorralCommand, warn
from corral.cli.output import json_option, print_json_line
from corral.cli.units import parse_moment
from corral.wire.logs import LogGap, LogLineView, LogPage
from corral.wire.models import ModelView
from corral.wire.nodes import NodeDetail

_SOURCES_EVERY: Final = 5.0
"""Seconds between two looks for processes that are new."""
_RECONNECT: Final = Backoff(first=timedelta(seconds=1), cap=timedelta(seconds=5))
_TOO_MANY: Final = 429


class LogSource(msgspec.Struct, frozen=True):
    """One process, or all processes of a model, on one node."""

    node_id: str
    node: str
    process: str

    @property
    def path(self) -> str:
        return api_path("nodes", self.node_id, "logs", self.process)


SourcedLine = tuple[LogSource, LogLineView]


@dataclass(slots=True)
class LogFollower:
    """Each log has a thread of its own, which waits for its stream and ends with the command."""

    client: ApiClient
    query: Sequence[tuple[str, str]]
    _queue: "queue.SimpleQueue[SourcedLine | CorralError]" = field(default_factory=queue.SimpleQueue)
    _threads: dict[LogSource, threading.Thread] = field(default_factory=dict)
    _places: dict[LogSource, str] = field(default_factory=dict)
    _warned: set[str] = field(default_factory=set)
    _ended: threading.Event = field(default_factory=threading.Event)

    def follow(
        self, sources: Callable[[], Sequence[LogSource]], places: Mapping[LogSource, str]
    ) -> Generator[SourcedLine, None, None]:
        """Lines as they are written, for ever, also of processes that start meanwhile. `places` are the ids of the last
        lines that were seen. Whatever breaks is tried again; a key that is refused is not."""
        self._places.update(places)
        try:
            while True:
                for source in self._found(sources):
                    self._listen(source)
                until = time.monotonic() + _SOURCES_EVERY
                while (line := self._next(until)) is not None:
                    if isinstance(line, CorralError):
                        raise line
                    yield line
        finally:
            self._ended.set()

    def _found(self, sources: Callable[[], Sequence[LogSource]]) -> Sequence[LogSource]:
        try:
            return sources()
        except (PeerUnavailable, NotFound) as error:  # perhaps the model is gone, and comes back
            self._warn_once(f"{error.message}; trying again")
            return []

    def _next(self, until: float) -> SourcedLine | CorralError | None:
        try:
            return self._queue.get(timeout=max(until - time.monotonic(), 0))
        except queue.Empty:
            return None

    def _listen(self, source: LogSource) -> None:
        thread = self._threads.get(source)
        if thread is None or not thread.is_alive():
            name = f"log of {source.process} on {source.node}"
            self._threads[source] = threading.Thread(target=self._hear, args=(source,), name=name, daemon=True)
            self._threads[source].start()

    def _hear(self, source: LogSource) -> None:
        """Stream one source until it cannot be followed at all. The next look for sources tries it again."""
        failures = 0
        while not self._ended.is_set():
            try:
                for id, data in self._events(source):
                    failures = 0
                    self._take(source, id, data)
                    if self._ended.is_set():
                        return
            except AccessDenied as error:
                self._queue.put(error)
                return
            except PeerUnavailable as error:
                self._warn_once(f"{source.node} cannot be asked: {error.message}; trying again")
                failures += 1
            except (NotFound, PeerRefused) as error:  # the node is gone, or waits for approval
                self._warn_once(f"{source.node} cannot be asked: {error.message}")
                if getattr(error, "status", None) != _TOO_MANY:
                    return
                failures += 1
            self._ended.wait(_RECONNECT.delay(max(failures, 1)).total_seconds())

    def _events(self, source: LogSource) -> Iterator[tuple[str, str]]:
        query = urlencode([("follow", "true"), *self.query])
        return self.client.stream(f"{source.path}?{query}", last_event=self._places.get(source, ""))

    def _take(self, source: LogSource, id: str, data: str) -> None:
        if not data:  # only a sign of life
            return
        try:
            event = msgspec.json.decode(data)
            if "gap" in event:
                gap = msgspec.convert(event, LogGap)
                missed = "" if not gap.lost else f" ({gap.lost} lines)"
                warn([f"{source.node} {source.process}: {gap.gap}{missed}"])
                return
            line = msgspec.convert(event, LogLineView)
        except (msgspec.MsgspecError, TypeError) as error:
            raise PeerRefused(f"the frontend sends what is no log: {error}", status=200) from error
        self._places[source] = id
        self._queue.put((source, line))

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            warn([text])


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
    _check_since(since)
    client = open_client()
    texts = {"since": since, "search": search}
    query = [("lines", str(_MOST_LINES)), *((field, text) for field, text in texts.items() if text)]
    try:
        sources = sources_of(client, name)
        lines, silent = read_lines(client, sources, query)
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
    if not lines and not silent:
        warn([_no_line(name, since, search)])


def _check_since(since: str) -> None:
    """Refuse a text that the frontend cannot read as a time or as a duration."""
    if not since or parse_moment(since):
        return
    try:
        parse_duration(since)
    except (ValueError, OverflowError) as error:
        problem = "is no time; write one such as 2030-01-31T12:00:00Z, or a duration such as 10m"
        raise InvalidInput("--since", f"{since[:40]!r} {problem}") from error


def _no_line(name: str, since: str, search: str) -> str:
    """What to say when all processes answered, and none has a line that was asked for."""
    moment = f" since {since}{'' if parse_moment(since) else ' ago'}" if since else ""
    if search:
        return f"no line of {name}{moment} has the text {search!r}"
    return f"{name} has written nothing{moment}" if since else f"nothing was written by {name} yet"


def read_lines(
    client: ApiClient, sources: Iterable[LogSource], query: Sequence[tuple[str, str]] = ()
) -> tuple[list[SourcedLine], list[LogSource]]:
    """What the processes wrote, in the order of time, and those that could not be asked, each with a warning."""
    written: list[SourcedLine] = []
    silent: list[LogSource] = []
    for source in sources:
        try:
            written += [(source, line) for line in client.get(source.path, LogPage, query).items]
        except (FrontendFailed, NotFound, PeerRefused) as error:  # its worker failed, is gone, or waits for approval
            warn([f"{source.node} cannot be asked: {error.message}"])
            silent.append(source)
    return sorted(written, key=lambda sourced: _moment(sourced[1].at)), silent


def _moment(at: str) -> datetime:
    """When a line was written; one whose time makes no sense comes first."""
    return parse_moment(at) or _LONG_AGO


def sources_of(client: ApiClient, name: str) -> list[LogSource]:
    """The processes that a name stands for: a model's on all nodes, or all processes of a node."""
    nodes = list(all_nodes(client))
    try:
        of_model = _of_model(client, name, nodes)
    except NotFound as no_model:
        try:
            node = choose_node(nodes, name)
            processes = client.get(api_path("nodes", node.id, "logs"), list[str])
            return [LogSource(node.id, node.name, process) for process in processes]
        except NotFound as no_node:
            raise NotFound(sentences([no_model.message, no_node.message])) from None
    if namesakes := [node for node in nodes if node.name == name]:
        raise Conflict(f"{name} is a model and a node; name the node by its id, {namesakes[0].id}")
    return of_model


def _of_model(client: ApiClient, name: str, nodes: Iterable[NodeDetail]) -> list[LogSource]:
    """The processes of a model's replicas, also of those that are gone; NotFound when there is no such model."""
    model = client.get(api_path("models", name), ModelView)
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
