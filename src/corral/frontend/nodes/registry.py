"""The registry: what people decided about the nodes of the fleet. `admission.py` lets nodes in.

Every change is load, decide (in `decide/`), apply guarded by the revision that was read; who loses starts over.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from operator import attrgetter
from typing import Final, Protocol

from corral.base.clock import Clock
from corral.base.errors import Conflict, InvalidInput, NotFound, Overtaken
from corral.base.ids import NodeId
from corral.base.tasks import Poke
from corral.bus.credentials import UserJwt
from corral.frontend.nodes.decide import node as domain
from corral.frontend.nodes.decide.changes import node_event
from corral.frontend.nodes.decide.nats_users import KnownUser
from corral.frontend.nodes.decide.node import BY_WORKER, Node
from corral.frontend.nodes.nats_users import NatsIssuer
from corral.frontend.nodes.store.nodes import Nodes
from corral.frontend.record.decide import Event, EventKind
from corral.frontend.record.feed import Feed
from corral.wire.labels import NodeLabels, label_growth_problem

_TRIES: Final = 8
_SHOWN: Final = 80


class _Decision(Protocol):
    """What becomes of a node."""

    def __call__(self, node: Node, /, *, at: datetime) -> Node: ...


class NodeRegistry:
    """Changes nodes. Names in `by` are those of keys, or `worker` for the node itself."""

    def __init__(
        self, nodes: Nodes, feed: Feed, clock: Clock, *, health: Poke, nats_users: NatsIssuer, revocations: Poke
    ) -> None:
        """`nats_users` makes what nodes log in to NATS with; `revocations` is rung when some of that must end."""
        self._nodes = nodes
        self._feed = feed
        self._clock = clock
        self._health = health
        self._nats_users = nats_users
        self._revocations = revocations

    async def approve(
        self, node_id: NodeId, *, by: str, nats_user: Callable[[Node], KnownUser | None] = lambda _: None
    ) -> Node:
        """Only a pending node can be approved. `nats_user` may make a user that is stored with the approval."""

        def decide(node: Node, *, at: datetime) -> Node:
            if node.facts.approved_at is not None:
                raise Conflict(f"node {node.name} is not pending: {node.facts.approved_by} approved it")
            return domain.approve(node, by=by, at=at)

        return await self._change(node_id, decide, EventKind.NODE_APPROVED, by=by, nats_user=nats_user)

    async def approve_localai(self, node_id: NodeId, *, by: str) -> tuple[Node, UserJwt | None]:
        """Approve a node, and return the user that LocalAI's form of the answer has; a Corral node fetches its own."""
        issued: list[UserJwt | None] = []

        def issue(node: Node) -> KnownUser | None:
            user_id, user = self._nats_users.issue(node, node.updated_at) if node.peer is None else (None, None)
            issued[:] = [user]
            return user_id

        return await self.approve(node_id, by=by, nats_user=issue), next(iter(issued), None)

    async def drain(self, node_id: NodeId, *, by: str, mark: str | None = None) -> Node:
        """Begin a drain. Overtaken when the node's `drain_mark` is not the one that was seen, if one is given."""

        def decide(node: Node, *, at: datetime) -> Node:
            if mark is not None and domain.drain_mark(node) != mark:
                raise Overtaken
            return domain.drain(node, by=by, at=at)

        return await self._change(node_id, decide, EventKind.NODE_DRAINING, by=by)

    async def resume(self, node_id: NodeId, *, by: str) -> Node:
        """End a drain. It approves nothing and revives nothing."""
        return await self._change(node_id, partial(domain.resume, by=by), EventKind.NODE_RESUMED, by=by)

    async def deregister(self, node_id: NodeId) -> Node:
        """The worker says good-bye; it is offline until it registers again."""
        return await self._change(node_id, domain.deregister, EventKind.NODE_DEREGISTERED, by=BY_WORKER)

    async def remove(self, node_id: NodeId, *, by: str) -> None:
        """Forget the node, its secret and the keys issued to it. If its worker still runs, it joins as a new one."""
        node = await self._nodes.get(node_id)
        if node is None:
            raise _unknown(node_id)
        event = self._event(EventKind.NODE_REMOVED, node, by)
        if not await self._nodes.remove(node_id, events=[event]):
            raise _unknown(node_id)
        self._revocations.ring()
        await self._feed.announce()

    async def replace_labels(self, node_id: NodeId, labels: Mapping[str, str], *, by: str) -> Node:
        return await self._relabel(node_id, lambda node_labels: node_labels.replace_all(labels), by=by)

    async def merge_labels(self, node_id: NodeId, labels: Mapping[str, str], *, by: str) -> Node:
        return await self._relabel(node_id, lambda node_labels: node_labels.merge(labels), by=by)

    async def remove_label(self, node_id: NodeId, key: str, *, by: str) -> Node:
        return await self._relabel(node_id, lambda labels: labels.remove(key), by=by)

    async def _relabel(self, node_id: NodeId, decide: Callable[[NodeLabels], NodeLabels], *, by: str) -> Node:
        def relabel(node: Node, *, at: datetime) -> Node:
            labels = decide(node.labels)
            if problem := label_growth_problem(node.labels, labels):
                raise InvalidInput("labels", problem)
            return domain.relabel(node, labels, at=at)

        detail = attrgetter("labels.effective")
        return await self._change(node_id, relabel, EventKind.NODE_LABELS, by=by, detail=detail)

    async def set_max_replicas(self, node_id: NodeId, value: int | None, *, by: str) -> Node:
        """A person's value wins over the worker's and survives its registrations; None takes it back."""
        decide, detail = partial(domain.set_max_replicas, value=value), attrgetter("max_replicas_per_model")
        return await self._change(node_id, decide, EventKind.NODE_MAX_REPLICAS, by=by, detail=detail)

    async def set_vram_budget(self, node_id: NodeId, value: str | None, *, by: str) -> Node:
        """A person's value wins, as with replicas. `VramBudget` must have read the text already."""
        decide, detail = partial(domain.set_vram_budget, value=value), attrgetter("vram_budget")
        return await self._change(node_id, decide, EventKind.NODE_VRAM_BUDGET, by=by, detail=detail)

    async def put_card(self, node_id: NodeId, card: str, *, is_out: bool, by: str) -> Node:
        """Take one GPU out of service, or put it back. What uses it now goes on; nothing new is given to it."""

        def decide(node: Node, *, at: datetime) -> Node:
            if card not in node.cards_out and all(gpu.id != card for gpu in node.cards):
                has = ", ".join(gpu.id for gpu in node.cards) or "none"
                raise NotFound(f"node {node.name} has no GPU {card[:_SHOWN]!r}; it has {has}")
            return domain.put_card(node, card, is_out=is_out, at=at)

        def detail(node: Node) -> list[str]:
            return sorted(node.cards_out)

        return await self._change(node_id, decide, EventKind.NODE_CARDS, by=by, detail=detail)

    async def _change(
        self,
        node_id: NodeId,
        decide: _Decision,
        kind: EventKind,
        *,
        by: str,
        detail: Callable[[Node], object] | None = None,
        nats_user: Callable[[Node], KnownUser | None] = lambda _: None,
    ) -> Node:
        """Apply a decision to a node. Nothing to change: nothing is written, nothing is announced.

        `detail` is what the event tells of the node before and after, if anything.
        """
        for _ in range(_TRIES):
            before = await self._nodes.get(node_id)
            if before is None:
                raise _unknown(node_id)
            after = decide(before, at=self._clock.now())
            if after is before:
                return before
            data = {} if detail is None else {"before": detail(before), "after": detail(after)}
            event = self._event(kind, after, by, **data)
            if await self._nodes.replace(after, events=[event], nats_user=nats_user(after)):
                await self._announce()
                return after
        raise Conflict(f"node {node_id} is being changed by others; try again")

    async def _announce(self) -> None:
        self._health.ring()
        await self._feed.announce()

    def _event(self, kind: EventKind, node: Node, actor: str, **data: object) -> Event:
        return node_event(kind, node, actor, at=self._clock.now(), **data)


def _unknown(node_id: NodeId) -> NotFound:
    return NotFound(f"no node has the id {node_id}")
