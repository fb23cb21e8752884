"""Can the fleet rules be satisfied?"""

from corral.base.words import listed
from corral.frontend.api.context import AdminContext
from corral.frontend.diagnosis.doctor.diagnostic import OK, WARNING
from corral.frontend.operations.decide.operation import TargetStatus
from corral.wire.nodes import Finding

_BAD = (TargetStatus.ERROR, TargetStatus.BLOCKED)


async def check_fleet_rules(context: AdminContext) -> Finding:
    standings = (await context.rules.service.show()).standings
    if doubtful := [one for one in standings if one.doubt]:
        told = listed([f"{one.rule.name} ({one.doubt})" for one in doubtful], most=2)
        return Finding(
            check="fleet rules",
            level=WARNING,
            summary=f"{len(doubtful)} of {len(standings)} name a backend that nobody knows: {told}",
            remedy="Correct the name and apply the file again, or `corral backends rules delete "
            f"{doubtful[0].rule.name}`.",
        )
    unmet = [one.rule.name for one in standings if any(place.standing in _BAD for place in one.places)]
    if unmet:
        return Finding(
            check="fleet rules",
            level=WARNING,
            summary=f"{len(unmet)} of {len(standings)} are not met on some node: {listed(unmet)}",
            remedy="`corral backends rules list` tells where, and why.",
        )
    return Finding(check="fleet rules", level=OK, summary=f"{len(standings)} known, all met or under way")
