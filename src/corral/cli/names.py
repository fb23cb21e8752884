"""What a name on the command line means (a node, an operation, a model, a backend), and which names a shell offers."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

from corral.base.errors import Conflict, CorralError, InvalidInput, NotFound
from corral.base.words import counted, listed, near_names
from corral.cli.client import ApiClient, Query, api_path
from corral.cli.connection import target_of
from corral.cli.options import given_flags
from corral.processes.settings import ClientSettings, gather
from corral.processes.settings_sources import resolve
from corral.wire.engines import ExternalEngineView
from corral.wire.galleries import FleetBackends
from corral.wire.gallery_models import GalleryModelList
from corral.wire.models import ModelList
from corral.wire.nodes import NodeDetail, NodePage
from corral.wire.operation_views import OperationPage, OperationView

F = TypeVar("F", bound=Callable[..., Any])
OPERATIONS_PATH: Final = "/api/v1/operations"
BACKENDS_PATH: Final = "/api/v1/backends"
_NODES_PER_PAGE: Final = 1000
_OPERATIONS_PER_PAGE: Final = 100
_WHOLE_ID: Final = 36
_MOST_CANDIDATES: Final = 10
_MOST_OFFERED: Final = 50
_COMPLETION_TIMEOUT: Final = "1s"


def all_nodes(
    client: ApiClient, query: Query = (), *, on_alarm: Callable[[str], None] = lambda alarm: None
) -> Iterator[NodeDetail]:
    """Fetch all nodes that match the query, page by page. An alarm of the fleet is passed to `on_alarm`."""
    cursor: str | None = ""
    while cursor is not None:
        paging = [("limit", str(_NODES_PER_PAGE)), *([("cursor", cursor)] if cursor else [])]
        page = client.get("/api/v1/nodes", NodePage, [*query, *paging])
        if page.alarm and not cursor:
            on_alarm(page.alarm)
        yield from page.items
        cursor = page.next_cursor


def find_node(client: ApiClient, reference: str) -> NodeDetail:
    """The node that the reference means; NotFound suggests similar names, Conflict lists the candidates."""
    return choose_node(list(all_nodes(client)), reference)


def node_filter(client: ApiClient, reference: str) -> str:
    """What to ask for to see only what concerns a node: its id. A node that is gone is known by its id alone."""
    try:
        return find_node(client, reference).id
    except NotFound:
        if not re.fullmatch(r"[0-9a-f-]{4,36}", reference.lower()):
            raise
        return reference.lower()


def find_nodes(client: ApiClient, references: Sequence[str]) -> list[NodeDetail]:
    """The nodes that the references mean, each node once; fails as `find_node` does."""
    nodes = list(all_nodes(client)) if references else []
    chosen = (choose_node(nodes, reference) for reference in references)
    return list({node.id: node for node in chosen}.values())


def choose_node(nodes: Sequence[NodeDetail], reference: str) -> NodeDetail:
    """An exact id wins, then a unique name, then a unique beginning of an id."""
    name = reference.strip()
    by_id = [node for node in nodes if node.id == name]
    by_name = [node for node in nodes if node.name == name]
    by_beginning = [node for node in nodes if name and node.id.startswith(name.lower())]
    for candidates in (by_id, by_name, by_beginning):
        if len(candidates) == 1:
            return candidates[0]
        if candidates:
            described = [f"{node.id} ({node.name}, {node.status})" for node in candidates]
            raise Conflict(f"{reference} may mean {listed(described, most=_MOST_CANDIDATES)}; name one by its id")
    hint = "`corral nodes list` shows all" if nodes else "no node has registered yet"
    if similar := near_names(name, {node.name for node in nodes}):
        hint = f"did you mean {' or '.join(similar)}?"
    raise NotFound(f"there is no node {reference}; {hint}")


def newest_operations(client: ApiClient, query: Query = (), *, limit: int | None = None) -> Iterator[OperationView]:
    """Fetch operations page by page, the newest first; `query` says which ones."""
    cursor: str | None = ""
    remaining = limit
    while cursor is not None and (remaining is None or remaining > 0):
        size = _OPERATIONS_PER_PAGE if remaining is None else min(remaining, _OPERATIONS_PER_PAGE)
        place = [("limit", str(size)), *([("cursor", cursor)] if cursor else [])]
        page = client.get(OPERATIONS_PATH, OperationPage, [*query, *place])
        yield from page.items
        remaining = None if remaining is None else remaining - len(page.items)
        cursor = page.next_cursor


def find_operation(client: ApiClient, reference: str) -> OperationView:
    """The operation whose id begins with the reference, or the newest when the reference is empty.

    NotFound when there is none, Conflict when there are several.
    """
    beginning = reference.strip().lower()
    if len(beginning) == _WHOLE_ID:
        return client.get(api_path("operations", beginning), OperationView)
    if not beginning:
        newest = next(newest_operations(client, limit=1), None)
        if newest is None:
            raise NotFound("there is no operation yet; `corral backends install` starts one")
        return newest
    matching = [operation for operation in newest_operations(client) if operation.id.startswith(beginning)]
    if not matching:
        raise NotFound(f"there is no operation {reference}; `corral ops list` shows all")
    if len(matching) > 1:
        candidates = ", ".join(f"{operation.id} ({_title(operation)})" for operation in matching[:_MOST_CANDIDATES])
        raise Conflict(f"{reference} may mean {candidates}; give more of the id")
    return matching[0]


def _title(operation: OperationView) -> str:
    return f"{operation.verb} {operation.backend}"


def unknown_backend_warnings(client: ApiClient, backend: str) -> list[str]:
    """A warning when no node has reported a backend with this name: it may be mistyped."""
    installed = [view.name for view in client.get(BACKENDS_PATH, FleetBackends).items]
    name = backend.rpartition("@")[2]
    if name in installed:
        return []
    similar = near_names(name, installed)
    hint = f"did you mean {' or '.join(similar)}?" if similar else "`corral backends list` shows what there is"
    return [f"no node is known to have {backend}; {hint}"]


def read_labels(labels: Sequence[str], flag: str = "--label") -> dict[str, str]:
    """Labels that were given as KEY=VALUE; InvalidInput for anything else, and for one key with two values."""
    values: dict[str, str] = {}
    for label in labels:
        key, equals, value = label.partition("=")
        if not key or not equals:
            raise InvalidInput(flag, f"{label[:100]!r} is no label; write KEY=VALUE")
        if values.setdefault(key, value) != value:
            raise InvalidInput(flag, f"{key} cannot be {values[key]!r} and {value!r} at once; ask twice")
    return values


Offers = Sequence[tuple[str, str]]
"""Values that a shell may offer, each with a word about it."""
Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _completer(fetch: Callable[[ApiClient, str], Offers]) -> Completer:
    """Offer the fetched values that begin as what was typed; none when fetching fails: a prompt shows no errors."""

    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        flags = {**given_flags(context), "--timeout": _COMPLETION_TIMEOUT}  # somebody waits at a prompt
        try:
            client = ApiClient(target_of(resolve(ClientSettings, gather(flags))))
            offers = fetch(client, incomplete)
        except (CorralError, OSError, ValueError):
            return []
        return [CompletionItem(value, help=help) for value, help in offers if value.startswith(incomplete)]

    return complete


def _node_offers(client: ApiClient, incomplete: str) -> Offers:
    """Names of nodes, or their ids when no name matches."""
    nodes = list(all_nodes(client))
    has_name = any(node.name.startswith(incomplete) for node in nodes)
    return [(node.name, node.status) if has_name else (node.id, node.name) for node in nodes]


complete_node = _completer(_node_offers)
complete_operation = _completer(
    lambda client, _: [
        (operation.id, f"{_title(operation)}: {operation.state}")
        for operation in newest_operations(client, limit=_MOST_OFFERED)
    ]
)
complete_model = _completer(
    lambda client, _: [(model.name, model.state) for model in client.get("/api/v1/models", ModelList).items]
)
complete_offered_model = _completer(
    lambda client, incomplete: [
        (entry.name, ", ".join(entry.uses))
        for entry in client.get(
            "/api/v1/gallery-models", GalleryModelList, [("term", incomplete), ("per_page", str(_MOST_OFFERED))]
        ).items
    ]
)
complete_engine = _completer(
    lambda client, _: [
        (f"{engine.model}/{engine.name}", engine.state)
        for engine in client.get("/api/v1/external-engines", list[ExternalEngineView])
    ]
)
complete_installed = _completer(
    lambda client, _: [
        (view.name, f"on {counted(len(view.nodes), 'node')}") for view in client.get(BACKENDS_PATH, FleetBackends).items
    ]
)


def nodes_option(help: str = "Only on this node; may be given several times.") -> Callable[[F], F]:
    """Adds --node, which may be given several times and is passed on as `nodes`."""
    return click.option("--node", "nodes", multiple=True, metavar="NODE", shell_complete=complete_node, help=help)


node_argument = click.argument("node", shell_complete=complete_node)
