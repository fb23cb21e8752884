"""The record of events, as a list or as a live stream that can be resumed: `/api/v1/events`."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from corral.base.errors import InvalidInput
from corral.base.tasks import Poke
from corral.frontend.access.decide import Permission
from corral.frontend.access.principals import Principal
from corral.frontend.api.parameters import number, some_of
from corral.frontend.api.route import AdminContext, Caller, RouteSpec, answer, read_limit, read_number, read_text
from corral.frontend.api.streams import STREAM, stream_response
from corral.frontend.record.decide import EventFilter, EventKind, StoredEvent
from corral.frontend.record.shapes import event_view
from corral.wire.nodes import EventView

KEEP_ALIVE = timedelta(seconds=15)
_BATCH = 500


async def events(context: AdminContext, request: Request, caller: Caller) -> Response:
    """A stream for those who accept `text/event-stream`, otherwise a list."""
    after, event_filter = _after(request), _filter(request.query_params)
    if STREAM in request.headers.get("accept", ""):
        last = await context.record.events.last_sequence()
        start = last if after is None else min(after, last)  # it may be of a database that was restored since
        return stream_response(context, request, _NewEvents(context, event_filter, start))
    limit, before = read_limit(request.query_params), read_number(request.query_params, "before")
    batch = await context.record.events.page(event_filter, limit=limit, after=after, before=before)
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
        matching = {kind for kind in EventKind if kind.value == text or kind.value.startswith(f"{text}.")}
        if not matching:
            raise InvalidInput("kind", f"no kind of event is called {text[:40]!r}; docs/reference/events.md lists all")
        kinds |= matching
    return frozenset(kinds)


class _NewEvents:
    """The events that a filter lets through, from a sequence number on, for one reader."""

    retry_milliseconds = 2000
    keep_alive = KEEP_ALIVE
    comment = b": still here\n\n"

    def __init__(self, context: AdminContext, event_filter: EventFilter, sequence: int) -> None:
        self._record = context.record
        self._filter_by = event_filter
        self._sequence = sequence
        self._has_more = False

    def listening(self) -> AbstractContextManager[Poke]:
        return self._record.feed.listener()

    async def news(self) -> Iterable[bytes]:
        newest = await self._record.events.last_sequence()
        batch = await self._record.events.page(self._filter_by, after=self._sequence, limit=_BATCH)
        self._has_more = len(batch) == _BATCH
        if batch:
            self._sequence = batch[-1].sequence
        if not self._has_more:
            self._sequence = max(self._sequence, newest)  # what was passed over is not looked at again
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
        "What happened, the oldest first; as server-sent events when the client accepts them. All that is said about "
        "which events must hold together.",
        access=Permission.AUDIT_READ,
        gives=list[EventView],
        streams={"the kind of the event": EventView},
        query={
            "node": "only events of this node: its id, or the beginning of it",
            "kind": some_of("only events of this kind, or of a group such as `node`; may be given several times"),
            "actor": "only what somebody of this name did; of a user, with any key",
            "subject": "only events about this: the name of a model or backend, the id of an operation",
            "text": "only events with this text in the kind, the actor or the data",
            "after": number("only events after this sequence number (or the header `Last-Event-ID`)"),
            "before": number("only events before this sequence number; without `after`, the latest of them"),
            "limit": number("at most so many, 1 to 1000", least=1, most=1000),
        },
        codes={200: "a list, or a stream", 400: "a filter or a number makes no sense; `field` names it"},
    )
]
