"""A node: the facts that are stored about it, and what people and workers may do to them.

Each fact has one owner: people approve, people and the worker drain, the worker registers, beats and deregisters,
control marks a node that did not respond. Its status is not a fact: see `frontend/nodes/decide/liveness.py`.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

import msgspec
from msgspec.structs import replace

from corral.base.ids import Incarnation, InvitationId, NodeId
from corral.wire.confinement import ConfinementReport
from corral.wire.joining import fingerprint_of
from corral.wire.labels import NodeLabels
from corral.wire.nodes import VramBudget


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
    """A node that was approved, and has no secret to prove who it is, registered another address, or from one."""


SUSPICIONS: Mapping[Suspicion, str] = {
    Suspicion.NAMESAKE: "it registered without the secret of the node whose name it uses",
    Suspicion.OTHER_TYPE: "it was approved, and came back as another type of node",
    Suspicion.OTHER_ADDRESS: "it was approved, and came back at or from another address without proof of who it is",
}
"""Sentences for people."""

LISTENS_WITHIN: Final = timedelta(seconds=15)
"""How soon after its registration or approval a worker listens on NATS. Silence before that proves nothing."""

BY_WORKER = "worker"
"""Who asked for a drain when it was the worker itself: its next registration takes that back."""


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """What the machine has, in bytes. `total_disk` 0 means not reported; `available_disk` 0 means really full."""

    total_vram: int = 0
    available_vram: int = 0
    total_ram: int = 0
    available_ram: int = 0
    total_disk: int = 0
    available_disk: int = 0


class ReportedCard(msgspec.Struct, frozen=True, kw_only=True):
    """What a node says of one GPU, in bytes."""

    id: str
    index: int | None = 0
    """Its place in the order in which the engines of its vendor count; None when what it says is no place."""
    name: str = ""
    vendor: str = ""
    total: int
    free: int | None = None
    """None: it could not be read."""
    shares_ram: bool = False
    """The GPU has no memory of its own: the numbers are those of the machine's RAM."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    vendor: str = ""
    compute_capability: str = ""


class GpuCard(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU of a machine that names them, in bytes."""

    id: str
    index: int | None = None
    """Its place in the order in which the engines of its vendor count; None in rows of earlier versions."""
    name: str = ""
    vendor: str = ""
    total: int = 0
    free: int = 0
    shares_ram: bool = False
    """The GPU has no memory of its own and uses the machine's."""
    is_out: bool = False
    """People took it out of service: it gets nothing new."""


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """What a Corral worker said of itself; LocalAI workers say nothing."""

    version: str
    features: frozenset[str] = frozenset()
    platform: str = ""
    """As images name theirs: `linux/arm64`. Empty from workers that do not say."""
    has_one_disk: bool = False
    """Whether its backends lie on the disk that its capacity tells of, which is that of the models."""
    memory_pool: str = ""
    """Nodes with the same one take their memory from the same machine; empty for those that do not say."""


class NodeFacts(msgspec.Struct, frozen=True, kw_only=True):
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


class Node(msgspec.Struct, frozen=True, kw_only=True):
    id: NodeId
    name: str
    type: NodeType = NodeType.BACKEND
    address: str = ""
    http_address: str = ""
    registered_from: str = ""
    """The source address of its last registration, as limits count it; empty where that is not known."""
    facts: NodeFacts
    capacity: Capacity = msgspec.field(default_factory=Capacity)
    gpu: Gpu = msgspec.field(default_factory=Gpu)
    cards: tuple[GpuCard, ...] = ()
    """Its GPUs one by one; none where it tells only sums, as LocalAI's workers do."""
    cards_out: frozenset[str] = frozenset()
    """Ids of the GPUs that people took out of service, also of those that it does not report now."""
    capability: str = ""
    labels: NodeLabels = msgspec.field(default_factory=NodeLabels)
    reported_max_replicas: int = 1
    admin_max_replicas: int | None = None
    reported_vram_budget: str = ""
    admin_vram_budget: str | None = None
    peer: Peer | None = None
    secret_hash: str | None = None
    invitation_id: InvitationId | None = None
    """The invitation that it last came with."""
    nats_login: str | None = None
    """How it logs in to NATS: a `NatsLogin`; None where it did not say."""
    confinement: ConfinementReport | None = None
    """How far it can confine backends; None when it does not say."""
    problems: tuple[str, ...] = ()
    """What was wrong with its latest registration or heartbeat, for people to see."""
    announced: NodeStatus | None = None
    """The status that was last announced to everybody."""
    created_at: datetime
    registered_at: datetime
    """Time of the last registration."""
    updated_at: datetime
    revision: int = 1
    """Counts every change except heartbeats: the guard of writes that were decided on an earlier read."""

    @property
    def fingerprint(self) -> str:
        """What the worker shows on its own screen, too; empty without a secret."""
        return "" if self.secret_hash is None else fingerprint_of(self.secret_hash)

    @property
    def joined_at(self) -> datetime:
        """When it last registered, or was approved after that: only then does it begin to listen on NATS."""
        return joined_at(self.registered_at, self.facts.approved_at)

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
        """What placement may count on: what is free on GPUs in service, within the budget."""
        ceiling = self.vram_budget_bytes
        free = max(self.capacity.available_vram - sum(card.free for card in self.cards if card.is_out), 0)
        return min(free, ceiling) if ceiling else free


def joined_at(registered_at: datetime, approved_at: datetime | None) -> datetime:
    """The later one of the two."""
    return registered_at if approved_at is None else max(registered_at, approved_at)


def may_not_listen_yet(joined_at: datetime, now: datetime) -> bool:
    """Whether a worker that joined then, by the clock of any frontend, may still be about to connect to NATS."""
    return abs(now - joined_at) < LISTENS_WITHIN


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


def drain_mark(node: Node) -> str:
    """What a drain is decided on: since when the node is drained, and by whom. Changes with every drain and resume."""
    since = node.facts.draining_since
    return "" if since is None else f"{since.isoformat()} {node.facts.draining_by}"


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


def report_cards(node: Node, reported: Iterable[ReportedCard]) -> Node:
    """The node with these GPUs and no others. What is free of one that does not say is what it was, or all of it."""
    free_by_card = {card.id: card.free for card in node.cards}
    cards = (
        GpuCard(
            id=card.id,
            index=card.index,
            name=card.name,
            vendor=card.vendor,
            total=card.total,
            free=min(free_by_card.get(card.id, card.total) if card.free is None else card.free, card.total),
            shares_ram=card.shares_ram,
            is_out=card.id in node.cards_out,
        )
        for card in reported
    )
    return replace(node, cards=tuple(cards))


def put_card(node: Node, card: str, *, is_out: bool, at: datetime) -> Node:
    """Take a GPU out of service, or put it back."""
    if (card in node.cards_out) == is_out:
        return node
    out = node.cards_out | {card} if is_out else node.cards_out - {card}
    cards = tuple(replace(gpu, is_out=gpu.id in out) for gpu in node.cards)
    return replace(node, cards=cards, cards_out=out, updated_at=at)


def _with_facts(node: Node, at: datetime, **changes: object) -> Node:
    facts = replace(node.facts, **changes)
    return replace(node, facts=facts, updated_at=at)


class SeenNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node as it is at one moment."""

    node: Node
    status: NodeStatus
    silent_seconds: float
    """How long it has been silent, as far as that counts against it."""
    heard_seconds_ago: float
    """The age of the last heartbeat."""


class NodeLoad(msgspec.Struct, frozen=True, kw_only=True):
    """How much a node has to do."""

    loaded: int = 0
    """Replicas that can answer."""
    in_flight: int = 0
    """Requests that gateways reported."""
    is_known: bool = True
    """False while a gateway is silent: its share may be anything, where there is something to ask."""


def memory_pool_of(node: Node) -> tuple[str, int] | None:
    """What nodes have in common that report the same memory; None for one that shares it with no known node.

    A node that says to belong to a machine of another size is not believed.
    """
    if node.peer is None or not node.peer.memory_pool or not node.capacity.total_ram:
        return None
    return node.peer.memory_pool, node.capacity.total_ram


_NO_CARDS: Final = frozenset[str]()
_Machine = tuple[object, frozenset[str], int]
"""A memory pool or a host, with the GPUs and the total that its nodes report."""


def ram_per_machine(nodes: Iterable[Node]) -> list[tuple[int, int]]:
    """Total and free RAM of each machine that reports any."""
    return _per_machine((node, _NO_CARDS, node.capacity.total_ram, node.capacity.available_ram) for node in nodes)


def vram_per_machine(nodes: Iterable[Node]) -> list[tuple[int, int]]:
    """Total and free VRAM of each machine that reports any. Workers of one machine with different GPUs all count."""
    return _per_machine(
        (node, frozenset(card.id for card in node.cards), node.capacity.total_vram, node.capacity.available_vram)
        for node in nodes
    )


def _per_machine(reports: Iterable[tuple[Node, frozenset[str], int, int]]) -> list[tuple[int, int]]:
    """Total and free memory of each machine, from what each node reports of which GPUs.

    Each worker of `corral up` reports the memory of the whole machine. Nodes that do not name their machine share that
    of the nodes that have the same host and report the same total. Their reports are of different moments, so the least
    free memory counts.
    """
    machines: dict[_Machine, int] = {}
    machine_at: dict[_Machine, _Machine] = {}
    for node, cards, total, free in sorted(reports, key=lambda report: memory_pool_of(report[0]) is None):
        if not total:
            continue
        pool, at_host = memory_pool_of(node), (node.address.rpartition(":")[0] or node.id, cards, total)
        if pool is None:
            machine = machine_at.get(at_host, at_host)
        else:
            machine = (pool, cards, total)
            machine_at.setdefault(at_host, machine)
        machines[machine] = min(free, machines.get(machine, total))
    return [(total, free) for (_, _, total), free in machines.items()]
