"""Checks of the nodes: whether one needs a person, and whether one that waits for approval may be somebody else."""

from corral.frontend.api.route import AdminContext
from corral.frontend.diagnosis.doctor import OK, WARNING
from corral.frontend.nodes.decide.node import SUSPICIONS, NodeStatus
from corral.frontend.nodes.fleet import NodeFilter
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
