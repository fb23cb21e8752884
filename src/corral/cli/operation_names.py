"""Which operation is meant: by its id, or a unique beginning of it. And what a shell is offered."""

from collections.abc import Iterator
from typing import Final

import click
from click.shell_completion import CompletionItem

from corral.base.errors import Conflict, CorralError, NotFound
from corral.cli.client import ApiClient, operation_path
from corral.cli.node_names import quick_client
from corral.wire.operation_views import OperationPage, OperationView

PATH: Final = "/api/v1/operations"
_PAGE: Final = 100
_WHOLE_ID: Final = 36
_OFFERED: Final = 50


def newest_operations(client: ApiClient, *, limit: int | None = None) -> Iterator[OperationView]:
    """The newest first, page by page."""
    cursor: str | None = ""
    left = limit
    while cursor is not None and (left is None or left > 0):
        size = _PAGE if left is None else min(left, _PAGE)
        query = [("limit", str(size)), *([("cursor", cursor)] if cursor else [])]
        page = client.get(PATH, OperationPage, query)
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
        found = list(newest_operations(quick_client(context), limit=_OFFERED))
    except (CorralError, OSError, ValueError):
        return []
    return [
        CompletionItem(one.id, help=f"{one.verb} {one.backend}: {one.state}")
        for one in found
        if one.id.startswith(incomplete)
    ]
