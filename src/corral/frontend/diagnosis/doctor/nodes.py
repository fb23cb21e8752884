"""Does any node need a person?"""

from corral.frontend.api.context import AdminContext
from corral.frontend.diagnosis.doctor.diagnostic import OK, WARNING
from corral.frontend.nodes.decide.node import NodeStatus
from corral.wire.nodes import Finding

_REMEDY = {
    NodeStatus.PENDING: "approve them with `corral nodes approve`",
    NodeStatus.UNHEALTHY: "look at their workers and the network",
    NodeStatus.OFFLINE: "start their workers, or remove them with `corral nodes remove`",
}


async def check_nodes(context: AdminContext) -> Finding:
    counts = await context.nodes.fleet.count_by_status()
    total = sum(counts.values())
    if total == 0:
        return Finding(
            check="nodes", level=WARNING, summary="no node has registered", remedy="Start a worker: `corral worker`."
        )
    words = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    needy = [f"{status}: {remedy}" for status, remedy in _REMEDY.items() if counts[status]]
    if needy:
        return Finding(check="nodes", level=WARNING, summary=words, remedy="; ".join(needy) + ".")
    return Finding(check="nodes", level=OK, summary=words)
