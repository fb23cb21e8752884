"""How the fleet looks now: nodes with their computed status, whole or page by page."""

import base64
import binascii
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from corral.base.clock import Clock
from corral.base.errors import InvalidInput, NotFound
from corral.base.ids import NodeId
from corral.control.hearing import HearingKeeper
from corral.domain.labels import matches
from corral.domain.node import LivenessPolicy, Node, NodeStatus, NodeType, silence, status_of
from corral.state.nodes import Nodes

_BATCH = 500
"""Nodes that are read at once. Turning them into answers takes milliseconds in which nobody else is served."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenNode:
    """A node as it is at one moment."""

    node: Node
    status: NodeStatus
    silent_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFilter:
    """Which nodes are asked for; all conditions must hold."""

    statuses: frozenset[NodeStatus] = frozenset()
    types: frozenset[NodeType] = frozenset()
    labels: Mapping[str, str] = field(default_factory=dict)
    name_contains: str = ""

    def accepts(self, seen: SeenNode) -> bool:
        node = seen.node
        return (
            (not self.statuses or seen.status in self.statuses)
            and (not self.types or node.type in self.types)
            and self.name_contains.lower() in node.name.lower()
            and matches(node.labels.effective, self.labels)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    items: list[SeenNode]
    next_cursor: str | None


class Fleet:
    """Reads only."""

    def __init__(self, nodes: Nodes, hearing: HearingKeeper, clock: Clock, policy: LivenessPolicy) -> None:
        self._nodes = nodes
        self._hearing = hearing
        self._clock = clock
        self._policy = policy

    @property
    def policy(self) -> LivenessPolicy:
        return self._policy

    def see(self, node: Node, now: datetime | None = None) -> SeenNode:
        moment = now or self._clock.now()
        hearing = self._hearing.current
        return SeenNode(
            node=node,
            status=status_of(node.facts, moment, self._policy, hearing),
            silent_seconds=silence(node.facts, moment, self._policy, hearing).total_seconds(),
        )

    async def get(self, node_id: NodeId) -> SeenNode:
        node = await self._nodes.get(node_id)
        if node is None:
            raise NotFound(f"no node has the id {node_id}")
        return self.see(node)

    async def names(self, ids: Iterable[NodeId]) -> dict[NodeId, str]:
        return {id: node.name for id, node in (await self._nodes.load_many(ids)).items()}

    async def all(self, filter: NodeFilter | None = None) -> list[SeenNode]:
        """Read batch by batch, so that a large fleet does not keep others waiting."""
        wanted = filter or NodeFilter()
        return [seen async for seen in self._from(None, _BATCH) if wanted.accepts(seen)]

    async def page(self, filter: NodeFilter, *, limit: int, cursor: str | None) -> Page:
        """At most `limit` nodes in the order of their names, and where to go on."""
        items: list[SeenNode] = []
        async for seen in self._from(read_cursor(cursor) if cursor else None, limit):
            if not filter.accepts(seen):
                continue
            if len(items) == limit:
                last = items[-1].node
                return Page(items=items, next_cursor=write_cursor(last.name, last.id))
            items.append(seen)
        return Page(items=items, next_cursor=None)

    async def _from(self, after: tuple[str, str] | None, limit: int) -> AsyncIterator[SeenNode]:
        now = self._clock.now()
        size = min(limit + 1, _BATCH)
        while True:
            nodes = await self._nodes.page(after=after, limit=size)
            for node in nodes:
                yield self.see(node, now)
            if len(nodes) < size:
                return
            after = (nodes[-1].name, nodes[-1].id)
            size = _BATCH

    async def count_by_status(self) -> dict[NodeStatus, int]:
        counts = dict.fromkeys(NodeStatus, 0)
        async for seen in self._from(None, _BATCH):
            counts[seen.status] += 1
        return counts


def write_cursor(name: str, id: str) -> str:
    return base64.urlsafe_b64encode(json.dumps([name, id]).encode()).decode().rstrip("=")


def read_cursor(cursor: str) -> tuple[str, str]:
    try:
        name, id = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (binascii.Error, ValueError, TypeError) as error:
        raise InvalidInput("cursor", "is not one that this API gave out") from error
    if not isinstance(name, str) or not isinstance(id, str):
        raise InvalidInput("cursor", "is not one that this API gave out")
    return name, id
