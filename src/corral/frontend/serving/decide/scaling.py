"""How many replicas models get, by their rules and by what they have to do: a pure plan over a snapshot of the fleet.

| what is so | what is done |
|---|---|
| fewer serve or come than the minimum               | load as many as are missing                              |
| `spread_all`, and an allowed node has none         | load one there                                           |
| some are stale                                     | load one for each, one at a time; then end the stale one |
| stale, and no room beside it                       | end it, and load the other one as soon as it is gone     |
| more than the maximum                              | end those that are idle, the least recently used first   |
| there are counts, all serving are busy for a while | load one more                                            |
| one was idle for a while, above the minimum        | end it, down to one; the last one only by its own time   |
| a load waits for a place, and nobody wants it now  | take it back                                             |
| a load failed just now                             | load nothing until its cooldown is over; the minimum     |
|                                                    | does not wait for one that was only nice to have         |

Nothing is done while the brake holds. What a silent gateway has under way is not known: then nothing is called idle or
busy. While stale replicas are exchanged there may be one more than the maximum, and no more of those that serve.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Final

import msgspec
from msgspec.structs import replace

from corral.base.ids import NodeId, ReplicaId
from corral.frontend.nodes.decide.node import NodeStatus, NodeType, SeenNode
from corral.frontend.serving.decide.load_job import MAY_END_OTHERS, LoadJob, LoadState, LoadWhy
from corral.frontend.serving.decide.placement import (
    CandidateNode,
    Placement,
    PlacementRefusal,
    VerdictCode,
    place,
    reservation,
)
from corral.frontend.serving.decide.replica import Replica
from corral.frontend.serving.decide.scaling_state import (
    OLD_REVISION,
    WRONG_PLACE,
    ReplicaStanding,
    ScaledModel,
    ScalingMemory,
    ScalingPolicy,
    idle_for,
    scaled_models,
    standing_of,
    why_stale,
)
from corral.frontend.serving.decide.scheduling import SchedulingWish
from corral.frontend.serving.decide.snapshot import FleetSnapshot
from corral.frontend.serving.decide.turns import without

ABOVE_MAXIMUM: Final = "there are more replicas than the rule allows"
IDLE: Final = "nobody asked it for a while"
_EVICTABLE: Final = frozenset({VerdictCode.RIVAL, VerdictCode.NO_VRAM, VerdictCode.NO_RAM})
"""What the end of another model's replica may cure."""
_COUNTED: Final = frozenset({LoadWhy.MINIMUM, LoadWhy.SPREAD})
"""Loads that only a rule wants. Others are owed: to a request, to a person, for a replica that was ended."""
_MOST_LOADS: Final = 20
"""Loads of one model that are asked for at once; the others follow."""
_MOST_IN_ALL: Final = 100
"""Loads of all models that one plan asks for: to place one in a large fleet takes milliseconds."""


class LoadMore(msgspec.Struct, frozen=True, kw_only=True):
    """Load one more replica of a model."""

    model: str
    why: LoadWhy
    prefer: NodeId | None = None


class UnloadOne(msgspec.Struct, frozen=True, kw_only=True):
    replica: Replica
    why: str


class TakeBack(msgspec.Struct, frozen=True, kw_only=True):
    """End a load that waits for a place."""

    job: LoadJob


ScaleAction = LoadMore | UnloadOne | TakeBack


class ReplicaCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How far the fleet is with a model."""

    loaded: int = 0
    loading: int = 0
    problem: str = ""
    """What keeps it from what is wanted; empty when nothing does."""


class ScalingPlan(msgspec.Struct, frozen=True, kw_only=True):
    actions: tuple[ScaleAction, ...] = ()
    counts: Mapping[str, ReplicaCounts] = msgspec.field(default_factory=dict)


def plan(snapshot: FleetSnapshot, memory: ScalingMemory, policy: ScalingPolicy) -> ScalingPlan:
    """What is to be done now. Doing it and planning again comes to an end: then nothing is left to do."""
    planning = _Planning(snapshot, memory, policy)
    counts = {model.name: planning.look_at(model) for model in scaled_models(snapshot)}
    return ScalingPlan(actions=() if snapshot.is_braked else tuple(planning.actions), counts=counts)


class _Planning:
    """A plan in the making: places that were given away in it are not given away twice."""

    def __init__(self, snapshot: FleetSnapshot, memory: ScalingMemory, policy: ScalingPolicy) -> None:
        self._snapshot = snapshot
        self._memory = memory
        self._policy = policy
        self._planned: dict[NodeId, list[Replica]] = {}
        self._candidates: dict[str, list[CandidateNode]] = {}
        self.actions: list[ScaleAction] = []

    def look_at(self, model: ScaledModel) -> ReplicaCounts:
        """Plan for one model; how far it is."""
        standing = standing_of(model, self._snapshot, self._memory, self._policy)
        if sum(map(len, self._planned.values())) >= _MOST_IN_ALL:
            return ReplicaCounts(loaded=standing.loaded, loading=standing.coming)
        problem = self._spread(model, standing) if model.rule.spread_all else self._count(model, standing)
        stuck = next((job.message for job in model.jobs if job.state is LoadState.PENDING and job.message), "")
        return ReplicaCounts(loaded=standing.loaded, loading=standing.coming, problem=problem or stuck)

    # Rules with counts, and models without a rule.

    def _count(self, model: ScaledModel, standing: ReplicaStanding) -> str:
        low, high = _bounds(model.rule)
        rolling = self._memory.rolling.get(model.name, standing.loaded) if standing.stale else 0
        target = max(low, rolling if high is None else min(rolling, high))
        missing = target - len(standing.serving) - standing.coming
        self._take_back(model, max(-missing, 0))
        has_ended = self._end_stale(model, standing, keep=target)
        if missing > 0:
            return self._load_missing(model, standing, low, has_ended=has_ended)
        if standing.stale:
            return ""
        self._shrink(model, standing, low, high)
        return self._grow(model, standing, high)

    def _load_missing(self, model: ScaledModel, standing: ReplicaStanding, low: int, *, has_ended: bool) -> str:
        """Load missing replicas, as far as there is room; returns why the others cannot be loaded."""
        below_minimum = low - standing.loaded - standing.coming
        cooling = standing.cooling
        if cooling is not None and (below_minimum <= 0 or cooling.why in MAY_END_OTHERS):
            return f"a load failed: {cooling.message}"
        if below_minimum <= 0 and standing.coming:
            return ""  # stale ones are exchanged one after the other
        why = LoadWhy.MINIMUM if below_minimum > 0 else self._why_exchanged(model, standing)
        for _ in range(min(max(below_minimum, 1), _MOST_LOADS)):
            choice = self._place(model)
            if isinstance(choice, Placement):
                self._load(model, why, choice)
            elif has_ended:
                return ""
            else:
                return self._without_room(model, standing, why, choice)
        return ""

    def _without_room(
        self, model: ScaledModel, standing: ReplicaStanding, why: LoadWhy, refusal: PlacementRefusal
    ) -> str:
        """No node has room for one more: end a stale one for it if that helps, or wait until others make way."""
        problem = f"one more fits nowhere: {refusal.message}"
        if standing.coming or any(True for _ in self._of(model)):
            return problem
        for replica in self._by_use(standing.stale):
            choice = self._place(model, ending=replica)
            if isinstance(choice, Placement):
                self._unload(replica, self._reason(replica, model))
                self._load(model, why, choice)
                return ""
        if why is LoadWhy.MINIMUM and any(verdict.code in _EVICTABLE for verdict in refusal.verdicts):
            self.actions.append(LoadMore(model=model.name, why=why))
        return problem

    def _end_stale(self, model: ScaledModel, standing: ReplicaStanding, *, keep: int) -> bool:
        """End stale ones as far as others serve in their place; whether there were any."""
        surplus = max(min(standing.loaded - keep, len(standing.stale)), 0)
        for replica in self._by_use(standing.stale)[:surplus]:
            self._unload(replica, self._reason(replica, model))
        return surplus > 0

    def _shrink(self, model: ScaledModel, standing: ReplicaStanding, low: int, high: int | None) -> None:
        """End what is above the maximum at once, and what was idle for long enough, one at a time."""
        serving = self._by_use(standing.serving)
        above = 0 if high is None else max(len(serving) - high, 0)
        for replica in serving[:above]:
            self._unload(replica, ABOVE_MAXIMUM)
        if above or standing.coming or not self._snapshot.is_load_known or len(serving) <= low:
            return
        limit = self._idle_limit(model, is_last=len(serving) == 1)
        is_wanted = self._snapshot.waiting.get(model.name, 0) > 0
        if limit is not None and not is_wanted and idle_for(serving[0], self._snapshot) >= limit:
            self._unload(serving[0], IDLE)

    def _idle_limit(self, model: ScaledModel, *, is_last: bool) -> timedelta | None:
        """How long the least used replica may be idle; None: for ever."""
        if is_last and model.name in self._snapshot.kept:
            return None
        if model.rule.idle_seconds is not None:
            return timedelta(seconds=model.rule.idle_seconds) if model.rule.idle_seconds else None
        return self._policy.unload_after if is_last else self._policy.shrink_after

    def _grow(self, model: ScaledModel, standing: ReplicaStanding, high: int | None) -> str:
        """Load one more when all were busy for long enough, if that is allowed and fits; what is in the way."""
        since = self._memory.busy_since.get(model.name)
        is_full = high is not None and len(standing.serving) >= high
        if since is None or not model.rule.has_counts or is_full or standing.coming or standing.cooling is not None:
            return ""
        ages = [self._snapshot.at - since, *(replica.age(self._snapshot.at) for replica in standing.serving)]
        if min(ages) < self._policy.grow_after:
            return ""
        choice = self._place(model)
        if isinstance(choice, PlacementRefusal):
            return f"all replicas are busy, and one more fits nowhere: {choice.message}"
        self._load(model, LoadWhy.BUSY, choice)
        return ""

    def _take_back(self, model: ScaledModel, surplus: int) -> None:
        """Take back loads that still wait, as far as they are too many, or were for a rush that is over."""
        is_busy = model.name in self._memory.busy_since or not self._snapshot.is_load_known
        for job in sorted(self._waiting(model), key=lambda job: -job.ordinal):
            is_over = job.why is LoadWhy.BUSY and not is_busy
            if is_over or (surplus and job.why in _COUNTED):
                surplus = max(surplus - 1, 0)
                self.actions.append(TakeBack(job=job))

    # One on every node.

    def _spread(self, model: ScaledModel, standing: ReplicaStanding) -> str:
        targets = [seen.node.id for seen in self._snapshot.nodes if _is_target(seen, model.rule)]
        for job in self._waiting(model):
            if job.why in _COUNTED | {LoadWhy.BUSY} and job.preferred_node_id not in targets:
                self.actions.append(TakeBack(job=job))
        has_one = {replica.node_id for replica in standing.serving}
        lacking = [id for id in targets if id not in has_one | standing.coming_to]
        problems: list[str] = []
        if standing.cooling is not None and lacking:
            problems.append(f"a load failed: {standing.cooling.message}")
        elif lacking:
            problems = self._fill(model, standing, lacking)
        self._end_doubles(model, standing, has_one)
        return "; ".join(problems) if targets else "no node is healthy and allowed by the rule"

    def _fill(self, model: ScaledModel, standing: ReplicaStanding, lacking: Sequence[NodeId]) -> list[str]:
        """Load one on each of these nodes that has room; the reasons of the others."""
        problems: list[str] = []
        for id in lacking[:_MOST_LOADS]:
            choice = self._place(model, only=id)
            if isinstance(choice, Placement):
                self._load(model, LoadWhy.SPREAD, choice, prefer=id)
            elif not self._exchange(model, standing, id):
                problems.append(choice.message)
        return problems

    def _exchange(self, model: ScaledModel, standing: ReplicaStanding, id: NodeId) -> bool:
        """Have a stale replica make way on its own node, one after the other; whether there is one."""
        is_under_way = bool(standing.coming) or any(True for _ in self._of(model))
        for replica in standing.stale:
            if replica.node_id != id:
                continue
            choice = self._place(model, only=id, ending=replica)
            if isinstance(choice, Placement):
                if not is_under_way:
                    self._unload(replica, self._reason(replica, model))
                    self._load(model, LoadWhy.CHANGED, choice, prefer=id)
                return True
        return False

    def _end_doubles(self, model: ScaledModel, standing: ReplicaStanding, has_one: set[NodeId]) -> None:
        """End stale ones that others serve for, and all but one on each node."""
        for replica in standing.stale:
            is_misplaced = self._reason(replica, model) == WRONG_PLACE
            if (is_misplaced and standing.serving) or replica.node_id in has_one:
                self._unload(replica, self._reason(replica, model))
        seen: set[NodeId] = set()
        for replica in sorted(standing.serving, key=lambda replica: replica.index):
            if replica.node_id in seen:
                self._unload(replica, ABOVE_MAXIMUM)
            seen.add(replica.node_id)

    # Helpers.

    def _place(
        self, model: ScaledModel, *, only: NodeId | None = None, ending: Replica | None = None
    ) -> Placement | PlacementRefusal:
        """Where one more would go; `ending` is a replica that ends for it."""
        if model.name not in self._candidates:
            self._candidates[model.name] = self._snapshot.candidates(model.spec)
        candidates = [each for each in self._candidates[model.name] if only is None or each.node.id == only]
        return place(self._snapshot.request(model.spec), [self._as_planned(each, ending) for each in candidates])

    def _as_planned(self, candidate: CandidateNode, ending: Replica | None) -> CandidateNode:
        """The node with what this plan gives away there, without what ends there for it."""
        planned = self._planned.get(candidate.node.id, [])
        beside = [replica for mate in sorted(candidate.mates) for replica in self._planned.get(mate, [])]
        after = candidate
        if ending is not None and ending.node_id == candidate.node.id:
            after = without(candidate, {ending.id})
        if beside:
            after = replace(after, beside=(*after.beside, *beside))
        return replace(after, replicas=(*after.replicas, *planned)) if planned else after

    def _load(self, model: ScaledModel, why: LoadWhy, choice: Placement, *, prefer: NodeId | None = None) -> None:
        """Ask for one more, and count its place as taken for the rest of this plan."""
        self.actions.append(LoadMore(model=model.name, why=why, prefer=prefer))
        id = ReplicaId(f"planned-{len(self.actions)}")
        reserved = reservation(model.spec, choice.verdict, choice.index, id=id, at=self._snapshot.at, why=why)
        self._planned.setdefault(choice.node.id, []).append(reserved)

    def _unload(self, replica: Replica, why: str) -> None:
        self.actions.append(UnloadOne(replica=replica, why=why))

    def _of(self, model: ScaledModel) -> Iterator[ScaleAction]:
        """What is planned for a model so far, apart from loads that are taken back."""
        for action in self.actions:
            match action:
                case LoadMore(model=name) if name == model.name:
                    yield action
                case UnloadOne(replica=replica) if replica.model == model.name:
                    yield action

    def _waiting(self, model: ScaledModel) -> list[LoadJob]:
        """Loads that nobody works on, while no request waits for the model."""
        if self._snapshot.waiting.get(model.name, 0):
            return []
        return [job for job in model.jobs if job.state is LoadState.PENDING and job.lease_token is None]

    def _reason(self, replica: Replica, model: ScaledModel) -> str:
        return why_stale(replica, model, self._snapshot, self._memory, self._policy)

    def _why_exchanged(self, model: ScaledModel, standing: ReplicaStanding) -> LoadWhy:
        reasons = {self._reason(replica, model) for replica in standing.stale}
        return LoadWhy.CHANGED if OLD_REVISION in reasons else LoadWhy.MOVED

    def _by_use(self, replicas: Sequence[Replica]) -> list[Replica]:
        """The replicas in the order in which they may end: idle before busy, the least recently used, the highest
        index."""
        busy = self._snapshot.in_flight
        return sorted(
            replicas,
            key=lambda each: (busy.get(each.id, 0) > 0, -idle_for(each, self._snapshot), -each.index, each.id),
        )


def _bounds(rule: SchedulingWish) -> tuple[int, int | None]:
    """The fewest and the most replicas; None is without limit."""
    return rule.min_replicas, rule.max_replicas or None


def _is_target(seen: SeenNode, rule: SchedulingWish) -> bool:
    """Whether `spread_all` wants a replica there."""
    return seen.node.type is NodeType.BACKEND and seen.status is NodeStatus.HEALTHY and rule.allows(seen.node)
