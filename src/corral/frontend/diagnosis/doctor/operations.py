"""Was something asked of nodes that they cannot do?"""

from corral.base.words import listed
from corral.frontend.api.context import AdminContext
from corral.frontend.diagnosis.doctor.diagnostic import OK, WARNING
from corral.frontend.operations.decide.operation import Operation, OperationState
from corral.wire.nodes import Finding

_SHORT_ID = 8


async def check_operations(context: AdminContext) -> Finding:
    current = await context.operations.service.current()
    failed = [one for one in current if one.state is OperationState.FAILED]
    if not failed:
        return Finding(check="operations", level=OK, summary="none has failed")
    return Finding(
        check="operations",
        level=WARNING,
        summary=f"{len(failed)} failed: {listed([_words(one) for one in reversed(failed)])}",
        remedy=f"See what to do with `corral ops show {failed[-1].id[:_SHORT_ID]}`.",
    )


def _words(operation: Operation) -> str:
    return f"{operation.verb} {operation.subject} ({operation.id[:_SHORT_ID]})"
