"""Where a model goes: a pure choice over a snapshot of the fleet, which keeps its reasons.

Filters take away nodes that cannot serve; a score orders the rest: the fewest replicas, then the most free memory.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
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
    """Of the weights; 0 is not known."""
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


def place(wanted: PlacementRequest, candidates: Iterable[CandidateNode]) -> Placement | PlacementRefusal:
    """The best node, or every node's reason why not."""
    reasons: dict[str, str] = {}
    fitting: list[CandidateNode] = []
    candidates = list(candidates)
    filters = (*_FILTERS, _is_out_of_reach) if any(one.node.peer for one in candidates) else _FILTERS
    for candidate in candidates:
        if why := _why_not(filters, wanted, candidate):
            reasons[candidate.node.name] = why
        else:
            fitting.append(candidate)
    if not fitting:
        return PlacementRefusal(reasons=reasons)
    best, *others = sorted(fitting, key=lambda one: _score(wanted, one))
    reasons |= {other.node.name: f"comes after {best.node.name}" for other in others}
    return Placement(node=best.node, index=free_index(best.of_model(wanted.model)), reasons=reasons)


def free_index(replicas: Iterable[Replica]) -> int:
    """The lowest index that no living replica of the model has on the node."""
    taken = {replica.index for replica in replicas if replica.state in LIVE}
    return next(index for index in range(len(taken) + 1) if index not in taken)


def _why_not(filters: "tuple[_Filter, ...]", wanted: PlacementRequest, candidate: CandidateNode) -> str:
    """The first filter that takes the node away; empty when none does."""
    return next((why for judge in filters if (why := judge(wanted, candidate))), "")


def _is_no_backend_node(wanted: PlacementRequest, candidate: CandidateNode) -> str:
    return "" if candidate.node.type is NodeType.BACKEND else "runs no backends"


def _is_not_healthy(wanted: PlacementRequest, candidate: CandidateNode) -> str:
    return "" if candidate.status is NodeStatus.HEALTHY else f"is {candidate.status}"


def _failed_before(wanted: PlacementRequest, candidate: CandidateNode) -> str:
    return "failed just now" if candidate.node.id in wanted.exclude else ""


def _has_its_share(wanted: PlacementRequest, candidate: CandidateNode) -> str:
    most, has = candidate.node.max_replicas_per_model, len(candidate.of_model(wanted.model))
    return f"already has {has} of {most} replicas of it" if has >= max(most, 1) else ""


def _has_no_room(wanted: PlacementRequest, candidate: CandidateNode) -> str:
    """A node that reports no memory is given the benefit of the doubt."""
    capacity = candidate.node.capacity
    free = candidate.node.usable_vram + capacity.available_ram
    needed = int(wanted.size_bytes * _HEADROOM)
    known = capacity.total_ram or capacity.total_vram
    return f"has {_gib(free)} free and needs {_gib(needed)}" if known and needed > free else ""


def _is_out_of_reach(wanted: PlacementRequest, candidate: CandidateNode) -> str:
    """A model there would be loaded, and could not be asked; so it goes there only where there are no other nodes, or
    back to where it was."""
    node = candidate.node
    return "" if node.peer or node.id == wanted.prefer else "is LocalAI's worker, where models cannot be asked yet"


_Filter = Callable[[PlacementRequest, CandidateNode], str]
_FILTERS: Final[tuple[_Filter, ...]] = (
    _is_no_backend_node,
    _is_not_healthy,
    _failed_before,
    _has_its_share,
    _has_no_room,
)


def _score(wanted: PlacementRequest, candidate: CandidateNode) -> tuple[bool, int, int, str, str]:
    """Lower is better; ends with the id, so that every frontend decides alike."""
    node = candidate.node
    free = node.usable_vram + node.capacity.available_ram
    return (node.id != wanted.prefer, len(candidate.replicas), -free, node.name, node.id)


def _gib(size: int) -> str:
    return f"{size / 1024**3:.1f} GiB"
