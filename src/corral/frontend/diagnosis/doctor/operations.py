"""Checks of what was asked of the fleet: operations that failed, and fleet rules that cannot be satisfied."""

from corral.base.words import listed
from corral.frontend.api.route import AdminContext
from corral.frontend.diagnosis.doctor import OK, WARNING
from corral.frontend.operations.decide.operation import OperationState, TargetStatus
from corral.wire.nodes import Finding

_SHORT_ID = 8
_UNMET = (TargetStatus.ERROR, TargetStatus.BLOCKED)


async def check_operations(context: AdminContext) -> Finding:
    current = await context.operations.stores.operations.current()
    failed = [operation for operation in current if operation.state is OperationState.FAILED]
    if not failed:
        return Finding(check="operations", level=OK, summary="none has failed")
    words = [f"{operation.verb} {operation.subject} ({operation.id[:_SHORT_ID]})" for operation in reversed(failed)]
    return Finding(
        check="operations",
        level=WARNING,
        summary=f"{len(failed)} failed: {listed(words)}",
        remedy=f"See what to do with `corral ops show {failed[-1].id[:_SHORT_ID]}`.",
    )


async def check_fleet_rules(context: AdminContext) -> Finding:
    standings = await context.rules.service.show()
    if doubtful := [standing for standing in standings if standing.doubt]:
        reasons = listed([f"{standing.rule.name} ({standing.doubt})" for standing in doubtful], most=2)
        return Finding(
            check="fleet rules",
            level=WARNING,
            summary=f"{len(doubtful)} of {len(standings)} name a backend that nobody knows: {reasons}",
            remedy="Correct the name and apply the file again, or `corral backends rules delete "
            f"{doubtful[0].rule.name}`.",
        )
    unmet = [standing.rule.name for standing in standings if any(place.standing in _UNMET for place in standing.places)]
    if unmet:
        return Finding(
            check="fleet rules",
            level=WARNING,
            summary=f"{len(unmet)} of {len(standings)} are not met on some node: {listed(unmet)}",
            remedy="`corral backends rules list` tells where, and why.",
        )
    return Finding(check="fleet rules", level=OK, summary=f"{len(standings)} known, all met or under way")
