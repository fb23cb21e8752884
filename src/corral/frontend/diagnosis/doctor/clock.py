"""Does this machine's clock run with the fleet's?"""

from datetime import timedelta

from corral.base.words import format_duration
from corral.frontend.api.context import AdminContext
from corral.frontend.diagnosis.doctor.diagnostic import OK, WARNING
from corral.wire.nodes import Finding

_SUSPICIOUS = timedelta(seconds=5)


async def check_clock(context: AdminContext) -> Finding:
    hearing = context.nodes.hearing.current
    now = context.clock.now()
    if hearing.until - now > _SUSPICIOUS:
        return Finding(
            check="clock",
            level=WARNING,
            summary=f"this clock is {format_duration(hearing.until - now)} behind another frontend's",
            remedy="Let NTP set the clocks of all frontends.",
        )
    deaf = now - hearing.until
    if deaf > context.config.liveness.tolerated_deafness:
        return Finding(
            check="clock",
            level=WARNING,
            summary=f"control has been deaf for {format_duration(deaf)}; silence of nodes is not counted",
            remedy="Mend what the other checks report: the database or NATS.",
        )
    heard = max(now - hearing.since, timedelta(0))
    return Finding(check="clock", level=OK, summary=f"control has heard its nodes for {format_duration(heard)}")
