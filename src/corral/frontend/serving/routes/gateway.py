"""How control programs its gateways: the view as a stream of lines, reports, and models that are asked for."""

import logging
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from corral.base.errors import CorralError, InvalidInput
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.frontend.access.principals import principal_of
from corral.frontend.api.answers import answer, no_content
from corral.frontend.api.context import AdminContext, Caller
from corral.frontend.api.route import Access, RouteSpec, read_body
from corral.wire.keys import Scope
from corral.wire.view import EnsureModel, GatewayReport, Loading, View, encode_line

log = logging.getLogger(__name__)

T = TypeVar("T")
_LARGEST_REPORT = 16 * 1024 * 1024


async def view(context: AdminContext, request: Request, caller: Caller) -> Response:
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_lines(context, request), media_type="application/x-ndjson", headers=headers)


async def _lines(context: AdminContext, request: Request) -> AsyncIterator[bytes]:
    """Until the gateway leaves, the process stops or the key is revoked."""
    async with aclosing(context.serving.view.follow()) as messages:
        async for message in messages:
            if context.stopping.is_set() or not await _may_go_on(context, request):
                return
            yield encode_line(message)


async def _may_go_on(context: AdminContext, request: Request) -> bool:
    """A database that is away revokes nothing: the gateway stays connected."""
    try:
        principal = await principal_of(request.headers, context.access.authenticator)
    except CorralError:
        return True
    return principal is not None and principal.may(Scope.GATEWAY)


async def report(context: AdminContext, request: Request, caller: Caller) -> Response:
    told = await _body(request, GatewayReport)
    context.serving.gateways.take(told)
    await context.serving.shares.tell(told)
    return no_content()


async def ensure(context: AdminContext, request: Request, caller: Caller) -> Response:
    status = await context.serving.loads.ensure((await _body(request, EnsureModel)).model)
    return answer(
        Loading(
            model=status.model,
            state=status.progress.phase or status.state,
            node=status.node,
            bytes_sent=status.progress.current_bytes,
            total_bytes=status.progress.total_bytes,
            eta_seconds=status.progress.eta_seconds,
            reason=status.reason or "",
            message=status.message,
            engine_lines=list(status.engine_lines),
            retry_after_seconds=max(1, round(status.retry_after.total_seconds())),
        )
    )


async def _body(request: Request, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(await read_body(request, _LARGEST_REPORT), type=kind)
    except UNREADABLE_JSON as error:
        raise InvalidInput("", f"the body is not what a gateway sends: {error}") from error


ROUTES = [
    RouteSpec(
        method="GET",
        path="/api/v1/gateway/view",
        handler=view,
        access=Access.GATEWAY,
        summary="The view as lines of JSON: all of it first, then changes and beats, until either side ends it.",
        gives=View,
        codes={200: "a stream of lines"},
    ),
    RouteSpec(
        method="POST",
        path="/api/v1/gateway/report",
        handler=report,
        access=Access.GATEWAY,
        summary="What a gateway has under way, and what ended there since its last report.",
        takes=GatewayReport,
        codes={204: "taken", 400: "it cannot be read"},
    ),
    RouteSpec(
        method="POST",
        path="/api/v1/gateway/ensure",
        handler=ensure,
        access=Access.GATEWAY,
        summary="Have a model loaded; answers at once with how far that is.",
        takes=EnsureModel,
        gives=Loading,
        codes={200: "how far it is", 400: "it cannot be read", 404: "no model has this name"},
    ),
]
