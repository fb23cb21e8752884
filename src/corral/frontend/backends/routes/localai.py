"""LocalAI's routes about backends: lists, and installing, upgrading and deleting on all nodes."""

from dataclasses import replace
from datetime import timedelta
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from corral.base.errors import InvalidInput
from corral.frontend.api.answers import answer
from corral.frontend.api.bodies import read_compat
from corral.frontend.api.context import AdminContext, Caller
from corral.frontend.api.route import Access, Dialect, RouteSpec
from corral.frontend.backends.decide.gallery_page import meta_by_build
from corral.frontend.backends.planning import Ask
from corral.frontend.operations.decide.intent import Verb
from corral.frontend.operations.decide.localai_status import node_rows
from corral.frontend.operations.decide.operation import Operation, OperationState, error_text, waits
from corral.galleries.build_uris import BackendRef
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


def job_started(operation: Operation, message: str) -> JobStarted:
    return JobStarted(job_id=operation.id, message=message)


def job_to_follow(operation: Operation, message: str) -> JobStarted:
    """With the route that tells how far it is."""
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
    return answer(job_started(await context.backends.operations.start(ask), "Backend installation started"))


async def install_external(context: AdminContext, request: Request, caller: Caller) -> Response:
    wanted = await read_compat(context, request, NodeBackendAsk)
    if not wanted.uri:
        return answer({"error": "uri is required"}, 400)
    ref = BackendRef(uri=wanted.uri, name=wanted.name, alias=wanted.alias)
    ask = Ask(verb=Verb.INSTALL, ref=ref, by=caller.name)
    return answer(job_started(await context.backends.operations.start(ask), "External backend installation started"))


async def delete(context: AdminContext, request: Request, caller: Caller) -> Response:
    operation = await context.backends.operations.start(_ask(Verb.DELETE, request, caller))
    return answer(job_started(operation, "Backend deletion started"))


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
    wanted = await read_compat(context, request, ApplyAsk)
    if not wanted.id:
        raise InvalidInput("id", "is empty; it takes the name of a backend")
    if (refusal := await _needs_target(context, wanted.id)) is not None:
        return answer(refusal, 409)
    ask = Ask(verb=Verb.INSTALL, ref=BackendRef(backend=wanted.id), force=wanted.force, by=caller.name)
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


_NO_NODE = {400: "what was asked for is malformed", 409: "there is no node"}
_NOWHERE = {400: "what was asked for is malformed", 409: "no node has it"}
_ACCEPTED = "accepted, with the id of its job"

_PAGE = RouteSpec(
    method="POST",
    path="/api/backends/install/{id:path}",
    handler=install,
    access=Access.ADMIN,
    dialect=Dialect.LOCALAI_UI,
    summary="Have a backend on every node.",
    gives=JobStarted,
    query={"force": "1 installs it anew where it is already"},
    codes={200: _ACCEPTED, **_NO_NODE},
)
_PROGRAM = replace(
    _PAGE,
    path="/backends/apply",
    handler=apply,
    dialect=Dialect.LOCALAI_CLI,
    takes=ApplyAsk,
    gives=Applied,
    query={},
    codes={200: _ACCEPTED, **_NO_NODE, 409: "it is a build for certain hardware, or there is no node"},
)

ROUTES = [
    _PAGE,
    replace(
        _PAGE,
        path="/api/backends/install-external",
        handler=install_external,
        summary="Install a backend from a uri on every node.",
        takes=NodeBackendAsk,
        query={},
        codes={**_PAGE.codes, 400: "no uri, a malformed one, or no name"},
    ),
    replace(
        _PAGE,
        path="/api/backends/delete/{id:path}",
        handler=delete,
        summary="Delete a backend on every node.",
        query={},
    ),
    replace(
        _PAGE,
        path="/api/backends/system/delete/{id:path}",
        handler=delete_and_wait,
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
        summary="Upgrade a backend wherever it is.",
        query={},
        codes={200: _ACCEPTED, **_NOWHERE},
    ),
    _PROGRAM,
    replace(
        _PROGRAM,
        path="/backends/delete/{id:path}",
        handler=apply_delete,
        summary="Delete a backend on every node.",
        takes=None,
        codes={200: _ACCEPTED, **_NO_NODE},
    ),
    replace(
        _PROGRAM,
        path="/backends/upgrade/{id:path}",
        handler=apply_upgrade,
        summary="Upgrade a backend wherever it is.",
        takes=None,
        codes={200: _ACCEPTED, **_NOWHERE},
    ),
]
