"""LocalAI's routes that install, upgrade and delete backends, on all nodes or on one, and list those of one node."""

from datetime import timedelta
from typing import Final

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from corral.base.errors import BusTimeout, BusUnavailable, Conflict, CorralError, InvalidInput, NoResponders, NotFound
from corral.base.ids import NodeId
from corral.frontend.access.decide import Permission
from corral.frontend.api.parameters import one_of
from corral.frontend.api.route import (
    AdminContext,
    Caller,
    Dialect,
    RouteSpec,
    answer,
    checked_galleries,
    node_error,
    read_compat,
)
from corral.frontend.backends.planning import Ask
from corral.frontend.backends.shapes import installed_backends, meta_by_build
from corral.frontend.nodes.decide.node import NodeType
from corral.frontend.operations.decide.intent import Verb
from corral.frontend.operations.decide.operation import Operation, OperationState, error_text, waits
from corral.frontend.operations.shapes import node_rows
from corral.frontend.rules.service import RuleDemands
from corral.galleries.build_uris import BackendRef
from corral.wire.backends import InstalledBackend
from corral.wire.operation_views import (
    Applied,
    ApplyAsk,
    Deleted,
    JobStarted,
    NeedsTarget,
    NodeBackendAsk,
    NodeResults,
    NotDeleted,
)

_DELETE_WITHIN: Final = timedelta(minutes=2)
"""How long a caller is kept waiting for a delete, as LocalAI does it."""


def job_to_follow(operation: Operation, message: str) -> JobStarted:
    """The answer with the route that shows the job's progress."""
    return JobStarted(job_id=operation.id, message=message, status_url=f"/api/backends/job/{operation.id}")


def applied(context: AdminContext, request: Request, operation: Operation) -> Applied:
    return Applied(id=operation.id, status_url=whole_url(context, request, f"backends/jobs/{operation.id}"))


def whole_url(context: AdminContext, request: Request, path: str) -> str:
    """As the caller reaches us."""
    base = request.base_url
    scheme = request.headers.get("x-forwarded-proto", "")
    # Only on the private socket nobody but a gateway can have said it.
    if context.config.socket is not None and scheme in ("http", "https"):
        base = base.replace(scheme=scheme)
    return f"{base}{path}"


async def deleted(context: AdminContext, ask: Ask) -> Operation:
    """The operation as it stands when nothing is under way any more, or when the caller has waited long enough. It
    stays wanted in any case."""
    operation = await context.backends.operations.start(ask)
    return await context.operations.service.settled(operation.id, within=_DELETE_WITHIN)


def why_not_deleted(operation: Operation) -> str:
    """Empty when it is, or waits for absent nodes only: that something is queued is not an error."""
    if operation.state in (OperationState.DONE, OperationState.WAITING):
        return ""
    return error_text(operation.targets) or "not all nodes have answered; it will be deleted as soon as it can be"


def deletion_message(operation: Operation) -> str:
    """LocalAI's words when it is done everywhere; otherwise what is left."""
    away = [target.node_name for target in operation.targets if waits(target)]
    if not away:
        return "Backend deleted successfully"
    done = len(operation.targets) - len(away)
    return f"Backend deleted on {done} of {len(operation.targets)} nodes; it waits for {', '.join(away)}"


def results(operation: Operation) -> NodeResults:
    return NodeResults(nodes=node_rows(operation, {}))


# For its pages.


async def install(context: AdminContext, request: Request, caller: Caller) -> Response:
    ask = replace(_ask(Verb.INSTALL, request, caller), force=request.query_params.get("force") == "1")
    operation = await context.backends.operations.start(ask)
    return answer(JobStarted(job_id=operation.id, message="Backend installation started"))


async def install_external(context: AdminContext, request: Request, caller: Caller) -> Response:
    body = await read_compat(context, request, NodeBackendAsk)
    if not body.uri:
        return answer({"error": "uri is required"}, 400)
    ref = BackendRef(uri=body.uri, name=body.name, alias=body.alias)
    operation = await context.backends.operations.start(Ask(verb=Verb.INSTALL, ref=ref, by=caller.name))
    return answer(JobStarted(job_id=operation.id, message="External backend installation started"))


async def delete(context: AdminContext, request: Request, caller: Caller) -> Response:
    operation = await context.backends.operations.start(_ask(Verb.DELETE, request, caller))
    return answer(JobStarted(job_id=operation.id, message="Backend deletion started"))


async def delete_and_wait(context: AdminContext, request: Request, caller: Caller) -> Response:
    operation = await deleted(context, _ask(Verb.DELETE, request, caller))
    if why := why_not_deleted(operation):
        return answer(NotDeleted(error=why, corral=results(operation)), 500)
    return answer(Deleted(success=True, message=deletion_message(operation), corral=results(operation)))


async def upgrade(context: AdminContext, request: Request, caller: Caller) -> Response:
    operation = await context.backends.operations.start(_ask(Verb.UPGRADE, request, caller))
    started = job_to_follow(operation, "Backend upgrade started")
    started.uuid = operation.id
    return answer(started)


# For programs.


async def apply(context: AdminContext, request: Request, caller: Caller) -> Response:
    body = await read_compat(context, request, ApplyAsk)
    if not body.id:
        raise InvalidInput("id", "is empty; it takes the name of a backend")
    if (refusal := await _needs_target(context, body.id)) is not None:
        return answer(refusal, 409)
    ask = Ask(verb=Verb.INSTALL, ref=BackendRef(backend=body.id), force=body.force, by=caller.name)
    return answer(applied(context, request, await context.backends.operations.start(ask)))


async def _needs_target(context: AdminContext, name: str) -> NeedsTarget | None:
    """A build in a gallery is for certain machines, so it is not put on all. Nobody can tell without the galleries."""
    catalogue = await context.backends.galleries.catalogue()
    entry = None if catalogue is None else catalogue.entry(name)
    if catalogue is None or entry is None or entry.is_meta:
        return None
    meta = meta_by_build(catalogue.entries).get(entry.name, "")
    lines = [
        f'Backend "{name}" is a hardware-specific build, and not every node of this fleet may be able to run it.',
        f'Name the nodes: POST /api/nodes/{{node_id}}/backends/install with {{"backend": "{entry.name}"}}.',
    ]
    if meta:
        lines.append(f'Or install "{meta}" instead, which means the right build on each node.')
    return NeedsTarget(error="\n".join(lines), meta_alternative=meta)


async def apply_delete(context: AdminContext, request: Request, caller: Caller) -> Response:
    operation = await context.backends.operations.start(_ask(Verb.DELETE, request, caller))
    return answer(applied(context, request, operation))


async def apply_upgrade(context: AdminContext, request: Request, caller: Caller) -> Response:
    operation = await context.backends.operations.start(_ask(Verb.UPGRADE, request, caller))
    return answer(applied(context, request, operation))


def _ask(verb: Verb, request: Request, caller: Caller) -> Ask:
    return Ask(verb=verb, ref=BackendRef(backend=request.path_params["id"]), by=caller.name)


# For one node.


async def list_backends_of_node(context: AdminContext, request: Request, caller: Caller) -> Response:
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


async def install_on_node(context: AdminContext, request: Request, caller: Caller) -> Response:
    body = await read_compat(context, request, NodeBackendAsk)
    if not body.backend and not body.uri:
        return node_error(400, "backend name or uri required")
    operation = await context.backends.operations.start(_ask_of_node(request, caller, Verb.INSTALL, body))
    return answer(job_to_follow(operation, "backend installation started"), 202)


async def upgrade_on_node(context: AdminContext, request: Request, caller: Caller) -> Response:
    body = await read_compat(context, request, NodeBackendAsk)
    if not body.backend:
        return node_error(400, "backend name required")
    operation = await context.backends.operations.start(_ask_of_node(request, caller, Verb.UPGRADE, body))
    return answer(job_to_follow(operation, "backend upgrade started"), 202)


async def delete_on_node(context: AdminContext, request: Request, caller: Caller) -> Response:
    """Answers when it is done, with the node's own words if it failed; it stays wanted in any case."""
    body = await read_compat(context, request, NodeBackendAsk)
    if not body.backend:
        return node_error(400, "backend name required")
    try:
        operation = await deleted(context, _ask_of_node(request, caller, Verb.DELETE, body))
    except RuleDemands as error:
        return node_error(409, error.message)
    except (NotFound, Conflict) as error:
        return node_error(500, f"failed to delete backend on node: {error.message}")
    if operation.state is OperationState.WAITING:
        return node_error(500, "failed to delete backend on node: it is away, and will be told when it is back")
    if why := why_not_deleted(operation):
        return node_error(500, f"backend deletion failed: {why}")
    return answer(Deleted(message="backend deleted", corral=results(operation)))


def _ask_of_node(request: Request, caller: Caller, verb: Verb, body: NodeBackendAsk) -> Ask:
    """Only an install looks at more than the name, as with LocalAI."""
    ref = BackendRef(backend=body.backend)
    if verb is Verb.INSTALL:
        if body.uri or body.backend_galleries:
            caller.demand(Permission.BACKENDS_TRUST)
        galleries = checked_galleries(body.backend_galleries, "backend_galleries")
        ref = replace(ref, uri=body.uri, name=body.name, alias=body.alias, galleries=galleries)
    return Ask(verb=verb, ref=ref, nodes=(_node_id(request),), by=caller.name)


def _node_id(request: Request) -> NodeId:
    return NodeId(request.path_params["id"])


_NO_NODE = {400: "what was asked for is malformed", 409: "there is no node"}
_NOWHERE = {400: "what was asked for is malformed", 409: "no node has it"}
_ACCEPTED = "accepted, with the id of its job"

_PAGE = RouteSpec(
    method="POST",
    path="/api/backends/install/{id:path}",
    handler=install,
    access=Permission.BACKENDS_ACT,
    dialect=Dialect.LOCALAI_UI,
    summary="Have a backend on every node.",
    gives=JobStarted,
    query={"force": one_of("1 installs it again where it is already", ("0", "1"))},
    codes={200: _ACCEPTED, **_NO_NODE},
)
_PROGRAM = replace(
    _PAGE,
    path="/backends/apply",
    handler=apply,
    access=Permission.BACKENDS_ACT,
    dialect=Dialect.LOCALAI_CLI,
    takes=ApplyAsk,
    gives=Applied,
    query={},
    codes={200: _ACCEPTED, **_NO_NODE, 409: "it is a build for certain hardware, or there is no node"},
)
_NODE = RouteSpec(
    method="GET",
    path="/api/nodes/{id}/backends",
    handler=list_backends_of_node,
    access=Permission.BACKENDS_READ,
    dialect=Dialect.LOCALAI,
    summary="What is on the node's disk, asked for now.",
    gives=list[InstalledBackend],
    codes={200: "a list; empty for agents", 500: "the node does not answer, or is not known", 503: "NATS is away"},
)
_ACCEPTED_BY_NODE = {
    202: "accepted, with the id of its job",
    400: "no backend, or a malformed one",
    404: "no node has this id",
    409: "the node waits for approval, is an agent, or does not have it",
}

ROUTES = [
    _PAGE,
    replace(
        _PAGE,
        path="/api/backends/install-external",
        handler=install_external,
        access=Permission.BACKENDS_TRUST,
        summary="Install a backend from a uri on every node.",
        takes=NodeBackendAsk,
        query={},
        codes={**_PAGE.codes, 400: "no uri, a malformed one, or no name"},
    ),
    replace(
        _PAGE,
        path="/api/backends/delete/{id:path}",
        handler=delete,
        access=Permission.BACKENDS_ACT,
        summary="Delete a backend on every node.",
        query={},
    ),
    replace(
        _PAGE,
        path="/api/backends/system/delete/{id:path}",
        handler=delete_and_wait,
        access=Permission.BACKENDS_ACT,
        summary="Delete a backend on every node, and wait for that.",
        gives=Deleted,
        query={},
        codes={
            200: "deleted, or waiting only for nodes that are away; with what became of it on each node",
            **_NO_NODE,
            500: "not deleted everywhere yet, with the reason; it stays wanted",
        },
    ),
    replace(
        _PAGE,
        path="/api/backends/upgrade/{id:path}",
        handler=upgrade,
        access=Permission.BACKENDS_ACT,
        summary="Upgrade a backend wherever it is.",
        query={},
        codes={200: _ACCEPTED, **_NOWHERE},
    ),
    _PROGRAM,
    replace(
        _PROGRAM,
        path="/backends/delete/{id:path}",
        handler=apply_delete,
        access=Permission.BACKENDS_ACT,
        summary="Delete a backend on every node.",
        takes=None,
        codes={200: _ACCEPTED, **_NO_NODE},
    ),
    replace(
        _PROGRAM,
        path="/backends/upgrade/{id:path}",
        handler=apply_upgrade,
        access=Permission.BACKENDS_ACT,
        summary="Upgrade a backend wherever it is.",
        takes=None,
        codes={200: _ACCEPTED, **_NOWHERE},
    ),
    _NODE,
    replace(
        _NODE,
        method="POST",
        path="/api/nodes/{id}/backends/install",
        handler=install_on_node,
        access=Permission.BACKENDS_ACT,
        summary="Install a backend on this node.",
        takes=NodeBackendAsk,
        gives=JobStarted,
        codes=_ACCEPTED_BY_NODE,
    ),
    replace(
        _NODE,
        method="POST",
        path="/api/nodes/{id}/backends/upgrade",
        handler=upgrade_on_node,
        access=Permission.BACKENDS_ACT,
        summary="Upgrade a backend on this node.",
        takes=NodeBackendAsk,
        gives=JobStarted,
        codes=_ACCEPTED_BY_NODE,
    ),
    replace(
        _NODE,
        method="POST",
        path="/api/nodes/{id}/backends/delete",
        handler=delete_on_node,
        access=Permission.BACKENDS_ACT,
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
