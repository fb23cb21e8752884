"""LocalAI's routes that install and remove models, and the jobs that do it.

A name that nobody knows is an error at once, and not a job that fails.
"""

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from corral.base.errors import InvalidInput
from corral.frontend.access.decide import Permission
from corral.frontend.api.route import AdminContext, Caller, Dialect, RouteSpec, answer, read_compat
from corral.frontend.backends.routes.localai import whole_url
from corral.frontend.models.decide.pulling import PullAsk
from corral.frontend.models.routes.changes import may_trust
from corral.frontend.models.routes.native import REMOVAL_CODES, removed
from corral.frontend.models.routes.pulls import checked_sources
from corral.frontend.operations.decide.operation import Operation
from corral.frontend.operations.routes.localai import job, status
from corral.frontend.operations.routes.native import idempotency_key
from corral.frontend.operations.shapes import operation_status
from corral.galleries.model_entries import read_files
from corral.wire.broadcasts import OperationStatus
from corral.wire.localai_models import ImportAsk, ModelApplyAsk
from corral.wire.operation_views import JobStarted, JobStatus, ModelApplied

_JOBS: Final = 100
"""Operations that the list of jobs shows."""


async def install(context: AdminContext, request: Request, caller: Caller) -> Response:
    variant = request.query_params.get("variant", "")
    ask = PullAsk(
        reference=request.path_params["id"],
        build=variant,
        by=caller.name,
        may_trust=may_trust(caller),
        idempotency_key=idempotency_key(request),
    )
    operation = await context.pulls.service.start(checked_sources(ask, caller))
    return answer(JobStarted(job_id=operation.id, message="Installation started"))


async def apply(context: AdminContext, request: Request, caller: Caller) -> Response:
    body = await read_compat(context, request, ModelApplyAsk)
    reference, definition = body.id.strip(), (body.url or body.config_url).strip()
    if not reference and not definition:
        raise InvalidInput("id", "is missing: it takes the name of a model in a gallery, or a reference such as hf://…")
    ask = PullAsk(
        reference=reference or definition,
        definition="" if reference else definition,
        name=body.name.strip(),
        build=body.variant.strip(),
        overrides=body.overrides,
        files=read_files({"files": [_plain(file) for file in body.files]}, "files"),
        by=caller.name,
        may_trust=may_trust(caller),
        idempotency_key=idempotency_key(request),
    )
    return _applied(context, request, await context.pulls.service.start(checked_sources(ask, caller)))


async def import_uri(context: AdminContext, request: Request, caller: Caller) -> Response:
    body = await read_compat(context, request, ImportAsk)
    if not body.uri.strip():
        raise InvalidInput("uri", "is missing: hf://…, ollama://…, oci://…, a URL or a path")
    wish = body.preferences
    overrides = {
        key: value
        for key, value in (("backend", wish.backend), ("description", wish.description), ("type", wish.type))
        if value
    }
    ask = PullAsk(
        reference=body.uri,
        name=wish.name.strip(),
        build=wish.quantizations.partition(",")[0].strip(),
        overrides=overrides,
        by=caller.name,
        may_trust=may_trust(caller),
        idempotency_key=idempotency_key(request),
    )
    return _applied(context, request, await context.pulls.service.start(checked_sources(ask, caller)))


def _plain(file: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keys of a file in small letters, as Go reads them."""
    return {str(key).lower(): value for key, value in file.items()}


def _applied(context: AdminContext, request: Request, operation: Operation) -> Response:
    return answer(ModelApplied(uuid=operation.id, status=whole_url(context, request, f"models/jobs/{operation.id}")))


async def delete(context: AdminContext, request: Request, caller: Caller) -> Response:
    operation = await removed(context, request, caller)
    return answer(JobStarted(job_id=operation.id, message="Model deletion started"))


async def apply_delete(context: AdminContext, request: Request, caller: Caller) -> Response:
    operation = await removed(context, request, caller)
    return _applied(context, request, operation)


async def list_jobs(context: AdminContext, request: Request, caller: Caller) -> Response:
    newest = await context.operations.stores.operations.newest(limit=_JOBS)
    look = context.operations.progress.look
    return answer({operation.id: operation_status(operation, look(operation)) for operation in newest})


_CODES = {
    400: "the reference, the build or the configuration cannot be used",
    404: "neither a gallery nor a hub has it",
    409: "there is another model of this name, it is being removed, or the disk is full",
    503: "a gallery or hub is away; try again",
}
_PAGE = RouteSpec(
    method="POST",
    path="/api/models/install/{id:path}",
    handler=install,
    access=Permission.MODELS_ACT,
    dialect=Dialect.LOCALAI_UI,
    summary="Download a gallery's model and add it.",
    gives=JobStarted,
    query={"variant": "which build; by default the one that suits the fleet"},
    codes={200: "accepted, with the id of its job", **_CODES},
)
_PROGRAM = replace(
    _PAGE,
    path="/models/apply",
    handler=apply,
    access=Permission.MODELS_ACT,
    dialect=Dialect.LOCALAI_CLI,
    summary="Download a model and add it: of a gallery, of a hub, or by a definition that is somewhere.",
    takes=ModelApplyAsk,
    gives=ModelApplied,
    query={},
)
_REMOVAL = RouteSpec(
    method="POST",
    path="/api/models/delete/{name:path}",
    handler=delete,
    access=Permission.MODELS_ACT,
    dialect=Dialect.LOCALAI_UI,
    summary="Remove a model, and its files on every node.",
    gives=JobStarted,
    codes={200: "accepted, with the id of its job", **REMOVAL_CODES},
)

ROUTES = [
    _PAGE,
    _PROGRAM,
    replace(
        _PROGRAM,
        path="/models/import-uri",
        handler=import_uri,
        access=Permission.MODELS_ACT,
        summary="Download a model of a hub, a URL or a path, and add it.",
        takes=ImportAsk,
    ),
    _REMOVAL,
    replace(
        _REMOVAL,
        path="/models/delete/{name:path}",
        handler=apply_delete,
        access=Permission.MODELS_ACT,
        gives=ModelApplied,
    ),
    replace(
        _REMOVAL,
        method="GET",
        path="/api/models/job/{id}",
        handler=job,
        access=Permission.OPERATIONS_READ,
        summary="How far a removal is. One that nobody knows reads as queued, as LocalAI has it.",
        gives=JobStatus,
        codes={200: "its status"},
    ),
    replace(
        _REMOVAL,
        method="GET",
        path="/models/jobs/{id}",
        handler=status,
        access=Permission.OPERATIONS_READ,
        summary="The whole status of a removal.",
        gives=OperationStatus,
        codes={200: "its status", 500: "no operation has this id, as LocalAI words it"},
    ),
    replace(
        _REMOVAL,
        method="GET",
        path="/models/jobs",
        handler=list_jobs,
        access=Permission.OPERATIONS_READ,
        summary=f"The whole status of the last {_JOBS} operations, by their ids.",
        gives=dict[str, OperationStatus],
        codes={200: "all of them"},
    ),
]
