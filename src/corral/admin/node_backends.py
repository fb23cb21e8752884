"""Backends of one node in LocalAI's form: `/api/nodes/<id>/backends`."""

from dataclasses import replace
from datetime import timedelta
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from corral.admin.answers import answer, node_error
from corral.admin.backend_shapes import installed_backends
from corral.admin.context import AdminContext, Caller
from corral.admin.route import Access, Dialect, RouteSpec, read_body
from corral.base.errors import Conflict, CorralError, InvalidInput, NotFound
from corral.base.ids import NodeId
from corral.control.operations import Ask
from corral.domain.backend import Verb
from corral.domain.node import NodeType
from corral.domain.operation import Operation, OperationState, error_text
from corral.protocol.go_json import decode
from corral.protocol.inventory import InstalledBackend
from corral.protocol.operation_views import NodeBackendAsk

_DELETE_WITHIN: Final = timedelta(minutes=2)
"""How long a caller is kept waiting for a delete, as LocalAI does it."""


async def list_backends(context: AdminContext, request: Request, caller: Caller) -> Response:
    try:
        seen = await context.fleet.get(_node_id(request))
    except NotFound:
        return node_error(500, "failed to list backends on node")
    if seen.node.type is NodeType.AGENT:
        return answer([])
    try:
        return answer(installed_backends(await context.inventory.ask(seen.node.id)))
    except CorralError as error:
        return node_error(500, f"failed to list backends on node: {error.message}")


async def install(context: AdminContext, request: Request, caller: Caller) -> Response:
    wanted = decode(await read_body(request, context.max_body), NodeBackendAsk)
    if not wanted.backend and not wanted.uri:
        return node_error(400, "backend name or uri required")
    return await _started(context, request, caller, Verb.INSTALL, wanted)


async def upgrade(context: AdminContext, request: Request, caller: Caller) -> Response:
    wanted = decode(await read_body(request, context.max_body), NodeBackendAsk)
    if not wanted.backend:
        return node_error(400, "backend name required")
    return await _started(context, request, caller, Verb.UPGRADE, wanted)


async def delete(context: AdminContext, request: Request, caller: Caller) -> Response:
    """Answers when it is done, with the node's own words if it failed; it stays wanted in any case."""
    wanted = decode(await read_body(request, context.max_body), NodeBackendAsk)
    if not wanted.backend:
        return node_error(400, "backend name required")
    try:
        started = await context.operations.start(_ask(request, caller, Verb.DELETE, wanted))
    except (NotFound, Conflict) as error:
        return node_error(500, f"failed to delete backend on node: {error.message}")
    operation = await _ended(context, started)
    if operation.state is OperationState.DONE:
        return answer({"message": "backend deleted"})
    reason = error_text(operation.targets) or "the node has not answered; it will be deleted as soon as it can be"
    return node_error(500, f"backend deletion failed: {reason}")


async def _started(
    context: AdminContext, request: Request, caller: Caller, verb: Verb, wanted: NodeBackendAsk
) -> Response:
    try:
        operation = await context.operations.start(_ask(request, caller, verb, wanted))
    except InvalidInput as error:
        return node_error(400, error.message)
    word = "installation" if verb is Verb.INSTALL else "upgrade"
    status = f"/api/backends/job/{operation.id}"
    return answer({"jobID": operation.id, "message": f"backend {word} started", "statusUrl": status}, 202)


def _ask(request: Request, caller: Caller, verb: Verb, wanted: NodeBackendAsk) -> Ask:
    return Ask(
        verb=verb,
        backend=wanted.backend,
        uri=wanted.uri if verb is Verb.INSTALL else "",
        name=wanted.name,
        alias=wanted.alias,
        galleries=wanted.backend_galleries,
        nodes=(_node_id(request),),
        by=caller.name,
    )


async def _ended(context: AdminContext, operation: Operation) -> Operation:
    return await context.operations.settled(operation.id, within=_DELETE_WITHIN)


def _node_id(request: Request) -> NodeId:
    return NodeId(request.path_params["id"])


_ADMIN = RouteSpec(
    method="GET",
    path="/api/nodes/{id}/backends",
    handler=list_backends,
    access=Access.ADMIN,
    dialect=Dialect.LOCALAI,
    summary="What is on the node's disk, asked for now.",
    gives=list[InstalledBackend],
    codes={200: "a list; empty for agents", 500: "the node does not answer, or is not known"},
)
_ACCEPTED = {
    202: "accepted, with the id of its job",
    400: "no backend, or a malformed one",
    404: "no node has this id",
    409: "the node waits for approval, is an agent, or does not have it",
}

ROUTES = [
    _ADMIN,
    replace(
        _ADMIN,
        method="POST",
        path="/api/nodes/{id}/backends/install",
        handler=install,
        summary="Install a backend on this node.",
        takes=NodeBackendAsk,
        gives=None,
        codes=_ACCEPTED,
    ),
    replace(
        _ADMIN,
        method="POST",
        path="/api/nodes/{id}/backends/upgrade",
        handler=upgrade,
        summary="Upgrade a backend on this node.",
        takes=NodeBackendAsk,
        gives=None,
        codes=_ACCEPTED,
    ),
    replace(
        _ADMIN,
        method="POST",
        path="/api/nodes/{id}/backends/delete",
        handler=delete,
        summary="Delete a backend on this node, and wait for that.",
        takes=NodeBackendAsk,
        gives=None,
        codes={200: "deleted", 400: "no backend", 500: "not deleted yet, with the reason; it stays wanted"},
    ),
]
