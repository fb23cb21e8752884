"""Where a model goes: a pure choice over a snapshot of the fleet, which keeps its reasons.

Nodes that cannot serve are left out; a score orders the rest: the fewest replicas, then the most free memory.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from corral.base.ids import NodeId
from corral.frontend.nodes.decide.node import Node, NodeStatus, NodeType
from corral.frontend.serving.decide.replica import LIVE, Replica

_HEADROOM: Final = 1.1
"""Weights take a little more memory than room on the disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateNode:
    """A node as placement sees it."""

    node: Node
    status: NodeStatus
    replicas: tuple[Replica, ...] = ()
    """Those that live there, of any model."""

    def of_model(self, model: str) -> list[Replica]:
        return [replica for replica in self.replicas if replica.model == model]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRequest:
    """What is to be placed."""

    model: str
    size_bytes: int = 0
    """The size of the weights; 0 is not known."""
    exclude: Collection[NodeId] = ()
    """Nodes that already failed in this attempt."""
    prefer: NodeId | None = None
    """Where it was before; taken if it fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    node: Node
    index: int
    """The replica index that is free there."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    """Why other nodes were not chosen, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRefusal:
    """No node can take it now."""

    reasons: Mapping[str, str] = field(default_factory=dict)
    """By the name of the node."""

    @property
    def message(self) -> str:
        if not self.reasons:
            return "no node has joined yet"
        return "; ".join(f"{name} {why}" for name, why in sorted(self.reasons.items()))


def place(request: PlacementRequest, candidates: Iterable[CandidateNode]) -> Placement | PlacementRefusal:
    """The best node, or every node's reason why not."""
    reasons: dict[str, str] = {}
    fitting: list[CandidateNode] = []
    for candidate in candidates:
        if why := _why_not(request, candidate):
            reasons[candidate.node.name] = why
        else:
            fitting.append(candidate)
    if not fitting:
        return PlacementRefusal(reasons=reasons)
    best, *others = sorted(fitting, key=lambda candidate: _score(request, candidate))
    reasons |= {other.node.name: f"comes after {best.node.name}" for other in others}
    return Placement(node=best.node, index=free_index(best.of_model(request.model)), reasons=reasons)


def free_index(replicas: Iterable[Replica]) -> int:
    """The lowest index that no living replica of the model has on the node."""
    taken = {replica.index for replica in replicas if replica.state in LIVE}
    return next(index for index in range(len(taken) + 1) if index not in taken)


def _why_not(request: PlacementRequest, candidate: CandidateNode) -> str:
    """The first reason why the node cannot take the model; empty when it can."""
    node, capacity = candidate.node, candidate.node.capacity
    if node.type is not NodeType.BACKEND:
        return "runs no backends"
    if candidate.status is not NodeStatus.HEALTHY:
        return f"is {candidate.status}"
    if node.id in request.exclude:
        return "failed just now"
    most, has = node.max_replicas_per_model, len(candidate.of_model(request.model))
    if has >= max(most, 1):
        return f"already has {has} of {most} replicas of it"
    free, needed = node.usable_vram + capacity.available_ram, int(request.size_bytes * _HEADROOM)
    reports_memory = capacity.total_ram or capacity.total_vram  # else it gets the benefit of the doubt
    if reports_memory and needed > free:
        return f"has {_gib(free)} free and needs {_gib(needed)}"
    return ""


def _score(request: PlacementRequest, candidate: CandidateNode) -> tuple[bool, int, int, str, str]:
    """Lower is better; ends with the id, so that every frontend decides alike."""
    node = candidate.node
    free = node.usable_vram + node.capacity.available_ram
    return (node.id != request.prefer, len(candidate.replicas), -free, node.name, node.id)


def _gib(size: int) -> str:
    return f"{size / 1024**3:.1f} GiB"
