"""The record of events, as a list or as a live stream that can be resumed: `/api/v1/events`."""

import logging
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from corral.base.errors import CorralError, InvalidInput
from corral.frontend.access.decide import Permission
from corral.frontend.access.principals import principal_of
from corral.frontend.api.route import AdminContext, Caller, RouteSpec, answer, read_limit, read_number, read_text
from corral.frontend.record.decide import EventFilter, EventKind, StoredEvent
from corral.wire.go_json import format_time
from corral.wire.nodes import EventView

log = logging.getLogger(__name__)

KEEP_ALIVE = timedelta(seconds=15)
_BATCH = 500


async def events(context: AdminContext, request: Request, caller: Caller) -> Response:
    """A stream for those who accept `text/event-stream`, otherwise a list."""
    after, which = _after(request), _filter(request.query_params)
    if "text/event-stream" in request.headers.get("accept", ""):
        start = await context.record.events.last_sequence() if after is None else after
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        stream = _stream(context, request, which, start)
        return StreamingResponse(stream, media_type="text/event-stream", headers=headers)
    limit, before = read_limit(request.query_params), read_number(request.query_params, "before")
    batch = await context.record.events.page(which, limit=limit, after=after, before=before)
    return answer([event_view(stored) for stored in batch])


def _filter(query: QueryParams) -> EventFilter:
    return EventFilter(
        node=read_text(query, "node"),
        kinds=_kinds(query.getlist("kind")),
        actor=read_text(query, "actor"),
        subject=read_text(query, "subject"),
        text=read_text(query, "text"),
    )


def _kinds(texts: Sequence[str]) -> frozenset[EventKind]:
    """The kinds of these names, and all kinds of a group such as `node`."""
    kinds: set[EventKind] = set()
    for text in texts:
        meant = {kind for kind in EventKind if kind.value == text or kind.value.startswith(f"{text}.")}
        if not meant:
            raise InvalidInput("kind", f"no kind of event is called {text[:40]!r}; docs/reference/events.md lists all")
        kinds |= meant
    return frozenset(kinds)


async def _stream(context: AdminContext, request: Request, which: EventFilter, sequence: int) -> AsyncIterator[bytes]:
    """Until the client leaves, the process stops, the key is revoked or the database is gone."""
    with context.record.feed.listener() as poke:
        yield b"retry: 2000\n\n"
        while not context.stopping.is_set():
            try:
                principal = await principal_of(request.headers, context.access.authenticator)
                if principal is None or not principal.can(Permission.AUDIT_READ):
                    return
                newest = await context.record.events.last_sequence()
                batch = await context.record.events.page(which, after=sequence, limit=_BATCH)
            except CorralError as error:
                log.warning("event stream ended", extra={"event": "events.stream_ended", "reason": str(error)})
                return
            for stored in batch:
                sequence = stored.sequence
                data = msgspec.json.encode(event_view(stored))
                yield f"id: {sequence}\nevent: {stored.event.kind}\n".encode() + b"data: " + data + b"\n\n"
            if len(batch) == _BATCH:
                continue
            sequence = max(sequence, newest)  # what was passed over is not looked at again
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
        "What happened, the oldest first; as server-sent events when the client accepts them. All that is said about "
        "which events must hold together.",
        access=Permission.AUDIT_READ,
        gives=list[EventView],
        query={
            "node": "only events of this node: its id, or the beginning of it",
            "kind": "only events of this kind, or of a group such as `node`; may be given several times",
            "actor": "only what somebody of this name did; of a user, with any key",
            "subject": "only events about this: the name of a model or backend, the id of an operation",
            "text": "only events with this text in the kind, the actor or the data",
            "after": "only events after this sequence number (or the header `Last-Event-ID`)",
            "before": "only events before this sequence number; without `after`, the latest of them",
            "limit": "at most so many, 1 to 1000",
        },
        codes={200: "a list, or a stream", 400: "a filter or a number makes no sense; `field` names it"},
    )
]
