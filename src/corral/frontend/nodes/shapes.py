"""Nodes as answers: LocalAI's form and Corral's own."""

from datetime import datetime

from msgspec import UNSET
from msgspec.structs import asdict

from corral.frontend.nodes.decide.node import SUSPICIONS, LivenessPolicy, Node, NodeLoad, SeenNode, heartbeat_interval
from corral.wire.node_views import NodeDetail, NodeView, PeerView
from corral.wire.times import format_time


def node_view(seen: SeenNode, load: NodeLoad) -> NodeView:
    node = seen.node
    capacity = node.capacity
    return NodeView(
        id=node.id,
        name=node.name,
        node_type=node.type.value,
        address=node.address,
        http_address=node.http_address,
        status=seen.status.value,
        total_vram=capacity.total_vram,
        available_vram=node.usable_vram,
        reserved_vram=0,
        total_ram=capacity.total_ram,
        available_ram=capacity.available_ram,
        total_disk=capacity.total_disk,
        available_disk=capacity.available_disk,
        gpu_vendor=node.gpu.vendor,
        gpu_compute_capability=node.gpu.compute_capability,
        capability=node.capability or UNSET,
        max_replicas_per_model=node.max_replicas_per_model,
        max_replicas_per_model_manually_set=node.admin_max_replicas is not None,
        vram_budget=node.vram_budget or UNSET,
        vram_budget_bytes=node.vram_budget_bytes or UNSET,
        vram_budget_manually_set=node.admin_vram_budget is not None,
        last_heartbeat=format_time(node.facts.last_heartbeat),
        created_at=format_time(node.created_at),
        updated_at=format_time(max(node.updated_at, node.facts.last_heartbeat)),
        model_count=load.loaded,
        in_flight_count=load.in_flight,
        labels=node.labels.effective,
    )


def node_detail(seen: SeenNode, load: NodeLoad, policy: LivenessPolicy) -> NodeDetail:
    node, facts = seen.node, seen.node.facts
    return NodeDetail(
        **asdict(node_view(seen, load)),
        in_flight=load.in_flight if load.is_known else None,
        approved=facts.approved_at is not None,
        approved_by=facts.approved_by,
        approved_at=_time(facts.approved_at),
        draining=facts.draining_since is not None,
        draining_by=facts.draining_by,
        draining_since=_time(facts.draining_since),
        deregistered_at=_time(facts.deregistered_at),
        silent_seconds=round(seen.silent_seconds, 3),
        heard_seconds_ago=round(seen.heard_seconds_ago, 3),
        heartbeat_seconds=heartbeat_interval(facts, policy).total_seconds(),
        has_secret=node.secret_hash is not None,
        incarnation=facts.incarnation,
        corral=_peer(node),
        problems=_problems(node),
        admin_labels=dict(node.labels.admin),
        removed_labels=sorted(node.labels.removed),
    )


def _problems(node: Node) -> list[str]:
    suspicion = node.facts.suspicion
    return [*([] if suspicion is None else [f"only a person may approve it: {SUSPICIONS[suspicion]}"]), *node.problems]


def _peer(node: Node) -> PeerView | None:
    if node.peer is None:
        return None
    return PeerView(version=node.peer.version, features=sorted(node.peer.features), platform=node.peer.platform)


def _time(time: datetime | None) -> str | None:
    return None if time is None else format_time(time)
