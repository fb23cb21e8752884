"""Replicas, loads and rules of scheduling as answers, in LocalAI's form and in Corral's own."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from msgspec import UNSET

from corral.base.ids import NodeId
from corral.base.words import counted, listed
from corral.frontend.models.decide.needs import ModelNeeds
from corral.frontend.nodes.decide.node import SeenNode
from corral.frontend.serving.decide.act_plan import ActPlan
from corral.frontend.serving.decide.draining import DrainedReplica, DrainPlan
from corral.frontend.serving.decide.load_job import LoadJob, LoadProgress, LoadState, LoadStatus, seconds_so_far
from corral.frontend.serving.decide.placement import NodeVerdict, Placement, PlacementRefusal
from corral.frontend.serving.decide.replica import LIVE, SERVING, Replica, ReplicaState
from corral.frontend.serving.decide.scaling import ReplicaCounts
from corral.frontend.serving.decide.scheduling import SchedulingRule
from corral.frontend.serving.decide.what_if import (
    BackendDeleted,
    Change,
    Consequence,
    Fate,
    ModelScaled,
    NodeDown,
    NodeDrained,
    has_cure,
)
from corral.frontend.serving.gateways.reports import GatewayReports
from corral.wire.go_json import format_time
from corral.wire.models import LoadJobView
from corral.wire.nodes import DrainedReplicaView, DrainView
from corral.wire.placement import ConsequenceView, ModelNeedsView, NodeVerdictView
from corral.wire.plans import ActPlanView, EffectView
from corral.wire.replicas import ReplicaRow, ReplicaView
from corral.wire.scheduling import SchedulingRow, SchedulingView
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


def replica_views(
    replicas: Iterable[Replica], gateways: GatewayReports, names: Mapping[NodeId, str]
) -> list[ReplicaView]:
    """Replicas in Corral's own form. What they have under way is not known while a gateway is silent."""
    reported = None if gateways.silent() else gateways.in_flight()
    return [_replica_view(replica, gateways, reported, names.get(replica.node_id, "")) for replica in replicas]


def _replica_view(
    replica: Replica, gateways: GatewayReports, reported: Mapping[str, int] | None, node: str
) -> ReplicaView:
    used = gateways.last_used(replica.id)
    in_flight: int | None = 0
    if replica.state in SERVING:
        in_flight = None if reported is None else reported.get(replica.id, 0)
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
        backend=replica.backend,
        why=replica.why.value,
        vram=replica.vram,
        ram=replica.ram,
        cards=list(replica.cards),
        in_flight=in_flight,
        last_used_at=None if used is None else format_time(used),
        tokens_per_second=gateways.speeds.of(replica.id),
        created_at=format_time(replica.created_at),
        changed_at=format_time(replica.changed_at),
    )


def loading_view(status: LoadStatus) -> Loading:
    """How far a load is, with all that administrators may see."""
    progress = status.progress
    sent, total = progress.current_bytes, progress.total_bytes
    retry = max(1, round(status.retry_after.total_seconds()))
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
        step=status.step,
        step_seconds={name: round(seconds, 1) for name, seconds in status.step_seconds.items()},
        is_permanent=status.is_permanent,
        retry_in_seconds=retry if status.state == LoadState.FAILED and not status.is_permanent else None,
        engine_lines=list(status.engine_lines),
        retry_after_seconds=retry,
    )


def load_job_view(job: LoadJob, progress: LoadProgress, *, node: str, now: datetime) -> LoadJobView:
    """A load in Corral's own form."""
    return LoadJobView(
        state=job.state.value,
        failures=job.failures,
        message=job.message,
        retry_at=format_time(job.retry_at),
        reason=job.reason or "",
        engine_lines=list(job.engine_lines),
        phase=progress.phase,
        current_bytes=progress.current_bytes,
        total_bytes=progress.total_bytes,
        eta_seconds=progress.eta_seconds,
        bytes_per_second=progress.bytes_per_second,
        file_index=progress.file_index,
        total_files=progress.total_files,
        file=progress.file,
        ordinal=job.ordinal,
        why=job.why.value,
        step=job.step or "",
        step_seconds={name: round(seconds, 1) for name, seconds in seconds_so_far(job, now).items()},
        node=node,
        is_permanent=job.is_permanent,
        began_at=format_time(job.created_at),
        changed_at=format_time(job.changed_at),
    )


def verdict_view(verdict: NodeVerdict, replicas: Iterable[Replica]) -> NodeVerdictView:
    """What one node says to one more replica of the model that has these."""
    return NodeVerdictView(
        node_id=verdict.node_id,
        node=verdict.name,
        code=verdict.code.value,
        why=verdict.why,
        numbers=dict(verdict.numbers),
        vram=verdict.vram,
        ram=verdict.ram,
        cards=list(verdict.cards),
        points=round(verdict.points, 2),
        score=dict(verdict.score),
        free=verdict.free,
        replicas=sum(replica.node_id == verdict.node_id for replica in replicas),
    )


def needs_view(needs: ModelNeeds) -> ModelNeedsView:
    return ModelNeedsView(
        source=needs.source,
        disk=needs.disk,
        ram=needs.ram,
        vram=needs.vram,
        ram_beside_gpu=needs.ram_beside_gpu,
        splits=needs.splits,
        per_card=needs.per_card,
    )


def consequence_view(consequence: Consequence, names: Mapping[NodeId, str]) -> ConsequenceView:
    """What would become of a replica. Where it has a place, why others were not chosen is left out."""
    return ConsequenceView(
        model=consequence.model,
        fate=consequence.fate.value,
        node_id=consequence.on or "",
        node=names.get(consequence.on, "") if consequence.on else "",
        to_node_id=consequence.to or "",
        to_node=names.get(consequence.to, "") if consequence.to else "",
        why=consequence.why,
        is_interrupted=consequence.is_interrupted,
        is_curable=consequence.is_curable,
        verdicts=[] if consequence.to else [verdict_view(verdict, ()) for verdict in consequence.verdicts],
    )


def scheduling_row(rule: SchedulingRule) -> SchedulingRow:
    """A rule of scheduling in LocalAI's form, which leaves out what is not set."""
    wish = rule.wish
    selector = json.dumps(dict(wish.node_selector), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return SchedulingRow(
        id=rule.id,
        model_name=wish.model,
        node_selector=selector if wish.node_selector else UNSET,
        min_replicas=wish.min_replicas,
        max_replicas=wish.max_replicas,
        spread_all=wish.spread_all,
        route_policy=wish.route_policy or UNSET,
        balance_abs_threshold=wish.balance_abs_threshold or UNSET,
        balance_rel_threshold=wish.balance_rel_threshold or UNSET,
        min_prefix_match=wish.min_prefix_match or UNSET,
        created_at=format_time(rule.created_at),
        updated_at=format_time(rule.updated_at),
    )


def scheduling_view(rule: SchedulingRule, standing: ReplicaCounts, names: Mapping[NodeId, str]) -> SchedulingView:
    """A rule of scheduling in Corral's own form."""
    wish = rule.wish
    return SchedulingView(
        model=wish.model,
        node_selector=dict(wish.node_selector),
        pinned_nodes=list(wish.pinned_nodes),
        pinned_names=[names.get(id, id) for id in wish.pinned_nodes],
        min_replicas=wish.min_replicas,
        max_replicas=wish.max_replicas,
        spread_all=wish.spread_all,
        idle_seconds=wish.idle_seconds,
        route_policy=wish.route_policy,
        balance_abs_threshold=wish.balance_abs_threshold,
        balance_rel_threshold=wish.balance_rel_threshold,
        min_prefix_match=wish.min_prefix_match,
        source=rule.source.value,
        created_at=format_time(rule.created_at),
        updated_at=format_time(rule.updated_at),
        updated_by=rule.updated_by,
        loaded=standing.loaded,
        loading=standing.loading,
        problem=standing.problem,
    )


def drain_view(seen: SeenNode, plan: DrainPlan, *, within: timedelta) -> DrainView:
    facts = seen.node.facts
    state = "not draining"
    if facts.draining_since is not None:
        state = "drained" if plan.is_done else "draining"
    return DrainView(
        node_id=seen.node.id,
        node=seen.node.name,
        state=state,
        by=facts.draining_by,
        since=None if facts.draining_since is None else format_time(facts.draining_since),
        requests_within_seconds=within.total_seconds(),
        replicas_left=len(plan.replicas),
        requests_left=plan.requests_left,
        stays=len(plan.staying),
        replicas=[_drained_replica(each) for each in plan.replicas],
    )


def act_plan_view(plan: ActPlan) -> ActPlanView:
    """A plan in Corral's own form; the worst comes first."""
    return ActPlanView(
        hash=plan.hash,
        consequences=[
            EffectView(
                kind=effect.kind.value,
                subject=effect.subject,
                about=effect.about.value,
                detail=effect.detail,
                node=effect.node,
                node_id=effect.node_id or "",
                to_node=effect.to,
                to_node_id=effect.to_id or "",
            )
            for effect in plan.ordered
        ],
        text=plan.text,
        in_flight=plan.in_flight,
    )


def _drained_replica(drained: DrainedReplica) -> DrainedReplicaView:
    replica = drained.replica
    return DrainedReplicaView(
        id=replica.id,
        model=replica.model,
        index=replica.index,
        state=replica.state.value,
        step=drained.step.value,
        why=drained.why,
        nodes=dict(drained.reasons),
        in_flight=drained.in_flight,
    )


def why_summary(
    model: str,
    choice: Placement | PlacementRefusal,
    replicas: Sequence[Replica],
    jobs: Sequence[LoadJob],
    names: Mapping[NodeId, str],
) -> str:
    """Where a model is, how its loads are, and where one more replica would go."""
    return "; ".join([_whereabouts(model, replicas, names), *_loads(jobs), _next_place(choice)])


def _whereabouts(model: str, replicas: Sequence[Replica], names: Mapping[NodeId, str]) -> str:
    loaded = sorted(
        names.get(replica.node_id, replica.node_id) for replica in replicas if replica.state is ReplicaState.LOADED
    )
    return f"{model} is loaded on {listed(loaded)}" if loaded else f"{model} is not loaded"


def _loads(jobs: Sequence[LoadJob]) -> list[str]:
    counts = Counter(job.state for job in jobs)
    words = {
        LoadState.LOADING: "{} under way",
        LoadState.PENDING: "{} waiting for a place",
        LoadState.FAILED: "{} failed",
    }
    clauses = [text.format(counted(counts[state], "load")) for state, text in words.items() if counts[state]]
    return [", ".join(clauses)] if clauses else []


def _next_place(choice: Placement | PlacementRefusal) -> str:
    if isinstance(choice, Placement):
        return f"one more would go to {choice.node.name}"
    cure = ", unless something else ends" if has_cure(choice) else ""
    return f"no node can take one more{cure}" if choice.verdicts else "no node has joined yet"


def change_in_words(change: Change, names: Mapping[NodeId, str]) -> str:
    match change:
        case NodeDown(node_id=id):
            return f"{names.get(id, id)} goes down"
        case NodeDrained(node_id=id):
            return f"{names.get(id, id)} is drained"
        case ModelScaled(model=model, count=count):
            return f"{model} has {counted(count, 'replica')}"
        case BackendDeleted(backend=backend):
            return f"the backend {backend} is deleted everywhere"


_TOLD: Final = {
    Fate.SERVICE_LOST: "{} without any replica",
    Fate.REPLICA_LOST: "{} lost without a place elsewhere",
    Fate.STAYS: "{} staying until forced",
    Fate.NOT_ADDED: "no place for one more",
    Fate.MOVES: "{} loaded elsewhere",
    Fate.ADDED: "{} added",
    Fate.ENDED: "{} ended",
}


def what_if_summary(consequences: Sequence[Consequence]) -> str:
    """How many replicas move, and what is lost; the worst first."""
    counts = Counter(each.fate for each in consequences)
    clauses: list[str] = []
    for fate, text in _TOLD.items():
        if counts[fate]:
            word = "model" if fate is Fate.SERVICE_LOST else "replica"
            clauses.append(text.format(counted(counts[fate], word)))
    if interrupted := sorted({each.model for each in consequences if each.is_interrupted}):
        clauses.append(f"no answers from {listed(interrupted)} until loaded again")
    return "; ".join(clauses) if clauses else "nothing would change"
