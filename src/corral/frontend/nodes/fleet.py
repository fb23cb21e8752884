"""How the fleet looks now: nodes with their computed status, whole or page by page."""

import base64
import binascii
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from datetime import datetime
from typing import Final, Protocol, TypeVar

import msgspec

from corral.base.clock import Clock
from corral.base.errors import InvalidInput, NotFound
from corral.base.ids import NodeId
from corral.frontend.nodes.decide.liveness import LivenessPolicy, silence, status_of
from corral.frontend.nodes.decide.node import Node, NodeFacts, NodeStatus, NodeType, SeenNode
from corral.frontend.nodes.liveness import HearingKeeper
from corral.frontend.nodes.store.nodes import Nodes
from corral.frontend.nodes.store.rows import Outline
from corral.wire.labels import has_labels

KnownT = TypeVar("KnownT", Node, Outline)

_BATCH: Final = 500
"""Nodes that are read at once. Turning them into answers takes milliseconds in which nobody else is served."""


class NodeFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which nodes are asked for; all conditions must hold."""

    statuses: frozenset[NodeStatus] = frozenset()
    types: frozenset[NodeType] = frozenset()
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    name_contains: str = ""

    @property
    def is_picky(self) -> bool:
        """Whether it is about few nodes, as far as outlines tell."""
        return bool(self.statuses or self.name_contains)

    def may_accept(self, node: Node | Outline, status: NodeStatus) -> bool:
        """All that an outline can tell."""
        return (
            (not self.statuses or status in self.statuses)
            and (not self.types or node.type in self.types)
            and self.name_contains.lower() in node.name.lower()
        )

    def accepts(self, seen: SeenNode) -> bool:
        return self.may_accept(seen.node, seen.status) and has_labels(seen.node.labels.effective, self.labels)


_EVERY_NODE: Final = NodeFilter()


class SeenNodePage(msgspec.Struct, frozen=True, kw_only=True):
    items: list[SeenNode]
    next_cursor: str | None


class Fleet:
    """Reads nodes with the status that is computed for them now. Writes nothing."""

    def __init__(self, nodes: Nodes, hearing: HearingKeeper, clock: Clock, policy: LivenessPolicy) -> None:
        self._nodes = nodes
        self._hearing = hearing
        self._clock = clock
        self.policy = policy

    def see(self, node: Node, now: datetime | None = None) -> SeenNode:
        moment = now or self._clock.now()
        return SeenNode(
            node=node,
            status=self._status(node.facts, moment),
            silent_seconds=silence(node.facts, moment, self.policy, self._hearing.current).total_seconds(),
            heard_seconds_ago=max((moment - node.facts.last_heartbeat).total_seconds(), 0),
        )

    async def get(self, node_id: NodeId) -> SeenNode:
        node = await self._nodes.get(node_id)
        if node is None:
            raise NotFound(f"no node has the id {node_id}")
        return self.see(node)

    async def some(self, ids: Iterable[NodeId]) -> dict[NodeId, SeenNode]:
        """Return those of the nodes that exist, by id."""
        now = self._clock.now()
        return {id: self.see(node, now) for id, node in (await self._nodes.load_many(ids)).items()}

    async def all(self, filter: NodeFilter = _EVERY_NODE) -> list[SeenNode]:
        return [seen async for seen in self._matching(filter, after=None, at_first=_BATCH)]

    async def draining(self) -> list[SeenNode]:
        """Nodes whose status is draining. Reads no other nodes: the loop of drains asks every second."""
        now = self._clock.now()
        seen = [self.see(node, now) for node in await self._nodes.asked_to_drain()]
        return [each for each in seen if each.status is NodeStatus.DRAINING]

    async def names(self, ids: Iterable[NodeId]) -> dict[NodeId, str]:
        return {id: node.name for id, node in (await self._nodes.load_many(ids)).items()}

    async def healthy(self, ids: Iterable[NodeId]) -> set[NodeId]:
        """Return the ids of those nodes that are healthy."""
        return {id for id, seen in (await self.some(ids)).items() if seen.status is NodeStatus.HEALTHY}

    async def page(self, filter: NodeFilter, *, limit: int, cursor: str | None) -> SeenNodePage:
        """At most `limit` nodes in the order of their names, and where to go on."""
        items: list[SeenNode] = []
        async for seen in self._matching(filter, after=read_cursor(cursor) if cursor else None, at_first=limit + 1):
            if len(items) == limit:
                last = items[-1].node
                return SeenNodePage(items=items, next_cursor=write_cursor(last.name, last.id))
            items.append(seen)
        return SeenNodePage(items=items, next_cursor=None)

    async def count_by_status(self) -> dict[NodeStatus, int]:
        now = self._clock.now()
        counts = dict.fromkeys(NodeStatus, 0)
        async for outlines in _batches(self._nodes.outlines, after=None, at_first=_BATCH):
            for outline in outlines:
                counts[self._status(outline.facts, now)] += 1
        return counts

    async def _matching(
        self, filter: NodeFilter, *, after: tuple[str, str] | None, at_first: int
    ) -> AsyncIterator[SeenNode]:
        """Where an outline may rule out many, whole nodes are read only of the others."""
        now = self._clock.now()
        if not filter.is_picky:
            async for nodes in _batches(self._nodes.page, after=after, at_first=at_first):
                for seen in (self.see(node, now) for node in nodes):
                    if filter.accepts(seen):
                        yield seen
            return
        async for outlines in _batches(self._nodes.outlines, after=after, at_first=at_first):
            ids = [node.id for node in outlines if filter.may_accept(node, self._status(node.facts, now))]
            nodes_by_id = await self._nodes.load_many(ids) if ids else {}
            for seen in (self.see(nodes_by_id[id], now) for id in ids if id in nodes_by_id):
                if filter.accepts(seen):
                    yield seen

    def _status(self, facts: NodeFacts, now: datetime) -> NodeStatus:
        return status_of(facts, now, self.policy, self._hearing.current)


class _PageReader(Protocol[KnownT]):
    async def __call__(self, *, after: tuple[str, str] | None, limit: int) -> list[KnownT]: ...


async def _batches(
    read: _PageReader[KnownT], *, after: tuple[str, str] | None, at_first: int
) -> AsyncIterator[list[KnownT]]:
    """All that come after, by name. What is wanted at first may be enough; then they come in larger numbers."""
    size = min(at_first, _BATCH)
    while True:
        batch = await read(after=after, limit=size)
        yield batch
        if len(batch) < size:
            return
        after = (batch[-1].name, batch[-1].id)
        size = _BATCH


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
