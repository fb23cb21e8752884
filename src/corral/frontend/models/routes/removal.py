"""Removing models from the fleet: Corral's route, and LocalAI's two with those that tell how far it is."""

from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from corral.frontend.api.answers import answer
from corral.frontend.api.context import AdminContext, Caller
from corral.frontend.api.route import Access, Dialect, RouteSpec
from corral.frontend.backends.routes.localai import whole_url
from corral.frontend.operations.decide.operation import Operation
from corral.frontend.operations.routes.localai import job, status
from corral.frontend.operations.routes.native import idempotency_key
from corral.frontend.operations.shapes import operation_status, operation_view
from corral.wire.broadcasts import OperationStatus
from corral.wire.operation_views import JobStarted, JobStatus, ModelApplied, OperationView

_JOBS = 100


async def remove(context: AdminContext, request: Request, caller: Caller) -> Response:
    operation = await _removed(context, request, caller)
    shown = operation_view(operation, context.operations.progress.look(operation), context.clock.monotonic())
    return answer(shown, 202, {"Location": f"/api/v1/operations/{operation.id}"})


async def delete(context: AdminContext, request: Request, caller: Caller) -> Response:
    operation = await _removed(context, request, caller)
    return answer(JobStarted(job_id=operation.id, message="Model deletion started"))


async def apply_delete(context: AdminContext, request: Request, caller: Caller) -> Response:
    operation = await _removed(context, request, caller)
    return answer(ModelApplied(uuid=operation.id, status=whole_url(context, request, f"models/jobs/{operation.id}")))


async def list_jobs(context: AdminContext, request: Request, caller: Caller) -> Response:
    found = await context.operations.service.newest(limit=_JOBS)
    return answer({one.id: operation_status(one, context.operations.progress.look(one)) for one in found})


async def _removed(context: AdminContext, request: Request, caller: Caller) -> Operation:
    name, key = request.path_params["name"], idempotency_key(request)
    return await context.models.removal.remove(name, by=caller.name, idempotency_key=key)


_CODES = {
    404: "no model has this name",
    409: "its file holds other models too, or cannot be read",
}
_LOCALAI = RouteSpec(
    method="POST",
    path="/api/models/delete/{name:path}",
    handler=delete,
    access=Access.ADMIN,
    dialect=Dialect.LOCALAI_UI,
    summary="Remove a model, and its files on every node.",
    gives=JobStarted,
    codes={200: "accepted, with the id of its job", **_CODES},
)

ROUTES = [
    RouteSpec(
        method="DELETE",
        path="/api/v1/models/{name:path}",
        handler=remove,
        access=Access.ADMIN,
        summary="Remove a model from the fleet: at once for whoever asks it, then its replicas and its files.",
        gives=OperationView,
        codes={202: "accepted, with the operation that nodes follow", **_CODES},
    ),
    _LOCALAI,
    replace(_LOCALAI, path="/models/delete/{name:path}", handler=apply_delete, gives=ModelApplied),
    replace(
        _LOCALAI,
        method="GET",
        path="/api/models/job/{id}",
        handler=job,
        summary="How far a removal is. One that nobody knows reads as queued, as LocalAI has it.",
        gives=JobStatus,
        codes={200: "its status"},
    ),
    replace(
        _LOCALAI,
        method="GET",
        path="/models/jobs/{id}",
        handler=status,
        summary="The whole status of a removal.",
        gives=OperationStatus,
        codes={200: "its status", 500: "no operation has this id, as LocalAI words it"},
    ),
    replace(
        _LOCALAI,
        method="GET",
        path="/models/jobs",
        handler=list_jobs,
        summary=f"The whole status of the last {_JOBS} operations, by their ids.",
        gives=dict[str, OperationStatus],
        codes={200: "all of them"},
    ),
]
