"""Lists of operations, page by page: where a page begins, and where the next one does."""

from collections.abc import Sequence
from datetime import datetime

from starlette.datastructures import QueryParams

from corral.base.errors import InvalidInput
from corral.frontend.nodes.fleet import read_cursor, write_cursor
from corral.frontend.nodes.routes.query import read_limit
from corral.frontend.operations.decide.operation import Operation

OperationCursor = tuple[datetime, str]
"""When an operation was accepted, and its id."""


def read_place(query: QueryParams, *, usual: int, most: int) -> tuple[int, OperationCursor | None]:
    """How many are asked for, and after which one."""
    cursor = query.get("cursor")
    return read_limit(query, usual=usual, most=most), _place(cursor) if cursor else None


def cut(found: Sequence[Operation], limit: int) -> tuple[Sequence[Operation], str | None]:
    """A page of one operation more than asked for, and where to go on; None at the end."""
    if len(found) <= limit:
        return found, None
    last = found[limit - 1]
    return found[:limit], write_cursor(last.accepted_at.isoformat(), last.id)


def _place(cursor: str) -> OperationCursor:
    at, id = read_cursor(cursor)
    try:
        return datetime.fromisoformat(at), id
    except ValueError as error:
        raise InvalidInput("cursor", "is not one that this API gave out") from error
