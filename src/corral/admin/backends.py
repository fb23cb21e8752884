"""Backends of the fleet: LocalAI's routes to install, upgrade and delete them, and what is where."""

from collections.abc import Mapping
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from corral.admin.answers import answer
from corral.admin.backend_shapes import backend_rows, fleet_backends
from corral.admin.context import AdminContext, Caller
from corral.admin.route import Access, Dialect, RouteSpec, read_body
from corral.base.ids import NodeId
from corral.control.fleet import SeenNode
from corral.control.inventory import is_listed
from corral.control.operations import Ask
from corral.domain.backend import Inventory, Verb
from corral.domain.node import NodeStatus, NodeType
from corral.protocol.go_json import decode
from corral.protocol.operation_views import ApplyAsk, BackendRow, FleetBackends, NodeBackendAsk


async def install(context: AdminContext, request: Request, caller: Caller) -> Response:
    return await _started(context, caller, Verb.INSTALL, request, "Backend installation started")


async def install_external(context: AdminContext, request: Request, caller: Caller) -> Response:
    wanted = decode(await read_body(request, context.max_body), NodeBackendAsk)
    if not wanted.uri:
        return answer({"error": "uri is required"}, 400)
    operation = await context.operations.start(
        Ask(verb=Verb.INSTALL, uri=wanted.uri, name=wanted.name, alias=wanted.alias, by=caller.name)
    )
    return answer({"jobID": operation.id, "message": "External backend installation started"})


async def delete(context: AdminContext, request: Request, caller: Caller) -> Response:
    return await _started(context, caller, Verb.DELETE, request, "Backend deletion started")


async def upgrade(context: AdminContext, request: Request, caller: Caller) -> Response:
    operation = await context.operations.start(
        Ask(verb=Verb.UPGRADE, backend=request.path_params["id"], by=caller.name)
    )
    status = f"/api/backends/job/{operation.id}"
    message = "Backend upgrade started"
    return answer({"jobID": operation.id, "message": message, "statusUrl": status, "uuid": operation.id})


async def apply(context: AdminContext, request: Request, caller: Caller) -> Response:
    wanted = decode(await read_body(request, context.max_body), ApplyAsk)
    operation = await context.operations.start(
        Ask(verb=Verb.INSTALL, backend=wanted.id, force=wanted.force, by=caller.name)
    )
    return answer({"id": operation.id, "status_url": f"/backends/jobs/{operation.id}"})


async def apply_delete(context: AdminContext, request: Request, caller: Caller) -> Response:
    return await _applied(context, caller, Verb.DELETE, request)


async def apply_upgrade(context: AdminContext, request: Request, caller: Caller) -> Response:
    return await _applied(context, caller, Verb.UPGRADE, request)


async def _started(context: AdminContext, caller: Caller, verb: Verb, request: Request, message: str) -> Response:
    operation = await context.operations.start(Ask(verb=verb, backend=request.path_params["id"], by=caller.name))
    return answer({"jobID": operation.id, "message": message})


async def _applied(context: AdminContext, caller: Caller, verb: Verb, request: Request) -> Response:
    operation = await context.operations.start(Ask(verb=verb, backend=request.path_params["id"], by=caller.name))
    return answer({"id": operation.id, "status_url": f"/backends/jobs/{operation.id}"})


async def list_installed(context: AdminContext, request: Request, caller: Caller) -> Response:
    nodes = [one for one in await context.fleet.all() if is_listed(one)]
    return answer(backend_rows(nodes, await _known(context, request, nodes)))


async def list_native(context: AdminContext, request: Request, caller: Caller) -> Response:
    nodes = [one for one in await context.fleet.all() if _has_backends(one)]
    return answer(fleet_backends(nodes, await _known(context, request, nodes)))


async def _known(context: AdminContext, request: Request, nodes: list[SeenNode]) -> Mapping[NodeId, Inventory]:
    if request.query_params.get("refresh") == "1":
        await context.inventory.refresh([one.node.id for one in nodes if is_listed(one)])
    return await context.inventory.known([one.node.id for one in nodes])


def _has_backends(seen: SeenNode) -> bool:
    return seen.node.type is NodeType.BACKEND and seen.status is not NodeStatus.PENDING


_ADMIN = RouteSpec(
    method="POST",
    path="/api/backends/install/{id:path}",
    handler=install,
    access=Access.ADMIN,
    dialect=Dialect.LOCALAI_UI,
    summary="Install a backend on every node.",
    codes={200: "accepted, with the id of its job", 409: "there is no node"},
)
_NOWHERE = {200: "accepted, with the id of its job", 409: "no node has it"}
_REFRESH = {"refresh": "1 asks every node now"}

ROUTES = [
    _ADMIN,
    replace(
        _ADMIN,
        path="/api/backends/install-external",
        handler=install_external,
        summary="Install a backend from a uri on every node.",
        takes=NodeBackendAsk,
        codes={**_ADMIN.codes, 400: "no uri, or no name"},
    ),
    replace(_ADMIN, path="/api/backends/delete/{id:path}", handler=delete, summary="Delete a backend on every node."),
    replace(
        _ADMIN,
        path="/api/backends/upgrade/{id:path}",
        handler=upgrade,
        summary="Upgrade a backend wherever it is.",
        codes=_NOWHERE,
    ),
    replace(_ADMIN, path="/backends/apply", handler=apply, summary="Install a backend on every node.", takes=ApplyAsk),
    replace(_ADMIN, path="/backends/delete/{id:path}", handler=apply_delete, summary="Delete a backend on every node."),
    replace(
        _ADMIN,
        path="/backends/upgrade/{id:path}",
        handler=apply_upgrade,
        summary="Upgrade a backend wherever it is.",
        codes=_NOWHERE,
    ),
    replace(
        _ADMIN,
        method="GET",
        path="/backends",
        handler=list_installed,
        summary="What is installed, and on which nodes, as they last said.",
        gives=list[BackendRow],
        query=_REFRESH,
        codes={200: "a list, by name"},
    ),
    replace(
        _ADMIN,
        method="GET",
        path="/api/v1/backends",
        handler=list_native,
        dialect=Dialect.NATIVE,
        summary="What is installed on each node, with the age of its word.",
        gives=FleetBackends,
        query=_REFRESH,
        codes={200: "a list, by name"},
    ),
]
