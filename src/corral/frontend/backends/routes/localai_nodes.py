"""Backends of one node in LocalAI's form: `/api/nodes/<id>/backends`."""

from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from corral.base.errors import BusTimeout, BusUnavailable, Conflict, CorralError, NoResponders, NotFound
from corral.base.ids import NodeId
from corral.frontend.api.answers import answer, node_error
from corral.frontend.api.bodies import checked_galleries, read_compat
from corral.frontend.api.context import AdminContext, Caller
from corral.frontend.api.route import Access, Dialect, RouteSpec
from corral.frontend.backends.planning import Ask
from corral.frontend.backends.routes.localai import deleted, job_to_follow, results, why_not_deleted
from corral.frontend.backends.shapes import installed_backends
from corral.frontend.nodes.decide.node import NodeType
from corral.frontend.operations.decide.intent import Verb
from corral.frontend.operations.decide.operation import OperationState
from corral.frontend.rules.service import RuleDemands
from corral.galleries.build_uris import BackendRef
from corral.wire.backends import InstalledBackend
from corral.wire.operation_views import Deleted, JobStarted, NodeBackendAsk


async def list_backends(context: AdminContext, request: Request, caller: Caller) -> Response:
    try:
        seen = await context.nodes.fleet.get(_node_id(request))
        if seen.node.type is NodeType.AGENT:
            return answer([])
        return answer(installed_backends(await context.backends.inventory.ask(seen.node.id)))
    except CorralError as error:
        status = 503 if is_bus_away(error) else 500
        return node_error(status, f"failed to list backends on node: {error.message}")


def is_bus_away(error: CorralError) -> bool:
    """NATS itself, and not just the node."""
    return isinstance(error, BusUnavailable) and not isinstance(error, NoResponders | BusTimeout)


async def install(context: AdminContext, request: Request, caller: Caller) -> Response:
    wanted = await read_compat(context, request, NodeBackendAsk)
    if not wanted.backend and not wanted.uri:
        return node_error(400, "backend name or uri required")
    operation = await context.backends.operations.start(_ask(request, caller, Verb.INSTALL, wanted))
    return answer(job_to_follow(operation, "backend installation started"), 202)


async def upgrade(context: AdminContext, request: Request, caller: Caller) -> Response:
    wanted = await read_compat(context, request, NodeBackendAsk)
    if not wanted.backend:
        return node_error(400, "backend name required")
    operation = await context.backends.operations.start(_ask(request, caller, Verb.UPGRADE, wanted))
    return answer(job_to_follow(operation, "backend upgrade started"), 202)


async def delete(context: AdminContext, request: Request, caller: Caller) -> Response:
    """Answers when it is done, with the node's own words if it failed; it stays wanted in any case."""
    wanted = await read_compat(context, request, NodeBackendAsk)
    if not wanted.backend:
        return node_error(400, "backend name required")
    try:
        operation = await deleted(context, _ask(request, caller, Verb.DELETE, wanted))
    except RuleDemands as error:
        return node_error(409, error.message)
    except (NotFound, Conflict) as error:
        return node_error(500, f"failed to delete backend on node: {error.message}")
    if operation.state is OperationState.WAITING:
        return node_error(500, "failed to delete backend on node: it is away, and will be told when it is back")
    if why := why_not_deleted(operation):
        return node_error(500, f"backend deletion failed: {why}")
    return answer(Deleted(message="backend deleted", corral=results(operation)))


def _ask(request: Request, caller: Caller, verb: Verb, wanted: NodeBackendAsk) -> Ask:
    """Only an install looks at more than the name, as with LocalAI."""
    ref = BackendRef(backend=wanted.backend)
    if verb is Verb.INSTALL:
        galleries = checked_galleries(wanted.backend_galleries, "backend_galleries")
        ref = replace(ref, uri=wanted.uri, name=wanted.name, alias=wanted.alias, galleries=galleries)
    return Ask(verb=verb, ref=ref, nodes=(_node_id(request),), by=caller.name)


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
    codes={200: "a list; empty for agents", 500: "the node does not answer, or is not known", 503: "NATS is away"},
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
        gives=JobStarted,
        codes=_ACCEPTED,
    ),
    replace(
        _ADMIN,
        method="POST",
        path="/api/nodes/{id}/backends/upgrade",
        handler=upgrade,
        summary="Upgrade a backend on this node.",
        takes=NodeBackendAsk,
        gives=JobStarted,
        codes=_ACCEPTED,
    ),
    replace(
        _ADMIN,
        method="POST",
        path="/api/nodes/{id}/backends/delete",
        handler=delete,
        summary="Delete a backend on this node, and wait for that.",
        takes=NodeBackendAsk,
        gives=Deleted,
        codes={
            200: "deleted, or waiting for the node",
            400: "no backend",
            409: "a fleet rule demands it",
            500: "not deleted yet, with the reason; it stays wanted",
        },
    ),
]
