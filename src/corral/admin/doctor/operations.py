"""Was something asked of nodes that they cannot do?"""

from corral.admin.context import AdminContext
from corral.admin.doctor.diagnostic import OK, WARNING
from corral.domain.operation import Operation, OperationState
from corral.protocol.node_views import Finding

_SHORT_ID = 8
_NAMED = 5


async def check_operations(context: AdminContext) -> Finding:
    current = await context.operations.current()
    failed = [one for one in current if one.state is OperationState.FAILED]
    if not failed:
        return Finding(check="operations", level=OK, summary="none has failed")
    more = len(failed) - _NAMED
    words = ", ".join(_words(one) for one in failed[-_NAMED:]) + (f" and {more} more" if more > 0 else "")
    return Finding(
        check="operations",
        level=WARNING,
        summary=f"{len(failed)} failed: {words}",
        remedy=f"See what to do with `corral ops show {failed[-1].id[:_SHORT_ID]}`.",
    )


def _words(operation: Operation) -> str:
    return f"{operation.verb} {operation.backend} ({operation.id[:_SHORT_ID]})"
