"""Corral's own routes about operations: listing, following and changing them.

A stream sends states, not a history: a slow reader skips states in between, gets the newest one, and delays nobody. It
can be resumed at any frontend.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Final

import msgspec
from msgspec.structs import replace
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from corral.base.errors import InvalidInput
from corral.base.ids import NodeId, OperationId
from corral.base.tasks import Poke
from corral.frontend.access.decide import Permission
from corral.frontend.access.principals import Principal
from corral.frontend.api.parameters import number, some_of
from corral.frontend.api.route import (
    DEFAULT_LIMIT,
    MAX_LIMIT,
    AdminContext,
    Caller,
    RouteSpec,
    answer,
    read_body,
    read_choices,
    read_limit,
    read_text,
)
from corral.frontend.api.streams import stream_response
from corral.frontend.backends.planning import Planned
from corral.frontend.nodes.fleet import read_cursor, write_cursor
from corral.frontend.operations.decide.intent import Intent, Verb
from corral.frontend.operations.decide.operation import Operation, OperationFilter, OperationState
from corral.frontend.operations.decide.reasons import sentence
from corral.frontend.operations.progress import ALL
from corral.frontend.operations.shapes import operation_view
from corral.wire.go_json import decode
from corral.wire.operation_views import (
    Changed,
    NodesAsk,
    OperationPage,
    OperationUpdate,
    OperationView,
    PlannedView,
)

_PERIOD: Final = timedelta(milliseconds=500)
"""Between looks while something is under way: so what another frontend stored is seen, of which nobody rings."""
_CALM_PERIOD: Final = timedelta(seconds=5)
_KEEP_ALIVE: Final = timedelta(seconds=15)

OperationCursor = tuple[datetime, str]
"""When an operation was accepted, and its id."""


def read_place(query: QueryParams, *, usual: int, most: int) -> tuple[int, OperationCursor | None]:
    """How many are asked for, and after which one."""
    limit, cursor = read_limit(query, usual=usual, most=most), query.get("cursor")
    if not cursor:
        return limit, None
    at, id = read_cursor(cursor)
    try:
        return limit, (datetime.fromisoformat(at), id)
    except ValueError as error:
        raise InvalidInput("cursor", "is not one that this API gave out") from error


def cut(operations: Sequence[Operation], limit: int) -> tuple[Sequence[Operation], str | None]:
    """A page of one operation more than asked for, and where to go on; None at the end."""
    if len(operations) <= limit:
        return operations, None
    last = operations[limit - 1]
    return operations[:limit], write_cursor(last.accepted_at.isoformat(), last.id)


_LONGEST_KEY: Final = 200


async def list_operations(context: AdminContext, request: Request, caller: Caller) -> Response:
    limit, before = read_place(request.query_params, usual=DEFAULT_LIMIT, most=MAX_LIMIT)
    operation_filter = _filter(request.query_params)
    newest = context.operations.stores.operations.newest
    page, more = cut(await newest(limit=limit + 1, before=before, operation_filter=operation_filter), limit)
    return answer(OperationPage(items=[_view(context, operation) for operation in page], next_cursor=more))


def _filter(query: QueryParams) -> OperationFilter:
    return OperationFilter(
        states=read_choices(query, "state", OperationState),
        verbs=read_choices(query, "verb", Verb),
        subject=read_text(query, "backend"),
        node=read_text(query, "node"),
        asked_by=read_text(query, "asked_by"),
        text=read_text(query, "text"),
    )


async def show(context: AdminContext, request: Request, caller: Caller) -> Response:
    return answer(_view(context, await context.operations.service.get(_id(request))))


async def retry(context: AdminContext, request: Request, caller: Caller) -> Response:
    await context.operations.service.get(_id(request))
    changed = await context.operations.service.retry(_id(request), by=caller.name, nodes=await _nodes(context, request))
    return await _changed(context, request, changed, [])


async def cancel(context: AdminContext, request: Request, caller: Caller) -> Response:
    await context.operations.service.get(_id(request))
    changed = await context.operations.service.cancel(
        _id(request), by=caller.name, nodes=await _nodes(context, request)
    )
    return await _changed(context, request, changed, [intent for intent in changed if intent.may_still_finish])


async def _changed(
    context: AdminContext, request: Request, changed: Sequence[Intent], sent: Sequence[Intent]
) -> Response:
    operation = await context.operations.service.get(_id(request))
    names = {target.node_id: target.node_name for target in operation.targets}
    return answer(
        Changed(
            operation=_view(context, operation),
            nodes=sorted(names[intent.node_id] for intent in changed),
            already_sent=sorted(names[intent.node_id] for intent in sent),
        )
    )


def idempotency_key(request: Request) -> str:
    key = request.headers.get("idempotency-key", "")
    if len(key) > _LONGEST_KEY:
        raise InvalidInput("Idempotency-Key", f"has more than {_LONGEST_KEY} characters")
    return key


async def _nodes(context: AdminContext, request: Request) -> list[NodeId] | None:
    body = await read_body(request, context.config.max_body)
    nodes = decode(body, NodesAsk).nodes if body else []
    return [NodeId(node_id) for node_id in nodes] or None


def _view(context: AdminContext, operation: Operation) -> OperationView:
    return operation_view(operation, context.operations.progress.look(operation), context.clock.monotonic())


def planned_view(planned: Planned) -> PlannedView:
    node = planned.node.node
    return PlannedView(
        node_id=node.id,
        node_name=node.name,
        node_status=planned.node.status.value,
        backend=planned.wish.key,
        blocked=sentence(planned.hindrance),
        unknown=planned.unknown,
        reached=planned.is_reached,
        download_bytes=planned.download_bytes,
        digests=sorted(planned.wish.artefact.digests),
    )


def _id(request: Request) -> OperationId:
    return OperationId(request.path_params["id"])


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
        return _PERIOD if self._watch.is_under_way(self._id) else _CALM_PERIOD

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
_ADMIN = RouteSpec(
    method="GET",
    path="/api/v1/operations",
    handler=list_operations,
    access=Permission.OPERATIONS_READ,
    summary="Operations, the newest first; all that is said about which ones must hold together.",
    gives=OperationPage,
    query={
        "state": some_of("only those in this state; may be given several times", OperationState),
        "verb": some_of("only those with this verb; may be given several times", Verb),
        "backend": "only those about this backend or model, as it was asked for",
        "node": "only those with this node among their targets: its id, or the beginning of it",
        "asked_by": "only those that somebody of this name asked for; of a user, with any key",
        "text": "only those with this text in the backend, the uri, who asked or the id",
        "limit": number(f"how many, from 1 to {MAX_LIMIT}", least=1, most=MAX_LIMIT),
        "cursor": "where an earlier page ended",
    },
    codes={200: "a page", 400: "a filter, the cursor or the limit makes no sense; `field` names it"},
)
_UNKNOWN = {404: "no operation has this id"}
ROUTES = [
    _STREAM,  # before the others: no operation is called `stream`
    replace(
        _STREAM,
        path="/api/v1/operations/{id}/stream",
        handler=stream_one,
        access=Permission.OPERATIONS_READ,
        summary="One operation as server-sent events: first as it is, then the targets that change. It stays open when "
        "the operation is over, since a retry makes it go on.",
        codes={200: "a stream", 404: "no operation has this id"},
    ),
    _ADMIN,
    replace(
        _ADMIN,
        path="/api/v1/operations/{id}",
        handler=show,
        access=Permission.OPERATIONS_READ,
        summary="One operation with its targets.",
        gives=OperationView,
        query={},
        codes={200: "the operation", **_UNKNOWN},
    ),
    replace(
        _ADMIN,
        method="POST",
        path="/api/v1/operations/{id}/retry",
        handler=retry,
        access=Permission.OPERATIONS_ACT,
        summary="Try again at once what failed or is blocked, on some nodes or all.",
        takes=NodesAsk,
        may_be_empty=True,
        gives=Changed,
        query={},
        codes={200: "what was changed", 400: "a bad body", **_UNKNOWN},
    ),
    replace(
        _ADMIN,
        method="POST",
        path="/api/v1/operations/{id}/cancel",
        handler=cancel,
        access=Permission.OPERATIONS_ACT,
        summary="Take back what is not reached yet. What was sent already, nodes may still finish: they are named.",
        takes=NodesAsk,
        may_be_empty=True,
        gives=Changed,
        query={},
        codes={200: "what was changed", 400: "a bad body", **_UNKNOWN},
    ),
]
