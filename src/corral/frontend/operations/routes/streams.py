"""Following operations as server-sent events.

A stream sends states, not a history: a slow reader skips states in between, gets the newest one, and delays nobody. It
can be resumed at any frontend.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from corral.base.ids import OperationId
from corral.base.tasks import Poke
from corral.frontend.access.decide import Permission
from corral.frontend.access.principals import Principal
from corral.frontend.api.route import AdminContext, Caller, RouteSpec
from corral.frontend.api.streams import stream_response
from corral.frontend.operations.progress import ALL
from corral.wire.operation_views import OperationUpdate

PERIOD: Final = timedelta(milliseconds=500)
"""Between looks while something is under way: so what another frontend stored is seen, of which nobody rings."""
CALM_PERIOD: Final = timedelta(seconds=5)
_KEEP_ALIVE: Final = timedelta(seconds=15)


async def stream_one(context: AdminContext, request: Request, caller: Caller) -> Response:
    id = OperationId(request.path_params["id"])
    await context.operations.service.get(id)
    return stream_response(context, request, _OperationNews(context, request, id))


async def stream_all(context: AdminContext, request: Request, caller: Caller) -> Response:
    return stream_response(context, request, _OperationNews(context, request, ALL))


class _OperationNews:
    """What changes of one operation or of all, for one reader."""

    retry_milliseconds = 2000
    keep_alive = _KEEP_ALIVE
    comment = b": still here\n\n"

    def __init__(self, context: AdminContext, request: Request, id: OperationId | None) -> None:
        self._context = context
        self._watch = context.operations.watch
        self._id = id
        self._place = self._watch.place_of(request.headers.get("last-event-id", ""))

    @contextmanager
    def listening(self) -> Iterator[Poke]:
        context = self._context
        with context.record.feed.listener() as poke, context.operations.progress.rings(poke, self._id):
            yield poke

    async def news(self) -> Iterable[bytes]:
        watch, id = self._watch, self._id
        updates = await (watch.all(self._place) if id is ALL else watch.one(id, self._place))
        self._place = watch.here
        head = f"id: {watch.name_of(self._place)}\nevent: operation\ndata: ".encode()
        return [head + msgspec.json.encode(update) + b"\n\n" for update in updates]

    def pause(self) -> timedelta:
        return PERIOD if self._watch.is_under_way(self._id) else CALM_PERIOD

    def may_go_on(self, principal: Principal) -> bool:
        return principal.can(Permission.OPERATIONS_READ)


_STREAM = RouteSpec(
    method="GET",
    path="/api/v1/operations/stream",
    handler=stream_all,
    access=Permission.OPERATIONS_READ,
    summary="All operations that are not over, as server-sent events: first as they are, then whatever changes, their "
    "end too. After a break, `Last-Event-ID` says what need not be sent again, at any frontend.",
    streams={"operation": OperationUpdate},
    codes={200: "a stream"},
)

ROUTES = [
    _STREAM,
    replace(
        _STREAM,
        path="/api/v1/operations/{id}/stream",
        handler=stream_one,
        access=Permission.OPERATIONS_READ,
        summary="One operation as server-sent events: first as it is, then the targets that change. It stays open when "
        "the operation is over, since a retry makes it go on.",
        codes={200: "a stream", 404: "no operation has this id"},
    ),
]
