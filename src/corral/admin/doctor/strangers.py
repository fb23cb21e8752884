"""Does a node that waits for approval use the name of another one that has a secret?"""

from corral.admin.context import AdminContext
from corral.admin.doctor.diagnostic import OK, WARNING
from corral.control.fleet import NodeFilter
from corral.domain.event import EventKind
from corral.domain.node import NodeStatus
from corral.protocol.node_views import Finding

_LOOKED_AT = 1000


async def check_strangers(context: AdminContext) -> Finding:
    alarms = await context.events.search(kind_prefix=EventKind.NODE_IMPERSONATION, limit=_LOOKED_AT)
    suspects = {alarm.event.node_id for alarm in alarms}
    pending = await context.fleet.all(NodeFilter(statuses=frozenset({NodeStatus.PENDING})))
    found = [f"{seen.node.name} at {seen.node.address}" for seen in pending if seen.node.id in suspects]
    if not found:
        return Finding(check="strangers", level=OK, summary="no node uses the name of another")
    return Finding(
        check="strangers",
        level=WARNING,
        summary=f"registered without the secret of the node whose name it uses: {', '.join(sorted(found))}",
        remedy="Find out who started it; then approve it, or remove it with `corral nodes remove`.",
    )
