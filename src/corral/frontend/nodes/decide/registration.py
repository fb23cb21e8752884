"""What a registration makes of a node: who it is, what stays, what changes.

A node with a secret is found by it; one without, by its name. A registration without a secret under the name of a
node that has one is a stranger: it becomes a new pending node, and people are alarmed. So is an approved node that
comes back as another type, or without a secret at another address, or from another one: it is pending again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import msgspec
from msgspec.structs import replace

from corral.base.errors import CorralError
from corral.base.ids import Incarnation, NodeId, is_same_source
from corral.base.setting_kinds import SWITCH, duration, whole
from corral.base.settings import setting
from corral.frontend.nodes.decide.node import (
    BY_WORKER,
    Gpu,
    Node,
    NodeFacts,
    NodeType,
    Peer,
    ReportedCard,
    Suspicion,
    report_cards,
)
from corral.wire.confinement import ConfinementReport
from corral.wire.labels import MAX_LABELS, automatic_labels

_BEATS_WITHIN: Final = timedelta(minutes=1)
_RENEWED_AFTER: Final = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionPolicy:
    """Who is admitted, and how many may wait for that."""

    auto_approve: bool = setting(
        SWITCH,
        """Approve every node that knows the registration token. Off by default: a leaked token must not be enough to
        be given work.""",
        aliases=("LOCALAI_AUTO_APPROVE_NODES",),
        default=False,
    )
    registration_by_token: bool = setting(
        SWITCH,
        """Let workers in that know the registration token, or have an API key of the scope `node`. On by default:
        LocalAI's workers know no other way. Where it is off, machines join with invitations (`corral nodes invite`)
        and come back with their own secrets, workers of LocalAI's neither join nor stay, and a leaked token opens
        nothing.""",
        default=True,
    )
    trusts_changed_addresses: bool = setting(
        SWITCH,
        """Let a node without a secret of its own, as LocalAI's workers are, keep its approval when it registers another
        address, or from another one; for networks whose addresses change, by DHCP or behind several NAT routers. Off by
        default: everybody with the registration token could take such a node's place, and its prompts.""",
        name="trust_changed_addresses",
        default=False,
    )
    max_pending: int = setting(
        whole(1, 100_000),
        """Nodes that may wait for approval; further ones are refused with 429 until some are approved or removed. 256:
        more than a person looks through.""",
        name="max_pending_nodes",
        default=256,
    )
    max_pending_per_source: int = setting(
        whole(1, 100_000),
        """Nodes that may wait for approval from one source address; an IPv6 /64 network counts as one. 32: enough for a
        rack behind one router.""",
        default=32,
    )
    pending_retention: timedelta = setting(
        duration("1m", "3650d"),
        """How long a pending node is kept that has sent no heartbeat since it registered. 1h: a worker that lives beats
        every ten seconds.""",
        default="1h",
    )


class TooManyPending(CorralError):
    """Too many nodes wait for approval."""

    code = "too_many_pending"
    retryable = True


def crowd_problem(policy: AdmissionPolicy, *, pending: int, from_source: int, source: str) -> str:
    """Why one more node may not wait beside those that do; empty when it may."""
    if pending >= policy.max_pending:
        crowd, setting = f"{pending} nodes wait for approval", "max_pending_nodes"
    elif source and from_source >= policy.max_pending_per_source:
        crowd, setting = f"{from_source} nodes from {source} wait for approval", "max_pending_per_source"
    else:
        return ""
    return f"{crowd} already; approve or remove some of them, or raise the frontend's setting {setting}"


class Approval(msgspec.Struct, frozen=True, kw_only=True):
    """What approves a node at its registration, in place of a person."""

    by: str
    is_proof: bool
    """The caller proved to be one of ours. Otherwise everybody is approved who may register, except suspects."""


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """A join request after validation. None means not said, so that what is known stays."""

    name: str
    type: NodeType = NodeType.BACKEND
    address: str = ""
    http_address: str = ""
    registered_from: str = ""
    """The source address of the request, as limits count it; empty where that is not known."""
    measured: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Names of Capacity fields to bytes."""
    gpu_vendor: str | None = None
    gpu_compute_capability: str | None = None
    capability: str | None = None
    cards: tuple[ReportedCard, ...] = ()
    """Its GPUs one by one: all of them, or none where it tells only sums."""
    max_replicas_per_model: int = 1
    vram_budget: str = ""
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    peer: Peer | None = None
    confinement: ConfinementReport | None = None
    secret_hash: str | None = None
    nats_login: str | None = None
    incarnation: Incarnation = Incarnation("")
    """Empty until the registry has given it one, since LocalAI's workers do not say."""
    interval: timedelta | None = None
    problems: tuple[str, ...] = ()


def register_new(registration: Registration, *, id: NodeId, at: datetime, approval: Approval | None) -> Node:
    """A node nobody knew. Without an approval it is pending until a person approves it."""
    facts = NodeFacts(
        approved_at=at if approval is not None else None,
        approved_by="" if approval is None else approval.by,
        last_heartbeat=at,
    )
    blank = Node(id=id, name=registration.name, facts=facts, created_at=at, registered_at=at, updated_at=at)
    return _take_in(blank, registration, at)


def register_stranger(registration: Registration, *, id: NodeId, at: datetime) -> Node:
    """Somebody without the secret uses the name of a node that has one: only a person can approve it."""
    node = register_new(registration, id=id, at=at, approval=None)
    return replace(node, facts=replace(node.facts, suspicion=Suspicion.NAMESAKE))


def register_again(
    node: Node, registration: Registration, *, at: datetime, approval: Approval | None, policy: AdmissionPolicy
) -> Node:
    """A known node after a restart, or a refresh.

    Id, approval, a person's drain, people's labels and budgets stay. The worker's own drain and its deregistration
    end here. An approval approves a pending node, a suspect only if it is a proof; it takes nothing from an approved
    one. Who is suspected without such a proof is not approved any more, and another type never without a person.
    """
    facts = node.facts
    suspicion = facts.suspicion if facts.approved_at is None else suspicion_of(node, registration, policy)
    if suspicion is not None and (approval is None or not approval.is_proof or suspicion is Suspicion.OTHER_TYPE):
        facts = replace(facts, approved_at=None, approved_by="", suspicion=suspicion)
    elif facts.approved_at is None and approval is not None:
        facts = replace(facts, approved_at=at, approved_by=approval.by, suspicion=None)
    if facts.draining_by == BY_WORKER:
        facts = replace(facts, draining_since=None, draining_by="")
    return _take_in(replace(node, facts=facts), registration, at)


def suspicion_of(node: Node, registration: Registration, policy: AdmissionPolicy) -> Suspicion | None:
    """Why this may be somebody else than the node that was approved.

    A caller with the node's secret may move. A caller without one is recognised by the addresses that it registers,
    which anybody can claim, and by the address that it calls from.
    """
    if registration.type is not node.type:
        return Suspicion.OTHER_TYPE
    if node.secret_hash is not None or policy.trusts_changed_addresses:
        return None
    if (registration.address, registration.http_address) != (node.address, node.http_address):
        return Suspicion.OTHER_ADDRESS
    return Suspicion.OTHER_ADDRESS if _calls_from_elsewhere(node, registration) else None


def _calls_from_elsewhere(node: Node, registration: Registration) -> bool:
    """Where it is not known from where a node with an address is called now, its address must do."""
    before, now = node.registered_from, registration.registered_from
    if not before or (not now and node.address):
        return False
    return not is_same_source(before, now)


def is_new_life(node: Node, registration: Registration) -> bool:
    """Did the worker process restart?"""
    return registration.incarnation != node.facts.incarnation


def is_still_waiting(node: Node, registration: Registration) -> bool:
    """Does a pending worker, which is told nothing until somebody approves it, only ask again? LocalAI's do it up to a
    hundred times where they need a NATS user."""
    stated = (registration.type, registration.address, registration.http_address)
    return node.facts.approved_at is None and stated == (node.type, node.address, node.http_address)


def is_renewal(node: Node, registration: Registration, at: datetime, lifetime: timedelta | None) -> bool:
    """Does LocalAI's worker, which tells no life, register only because its NATS user of this lifetime runs out?

    It does so after three quarters of it, from where it was, and beats until then. A restart at that time looks alike.
    """
    if lifetime is None or registration.address != node.address:
        return False
    beats = at - node.facts.last_heartbeat < _BEATS_WITHIN
    return beats and at - node.registered_at > _RENEWED_AFTER * lifetime


def _take_in(node: Node, registration: Registration, at: datetime) -> Node:
    gpu, vendor, capability = node.gpu, registration.gpu_vendor, registration.gpu_compute_capability
    updated = replace(
        node,
        name=registration.name,
        type=registration.type,
        address=registration.address,
        http_address=registration.http_address,
        registered_from=registration.registered_from,
        capacity=replace(node.capacity, **registration.measured),
        gpu=Gpu(
            vendor=gpu.vendor if vendor is None else vendor,
            compute_capability=gpu.compute_capability if capability is None else capability,
        ),
        capability=node.capability if registration.capability is None else registration.capability,
        reported_max_replicas=max(registration.max_replicas_per_model, 1),
        reported_vram_budget=registration.vram_budget,
        peer=registration.peer,
        confinement=registration.confinement,
        secret_hash=registration.secret_hash or node.secret_hash,
        nats_login=registration.nats_login,
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
    automatic = automatic_labels(
        name=updated.name,
        replica_slots=updated.max_replicas_per_model,
        gpu_vendor=updated.gpu.vendor,
        total_vram=updated.capacity.total_vram,
    )
    labels = node.labels.report(registration.labels, automatic)
    dropped = len((node.labels.reported.keys() | registration.labels.keys()) - labels.reported.keys())
    problem = f"labels: {dropped} are dropped; a node has at most {MAX_LABELS}"
    problems = (*registration.problems, problem) if dropped else registration.problems
    return report_cards(replace(updated, labels=labels, problems=problems), registration.cards)
