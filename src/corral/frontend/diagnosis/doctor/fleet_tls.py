"""Do gateways and control speak TLS with all workers that could?"""

from corral.base.words import listed
from corral.frontend.api.route import AdminContext
from corral.frontend.diagnosis.doctor import OK, PROBLEM, WARNING
from corral.frontend.nodes.decide.node import Node, NodeStatus, NodeType
from corral.wire.nodes import Finding
from corral.wire.registration import Feature


def has_tls(node: Node) -> bool:
    return node.peer is not None and Feature.FLEET_TLS in node.peer.features


async def check_fleet_tls(context: AdminContext) -> Finding:
    is_on = context.nodes.tls.policy.is_on
    seen = [each for each in await context.nodes.fleet.all() if each.status is not NodeStatus.PENDING]
    nodes = [each.node for each in seen if each.node.type is NodeType.BACKEND]
    with_tls = [node.name for node in nodes if has_tls(node)]
    if with_tls and not is_on:
        return Finding(
            check="fleet tls",
            level=PROBLEM,
            summary=f"{listed(with_tls)} speak TLS only, and this frontend makes no certificates: nobody reaches them",
            remedy="Set fleet_tls at every frontend, or turn it off at these workers.",
        )
    if not is_on:
        return Finding(check="fleet tls", level=OK, summary="off: traffic with workers is in plain text")
    plain = [node.name for node in nodes if node.peer is not None and not has_tls(node)]
    foreign = [node.name for node in nodes if node.peer is None]
    if plain:
        return Finding(
            check="fleet tls",
            level=WARNING,
            summary=f"on, and {listed(plain)} still speak plain text",
            remedy="Set fleet_tls at these workers (CORRAL_FLEET_TLS=true) and restart them.",
        )
    foreign_nodes = f"; {listed(foreign)} of LocalAI's cannot" if foreign else ""
    return Finding(
        check="fleet tls", level=OK, summary=f"on, with {len(with_tls)} of {len(nodes)} workers{foreign_nodes}"
    )
