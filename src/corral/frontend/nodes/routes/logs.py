"""Logs of a node's backends in LocalAI's form: `/api/nodes/<id>/backend-logs`, as the worker itself answers."""

from collections.abc import Awaitable
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from corral.base.ids import NodeId
from corral.frontend.api.answers import node_error
from corral.frontend.api.context import AdminContext, Caller
from corral.frontend.api.route import Access, Dialect, RouteSpec
from corral.frontend.nodes.client import NodeGone, NodePending
from corral.frontend.nodes.logs import WorkerAnswer, WorkerUnreachable
from corral.wire.nodes import LogLine


async def names(context: AdminContext, request: Request, caller: Caller) -> Response:
    return await _passed_on(context.nodes.logs.names(NodeId(request.path_params["id"])))


async def lines(context: AdminContext, request: Request, caller: Caller) -> Response:
    model = request.path_params["model"]
    return await _passed_on(context.nodes.logs.lines(NodeId(request.path_params["id"]), model))


async def _passed_on(asking: Awaitable[WorkerAnswer]) -> Response:
    """A node may send anything. As plain text it is nothing that a browser would run, whatever the node calls it."""
    try:
        found = await asking
    except NodeGone:
        return node_error(404, "node not found")
    except NodePending as error:
        return node_error(409, error.message)
    except WorkerUnreachable as error:
        return node_error(502, error.message)
    headers = {"Content-Type": "text/plain; charset=utf-8", "X-Content-Type-Options": "nosniff"}
    return Response(found.body, found.status, headers=headers)


_NAMES = RouteSpec(
    method="GET",
    path="/api/nodes/{id}/backend-logs",
    handler=names,
    access=Access.ADMIN,
    dialect=Dialect.LOCALAI,
    summary="Of what the node has logs, asked for now.",
    gives=list[str],
    codes={
        200: "names of models and backends, as `text/plain`, since the worker wrote them",
        404: "no such node",
        409: "the node waits for approval, and is not contacted",
        502: "its HTTP server cannot be reached",
    },
)

ROUTES = [
    _NAMES,
    replace(
        _NAMES,
        path="/api/nodes/{id}/backend-logs/{model:path}",
        handler=lines,
        summary="The last lines that processes of a model printed; of one process when its key is given.",
        gives=list[LogLine],
        codes={**_NAMES.codes, 200: "lines by their time, none for a name without a log"},
    ),
]
