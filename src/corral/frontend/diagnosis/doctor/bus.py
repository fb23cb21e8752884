"""Is NATS connected?"""

from corral.frontend.api.context import AdminContext
from corral.frontend.diagnosis.doctor.diagnostic import OK, PROBLEM
from corral.wire.nodes import Finding


async def check_bus(context: AdminContext) -> Finding:
    if context.foundation.bus.connected:
        return Finding(check="nats", level=OK, summary="connected")
    return Finding(
        check="nats",
        level=PROBLEM,
        summary="not connected; workers cannot be told anything, and silence of nodes is not counted",
        remedy="Start the NATS server, or correct its URL and credentials (CORRAL_NATS_URL).",
    )
