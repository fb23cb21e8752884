"""Checks of the nodes: whether one needs a person, and whether one that waits for approval may be somebody else."""

from corral.base.words import counted
from corral.frontend.api.route import AdminContext
from corral.frontend.diagnosis.doctor import OK, WARNING
from corral.frontend.nodes.decide.node import SUSPICIONS, NodeStatus
from corral.frontend.nodes.fleet import NodeFilter
from corral.wire.nodes import Finding

_SERVING = frozenset({NodeStatus.HEALTHY, NodeStatus.UNHEALTHY, NodeStatus.DRAINING})
_NAMED = 5
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


async def check_confinement(context: AdminContext) -> Finding:
    """Whether a backend could read what belongs to others. What else a machine lacks is said beside its node."""
    nodes = [seen.node for seen in await context.nodes.fleet.all(NodeFilter(statuses=_SERVING))]
    reports = {node.name: node.confinement for node in nodes if node.confinement is not None}
    silent = sorted(node.name for node in nodes if node.confinement is None)
    open_nodes = {name: report for name, report in reports.items() if not report.is_on or not report.landlock}
    if open_nodes:
        name, report = min(open_nodes.items())
        why = report.missing[0] if report.missing else "it does not say why"
        return Finding(
            check="confinement",
            level=WARNING,
            summary=f"on {counted(len(open_nodes), 'node')} a backend can read files of others: {name}: {why}",
            remedy="`corral nodes show NODE` says what each machine lacks; run only backends that you trust there.",
        )
    lacking = sorted(name for name, report in reports.items() if report.missing)
    words = [f"backends are confined on {counted(len(reports), 'node')}"] if reports else ["no node confines backends"]
    words += [f"not in every way: {', '.join(lacking[:_NAMED])}"] if lacking else []
    if shared := sorted(name for name, report in reports.items() if not report.own_users):
        on = ", ".join(shared[:_NAMED])
        words.append(f"unless their network is none, they can use services of the worker's user on {on}")
    words += [f"not told by {', '.join(silent[:_NAMED])}"] if silent else []
    return Finding(check="confinement", level=OK, summary="; ".join(words))


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
            remedy="`corral nodes show` tells what is different. Find out who started it; then approve it, or remove it"
            " with `corral nodes remove`.",
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
