"""What LocalAI's routes do to backends, on the fleet or on one node: start an operation, and say so in its forms."""

from datetime import timedelta
from typing import Final

from starlette.requests import Request

from corral.frontend.api.context import AdminContext
from corral.frontend.backends.planning import Ask
from corral.frontend.operations.decide.localai_status import node_rows
from corral.frontend.operations.decide.operation import Operation, OperationState, error_text, waits
from corral.wire.operation_views import Applied, JobStarted, NodeResults

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
    operation = await context.backend_operations.start(ask)
    return await context.operations.settled(operation.id, within=_DELETE_WITHIN)


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
