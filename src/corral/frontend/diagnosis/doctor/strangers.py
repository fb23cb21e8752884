"""Does a node wait for approval that may be somebody else, and can further nodes wait at all?"""

from corral.frontend.api.context import AdminContext
from corral.frontend.diagnosis.doctor.diagnostic import OK, WARNING
from corral.frontend.nodes.decide.node import SUSPICIONS, NodeStatus
from corral.frontend.nodes.fleet import NodeFilter
from corral.wire.nodes import Finding


async def check_strangers(context: AdminContext) -> Finding:
    pending = await context.nodes.fleet.all(NodeFilter(statuses=frozenset({NodeStatus.PENDING})))
    suspects = [
        f"{seen.node.name} at {seen.node.address} ({SUSPICIONS[seen.node.facts.suspicion]})"
        for seen in pending
        if seen.node.facts.suspicion is not None
    ]
    if suspects:
        return Finding(
            check="strangers",
            level=WARNING,
            summary=f"these nodes may not be who they seem to be: {', '.join(sorted(suspects))}",
            remedy="Find out who started it; then approve it, or remove it with `corral nodes remove`.",
        )
    most = context.config.admission.max_pending
    if len(pending) >= most:
        return Finding(
            check="strangers",
            level=WARNING,
            summary=f"{len(pending)} nodes wait for approval, and no more may (setting max_pending_nodes: {most})",
            remedy="Look at them with `corral nodes list --status pending`; approve or remove them.",
        )
    return Finding(check="strangers", level=OK, summary="no node uses the name or the place of another")
