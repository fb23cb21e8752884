"""The record of events, as a list or as a live stream that can be resumed: `/api/v1/events`."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from datetime import timedelta

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from corral.base.errors import InvalidInput
from corral.base.tasks import Poke
from corral.frontend.access.decide import Permission
from corral.frontend.access.principals import Principal
from corral.frontend.api.route import AdminContext, Caller, RouteSpec, answer, read_limit
from corral.frontend.api.streams import STREAM, stream_response
from corral.frontend.record.decide import StoredEvent
from corral.frontend.record.shapes import event_view
from corral.wire.nodes import EventView

KEEP_ALIVE = timedelta(seconds=15)
_BATCH = 500


async def events(context: AdminContext, request: Request, caller: Caller) -> Response:
    """A stream for those who accept `text/event-stream`, otherwise a list."""
    after = _after(request)
    if STREAM in request.headers.get("accept", ""):
        start = await context.record.events.last_sequence() if after is None else after
        return stream_response(context, request, _NewEvents(context, start))
    limit = read_limit(request.query_params)
    if after is None:
        batch = [*reversed(await context.record.events.newest(limit))]
    else:
        batch = await context.record.events.after(after, limit=limit)
    return answer([event_view(stored) for stored in batch])


class _NewEvents:
    """What is written to the record after a sequence number, one reader's share at a time."""

    retry_milliseconds = 2000
    keep_alive = KEEP_ALIVE
    comment = b": still here\n\n"

    def __init__(self, context: AdminContext, sequence: int) -> None:
        self._record = context.record
        self._sequence = sequence
        self._has_more = False

    def listening(self) -> AbstractContextManager[Poke]:
        return self._record.feed.listener()

    async def news(self) -> Iterable[bytes]:
        batch = await self._record.events.after(self._sequence, limit=_BATCH)
        self._has_more = len(batch) == _BATCH
        if batch:
            self._sequence = batch[-1].sequence
        return map(_event, batch)

    def pause(self) -> timedelta:
        return timedelta(0) if self._has_more else KEEP_ALIVE

    def may_go_on(self, principal: Principal) -> bool:
        return principal.can(Permission.AUDIT_READ)


def _event(stored: StoredEvent) -> bytes:
    head = f"id: {stored.sequence}\nevent: {stored.event.kind}\ndata: "
    return head.encode() + msgspec.json.encode(event_view(stored)) + b"\n\n"


def _after(request: Request) -> int | None:
    """Where the reader stopped: browsers say it in `Last-Event-ID`."""
    text = request.headers.get("last-event-id") or request.query_params.get("after")
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InvalidInput("after", f"must be the sequence number of an event, got {text[:20]!r}")
    return int(text)


ROUTES = [
    RouteSpec(
        "GET",
        "/api/v1/events",
        events,
        "What happened; as server-sent events when the client accepts them.",
        access=Permission.AUDIT_READ,
        gives=list[EventView],
        query={
            "after": "only events after this sequence number (or the header `Last-Event-ID`)",
            "limit": "at most so many, 1 to 1000",
        },
        codes={200: "a list, or a stream", 400: "`after` or `limit` makes no sense"},
    )
]
