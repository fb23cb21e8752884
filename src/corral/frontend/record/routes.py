"""The record of events, as a list or as a live stream that can be resumed: `/api/v1/events`."""

import logging
from collections.abc import AsyncIterator
from datetime import timedelta

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from corral.base.errors import CorralError, InvalidInput
from corral.frontend.access.decide import Permission
from corral.frontend.access.principals import principal_of
from corral.frontend.api.route import AdminContext, Caller, RouteSpec, answer, read_limit
from corral.frontend.record.decide import StoredEvent
from corral.wire.go_json import format_time
from corral.wire.nodes import EventView

log = logging.getLogger(__name__)

KEEP_ALIVE = timedelta(seconds=15)
_BATCH = 500


async def events(context: AdminContext, request: Request, caller: Caller) -> Response:
    """A stream for those who accept `text/event-stream`, otherwise a list."""
    after = _after(request)
    if "text/event-stream" in request.headers.get("accept", ""):
        start = await context.record.events.last_sequence() if after is None else after
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(_stream(context, request, start), media_type="text/event-stream", headers=headers)
    limit = read_limit(request.query_params)
    if after is None:
        batch = [*reversed(await context.record.events.newest(limit))]
    else:
        batch = await context.record.events.after(after, limit=limit)
    return answer([event_view(stored) for stored in batch])


async def _stream(context: AdminContext, request: Request, sequence: int) -> AsyncIterator[bytes]:
    """Until the client leaves, the process stops, the key is revoked or the database is gone."""
    with context.record.feed.listener() as poke:
        yield b"retry: 2000\n\n"
        while not context.stopping.is_set():
            try:
                principal = await principal_of(request.headers, context.access.authenticator)
                if principal is None or not principal.can(Permission.AUDIT_READ):
                    return
                batch = await context.record.events.after(sequence, limit=_BATCH)
            except CorralError as error:
                log.warning("event stream ended", extra={"event": "events.stream_ended", "reason": str(error)})
                return
            for stored in batch:
                sequence = stored.sequence
                data = msgspec.json.encode(event_view(stored))
                yield f"id: {sequence}\nevent: {stored.event.kind}\n".encode() + b"data: " + data + b"\n\n"
            if len(batch) == _BATCH:
                continue
            await poke.wait(context.clock, KEEP_ALIVE)
            yield b": still here\n\n"


def event_view(stored: StoredEvent) -> EventView:
    event = stored.event
    return EventView(
        sequence=stored.sequence,
        kind=event.kind.value,
        at=format_time(event.at),
        actor=event.actor,
        node_id=event.node_id,
        data=dict(event.data),
    )


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
