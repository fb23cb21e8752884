"""Operations in LocalAI's form: `/api/operations`, and the status of a job."""

from msgspec import UNSET
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from corral.base.errors import NotFound
from corral.base.ids import OperationId
from corral.frontend.access.decide import Permission
from corral.frontend.api.parameters import number
from corral.frontend.api.route import AdminContext, Caller, Dialect, RouteSpec, answer
from corral.frontend.operations.decide.operation import compat_status
from corral.frontend.operations.routes.native import cut, read_place
from corral.frontend.operations.shapes import (
    UNKNOWN_JOB,
    history_item,
    is_listed,
    job_status,
    operation_item,
    operation_status,
    peer_item,
    staging_item,
)
from corral.wire.broadcasts import OperationStatus
from corral.wire.operation_views import Acknowledgement, History, JobStatus, MoreHistory, OperationItems

_HISTORY = 50
"""As many as LocalAI shows."""


async def list_operations(context: AdminContext, request: Request, caller: Caller) -> Response:
    listed = [operation for operation in await context.operations.stores.operations.current() if is_listed(operation)]
    items = [operation_item(operation, context.operations.progress.look(operation)) for operation in listed]
    items += [
        peer_item(peer.job_id, peer.key, peer.status, is_backend=peer.is_backend)
        for peer in context.operations.peers.listed()
    ]
    items += [staging_item(model, status) for model, status in context.operations.peers.staged().items()]
    return answer(OperationItems(operations=sorted(items, key=lambda item: (item.progress, item.id))))


async def cancel(context: AdminContext, request: Request, caller: Caller) -> Response:
    await context.operations.service.cancel(_id(request), by=caller.name)
    return answer(Acknowledgement(message="Operation cancelled"))


async def pause(context: AdminContext, request: Request, caller: Caller) -> Response:
    await context.operations.service.cancel(_id(request), by=caller.name)
    return answer(Acknowledgement(message="Operation paused"))


async def dismiss(context: AdminContext, request: Request, caller: Caller) -> Response:
    await context.operations.service.dismiss(_id(request))
    return answer(Acknowledgement(message="Operation dismissed"))


async def history(context: AdminContext, request: Request, caller: Caller) -> Response:
    """Pages go by when operations were accepted; on each, what ended last is first."""
    limit, before = read_place(request.query_params, usual=_HISTORY, most=_HISTORY)
    page, more = cut(await context.operations.stores.operations.left(limit=limit + 1, before=before), limit)
    items = [item for operation in page if (item := history_item(operation)) is not None]
    return answer(
        History(
            operations=sorted(items, key=lambda item: item.finished_at, reverse=True),
            corral=UNSET if more is None else MoreHistory(next_cursor=more),
        )
    )


async def clear_history(context: AdminContext, request: Request, caller: Caller) -> Response:
    await context.operations.service.clear(by=caller.name)
    return answer(Acknowledgement())


async def job(context: AdminContext, request: Request, caller: Caller) -> Response:
    try:
        operation = await context.operations.service.get(_id(request))
    except NotFound:
        peer = context.operations.peers.find(_id(request))
        if peer is None or peer.status is None:
            return answer(UNKNOWN_JOB)
        is_completed = peer.status.processed and not peer.status.error and not peer.status.cancelled
        return answer(job_status(peer.status, is_completed=is_completed))
    whole = operation_status(operation, context.operations.progress.look(operation))
    return answer(job_status(whole, is_completed=compat_status(operation).completed))


async def status(context: AdminContext, request: Request, caller: Caller) -> Response:
    try:
        operation = await context.operations.service.get(_id(request))
    except NotFound:
        if (peer := context.operations.peers.find(_id(request))) is not None and peer.status is not None:
            return answer(peer.status)
        return answer({"error": {"code": 500, "message": "could not find any status for ID", "type": ""}}, 500)
    return answer(operation_status(operation, context.operations.progress.look(operation)))


def _id(request: Request) -> OperationId:
    return OperationId(request.path_params["id"])


_ADMIN = RouteSpec(
    method="GET",
    path="/api/operations",
    handler=list_operations,
    access=Permission.OPERATIONS_READ,
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
        access=Permission.OPERATIONS_READ,
        summary="The last operations that are over.",
        gives=History,
        query={
            "limit": number(f"how many, from 1 to {_HISTORY}", least=1, most=_HISTORY),
            "cursor": "where an earlier page ended",
        },
        codes={200: "a list, the latest first", 400: "a bad cursor or limit"},
    ),
    replace(
        _ADMIN,
        method="DELETE",
        path="/api/operations/history",
        handler=clear_history,
        access=Permission.OPERATIONS_ACT,
        summary="Forget the operations that are over. What failed stays as long as it is tried again.",
        gives=Acknowledgement,
        codes={200: "forgotten, by all frontends"},
    ),
    replace(
        _ADMIN,
        method="POST",
        path="/api/operations/{id}/cancel",
        handler=cancel,
        access=Permission.OPERATIONS_ACT,
        summary="Take back what was not sent yet.",
        gives=Acknowledgement,
        codes=_ALWAYS,
    ),
    replace(
        _ADMIN,
        method="POST",
        path="/api/operations/{id}/pause",
        handler=pause,
        access=Permission.OPERATIONS_ACT,
        summary="The same as a cancel: nodes keep what they have downloaded in any case.",
        gives=Acknowledgement,
        codes=_ALWAYS,
    ),
    replace(
        _ADMIN,
        method="POST",
        path="/api/operations/{id}/dismiss",
        handler=dismiss,
        access=Permission.OPERATIONS_ACT,
        summary="Show it in the history only.",
        gives=Acknowledgement,
        codes=_ALWAYS,
    ),
    replace(
        _ADMIN,
        path="/api/backends/job/{id}",
        handler=job,
        access=Permission.OPERATIONS_READ,
        summary="How far an operation is. One that nobody knows reads as queued, as LocalAI has it.",
        gives=JobStatus,
        codes={200: "its status"},
    ),
    replace(
        _ADMIN,
        path="/backends/jobs/{id}",
        handler=status,
        access=Permission.OPERATIONS_READ,
        dialect=Dialect.LOCALAI_CLI,
        summary="The whole status of an operation.",
        gives=OperationStatus,
        codes={200: "its status", 500: "no operation has this id, as LocalAI words it"},
    ),
]
