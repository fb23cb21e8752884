"""Models of one node, and of all, in LocalAI's form: have what runs for them ended."""

from collections.abc import Awaitable
from dataclasses import replace

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from corral.base.errors import CorralError, InvalidInput
from corral.base.ids import NodeId
from corral.frontend.api.answers import answer, node_error
from corral.frontend.api.bodies import read_compat
from corral.frontend.api.context import AdminContext, Caller
from corral.frontend.api.route import Access, Dialect, RouteSpec
from corral.frontend.backends.routes.localai import is_bus_away
from corral.wire.refusals import Acknowledged


class NodeModelAsk(msgspec.Struct, kw_only=True):
    """Body of the routes of one node."""

    model_name: str = ""


class ShutdownAsk(msgspec.Struct, kw_only=True):
    """Body of `POST /backend/shutdown`."""

    model: str = ""


async def unload(context: AdminContext, request: Request, caller: Caller) -> Response:
    model = await _model(context, request)
    ending = context.serving.node_models.unload(NodeId(request.path_params["id"]), model, by=caller.name)
    return await _ended(ending, done="model unloaded", failed="failed to unload model on node")


async def delete(context: AdminContext, request: Request, caller: Caller) -> Response:
    """As LocalAI does it, no files go: nodes share them. Whoever wants that removes the model."""
    model = await _model(context, request)
    ending = context.serving.node_models.unload(NodeId(request.path_params["id"]), model, by=caller.name)
    return await _ended(ending, done="model deleted from node", failed="failed to delete model on node")


async def shut_down(context: AdminContext, request: Request, caller: Caller) -> Response:
    wanted = await read_compat(context, request, ShutdownAsk)
    spec = context.models.catalogue.catalogue.models.get(wanted.model)
    if spec is None:
        raise context.models.catalogue.unknown(wanted.model)
    await context.serving.node_models.unload_everywhere(spec.alias_of or spec.name, by=caller.name)
    return answer(Acknowledged(message="model stopped"))


async def _model(context: AdminContext, request: Request) -> str:
    wanted = await read_compat(context, request, NodeModelAsk)
    if not wanted.model_name:
        raise InvalidInput("", "model_name required")
    return wanted.model_name


async def _ended(ending: Awaitable[None], *, done: str, failed: str) -> Response:
    try:
        await ending
    except CorralError as error:
        return node_error(503 if is_bus_away(error) else 500, f"{failed}: {error.message}")
    return answer(Acknowledged(message=done))


_UNLOAD = RouteSpec(
    method="POST",
    path="/api/nodes/{id}/models/unload",
    handler=unload,
    access=Access.ADMIN,
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
        summary="The same: no files are deleted, since nodes share them.",
    ),
    replace(
        _UNLOAD,
        path="/backend/shutdown",
        handler=shut_down,
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
]
