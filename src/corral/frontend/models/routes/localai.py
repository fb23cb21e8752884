"""LocalAI's routes about models."""

from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from corral.frontend.access.decide import Permission
from corral.frontend.api.route import AdminContext, Caller, Dialect, RouteSpec, answer
from corral.frontend.backends.routes.localai import whole_url
from corral.frontend.models.routes.native import REMOVAL_CODES, removed
from corral.frontend.operations.routes.localai import job, status
from corral.frontend.operations.shapes import operation_status
from corral.wire.broadcasts import OperationStatus
from corral.wire.operation_views import JobStarted, JobStatus, ModelApplied

_JOBS = 100


async def delete(context: AdminContext, request: Request, caller: Caller) -> Response:
    operation = await removed(context, request, caller)
    return answer(JobStarted(job_id=operation.id, message="Model deletion started"))


async def apply_delete(context: AdminContext, request: Request, caller: Caller) -> Response:
    operation = await removed(context, request, caller)
    return answer(ModelApplied(uuid=operation.id, status=whole_url(context, request, f"models/jobs/{operation.id}")))


async def list_jobs(context: AdminContext, request: Request, caller: Caller) -> Response:
    newest = await context.operations.stores.operations.newest(limit=_JOBS)
    look = context.operations.progress.look
    return answer({operation.id: operation_status(operation, look(operation)) for operation in newest})


_LOCALAI = RouteSpec(
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
    _LOCALAI,
    replace(
        _LOCALAI,
        path="/models/delete/{name:path}",
        handler=apply_delete,
        access=Permission.MODELS_ACT,
        gives=ModelApplied,
    ),
    replace(
        _LOCALAI,
        method="GET",
        path="/api/models/job/{id}",
        handler=job,
        access=Permission.OPERATIONS_READ,
        summary="How far a removal is. One that nobody knows reads as queued, as LocalAI has it.",
        gives=JobStatus,
        codes={200: "its status"},
    ),
    replace(
        _LOCALAI,
        method="GET",
        path="/models/jobs/{id}",
        handler=status,
        access=Permission.OPERATIONS_READ,
        summary="The whole status of a removal.",
        gives=OperationStatus,
        codes={200: "its status", 500: "no operation has this id, as LocalAI words it"},
    ),
    replace(
        _LOCALAI,
        method="GET",
        path="/models/jobs",
        handler=list_jobs,
        access=Permission.OPERATIONS_READ,
        summary=f"The whole status of the last {_JOBS} operations, by their ids.",
        gives=dict[str, OperationStatus],
        codes={200: "all of them"},
    ),
]
