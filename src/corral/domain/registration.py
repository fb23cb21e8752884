"""What a registration makes of a node: who it is, what stays, what changes.

A node with a secret is found by it; one without, by its name. A registration without a secret under the name of a
node that has one is a stranger: it becomes a new pending node, and people are alarmed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from corral.base.ids import Incarnation, NodeId
from corral.domain.labels import MAX_LABELS, NodeLabels, automatic_labels, report
from corral.domain.node import BY_WORKER, Gpu, Node, NodeFacts, NodeType, Peer

_BEATS_WITHIN: Final = timedelta(minutes=1)
_RENEWED_AFTER: Final = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """A join request after validation. None means not said, so that what is known stays."""

    name: str
    type: NodeType = NodeType.BACKEND
    address: str = ""
    http_address: str = ""
    measured: Mapping[str, int] = field(default_factory=dict)
    """Names of Capacity fields to bytes."""
    gpu_vendor: str | None = None
    gpu_compute_capability: str | None = None
    capability: str | None = None
    max_replicas_per_model: int = 1
    vram_budget: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    peer: Peer | None = None
    secret_hash: str | None = None
    incarnation: Incarnation = Incarnation("")
    """Empty until the registry has given it one, since LocalAI's workers do not say."""
    interval: timedelta | None = None
    problems: tuple[str, ...] = ()


def register_new(registration: Registration, *, id: NodeId, at: datetime, approved_by: str | None) -> Node:
    """A node nobody knew. Without `approved_by` it is pending until a person approves it."""
    facts = NodeFacts(
        approved_at=at if approved_by is not None else None,
        approved_by=approved_by or "",
        last_heartbeat=at,
    )
    blank = Node(id=id, name=registration.name, facts=facts, created_at=at, registered_at=at, updated_at=at)
    return _take_in(blank, registration, at)


def register_again(node: Node, registration: Registration, *, at: datetime, approved_by: str | None) -> Node:
    """The same node after a restart, or a refresh.

    Id, approval, a person's drain, people's labels and budgets stay. The worker's own drain and its deregistration
    end here. `approved_by` approves a pending node; it takes nothing from an approved one.
    """
    facts = node.facts
    if facts.approved_at is None and approved_by is not None:
        facts = replace(facts, approved_at=at, approved_by=approved_by)
    if facts.draining_by == BY_WORKER:
        facts = replace(facts, draining_since=None, draining_by="")
    return _take_in(replace(node, facts=facts), registration, at)


def is_new_life(node: Node, registration: Registration) -> bool:
    """Did the worker process restart?"""
    return registration.incarnation != node.facts.incarnation


def is_renewal(node: Node, registration: Registration, at: datetime, lifetime: timedelta | None) -> bool:
    """Does LocalAI's worker, which tells no life, register only because its NATS user of this lifetime runs out?

    It does so after three quarters of it, from where it was, and beats until then. A restart at that time looks alike.
    """
    if lifetime is None or registration.address != node.address:
        return False
    beats = at - node.facts.last_heartbeat < _BEATS_WITHIN
    return beats and at - node.registered_at > _RENEWED_AFTER * lifetime


def _take_in(node: Node, registration: Registration, at: datetime) -> Node:
    capacity = replace(node.capacity, **registration.measured)
    gpu = _reported_gpu(node.gpu, registration)
    updated = replace(
        node,
        name=registration.name,
        type=registration.type,
        address=registration.address,
        http_address=registration.http_address,
        capacity=capacity,
        gpu=gpu,
        capability=node.capability if registration.capability is None else registration.capability,
        reported_max_replicas=max(registration.max_replicas_per_model, 1),
        reported_vram_budget=registration.vram_budget,
        peer=registration.peer,
        secret_hash=registration.secret_hash or node.secret_hash,
        facts=replace(
            node.facts,
            deregistered_at=None,
            last_heartbeat=at,
            stated_interval=registration.interval,
            recent_gaps=(),
            no_responders_at=None,
            incarnation=registration.incarnation,
        ),
        registered_at=at,
        updated_at=at,
    )
    labels = _reported_labels(updated, registration)
    dropped = len((node.labels.reported.keys() | registration.labels.keys()) - labels.reported.keys())
    problem = f"labels: {dropped} are dropped; a node has at most {MAX_LABELS}"
    problems = (*registration.problems, problem) if dropped else registration.problems
    return replace(updated, labels=labels, problems=problems)


def _reported_gpu(known: Gpu, registration: Registration) -> Gpu:
    return Gpu(
        vendor=known.vendor if registration.gpu_vendor is None else registration.gpu_vendor,
        compute_capability=known.compute_capability
        if registration.gpu_compute_capability is None
        else registration.gpu_compute_capability,
    )


def _reported_labels(node: Node, registration: Registration) -> NodeLabels:
    automatic = automatic_labels(
        name=node.name,
        replica_slots=node.max_replicas_per_model,
        gpu_vendor=node.gpu.vendor,
        total_vram=node.capacity.total_vram,
    )
    return report(node.labels, registration.labels, automatic)
