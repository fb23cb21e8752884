"""Replicas as answers: LocalAI's form and Corral's own, with the requests that gateways report."""

from typing import Final

from msgspec import UNSET

from corral.frontend.serving.decide.replica import LIVE, SERVING, UNSERVED, Replica, ReplicaState, unserved_reason
from corral.frontend.serving.gateway_reports import GatewayReports
from corral.wire.go_json import format_time
from corral.wire.replicas import ReplicaRow, ReplicaView

_LOCALAI_STATES: Final = {state: state.value for state in LIVE} | {
    ReplicaState.RESERVED: ReplicaState.STAGING.value,
}
"""The words that LocalAI has. Replicas that are gone have no row there at all."""


def replica_rows(replicas: list[Replica], gateways: GatewayReports) -> list[ReplicaRow]:
    """The replicas that LocalAI has rows for, in its form."""
    in_flight = gateways.in_flight()
    return [
        ReplicaRow(
            id=replica.id,
            node_id=replica.node_id,
            model_name=replica.model,
            replica_index=replica.index,
            address=replica.address,
            state=_LOCALAI_STATES[replica.state],
            in_flight=in_flight[replica.id],
            last_used=format_time(gateways.last_used(replica.id) or replica.changed_at),
            backend_type=replica.backend or UNSET,
            config_revision=replica.revision or UNSET,
            created_at=format_time(replica.created_at),
            updated_at=format_time(replica.changed_at),
        )
        for replica in replicas
        if replica.state in LIVE
    ]


def replica_view(replica: Replica, gateways: GatewayReports, *, node: str) -> ReplicaView:
    """A replica in Corral's own form. What it has under way is not known while a gateway is silent."""
    used = gateways.last_used(replica.id)
    in_flight: int | None = 0
    if replica.state in SERVING:
        in_flight = None if gateways.silent() else gateways.in_flight()[replica.id]
    unserved = f"loaded, but cannot be asked: {unserved_reason(replica.backend)}"
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
        reason=unserved if replica.is_unserved else replica.reason,
        in_flight=in_flight,
        last_used_at=None if used is None else format_time(used),
        created_at=format_time(replica.created_at),
        changed_at=format_time(replica.changed_at),
    )
