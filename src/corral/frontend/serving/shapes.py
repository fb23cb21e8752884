"""Replicas as answers: LocalAI's form and Corral's own, with the requests that gateways report."""

from collections import Counter
from datetime import datetime
from typing import Final, Protocol

from msgspec import UNSET

from corral.frontend.serving.decide.replica import LIVE, SERVING, UNSERVED, Replica, ReplicaState, unserved_reason
from corral.wire.go_json import format_time
from corral.wire.replicas import ReplicaRow, ReplicaView

_LOCALAI_STATES: Final = {state: state.value for state in LIVE} | {
    ReplicaState.RESERVED: ReplicaState.STAGING.value,
}
"""The words that LocalAI has. Replicas that are gone have no row there at all."""


class ReplicaUsage(Protocol):
    """What gateways reported about the requests to replicas."""

    def in_flight(self) -> Counter[str]:
        """Requests that are under way, by the id of the replica."""

    def silent(self) -> int:
        """How many gateways did not report in time."""

    def last_used(self, replica: str) -> datetime | None:
        """When a request to it was last reported."""


def replica_rows(replicas: list[Replica], usage: ReplicaUsage) -> list[ReplicaRow]:
    in_flight = usage.in_flight()
    return [_row(replica, usage, in_flight[replica.id]) for replica in replicas if replica.state in LIVE]


def _row(replica: Replica, usage: ReplicaUsage, in_flight: int) -> ReplicaRow:
    return ReplicaRow(
        id=replica.id,
        node_id=replica.node_id,
        model_name=replica.model,
        replica_index=replica.index,
        address=replica.address,
        state=_LOCALAI_STATES[replica.state],
        in_flight=in_flight,
        last_used=format_time(usage.last_used(replica.id) or replica.changed_at),
        backend_type=replica.backend or UNSET,
        config_revision=replica.revision or UNSET,
        created_at=format_time(replica.created_at),
        updated_at=format_time(replica.changed_at),
    )


def replica_view(replica: Replica, usage: ReplicaUsage, *, node: str) -> ReplicaView:
    used = usage.last_used(replica.id)
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
        in_flight=_known_in_flight(replica, usage),
        last_used_at=None if used is None else format_time(used),
        created_at=format_time(replica.created_at),
        changed_at=format_time(replica.changed_at),
    )


def _unserved_sentence(replica: Replica) -> str:
    return f"loaded, but cannot be asked: {unserved_reason(replica.backend)}"


def _known_in_flight(replica: Replica, usage: ReplicaUsage) -> int | None:
    if replica.state not in SERVING:
        return 0
    return None if usage.silent() else usage.in_flight()[replica.id]
