"""Operations in LocalAI's form: `/api/operations`, and the status of a job."""

from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from corral.admin.answers import answer
from corral.admin.context import AdminContext, Caller
from corral.admin.operation_shapes import (
    UNKNOWN_JOB,
    history_item,
    is_listed,
    job_status,
    operation_item,
    peer_item,
    peer_job_status,
)
from corral.admin.route import Access, Dialect, RouteSpec
from corral.base.errors import NotFound
from corral.base.ids import OperationId
from corral.control.operation_status import operation_status
from corral.protocol.broadcasts import OperationStatus
from corral.protocol.operation_views import History, JobStatus, OperationItems

_HISTORY = 50


async def list_operations(context: AdminContext, request: Request, caller: Caller) -> Response:
    listed = [one for one in await context.operations.current() if is_listed(one)]
    items = [operation_item(one, context.progress.look(one)) for one in listed]
    items += [peer_item(one) for one in context.peers.listed()]
    return answer(OperationItems(operations=sorted(items, key=lambda one: (one.progress, one.id))))


async def cancel(context: AdminContext, request: Request, caller: Caller) -> Response:
    await context.operations.cancel(_id(request), by=caller.name)
    return answer({"message": "Operation cancelled", "success": True})


async def pause(context: AdminContext, request: Request, caller: Caller) -> Response:
    await context.operations.cancel(_id(request), by=caller.name)
    return answer({"message": "Operation paused", "success": True})


async def dismiss(context: AdminContext, request: Request, caller: Caller) -> Response:
    await context.operations.dismiss(_id(request))
    return answer({"message": "Operation dismissed", "success": True})


async def history(context: AdminContext, request: Request, caller: Caller) -> Response:
    shown = [history_item(one) for one in await context.operations.newest(limit=_HISTORY)]
    items = [one for one in shown if one is not None]
    return answer(History(operations=sorted(items, key=lambda one: one.finished_at, reverse=True)))


async def job(context: AdminContext, request: Request, caller: Caller) -> Response:
    try:
        operation = await context.operations.get(_id(request))
    except NotFound:
        peer = context.peers.find(_id(request))
        return answer(UNKNOWN_JOB if peer is None or peer.status is None else peer_job_status(peer.status))
    return answer(job_status(operation, context.progress.look(operation)))


async def status(context: AdminContext, request: Request, caller: Caller) -> Response:
    try:
        operation = await context.operations.get(_id(request))
    except NotFound:
        if (peer := context.peers.find(_id(request))) is not None and peer.status is not None:
            return answer(peer.status)
        return answer({"error": {"code": 500, "message": "could not find any status for ID", "type": ""}}, 500)
    return answer(operation_status(operation, context.progress.look(operation)))


def _id(request: Request) -> OperationId:
    return OperationId(request.path_params["id"])


_ADMIN = RouteSpec(
    method="GET",
    path="/api/operations",
    handler=list_operations,
    access=Access.ADMIN,
    dialect=Dialect.LOCALAI_UI,
    summary="What is under way or has failed, in LocalAI's form.",
    gives=OperationItems,
    codes={200: "a list, by progress"},
)
_ALWAYS = {200: "also for an id that nobody knows, as LocalAI has it"}

ROUTES = [
    _ADMIN,
    replace(
        _ADMIN,
        path="/api/operations/history",
        handler=history,
        summary="The last 50 operations that are over.",
        gives=History,
        codes={200: "a list, the latest first"},
    ),
    replace(
        _ADMIN,
        method="POST",
        path="/api/operations/{id}/cancel",
        handler=cancel,
        summary="Take back what was not sent yet.",
        gives=None,
        codes=_ALWAYS,
    ),
    replace(
        _ADMIN,
        method="POST",
        path="/api/operations/{id}/pause",
        handler=pause,
        summary="The same as a cancel: nodes keep what they have downloaded in any case.",
        gives=None,
        codes=_ALWAYS,
    ),
    replace(
        _ADMIN,
        method="POST",
        path="/api/operations/{id}/dismiss",
        handler=dismiss,
        summary="Show it in the history only.",
        gives=None,
        codes=_ALWAYS,
    ),
    replace(
        _ADMIN,
        path="/api/backends/job/{id}",
        handler=job,
        summary="How far an operation is. One that nobody knows reads as queued, as LocalAI has it.",
        gives=JobStatus,
        codes={200: "its status"},
    ),
    replace(
        _ADMIN,
        path="/backends/jobs/{id}",
        handler=status,
        summary="The whole status of an operation.",
        gives=OperationStatus,
        codes={200: "its status", 500: "no operation has this id, as LocalAI words it"},
    ),
]
