"""A node: the facts that are stored about it, and what follows from them at a given time.

Status is computed and never stored, so no route, silence or re-registration can turn a pending node into a
healthy one. Each fact has one owner: people approve, people and the worker drain, the worker registers, beats and
deregisters, control marks a node that did not respond.

| status      | when (the first line that holds)                                             |
|-------------|------------------------------------------------------------------------------|
| `pending`   | nobody approved it                                                           |
| `offline`   | it deregistered, or was silent for `offline_after` of its intervals          |
| `unhealthy` | silent for `unhealthy_after` of its intervals, or it did not respond on NATS |
| `draining`  | a person or the worker itself asked for it                                   |
| `healthy`   | otherwise                                                                    |
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from corral.base.ids import Incarnation, NodeId
from corral.base.setting_kinds import whole
from corral.base.settings import setting
from corral.wire.nodes import NodeLabels, VramBudget


class NodeStatus(StrEnum):
    PENDING = "pending"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    OFFLINE = "offline"
    DRAINING = "draining"


class NodeType(StrEnum):
    BACKEND = "backend"
    AGENT = "agent"


class Suspicion(StrEnum):
    """Why only a person may approve a node, whatever approves others by themselves."""

    NAMESAKE = "namesake"
    """It registered without the secret of the node whose name it uses."""
    OTHER_TYPE = "other_type"
    """A node that was approved registered as another type."""
    OTHER_ADDRESS = "other_address"
    """A node that was approved, and has no secret to prove who it is, registered at another address."""


SUSPICIONS: Mapping[Suspicion, str] = {
    Suspicion.NAMESAKE: "it registered without the secret of the node whose name it uses",
    Suspicion.OTHER_TYPE: "it was approved, and came back as another type of node",
    Suspicion.OTHER_ADDRESS: "it was approved, and came back at another address without a secret that proves who it is",
}
"""Sentences for people."""

BY_WORKER = "worker"
"""Who asked for a drain when it was the worker itself: its next registration takes that back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LivenessPolicy:
    """How much silence means what, counted in heartbeat intervals of the node itself."""

    unhealthy_after: int = setting(
        whole(1, 1000),
        """Heartbeats in a row that a node may miss before it is unhealthy and gets no new work. 3, so that one lost
        packet and one slow disk are forgiven.""",
        default=3,
    )
    offline_after: int = setting(
        whole(2, 10000),
        """Heartbeats in a row that a node may miss before it is offline and what it ran is replaced. 6: a minute with
        LocalAI's interval, as long as LocalAI waits. Must be more than `unhealthy_after`.""",
        default=6,
    )
    assumed_interval: timedelta = timedelta(seconds=10)
    """LocalAI workers never say theirs; this is their default."""
    longest_learned_interval: timedelta = timedelta(minutes=5)
    """A longer gap was an outage, not a habit."""
    tolerated_skew: timedelta = timedelta(seconds=5)
    """A heartbeat further in the future than this was written by a clock that has since been set back."""
    tolerated_deafness: timedelta = timedelta(seconds=3)
    """How old the last proof that control can hear may be before silence stops counting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hearing:
    """The last unbroken time in which some control process could hear: itself, the database and NATS were up."""

    since: datetime
    until: datetime
    """The last moment for which that is proven."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What the machine has, in bytes. `total_disk` 0 means not reported; `available_disk` 0 means really full."""

    total_vram: int = 0
    available_vram: int = 0
    total_ram: int = 0
    available_ram: int = 0
    total_disk: int = 0
    available_disk: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    vendor: str = ""
    compute_capability: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """What a Corral worker said of itself; LocalAI workers say nothing."""

    version: str
    features: frozenset[str] = frozenset()
    platform: str = ""
    """As images name theirs: `linux/arm64`. Empty from workers that do not say."""
    has_one_disk: bool = False
    """Whether its backends lie on the disk that its capacity tells of, which is that of the models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """All that status is computed from."""

    approved_at: datetime | None = None
    approved_by: str = ""
    suspicion: Suspicion | None = None
    """Only while it is pending: an approval ends it."""
    draining_since: datetime | None = None
    draining_by: str = ""
    deregistered_at: datetime | None = None
    last_heartbeat: datetime
    stated_interval: timedelta | None = None
    recent_gaps: tuple[timedelta, ...] = ()
    no_responders_at: datetime | None = None
    incarnation: Incarnation = Incarnation("")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    id: NodeId
    name: str
    type: NodeType = NodeType.BACKEND
    address: str = ""
    http_address: str = ""
    registered_from: str = ""
    """The source address of its last registration, as limits count it; empty where that is not known."""
    facts: NodeFacts
    capacity: Capacity = field(default_factory=Capacity)
    gpu: Gpu = field(default_factory=Gpu)
    capability: str = ""
    labels: NodeLabels = field(default_factory=NodeLabels)
    reported_max_replicas: int = 1
    admin_max_replicas: int | None = None
    reported_vram_budget: str = ""
    admin_vram_budget: str | None = None
    peer: Peer | None = None
    secret_hash: str | None = None
    problems: tuple[str, ...] = ()
    """What was wrong with its latest registration or heartbeat, for people to see."""
    announced: NodeStatus | None = None
    """The status that everyone was last told."""
    created_at: datetime
    registered_at: datetime
    """For the last time."""
    updated_at: datetime
    revision: int = 1
    """Counts every change except heartbeats: the guard of writes that were decided on an earlier read."""

    @property
    def max_replicas_per_model(self) -> int:
        return self.admin_max_replicas if self.admin_max_replicas is not None else self.reported_max_replicas

    @property
    def vram_budget(self) -> str:
        return self.admin_vram_budget if self.admin_vram_budget is not None else self.reported_vram_budget

    @property
    def vram_budget_bytes(self) -> int:
        """The budget in bytes on this machine, 0 when there is none or the worker sent nonsense."""
        return VramBudget.read_lenient(self.vram_budget).ceiling(self.capacity.total_vram)

    @property
    def usable_vram(self) -> int:
        """What placement may count on: what is free, within the budget."""
        ceiling = self.vram_budget_bytes
        return min(self.capacity.available_vram, ceiling) if ceiling else self.capacity.available_vram


def heartbeat_interval(facts: NodeFacts, policy: LivenessPolicy) -> timedelta:
    """The worker's own interval; for one that never says it, the longest of the last gaps seen."""
    if facts.stated_interval is not None:
        return facts.stated_interval
    return max((policy.assumed_interval, *facts.recent_gaps))


def silence(facts: NodeFacts, now: datetime, policy: LivenessPolicy, hearing: Hearing) -> timedelta:
    """How long nothing was heard although control could hear.

    A heartbeat in the future was written by a clock that is ahead of ours, or by ours before it was set back, which
    `forget_future` repairs: until then nothing is known of silence.
    """
    can_hear = now - hearing.until <= policy.tolerated_deafness
    end = now if can_hear else hearing.until
    return max(end - max(facts.last_heartbeat, hearing.since), timedelta(0))


def status_of(facts: NodeFacts, now: datetime, policy: LivenessPolicy, hearing: Hearing) -> NodeStatus:
    """The one word for a node; see the table at the top of this module."""
    if facts.approved_at is None:
        return NodeStatus.PENDING
    interval = heartbeat_interval(facts, policy)
    quiet = silence(facts, now, policy, hearing)
    if facts.deregistered_at is not None or quiet >= interval * policy.offline_after:
        return NodeStatus.OFFLINE
    if facts.no_responders_at is not None or quiet >= interval * policy.unhealthy_after:
        return NodeStatus.UNHEALTHY
    if facts.draining_since is not None:
        return NodeStatus.DRAINING
    return NodeStatus.HEALTHY


def next_look(facts: NodeFacts, now: datetime, policy: LivenessPolicy, hearing: Hearing) -> datetime | None:
    """When silence alone would next change the status; None when it cannot."""
    if facts.approved_at is None or facts.deregistered_at is not None:
        return None
    interval = heartbeat_interval(facts, policy)
    quiet = silence(facts, now, policy, hearing)
    for intervals in (policy.unhealthy_after, policy.offline_after):
        if quiet < interval * intervals:
            return now + interval * intervals - quiet
    return None


# What people and workers may do to the facts. Each returns the changed node, or the same one when nothing changes.


def approve(node: Node, *, by: str, at: datetime) -> Node:
    if node.facts.approved_at is not None:
        return node
    return _with_facts(node, at, approved_at=at, approved_by=by, suspicion=None)


def drain(node: Node, *, by: str, at: datetime) -> Node:
    """A person's drain replaces the worker's own, never the reverse."""
    already = node.facts.draining_since is not None
    if already and (by == BY_WORKER or node.facts.draining_by != BY_WORKER):
        return node
    return _with_facts(node, at, draining_since=at, draining_by=by)


def resume(node: Node, *, by: str, at: datetime) -> Node:
    """End a drain. A worker ends only its own: what a person asked for stays until a person says otherwise."""
    if node.facts.draining_since is None or (by == BY_WORKER and node.facts.draining_by != BY_WORKER):
        return node
    return _with_facts(node, at, draining_since=None, draining_by="")


def deregister(node: Node, *, at: datetime) -> Node:
    """The worker leaves. Its own drain was for that; a person's stays."""
    if node.facts.deregistered_at is not None:
        return node
    return _with_facts(resume(node, by=BY_WORKER, at=at), at, deregistered_at=at)


def relabel(node: Node, labels: NodeLabels, *, at: datetime) -> Node:
    return node if labels == node.labels else replace(node, labels=labels, updated_at=at)


def set_max_replicas(node: Node, value: int | None, *, at: datetime) -> Node:
    return replace(node, admin_max_replicas=value, updated_at=at)


def set_vram_budget(node: Node, value: str | None, *, at: datetime) -> Node:
    return replace(node, admin_vram_budget=value, updated_at=at)


def _with_facts(node: Node, at: datetime, **changes: object) -> Node:
    facts = replace(node.facts, **changes)  # type: ignore[arg-type]
    return replace(node, facts=facts, updated_at=at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A sign of life with what was measured; None means not reported, so the last value stays."""

    at: datetime
    measured: Mapping[str, int] = field(default_factory=dict)
    """Names of Capacity fields to bytes."""
    gpu_vendor: str | None = None
    incarnation: Incarnation | None = None
    inventory: str = ""
    """The fingerprint of the backends that it has; not a fact of the node, and so not kept with it."""
    problems: tuple[str, ...] = ()


def beat(node: Node, heartbeat: Heartbeat, policy: LivenessPolicy, hearing: Hearing) -> Node:
    """Take in a heartbeat. It heals silence; it never approves, resumes or re-registers."""
    facts = node.facts
    gap = heartbeat.at - facts.last_heartbeat
    heard_whole_gap = facts.last_heartbeat >= hearing.since
    gaps = facts.recent_gaps
    if facts.stated_interval is None and heard_whole_gap and timedelta(0) < gap <= policy.longest_learned_interval:
        gaps = (*gaps, gap)[-5:]
    return replace(
        node,
        facts=replace(
            facts,
            last_heartbeat=_later(facts.last_heartbeat, heartbeat.at, policy),
            recent_gaps=gaps,
            no_responders_at=None,
            incarnation=heartbeat.incarnation or facts.incarnation,
        ),
        capacity=replace(node.capacity, **heartbeat.measured),
        gpu=node.gpu if heartbeat.gpu_vendor is None else replace(node.gpu, vendor=heartbeat.gpu_vendor),
        problems=heartbeat.problems,
    )


def forget_future(node: Node, *, now: datetime) -> Node:
    """After the clock was set back: what was heard later than now counts as heard now, so that silence can grow."""
    if node.facts.last_heartbeat <= now:
        return node
    return replace(node, facts=replace(node.facts, last_heartbeat=now))


def _later(known: datetime, heard: datetime, policy: LivenessPolicy) -> datetime:
    """Never go back, except from a future that only a wrong clock can have written."""
    return heard if known > heard + policy.tolerated_skew else max(known, heard)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenNode:
    """A node as it is at one moment."""

    node: Node
    status: NodeStatus
    silent_seconds: float
    """How long it has been silent, as far as that counts against it."""
    heard_seconds_ago: float
    """The age of the last heartbeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLoad:
    """How much a node has to do."""

    loaded: int = 0
    """Replicas that can answer."""
    in_flight: int = 0
    """Requests that gateways reported."""
    is_known: bool = True
    """False while a gateway is silent: its share may be anything, where there is something to ask."""
