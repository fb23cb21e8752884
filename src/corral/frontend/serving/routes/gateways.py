"""Routes of serving: how control programs its gateways, and LocalAI's routes that end what runs for a model.

Gateways get the view as a stream of lines, send reports, and ask for models that are not loaded.
"""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TypeVar

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from corral.base.errors import CorralError, InvalidInput
from corral.base.ids import NodeId
from corral.base.unreadable_json import UNREADABLE_JSON
from corral.frontend.access.decide import Permission
from corral.frontend.access.principals import principal_of
from corral.frontend.api.route import (
    AdminContext,
    Caller,
    Dialect,
    RouteSpec,
    answer,
    host_of_caller,
    no_content,
    node_error,
    read_body,
    read_compat,
)
from corral.frontend.backends.routes.localai import is_bus_away
from corral.frontend.engines.entries import engines_status
from corral.frontend.serving.shapes import loading_view
from corral.wire.refusals import Acknowledged
from corral.wire.view import EnsureModel, GatewayReport, Loading, View, encode_line

T = TypeVar("T")
_LARGEST_REPORT = 16 * 1024 * 1024


async def view(context: AdminContext, request: Request, caller: Caller) -> Response:
    async def may_go_on() -> bool:
        """A database that is away revokes nothing: the gateway stays connected."""
        try:
            principal = await principal_of(request.headers, context.access.authenticator)
        except CorralError:
            return True
        return principal is not None and principal.can(Permission.GATEWAY_SERVE)

    async def lines() -> AsyncIterator[bytes]:
        """Until the gateway leaves, the process stops or the key is revoked."""
        async with aclosing(context.serving.view.follow()) as messages:
            async for message in messages:
                if context.stopping.is_set() or not await may_go_on():
                    return
                yield encode_line(message)

    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(lines(), media_type="application/x-ndjson", headers=headers)


async def report(context: AdminContext, request: Request, caller: Caller) -> Response:
    body = await _body(request, GatewayReport)
    context.serving.gateways.take(body, address=host_of_caller(context, request))
    await context.serving.shares.tell(body)
    return no_content()


async def ensure(context: AdminContext, request: Request, caller: Caller) -> Response:
    model = (await _body(request, EnsureModel)).model
    if model not in context.models.catalogue.catalogue.models:
        elsewhere = engines_status(context.engines.service, context.engines.watch, model)
        if elsewhere is not None:
            return answer(elsewhere)
    return answer(loading_view(await context.serving.loads.ensure(model)))


async def _body(request: Request, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(await read_body(request, _LARGEST_REPORT), type=kind)
    except UNREADABLE_JSON as error:
        raise InvalidInput("", f"the body is not what a gateway sends: {error}") from error


class NodeModelAsk(msgspec.Struct, kw_only=True):
    """Body of the routes of one node."""

    model_name: str = ""


class ShutdownAsk(msgspec.Struct, kw_only=True):
    """Body of `POST /backend/shutdown`."""

    model: str = ""


async def unload(context: AdminContext, request: Request, caller: Caller) -> Response:
    return await _unload(context, request, caller, done="model unloaded", failed="failed to unload model on node")


async def delete(context: AdminContext, request: Request, caller: Caller) -> Response:
    """No files go, as in LocalAI: nodes share them. Removing the model deletes them."""
    failed = "failed to delete model on node"
    return await _unload(context, request, caller, done="model deleted from node", failed=failed)


async def _unload(context: AdminContext, request: Request, caller: Caller, *, done: str, failed: str) -> Response:
    body = await read_compat(context, request, NodeModelAsk)
    if not body.model_name:
        raise InvalidInput("", "model_name required")
    try:
        node_id = NodeId(request.path_params["id"])
        await context.serving.node_models.unload(node_id, body.model_name, by=caller.name)
    except CorralError as error:
        return node_error(503 if is_bus_away(error) else 500, f"{failed}: {error.message}")
    return answer(Acknowledged(message=done))


async def shut_down(context: AdminContext, request: Request, caller: Caller) -> Response:
    body = await read_compat(context, request, ShutdownAsk)
    spec = context.models.catalogue.catalogue.models.get(body.model)
    if spec is None:
        raise context.models.catalogue.unknown(body.model)
    await context.serving.node_models.unload_everywhere(spec.alias_of or spec.name, by=caller.name)
    return answer(Acknowledged(message="model stopped"))


_UNLOAD = RouteSpec(
    method="POST",
    path="/api/nodes/{id}/models/unload",
    handler=unload,
    access=Permission.MODELS_ACT,
    dialect=Dialect.LOCALAI,
    summary="End what this node runs for a model, after the requests that it answers, and wait for that.",
    takes=NodeModelAsk,
    gives=Acknowledged,
    codes={
        200: "nothing runs for it there",
        400: "no model_name",
        500: "no such node, it does not answer, or the model is just being loaded there",
        503: "NATS is away",
    },
)

ROUTES = [
    _UNLOAD,
    replace(
        _UNLOAD,
        path="/api/nodes/{id}/models/delete",
        handler=delete,
        access=Permission.MODELS_ACT,
        summary="The same: no files are deleted, since nodes share them.",
    ),
    replace(
        _UNLOAD,
        path="/backend/shutdown",
        handler=shut_down,
        access=Permission.MODELS_ACT,
        dialect=Dialect.LOCALAI_CLI,
        summary="End what all nodes run for a model, and wait for that.",
        takes=ShutdownAsk,
        codes={
            200: "nothing runs for it any more",
            400: "the body cannot be read",
            404: "no model has this name",
            409: "the model is just being loaded",
            500: "a node does not answer",
        },
    ),
    RouteSpec(
        method="GET",
        path="/api/v1/gateway/view",
        handler=view,
        access=Permission.GATEWAY_SERVE,
        summary="The view as lines of JSON: all of it first, then changes and beats, until either side ends it.",
        gives=View,
        codes={200: "a stream of lines"},
    ),
    RouteSpec(
        method="POST",
        path="/api/v1/gateway/report",
        handler=report,
        access=Permission.GATEWAY_SERVE,
        summary="What a gateway has under way, and what ended there since its last report.",
        takes=GatewayReport,
        codes={204: "taken", 400: "it cannot be read"},
    ),
    RouteSpec(
        method="POST",
        path="/api/v1/gateway/ensure",
        handler=ensure,
        access=Permission.GATEWAY_SERVE,
        summary="Have a model loaded; answers at once with how far that is.",
        takes=EnsureModel,
        gives=Loading,
        codes={200: "how far it is", 400: "it cannot be read", 404: "no model has this name"},
    ),
]
