"""What a name on the command line means (a node, an operation, a model, a backend), and which names a shell offers."""

import difflib
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import click
from click.shell_completion import CompletionItem

from corral.base.errors import Conflict, CorralError, InvalidInput, NotFound
from corral.base.words import listed
from corral.cli.client import ApiClient, Query, operation_path
from corral.wire.models import ModelList
from corral.wire.nodes import NodeDetail, NodePage
from corral.wire.operation_views import FleetBackends, OperationPage, OperationView

_NODES_PER_PAGE: Final = 1000
SHORT_ID: Final = 8
_MOST_CANDIDATES: Final = 10
_COMPLETION_TIMEOUT: Final = "1s"


def _ignore_alarm(_: str) -> None:
    """Most commands are not about alarms."""


def all_nodes(
    client: ApiClient, query: Query = (), *, on_alarm: Callable[[str], None] = _ignore_alarm
) -> Iterator[NodeDetail]:
    """Every node that fits, page by page; an alarm of the fleet is told beside them."""
    cursor: str | None = ""
    while cursor is not None:
        page = client.get(
            "/api/v1/nodes",
            NodePage,
            [*query, ("limit", str(_NODES_PER_PAGE)), *([("cursor", cursor)] if cursor else [])],
        )
        if page.alarm and not cursor:
            on_alarm(page.alarm)
        yield from page.items
        cursor = page.next_cursor


def find_node(client: ApiClient, reference: str) -> NodeDetail:
    """The one node that is meant; NotFound with near names, Conflict with the candidates."""
    return choose_node(list(all_nodes(client)), reference)


def find_nodes(client: ApiClient, references: Sequence[str]) -> list[NodeDetail]:
    """The same for several, none of them twice."""
    known = list(all_nodes(client)) if references else []
    return list({found.id: found for found in (choose_node(known, one) for one in references)}.values())


def choose_node(nodes: Sequence[NodeDetail], reference: str) -> NodeDetail:
    """An exact id wins, then a unique name, then a unique beginning of an id."""
    wanted = reference.strip()
    by_id = [node for node in nodes if node.id == wanted]
    by_name = [node for node in nodes if node.name == wanted]
    by_beginning = [node for node in nodes if wanted and node.id.startswith(wanted.lower())]
    for found in (by_id, by_name, by_beginning):
        if len(found) == 1:
            return found[0]
        if found:
            raise Conflict(f"{reference} may mean {_candidates(found)}; name one by its id")
    raise NotFound(f"there is no node {reference}{_near(nodes, wanted)}")


def _candidates(nodes: Sequence[NodeDetail]) -> str:
    return listed([f"{node.id} ({node.name}, {node.status})" for node in nodes], most=_MOST_CANDIDATES)


def _near(nodes: Sequence[NodeDetail], wanted: str) -> str:
    close = difflib.get_close_matches(wanted, {node.name for node in nodes}, n=3)
    if close:
        return f"; did you mean {' or '.join(close)}?"
    return "; `corral nodes list` shows all" if nodes else "; no node has registered yet"


def complete_node(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names, or ids once an id was begun. Quick, and silent when anything fails: a prompt is no place for messages."""
    try:
        nodes = list(all_nodes(quick_client(context)))
    except (CorralError, OSError, ValueError):
        return []
    names = [CompletionItem(node.name, help=node.status) for node in nodes if node.name.startswith(incomplete)]
    ids = [CompletionItem(node.id, help=node.name) for node in nodes if node.id.startswith(incomplete)]
    return names or ids


def quick_client(context: click.Context) -> ApiClient:
    """A client that gives up before anybody at a prompt would."""
    from corral.cli.connection import target_of
    from corral.cli.options import given_flags
    from corral.processes.settings import ClientSettings, gather
    from corral.processes.settings_sources import resolve

    flags = {**given_flags(context), "--timeout": _COMPLETION_TIMEOUT}
    return ApiClient(target_of(resolve(ClientSettings, gather(flags))))


OPERATIONS_PATH: Final = "/api/v1/operations"
_OPERATIONS_PER_PAGE: Final = 100
_WHOLE_ID: Final = 36
_MOST_OFFERED: Final = 50


def newest_operations(client: ApiClient, *, limit: int | None = None) -> Iterator[OperationView]:
    """The newest first, page by page."""
    cursor: str | None = ""
    left = limit
    while cursor is not None and (left is None or left > 0):
        size = _OPERATIONS_PER_PAGE if left is None else min(left, _OPERATIONS_PER_PAGE)
        query = [("limit", str(size)), *([("cursor", cursor)] if cursor else [])]
        page = client.get(OPERATIONS_PATH, OperationPage, query)
        yield from page.items
        left = None if left is None else left - len(page.items)
        cursor = page.next_cursor


def get_operation(client: ApiClient, id: str) -> OperationView:
    return client.get(operation_path(id), OperationView)


def find_operation(client: ApiClient, reference: str) -> OperationView:
    """The one that is meant, the newest if nothing was said; NotFound or Conflict when that is none, or several."""
    wanted = reference.strip().lower()
    if len(wanted) == _WHOLE_ID:
        return get_operation(client, wanted)
    if not wanted:
        found = list(newest_operations(client, limit=1))
        if not found:
            raise NotFound("there is no operation yet; `corral backends install` starts one")
        return found[0]
    fitting = [one for one in newest_operations(client) if one.id.startswith(wanted)]
    if not fitting:
        raise NotFound(f"there is no operation {reference}; `corral ops list` shows all")
    if len(fitting) > 1:
        told = ", ".join(f"{one.id} ({one.verb} {one.backend})" for one in fitting[:10])
        raise Conflict(f"{reference} may mean {told}; give more of the id")
    return fitting[0]


def complete_operation(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of the newest operations. Silent when anything fails: a prompt is no place for messages."""
    try:
        found = list(newest_operations(quick_client(context), limit=_MOST_OFFERED))
    except (CorralError, OSError, ValueError):
        return []
    return [
        CompletionItem(one.id, help=f"{one.verb} {one.backend}: {one.state}")
        for one in found
        if one.id.startswith(incomplete)
    ]


def complete_model(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Silent when anything fails: a prompt is no place for messages."""
    try:
        found = quick_client(context).get("/api/v1/models", ModelList)
    except (CorralError, OSError, ValueError):
        return []
    return [CompletionItem(one.name, help=one.state) for one in found.items if one.name.startswith(incomplete)]


_BACKENDS_PATH: Final = "/api/v1/backends"


def unknown_backend_warnings(client: ApiClient, backend: str) -> list[str]:
    """A warning when no node has told of a backend with this name: it may be mistyped."""
    known = [one.name for one in client.get(_BACKENDS_PATH, FleetBackends).items]
    name = backend.rpartition("@")[2]
    if name in known:
        return []
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else "`corral backends list` shows what there is"
    return [f"no node is known to have {backend}; {hint}"]


def complete_installed(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Silent when anything fails: a prompt is no place for messages."""
    try:
        found = quick_client(context).get(_BACKENDS_PATH, FleetBackends)
    except (CorralError, OSError, ValueError):
        return []
    return [
        CompletionItem(one.name, help=f"on {len(one.nodes)} nodes")
        for one in found.items
        if one.name.startswith(incomplete)
    ]


def read_labels(labels: Sequence[str]) -> dict[str, str]:
    wanted: dict[str, str] = {}
    for label in labels:
        key, equals, value = label.partition("=")
        if not key or not equals:
            raise InvalidInput("--label", f"{label[:100]!r} is no label; write KEY=VALUE")
        if wanted.setdefault(key, value) != value:
            raise InvalidInput("--label", f"{key} cannot be {wanted[key]!r} and {value!r} at once; ask twice")
    return wanted
