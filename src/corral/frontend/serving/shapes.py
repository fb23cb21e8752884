"""Replicas and loads as answers: LocalAI's form and Corral's own, with the requests that gateways report."""

from typing import Final

from msgspec import UNSET

from corral.frontend.serving.decide.load_job import LoadStatus
from corral.frontend.serving.decide.replica import LIVE, SERVING, Replica, ReplicaState
from corral.frontend.serving.gateway_reports import GatewayReports
from corral.wire.go_json import format_time
from corral.wire.replicas import ReplicaRow, ReplicaView
from corral.wire.view import Loading

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
    return ReplicaView(
        id=replica.id,
        node_id=replica.node_id,
        node=node,
        model=replica.model,
        index=replica.index,
        state=replica.state.value,
        revision=replica.revision,
        address=replica.address,
        url=replica.url,
        reason=replica.reason,
        in_flight=in_flight,
        last_used_at=None if used is None else format_time(used),
        created_at=format_time(replica.created_at),
        changed_at=format_time(replica.changed_at),
    )


def loading_view(status: LoadStatus) -> Loading:
    """How far a load is, with all that administrators may see."""
    progress = status.progress
    sent, total = progress.current_bytes, progress.total_bytes
    return Loading(
        model=status.model,
        state=progress.phase or status.state,
        node=status.node,
        progress=round(100.0 * sent / total, 1) if sent is not None and total else None,
        bytes_sent=sent,
        total_bytes=total,
        file_index=progress.file_index,
        total_files=progress.total_files,
        bytes_per_second=progress.bytes_per_second,
        eta_seconds=progress.eta_seconds,
        file=progress.file,
        reason=status.reason or "",
        message=status.message,
        engine_lines=list(status.engine_lines),
        retry_after_seconds=max(1, round(status.retry_after.total_seconds())),
    )
