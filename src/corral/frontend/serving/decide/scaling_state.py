"""What scaling looks at: the replicas of each model with its rule, and what is remembered between two looks. Pure.

A replica *serves* when it is loaded from the model's current configuration, on a node that the rule allows and that
nobody drains. One that is loaded and does not serve so is *stale*. What is being loaded, or is to be, is *coming*; so
is what an upgrade of its backend ended, until it is loaded again.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import msgspec
from msgspec.structs import replace

from corral.base.ids import NodeId
from corral.base.setting_kinds import duration
from corral.base.settings import setting
from corral.frontend.models.decide.model import ModelSpec
from corral.frontend.nodes.decide.node import NodeStatus
from corral.frontend.serving.decide.load_job import MAY_END_OTHERS, LoadJob, LoadState, LoadWhy, is_cooling
from corral.frontend.serving.decide.replica import Replica, ReplicaState
from corral.frontend.serving.decide.rollout import ROLLING_PATIENCE, Restoration
from corral.frontend.serving.decide.scheduling import SchedulingWish
from corral.frontend.serving.decide.snapshot import FleetSnapshot

OLD_REVISION: Final = "the model's configuration was changed"
WRONG_PLACE: Final = "no rule wants it on this node any more"
_COMING: Final = frozenset({ReplicaState.RESERVED, ReplicaState.STAGING, ReplicaState.LOADING})
_OPEN: Final = frozenset({LoadState.PENDING, LoadState.LOADING})


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPolicy:
    """When replicas come and go with the load."""

    grow_after: timedelta = setting(
        duration("1s", "24h"),
        """How long all replicas of a model must be busy before it gets one more, if a rule of scheduling lets it grow.
        30 seconds, because loading one takes about as long.""",
        name="scale_up_after",
        default="30s",
    )
    shrink_after: timedelta = setting(
        duration("1s", "365d"),
        """How long a replica must be idle before it is unloaded, where the model has more than one and more than the
        minimum of its rule. 5 minutes, as in LocalAI.""",
        name="scale_down_after",
        default="5m",
    )
    unload_after: timedelta | None = setting(
        duration("1s", "365d"),
        """How long a model without a minimum may be idle before its last replica is unloaded as well; it is loaded
        again when somebody asks. By default it stays until others need its place, as in LocalAI. A rule of scheduling
        may say it for one model.""",
        name="unload_idle_after",
        default=None,
        default_text="never",
    )
    settled_after: timedelta = timedelta(seconds=5)
    """How long a configuration must be what it is before replicas are replaced for it."""


class ScaledModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model with all that scaling decides by."""

    spec: ModelSpec
    rule: SchedulingWish
    replicas: tuple[Replica, ...] = ()
    """The living replicas of the model."""
    jobs: tuple[LoadJob, ...] = ()
    restorations: tuple[Restoration, ...] = ()

    @property
    def name(self) -> str:
        return self.spec.name


def scaled_models(snapshot: FleetSnapshot) -> list[ScaledModel]:
    """The models that have a replica, a load or a rule, by name."""
    replicas: defaultdict[str, list[Replica]] = defaultdict(list)
    jobs: defaultdict[str, list[LoadJob]] = defaultdict(list)
    for replica in snapshot.replicas:
        replicas[replica.model].append(replica)
    for job in snapshot.jobs:
        jobs[job.model].append(job)
    return [
        ScaledModel(
            spec=snapshot.models[name],
            rule=snapshot.rules.get(name, SchedulingWish(model=name)),
            replicas=tuple(replicas[name]),
            jobs=tuple(jobs[name]),
            restorations=tuple(noted for noted in snapshot.restorations if noted.model == name),
        )
        for name in sorted({*replicas, *jobs, *snapshot.rules} & snapshot.models.keys())
    ]


class ScalingMemory(msgspec.Struct, frozen=True, kw_only=True):
    """What one look at the fleet does not show."""

    revisions: Mapping[str, tuple[str, datetime]] = msgspec.field(default_factory=dict)
    """The revision of each model, and since when it is that one, as far as was seen."""
    busy_since: Mapping[str, datetime] = msgspec.field(default_factory=dict)
    """Since when all replicas of a model are busy."""
    rolling: Mapping[str, int] = msgspec.field(default_factory=dict)
    """How many replicas models had when the first of them became stale."""


class ReplicaStanding(msgspec.Struct, frozen=True, kw_only=True):
    """A model's replicas, sorted by what they are."""

    serving: tuple[Replica, ...]
    stale: tuple[Replica, ...]
    coming: int
    coming_to: frozenset[NodeId]
    """Nodes that something is being loaded on, or is to be."""
    cooling: LoadJob | None
    """A load that failed just now: nothing is loaded until its cooldown is over. One that was needed comes before one
    that was only nice to have."""

    @property
    def loaded(self) -> int:
        return len(self.serving) + len(self.stale)


def standing_of(
    model: ScaledModel, snapshot: FleetSnapshot, memory: ScalingMemory, policy: ScalingPolicy
) -> ReplicaStanding:
    """What the replicas and the jobs of a model are at this moment."""
    staying = [replica for replica in model.replicas if not _is_leaving(replica, snapshot)]
    loaded = [replica for replica in staying if replica.state is ReplicaState.LOADED]
    stale = {replica.id for replica in loaded if why_stale(replica, model, snapshot, memory, policy)}
    open_jobs = [job for job in model.jobs if job.state in _OPEN]
    of_jobs = {job.replica_id for job in open_jobs}
    coming = [replica for replica in staying if replica.state in _COMING]
    without_job = [replica for replica in coming if replica.id not in of_jobs]
    places = [replica.node_id for replica in coming]
    places += [id for job in open_jobs if (id := job.node_id or job.preferred_node_id) is not None]
    owed = _owed(model, snapshot)
    places += [noted.node_id for noted in owed]
    cooling = [job for job in model.jobs if is_cooling(job, snapshot.at)]
    return ReplicaStanding(
        serving=tuple(replica for replica in loaded if replica.id not in stale),
        stale=tuple(replica for replica in loaded if replica.id in stale),
        coming=len(open_jobs) + len(without_job) + max(len(owed) - _elsewhere(model, open_jobs), 0),
        coming_to=frozenset(places),
        cooling=min(cooling, key=lambda job: (job.why not in MAY_END_OTHERS, job.ordinal), default=None),
    )


def _owed(model: ScaledModel, snapshot: FleetSnapshot) -> list[Restoration]:
    """What an upgrade ended and is not back. It is loaded again when the upgrade is done, and by nobody before: the
    upgrade would have to end that as well."""
    occupied = {(each.node_id, each.index) for each in model.replicas if each.state is not ReplicaState.UNLOADING}
    return [
        noted
        for noted in model.restorations
        if (noted.node_id, noted.index) not in occupied
        and snapshot.at - noted.noted_at < ROLLING_PATIENCE
        and (seen := snapshot.nodes_by_id.get(noted.node_id)) is not None
        and seen.status is NodeStatus.HEALTHY
    ]


def _elsewhere(model: ScaledModel, open_jobs: Iterable[LoadJob]) -> int:
    """How many loads restore something, and have no place yet or another one than it had."""
    noted = {(noted.node_id, noted.index) for noted in model.restorations}
    in_place = {replica.id for replica in model.replicas if (replica.node_id, replica.index) in noted}
    return sum(job.why is LoadWhy.RESTORED and job.replica_id not in in_place for job in open_jobs)


def _is_leaving(replica: Replica, snapshot: FleetSnapshot) -> bool:
    """Whether it is on a node that is drained: what becomes of it is the business of the drain."""
    seen = snapshot.nodes_by_id.get(replica.node_id)
    return seen is not None and seen.status is NodeStatus.DRAINING


def why_stale(
    replica: Replica, model: ScaledModel, snapshot: FleetSnapshot, memory: ScalingMemory, policy: ScalingPolicy
) -> str:
    """Why another one should be in its place; empty for one that is what and where it should be."""
    if replica.revision != model.spec.revision:
        _, since = memory.revisions.get(model.name, ("", snapshot.at))
        if snapshot.at - since >= policy.settled_after:
            return OLD_REVISION
    seen = snapshot.nodes_by_id.get(replica.node_id)
    return "" if seen is None or model.rule.allows(seen.node) else WRONG_PLACE


def remember(memory: ScalingMemory, snapshot: FleetSnapshot, policy: ScalingPolicy) -> ScalingMemory:
    """What is to be known at this look, and at the next. What was remembered before the clock was set back counts from
    now."""
    models = scaled_models(snapshot)
    revisions: dict[str, tuple[str, datetime]] = {}
    for model in models:
        revision, since = memory.revisions.get(model.name, ("", snapshot.at))
        is_same = revision == model.spec.revision
        revisions[model.name] = (model.spec.revision, min(since, snapshot.at) if is_same else snapshot.at)
    busy: dict[str, datetime] = {}
    rolling: dict[str, int] = {}
    seen = replace(memory, revisions=revisions)
    for model in models:
        standing = standing_of(model, snapshot, seen, policy)
        if standing.stale:
            rolling[model.name] = memory.rolling.get(model.name, standing.loaded)
        if snapshot.is_load_known and _is_full(model, standing, snapshot):
            busy[model.name] = min(memory.busy_since.get(model.name, snapshot.at), snapshot.at)
    return replace(seen, busy_since=busy, rolling=rolling)


def _is_full(model: ScaledModel, standing: ReplicaStanding, snapshot: FleetSnapshot) -> bool:
    """Whether one more request would have to wait, as far as that can be known."""
    if not standing.serving:
        return False
    full = max(model.spec.max_concurrent, 1)
    all_full = all(snapshot.in_flight.get(replica.id, 0) >= full for replica in standing.serving)
    return all_full or snapshot.waiting.get(model.name, 0) > 0


def idle_for(replica: Replica, snapshot: FleetSnapshot) -> timedelta:
    """How long nothing was under way there; no time for one that is busy."""
    if snapshot.in_flight.get(replica.id, 0):
        return timedelta()
    used = snapshot.last_used.get(replica.id, replica.changed_at)
    since = max(used, replica.changed_at, snapshot.counting_since or replica.changed_at)
    return max(snapshot.at - since, timedelta())
