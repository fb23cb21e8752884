"""What is on each topic, made of a picture of the fleet."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

import msgspec
from msgspec.structs import replace

from corral.base.clock import Clock
from corral.base.errors import NotFound
from corral.base.ids import NodeId, OperationId
from corral.frontend.live.decide.attention import attention
from corral.frontend.live.decide.board import Board
from corral.frontend.live.decide.picture import FleetPicture
from corral.frontend.live.decide.summary import summarise
from corral.frontend.live.decide.topics import Topic, TopicKind
from corral.frontend.live.pictures import Pictures
from corral.frontend.live.shapes import NodeRows, load_row, names_of, node_work, operation_row, steady
from corral.frontend.nodes.decide.node import NodeLoad, NodeStatus, SeenNode
from corral.frontend.nodes.shapes import card_views, node_detail
from corral.frontend.operations.decide.operation import TargetStatus
from corral.frontend.serving.decide.replica import ReplicaState
from corral.frontend.serving.room import ServingRoom
from corral.frontend.serving.shapes import drain_view, replica_views
from corral.wire.live import AttentionItem
from corral.wire.nodes import DrainView
from corral.wire.operation_views import TargetView

FLEET: Final = "fleet"
"""The key of the one item of the summary."""
_DRAIN_LASTS: Final = 2.0
"""Seconds that one look at a drain serves everybody."""


class TopicState(msgspec.Struct, frozen=True, kw_only=True):
    rows: Mapping[str, object] = msgspec.field(default_factory=dict)
    is_missing: bool = False


class TopicRows:
    def __init__(self, pictures: Pictures, serving: ServingRoom, clock: Clock, *, drain_within: timedelta) -> None:
        """`drain_within` is how long requests of a drained node may go on."""
        self._pictures = pictures
        self._serving = serving
        self._clock = clock
        self._drain_within = drain_within
        self._node_rows = NodeRows()
        self._attention_of: tuple[FleetPicture, Sequence[AttentionItem]] | None = None
        self._drains: dict[NodeId, tuple[float, DrainView]] = {}

    async def of(self, topic: Topic, picture: FleetPicture, board: Board | None) -> TopicState:
        """`board` is what was shown last, if anything was."""
        match topic.kind:
            case TopicKind.SUMMARY | TopicKind.ATTENTION:
                return self.of_fleet(topic, picture)
            case TopicKind.NODES:
                return TopicState(rows=self._node_rows.of(picture))
            case TopicKind.REPLICAS:
                return self._replicas(picture)
            case TopicKind.LOADS:
                return self._loads(picture)
            case TopicKind.OPERATIONS:
                operations = self._pictures.operations
                return TopicState(rows={each.view.id: operation_row(each.operation, each.view) for each in operations})
            case TopicKind.OPERATION:
                return await self._operation(OperationId(topic.id), board)
            case TopicKind.NODE:
                return await self._node(NodeId(topic.id), picture)
            case TopicKind.EVENTS:
                return TopicState()

    def of_fleet(self, topic: Topic, picture: FleetPicture) -> TopicState:
        items = self._attention(picture)
        if topic.kind is TopicKind.ATTENTION:
            return TopicState(rows={item.id: item for item in items})
        return TopicState(rows={FLEET: summarise(picture, items)})

    def _attention(self, picture: FleetPicture) -> Sequence[AttentionItem]:
        """Found once for the two topics that are made of it."""
        if self._attention_of is None or self._attention_of[0] is not picture:
            self._attention_of = picture, attention(picture)
        return self._attention_of[1]

    def _replicas(self, picture: FleetPicture) -> TopicState:
        views = replica_views(picture.replicas, self._serving.gateways, names_of(picture))
        return TopicState(rows={view.id: steady(view) for view in views})

    def _loads(self, picture: FleetPicture) -> TopicState:
        names, loads = names_of(picture), self._serving.loads
        return TopicState(
            rows={
                job.id: load_row(
                    job, loads.progress_of(job), node=names.get(job.node_id or NodeId(""), ""), now=picture.at
                )
                for job in picture.jobs
            }
        )

    async def _operation(self, id: OperationId, board: Board | None) -> TopicState:
        watched = await self._pictures.operation(id)
        if watched is None:
            return TopicState(is_missing=True)
        before = {} if board is None else {key: entry.value for key, entry in board.entries.items()}
        return TopicState(rows=all_forward(before, watched.view.targets))

    async def _node(self, id: NodeId, picture: FleetPicture) -> TopicState:
        seen = self._pictures.node(id)
        if seen is None:
            return TopicState(is_missing=True)
        replicas = [replica for replica in picture.replicas if replica.node_id == id]
        users: dict[str, list[str]] = {}
        for replica in replicas:
            for card in replica.cards:
                users.setdefault(card, []).append(replica.process_key)
        loads = NodeLoad(
            loaded=sum(replica.state is ReplicaState.LOADED for replica in replicas),
            in_flight=sum(picture.in_flight.get(replica.id, 0) for replica in replicas),
            is_known=picture.is_load_known,
        )
        watched = [(each.operation, each.view) for each in self._pictures.operations]
        rows: dict[str, object] = {
            "detail": node_detail(_as_heard(seen), loads, picture.policy),
            "cards": card_views(seen.node, users),
            "work": node_work(id, watched),
        }
        if seen.status is NodeStatus.DRAINING and (drain := await self._drain(id)) is not None:
            rows["drain"] = drain
        return TopicState(rows=rows)

    async def _drain(self, id: NodeId) -> DrainView | None:
        """How far a drain is, some seconds ago at most: to find out what can move where takes a while."""
        now = self._clock.monotonic()
        self._drains = {node: computed for node, computed in self._drains.items() if now - computed[0] < _DRAIN_LASTS}
        if id not in self._drains:
            try:
                seen, plan = await self._serving.draining.progress(id)
            except NotFound:  # it was removed a moment ago
                return None
            self._drains[id] = now, drain_view(seen, plan, within=self._drain_within)
        return self._drains[id][1]


def _as_heard(seen: SeenNode) -> SeenNode:
    """Without what grows with every second: readers have the time of the last heartbeat."""
    return SeenNode(node=seen.node, status=seen.status, silent_seconds=0.0, heard_seconds_ago=0.0)


_MOVING: Final = (TargetStatus.DOWNLOADING.value, TargetStatus.RUNNING_ON_WORKER.value)


def forward(before: TargetView | None, now: TargetView) -> TargetView:
    """The target as it is now, with the largest share that was shown of the same attempt.

    A frontend that hears of an attempt later than another one, or asks the node again, knows less of it for a moment.
    """
    if before is None or before.percentage <= now.percentage:
        return now
    is_same = before.status in _MOVING and now.status in _MOVING and before.attempts == now.attempts
    return replace(now, percentage=before.percentage) if is_same else now


def all_forward(before: Mapping[str, object], now: list[TargetView]) -> dict[str, TargetView]:
    """All targets of an operation by their nodes; `before` are those that were shown last."""
    targets = {key: value for key, value in before.items() if isinstance(value, TargetView)}
    return {target.node_id: forward(targets.get(target.node_id), target) for target in now}
