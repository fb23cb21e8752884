"""The fleet as readers of the live stream see it at one moment: all that topics, summary and attention are made of."""

from collections.abc import Hashable, Iterable, Mapping
from datetime import datetime
from typing import Final

import msgspec

from corral.base.ids import NodeId
from corral.frontend.backends.decide.drift import Drift
from corral.frontend.nodes.decide.liveness import Hearing, LivenessPolicy, heartbeat_interval, next_look, status_of
from corral.frontend.nodes.decide.node import SUSPICIONS, Node, NodeStatus, NodeType, SeenNode
from corral.frontend.operations.decide.operation import Operation
from corral.frontend.serving.decide.load_job import LoadJob
from corral.frontend.serving.decide.replica import SERVING, Replica


class OutdatedBackend(msgspec.Struct, frozen=True, kw_only=True):
    """A backend that there is something newer for."""

    backend: str
    nodes: tuple[str, ...]
    """Names of the nodes that have something older."""
    offered: str
    """The version or digest that is offered."""
    since: datetime | None
    """When it was last looked for."""


class SlowFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What takes long to find out, and seldom changes."""

    drift: tuple[Drift, ...] = ()
    upgrades: tuple[OutdatedBackend, ...] = ()
    has_backend: bool = False
    frontends: int = 1


BRAKE: Final = "brake"


class ControlHealth(msgspec.Struct, frozen=True, kw_only=True):
    """What control lacks, as far as it knows without asking."""

    brake: str = ""
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """What becomes a problem if nobody does anything."""
    since: Mapping[str, datetime] = msgspec.field(default_factory=dict)
    """When each of these texts, and `BRAKE`, was first noticed by this process."""


class FleetPicture(msgspec.Struct, frozen=True, kw_only=True):
    at: datetime
    policy: LivenessPolicy
    nodes: tuple[SeenNode, ...] = ()
    """By name."""
    replicas: tuple[Replica, ...] = ()
    """All that live, without their keys."""
    jobs: tuple[LoadJob, ...] = ()
    operations: tuple[Operation, ...] = ()
    """The operations that are not over, and the newest ones of the others."""
    in_flight: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Requests under way by replica; 0 where there is none."""
    waiting: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Requests that wait for a replica, by model."""
    is_load_known: bool = True
    """False while a gateway is silent: its share may be anything."""
    models: int = 0
    disk_needs: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Bytes that the files of a model take, by model, of those that are being loaded."""
    has_answer: bool = False
    control: ControlHealth = ControlHealth()
    slow: SlowFacts = SlowFacts()


def in_flight_of(replica: Replica, picture: FleetPicture) -> int | None:
    """Requests under way at a replica; None while a gateway is silent."""
    if replica.state not in SERVING:
        return 0
    return picture.in_flight.get(replica.id, 0) if picture.is_load_known else None


# Why a node is as it is.


def node_kind(seen: SeenNode) -> str:
    if seen.node.type is NodeType.AGENT:
        return "agent"
    return "localai" if seen.node.peer is None else "corral"


def status_reason(seen: SeenNode, policy: LivenessPolicy) -> str:
    """Why a node has its status, in words that do not change while it lasts; empty for a healthy one."""
    facts = seen.node.facts
    match seen.status:
        case NodeStatus.HEALTHY:
            return ""
        case NodeStatus.PENDING:
            return "waits for approval" if facts.suspicion is None else SUSPICIONS[facts.suspicion]
        case NodeStatus.DRAINING:
            return f"drained by {facts.draining_by}"
        case NodeStatus.OFFLINE if facts.deregistered_at is not None:
            return "its worker said good-bye"
        case NodeStatus.OFFLINE:
            return f"missed more than {policy.offline_after} heartbeats"
        case NodeStatus.UNHEALTHY if facts.no_responders_at is not None:
            return "does not respond on NATS"
        case NodeStatus.UNHEALTHY:
            return f"missed more than {policy.unhealthy_after} heartbeats"


def status_since(seen: SeenNode, policy: LivenessPolicy) -> datetime:
    """When the status began, as far as facts tell."""
    node, facts = seen.node, seen.node.facts
    missed = heartbeat_interval(facts, policy)
    match seen.status:
        case NodeStatus.PENDING:
            return node.created_at if facts.suspicion is None else node.registered_at
        case NodeStatus.OFFLINE:
            return facts.deregistered_at or facts.last_heartbeat + missed * policy.offline_after
        case NodeStatus.UNHEALTHY:
            return facts.no_responders_at or facts.last_heartbeat + missed * policy.unhealthy_after
        case NodeStatus.DRAINING:
            return facts.draining_since or node.registered_at
        case NodeStatus.HEALTHY:
            return max(facts.approved_at or node.registered_at, node.registered_at)


class _Judgement(msgspec.Struct, frozen=True):
    seen: SeenNode
    until: datetime | None
    """From then on silence alone may change it; None: never."""


class SeenNodes:
    def __init__(self, policy: LivenessPolicy) -> None:
        self._policy = policy
        self._judgements: dict[NodeId, _Judgement] = {}
        self._mark: Hashable = None

    def of(self, nodes: Iterable[Node], now: datetime, hearing: Hearing) -> tuple[SeenNode, ...]:
        """These nodes as they are now, in the same order, and without what grows with every second of silence."""
        mark = self._mark_of(now, hearing)
        earlier = self._judgements if mark == self._mark else {}
        judgements = [self._judge(node, earlier.get(node.id), now, hearing) for node in nodes]
        self._judgements = {judgement.seen.node.id: judgement for judgement in judgements}
        self._mark = mark
        return tuple([judgement.seen for judgement in judgements])

    def _judge(self, node: Node, earlier: _Judgement | None, now: datetime, hearing: Hearing) -> _Judgement:
        if earlier is not None and earlier.seen.node is node and (earlier.until is None or now < earlier.until):
            return earlier
        status = status_of(node.facts, now, self._policy, hearing)
        seen = SeenNode(node=node, status=status, silent_seconds=0.0, heard_seconds_ago=0.0)
        return _Judgement(seen, next_look(node.facts, now, self._policy, hearing))

    def _mark_of(self, now: datetime, hearing: Hearing) -> Hashable:
        """Differs when silence is to be counted otherwise than before, and when the clock was set back."""
        can_hear = now - hearing.until <= self._policy.tolerated_deafness
        return hearing.since, None if can_hear else hearing.until
