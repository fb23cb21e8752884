"""Making room: which idle replicas end so that another model fits, and for whom. Pure.

For a load that fits nowhere, each node is asked what would have to end there: replicas that are loaded and idle, above
the minimum of their models, not pinned, and loaded for long enough. The fewest go, the least recently used first, on
one node, and only if the load then fits. The first line that applies to any node decides:

| what is so | what is done |
|---|---|
| it fits when what is being ended has ended         | it waits for that                                  |
| it fits when some end that may go now              | they are ended, unless somebody waits longer there |
| it fits when some end that may go later            | it waits for its turn, until then                  |
| it fits when some end that are busy                | it waits until they are idle                       |
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Final

import msgspec

from corral.base.ids import NodeId
from corral.base.setting_kinds import duration
from corral.base.settings import setting
from corral.base.words import listed
from corral.frontend.nodes.decide.node import Node, NodeStatus
from corral.frontend.serving.decide.placement import (
    CURABLE,
    CandidateNode,
    NodeVerdict,
    PlacementRefusal,
    PlacementRequest,
    judge,
)
from corral.frontend.serving.decide.replica import Replica, ReplicaState
from corral.frontend.serving.decide.snapshot import FleetSnapshot
from corral.frontend.serving.decide.turns import (
    WaitingLoad,
    being_ended,
    is_machine_freed,
    promised,
    with_promised,
    without,
    without_ending,
)
from corral.wire.models import LoadReason

_MOST_LOOKED_AT: Final = 64
"""Nodes on which it is found out what would have to end: those where it is likely to be little."""
_TIMES_ITS_LOAD: Final = 2
_LEAST_TURN: Final = timedelta(seconds=5)
_MOST_CHECKED: Final = 20
"""Nodes on which those who wait longer are asked after; the best ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomPolicy:
    """When replicas may be ended to make room for others."""

    stay: timedelta = setting(
        duration("0s", "24h"),
        """The longest time for which a model that was loaded keeps its place although it is idle and another one waits
        for the place. It is twice as long as its load took, 5 seconds at least, and at most this. Two models that fight
        for one place take turns of this length, so that not most of the time is spent on loading. `0s`: an idle
        model may go at once.""",
        name="least_stay",
        default="30s",
    )
    drain: timedelta = setting(
        duration("1s", "24h"),
        """How long requests may go on when their replica makes way because its node is drained. What is left then is
        cut off. 10 minutes: longer than answers take.""",
        name="node_drain_timeout",
        default="10m",
    )


# What is to be done.


class EndReplicas(msgspec.Struct, frozen=True, kw_only=True):
    node: Node
    victims: tuple[Replica, ...]
    reason = LoadReason.ROOM_IS_MADE

    @property
    def message(self) -> str:
        return f"room is made on {self.node.name}: {_models(self.victims)} ends there"


class AwaitEnd(msgspec.Struct, frozen=True, kw_only=True):
    """There will be room when these have ended."""

    node: Node
    replicas: tuple[Replica, ...]
    reason = LoadReason.ROOM_IS_MADE

    @property
    def message(self) -> str:
        return f"waits until {_models(self.replicas)} has ended on {self.node.name}"


class AwaitTurn(msgspec.Struct, frozen=True, kw_only=True):
    """There is room for it when these may go."""

    node: Node
    holders: tuple[Replica, ...] = ()
    until: datetime | None = None
    """When the last of them may go; None: when they are idle."""
    behind: str = ""
    """A model that waits longer, and comes first."""
    reason = LoadReason.WAITS_FOR_TURN

    @property
    def message(self) -> str:
        if self.behind:
            return f"waits for its turn on {self.node.name}: {self.behind} waits longer"
        if self.until is None:
            return f"waits for its turn: {_models(self.holders)} is busy on {self.node.name}"
        return f"waits for its turn: {_models(self.holders)} stays on {self.node.name} until {self.until:%H:%M:%S} UTC"


RoomPlan = EndReplicas | AwaitEnd | AwaitTurn


def _models(replicas: Iterable[Replica]) -> str:
    return listed(sorted({replica.model for replica in replicas})) or "another model"


def make_room(
    request: PlacementRequest,
    refusal: PlacementRefusal,
    candidates: Iterable[CandidateNode],
    snapshot: FleetSnapshot,
    policy: RoomPolicy,
    older: Sequence[WaitingLoad] = (),
) -> RoomPlan | None:
    """How a load that was refused gets a place; None when no end of others would help. `older` wait longer, and come
    first."""
    short = {verdict.node_id: _shortage(verdict) for verdict in refusal.verdicts if verdict.code in CURABLE}
    look = _Look(request, snapshot, policy, older)
    curable = [candidate for candidate in candidates if candidate.node.id in short]
    curable.sort(key=lambda candidate: (look.prospect(candidate), short[candidate.node.id], candidate.node.name))
    plans = [look.at(candidate) for candidate in curable[:_MOST_LOOKED_AT]]
    room_plans = sorted((plan for plan in plans if plan is not None), key=look.order)
    waits: RoomPlan | None = None
    for plan in room_plans[:_MOST_CHECKED]:
        if not isinstance(plan, EndReplicas):
            return plan if isinstance(plan, AwaitEnd) else waits or plan
        if not (first := look.first_in_line(plan.node.id)):
            return plan
        waits = waits or AwaitTurn(node=plan.node, behind=first)
    return waits


def _shortage(verdict: NodeVerdict) -> int:
    """How many bytes are missing there; none where it is not about bytes."""
    return max(verdict.numbers.get("needed", 0) - verdict.numbers.get("free", 0), 0)


class _Look:
    """What one request finds on each node."""

    def __init__(
        self, request: PlacementRequest, snapshot: FleetSnapshot, policy: RoomPolicy, older: Sequence[WaitingLoad]
    ) -> None:
        self._request = request
        self._snapshot = snapshot
        self._policy = policy
        self._older = older

    def prospect(self, candidate: CandidateNode) -> int:
        """A quick guess of how soon there may be room: 0 where a replica is ending already, 1 where one may be
        evicted."""
        if being_ended(candidate, self._snapshot):
            return 0
        return 1 if any(self._may_go_now(replica) for replica in candidate.replicas) else 2

    def _may_go_now(self, replica: Replica) -> bool:
        is_free = replica.state is ReplicaState.LOADED and not self._is_kept(replica.model)
        return is_free and not self._is_busy(replica) and self._stays_until(replica) is None

    def at(self, candidate: CandidateNode) -> RoomPlan | None:
        node, ending = candidate.node, being_ended(candidate, self._snapshot)
        # Elsewhere there is no place to give away: who waits would have taken it.
        is_free = is_machine_freed(candidate, self._snapshot) or self._fits(candidate, ())
        promised_replicas = promised(self._snapshot, node.id, self._older) if is_free else ()
        base = with_promised(without(candidate, {replica.id for replica in ending}), promised_replicas)
        if self._fits(base, ()):
            return AwaitEnd(node=node, replicas=tuple(ending))
        candidates = self._least_used(self._may_go(base, self._request.model))
        now = [replica for replica in candidates if self._may_go_now(replica)]
        if victims := self._fewest(base, now):
            return EndReplicas(node=node, victims=victims)
        later = self._later(base, now, [replica for replica in candidates if replica not in now])
        if later is None and promised_replicas and self._fits(base, (*promised_replicas, *candidates)):
            return AwaitTurn(node=node, behind=promised_replicas[0].model)
        return later

    def _later(self, base: CandidateNode, now: Sequence[Replica], busy: Sequence[Replica]) -> AwaitTurn | None:
        staying = sorted(
            ((until, replica) for replica in busy if (until := self._free_at(replica)) is not None),
            key=lambda held: (held[0], held[1].id),
        )
        for count, (until, _) in enumerate(staying, start=1):
            holders = tuple(replica for _, replica in staying[:count])
            if self._fits(base, (*now, *holders)):
                return AwaitTurn(node=base.node, holders=holders, until=until)
        if busy and self._fits(base, (*now, *busy)):
            return AwaitTurn(node=base.node, holders=tuple(busy))
        return None

    def order(self, plan: RoomPlan) -> tuple[object, ...]:
        """Sort key of plans that make room: the best plan comes first."""
        match plan:
            case AwaitEnd():
                return (0, 0, self._snapshot.at, plan.node.name, plan.node.id)
            case EndReplicas():
                used = max(self._used_at(replica) for replica in plan.victims)
                return (1, len(plan.victims), used, plan.node.name, plan.node.id)
            case AwaitTurn():
                until = plan.until or self._snapshot.at
                return (2, plan.until is None, until, plan.node.name, plan.node.id)

    def first_in_line(self, node_id: NodeId) -> str:
        """The model that waits longer, and will get its place on the machine of this node as soon as others have stayed
        there long enough; none in whose way are only such that are busy."""
        machine = (node_id, *sorted(self._snapshot.mates.get(node_id, ())))
        for waiting in self._older:
            if waiting.room_at or waiting.spec.name == self._request.model:
                continue
            if any(self._gets_place_later(waiting, id) for id in machine):
                return waiting.spec.name
        return ""

    def _gets_place_later(self, waiting: WaitingLoad, node_id: NodeId) -> bool:
        """Whether a load that has no place on a node gets one when the idle ones there have ended."""
        candidate = self._snapshot.candidate(node_id, waiting.spec)
        if candidate is None:
            return False
        soon = without_ending(candidate, self._snapshot)
        idle = {other.id for other in self._may_go(soon, waiting.spec.name) if not self._is_busy(other)}
        has_place = judge(waiting.request, soon).fits
        return not has_place and judge(waiting.request, without(soon, idle)).fits

    # Which replicas may go.

    def _may_go(self, candidate: CandidateNode, model: str) -> list[Replica]:
        """Loaded ones of other models that nobody wants kept, as many as are above the minimum."""
        spare = dict(self._above_least)
        going: list[Replica] = []
        for replica in self._least_used(candidate.replicas):
            is_other = replica.state is ReplicaState.LOADED and replica.model != model
            if is_other and not self._is_kept(replica.model) and spare.get(replica.model, 0) > 0:
                spare[replica.model] -= 1
                going.append(replica)
        return going

    def _is_kept(self, model: str) -> bool:
        """Pinned, or wanted on every node."""
        rule = self._snapshot.rules.get(model)
        return model in self._snapshot.kept or (rule is not None and rule.spread_all)

    @cached_property
    def _above_least(self) -> dict[str, int]:
        """By model, how many of its replicas may end."""
        healthy = {seen.node.id for seen in self._snapshot.nodes if seen.status is NodeStatus.HEALTHY}
        loaded = Counter(
            replica.model
            for replica in self._snapshot.replicas
            if replica.state is ReplicaState.LOADED and replica.node_id in healthy
        )
        return {model: count - self._snapshot.least.get(model, 0) for model, count in loaded.items()}

    def _is_busy(self, replica: Replica) -> bool:
        snapshot = self._snapshot
        has_requests = snapshot.in_flight.get(replica.id, 0) > 0 or snapshot.waiting.get(replica.model, 0) > 0
        return has_requests or not snapshot.is_load_known

    def _stays_until(self, replica: Replica) -> datetime | None:
        """None for one that was loaded long enough ago."""
        took = replica.changed_at - replica.created_at
        stay = min(self._policy.stay, max(took * _TIMES_ITS_LOAD, _LEAST_TURN))
        return replica.changed_at + stay if replica.age(self._snapshot.at) < stay else None

    def _free_at(self, replica: Replica) -> datetime | None:
        """When it may go, if that is only a matter of time."""
        return None if self._is_busy(replica) else self._stays_until(replica)

    def _used_at(self, replica: Replica) -> datetime:
        used = self._snapshot.last_used.get(replica.id)
        return replica.changed_at if used is None else max(used, replica.changed_at)

    def _least_used(self, replicas: Iterable[Replica]) -> list[Replica]:
        return sorted(replicas, key=lambda replica: (self._used_at(replica), replica.id))

    # How much must go.

    def _fits(self, candidate: CandidateNode, ended: Iterable[Replica]) -> bool:
        return judge(self._request, without(candidate, {replica.id for replica in ended})).fits

    def _fewest(self, candidate: CandidateNode, going: Sequence[Replica]) -> tuple[Replica, ...]:
        """One that is enough, or else as many as it takes without any that is not needed; none when all are too few."""
        for replica in going:
            if self._fits(candidate, (replica,)):
                return (replica,)
        chosen: list[Replica] = []
        for replica in going:
            chosen.append(replica)
            if self._fits(candidate, chosen):
                break
        else:
            return ()
        for replica in reversed(chosen.copy()):
            fewer = [other for other in chosen if other is not replica]
            if self._fits(candidate, fewer):
                chosen = fewer
        return tuple(chosen)
