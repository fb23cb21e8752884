"""Which node is meant: by its id, a unique beginning of the id, or a unique name."""

import difflib
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import click
from click.shell_completion import CompletionItem

from corral.base.errors import Conflict, CorralError, NotFound
from corral.base.words import listed
from corral.cli.client import ApiClient, Query
from corral.wire.node_views import NodeDetail, NodePage

PAGE: Final = 1000
SHORT_ID: Final = 8
_LISTED: Final = 10
_COMPLETION_TIMEOUT: Final = "1s"


def _unheard(_: str) -> None:
    """Most commands are not about alarms."""


def all_nodes(
    client: ApiClient, query: Query = (), *, on_alarm: Callable[[str], None] = _unheard
) -> Iterator[NodeDetail]:
    """Every node that fits, page by page; an alarm of the fleet is told beside them."""
    cursor: str | None = ""
    while cursor is not None:
        page = client.get(
            "/api/v1/nodes",
            NodePage,
            [*query, ("limit", str(PAGE)), *([("cursor", cursor)] if cursor else [])],
        )
        if page.alarm and not cursor:
            on_alarm(page.alarm)
        yield from page.items
        cursor = page.next_cursor


def find_node(client: ApiClient, reference: str) -> NodeDetail:
    """The one node that is meant; NotFound with near names, Conflict with the candidates."""
    return choose(list(all_nodes(client)), reference)


def find_nodes(client: ApiClient, references: Sequence[str]) -> list[NodeDetail]:
    """The same for several, none of them twice."""
    known = list(all_nodes(client)) if references else []
    return list({found.id: found for found in (choose(known, one) for one in references)}.values())


def choose(nodes: Sequence[NodeDetail], reference: str) -> NodeDetail:
    """An exact id wins, then a unique name, then a unique beginning of an id."""
    wanted = reference.strip()
    by_id = [node for node in nodes if node.id == wanted]
    by_name = [node for node in nodes if node.name == wanted]
    by_beginning = [node for node in nodes if wanted and node.id.startswith(wanted.lower())]
    for found in (by_id, by_name, by_beginning):
        if len(found) == 1:
            return found[0]
        if found:
            raise Conflict(f"{reference} may mean {_listed(found)}; name one by its id")
    raise NotFound(f"there is no node {reference}{_near(nodes, wanted)}")


def _listed(nodes: Sequence[NodeDetail]) -> str:
    return listed([f"{node.id} ({node.name}, {node.status})" for node in nodes], most=_LISTED)


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
    from corral.cli.frontend_target import target_of
    from corral.cli.options import given_flags
    from corral.processes.settings import ClientSettings, gather
    from corral.processes.settings_sources import resolve

    flags = {**given_flags(context), "--timeout": _COMPLETION_TIMEOUT}
    return ApiClient(target_of(resolve(ClientSettings, gather(flags))))
