"""Operations as live streams that can be resumed: `/api/v1/operations/{id}/stream`, and one of all of them.

A stream tells states, not a history: whoever reads slowly misses what was in between and gets the newest, and delays
nobody.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from corral.base.errors import CorralError
from corral.base.ids import OperationId
from corral.frontend.access.principals import principal_of
from corral.frontend.api.context import AdminContext, Caller
from corral.frontend.api.route import Access, RouteSpec
from corral.frontend.operations.progress import ALL
from corral.wire.keys import Scope
from corral.wire.operation_views import OperationUpdate

log = logging.getLogger(__name__)

PERIOD: Final = timedelta(milliseconds=500)
"""Between looks while something is under way: so what another frontend stored is seen, of which nobody rings."""
CALM_PERIOD: Final = timedelta(seconds=5)
_KEEP_ALIVE: Final = 15.0


async def stream_one(context: AdminContext, request: Request, caller: Caller) -> Response:
    id = OperationId(request.path_params["id"])
    await context.operations.service.get(id)
    return _answer(_stream(context, request, id))


async def stream_all(context: AdminContext, request: Request, caller: Caller) -> Response:
    return _answer(_stream(context, request, ALL))


def _answer(content: AsyncIterator[bytes]) -> Response:
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(content, media_type="text/event-stream", headers=headers)


async def _stream(context: AdminContext, request: Request, id: OperationId | None) -> AsyncIterator[bytes]:
    """Until the client leaves, the process stops, the key is revoked or the database is gone."""
    watch = context.operations.watch
    place = watch.place_of(request.headers.get("last-event-id", ""))
    quiet_since = context.clock.monotonic()
    with ExitStack() as stack:
        poke = stack.enter_context(context.record.feed.listener())
        stack.enter_context(context.operations.progress.rings(poke, id))
        yield b"retry: 2000\n\n"
        while not context.stopping.is_set():
            try:
                if not await _may_read(context, request):
                    return
                updates = await (watch.all(place) if id is ALL else watch.one(id, place))
            except CorralError as error:
                log.warning("operation stream ended", extra={"event": "operations.stream_ended", "reason": str(error)})
                return
            place = watch.here
            for update in updates:
                yield _frame(update, watch.name_of(place))
            if updates:
                quiet_since = context.clock.monotonic()
            elif context.clock.monotonic() - quiet_since >= _KEEP_ALIVE:
                quiet_since = context.clock.monotonic()
                yield b": still here\n\n"
            await poke.wait(context.clock, PERIOD if watch.is_under_way(id) else CALM_PERIOD)


async def _may_read(context: AdminContext, request: Request) -> bool:
    principal = await principal_of(request.headers, context.access.authenticator)
    return principal is not None and principal.may(Scope.ADMIN)


def _frame(update: OperationUpdate, id: str) -> bytes:
    return f"id: {id}\nevent: operation\ndata: ".encode() + msgspec.json.encode(update) + b"\n\n"


_ALL = RouteSpec(
    method="GET",
    path="/api/v1/operations/stream",
    handler=stream_all,
    access=Access.ADMIN,
    summary="All operations that are not over, as server-sent events: first as they are, then whatever changes, their "
    "end too. After a break, `Last-Event-ID` says what need not be told again, at any frontend.",
    gives=OperationUpdate,
    codes={200: "a stream"},
)

ROUTES = [
    _ALL,
    replace(
        _ALL,
        path="/api/v1/operations/{id}/stream",
        handler=stream_one,
        summary="One operation as server-sent events: first as it is, then the targets that change. It stays open when "
        "the operation is over, since a retry makes it go on.",
        codes={200: "a stream", 404: "no operation has this id"},
    ),
]
