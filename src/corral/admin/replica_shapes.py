"""Replicas as answers: LocalAI's form and Corral's own, with the requests that gateways report."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from msgspec import UNSET

from corral.admin.context import AdminContext
from corral.base.ids import NodeId
from corral.domain.replica import LIVE, UNSERVED, Replica, ReplicaState, unserved_reason
from corral.protocol.replica_views import ReplicaRow, ReplicaView
from corral.protocol.times import format_time

_LOCALAI_STATES: Final = {state: state.value for state in LIVE} | {
    ReplicaState.RESERVED: ReplicaState.STAGING.value,
}
"""The words that LocalAI has. Replicas that are gone have no row there at all."""
SERVING: Final = frozenset({ReplicaState.LOADED, ReplicaState.UNLOADING})
"""States in which requests may be under way: what is being ended may still answer the last ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLoad:
    """How much a node has to do."""

    loaded: int = 0
    """Replicas that can answer."""
    in_flight: int = 0
    """As far as it is known."""
    is_known: bool = True
    """False while a gateway is silent: its share may be anything, where there is something to ask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetLoad:
    by_node: Mapping[NodeId, NodeLoad] = field(default_factory=dict)

    def of(self, node_id: NodeId) -> NodeLoad:
        return self.by_node.get(node_id, _NOTHING)


_NOTHING: Final = NodeLoad()


async def fleet_load(context: AdminContext) -> FleetLoad:
    all_heard = context.gateways.silent() == 0
    reported = context.gateways.in_flight()
    loaded: Counter[NodeId] = Counter()
    serving: Counter[NodeId] = Counter()
    in_flight: Counter[NodeId] = Counter()
    for place in await context.replicas.places():
        loaded[place.node_id] += place.state is ReplicaState.LOADED
        serving[place.node_id] += place.state in SERVING
        in_flight[place.node_id] += reported[place.id]
    return FleetLoad(
        by_node={
            id: NodeLoad(loaded=loaded[id], in_flight=in_flight[id], is_known=all_heard or not serving[id])
            for id in loaded
        }
    )


def replica_rows(context: AdminContext, replicas: list[Replica]) -> list[ReplicaRow]:
    in_flight = context.gateways.in_flight()
    return [_row(context, replica, in_flight[replica.id]) for replica in replicas if replica.state in LIVE]


def _row(context: AdminContext, replica: Replica, in_flight: int) -> ReplicaRow:
    return ReplicaRow(
        id=replica.id,
        node_id=replica.node_id,
        model_name=replica.model,
        replica_index=replica.index,
        address=replica.address,
        state=_LOCALAI_STATES[replica.state],
        in_flight=in_flight,
        last_used=format_time(context.gateways.last_used(replica.id) or replica.changed_at),
        backend_type=replica.backend or UNSET,
        config_revision=replica.revision or UNSET,
        created_at=format_time(replica.created_at),
        updated_at=format_time(replica.changed_at),
    )


def replica_view(context: AdminContext, replica: Replica, *, node: str) -> ReplicaView:
    used = context.gateways.last_used(replica.id)
    return ReplicaView(
        id=replica.id,
        node_id=replica.node_id,
        node=node,
        model=replica.model,
        index=replica.index,
        state=UNSERVED if replica.is_unserved else replica.state.value,
        revision=replica.revision,
        address=replica.address,
        url=replica.url,
        reason=_unserved_sentence(replica) if replica.is_unserved else replica.reason,
        in_flight=_known_in_flight(context, replica),
        last_used_at=None if used is None else format_time(used),
        created_at=format_time(replica.created_at),
        changed_at=format_time(replica.changed_at),
    )


def _unserved_sentence(replica: Replica) -> str:
    return f"loaded, but cannot be asked: {unserved_reason(replica.backend)}"


def _known_in_flight(context: AdminContext, replica: Replica) -> int | None:
    if replica.state not in SERVING:
        return 0
    return None if context.gateways.silent() else context.gateways.in_flight()[replica.id]
