"""The plan for a change of the rules of scheduling: what scaling would do under the new rules until nothing is left to
do. Pure.

Scaling plans one step at a time (`decide/scaling.py`). Here its steps are carried out on a snapshot, one after the
other, as if every load succeeded at once. What scaling would have done under the old rules is done first and is no
consequence of the change.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec
from msgspec.structs import asdict, replace

from corral.base.ids import ReplicaId
from corral.base.words import counted, listed
from corral.frontend.serving.decide.act_plan import (
    ActEffect,
    ActPlan,
    EffectAbout,
    EffectKind,
    name_of,
    requests_at,
)
from corral.frontend.serving.decide.load_job import LoadState
from corral.frontend.serving.decide.machine import given_back
from corral.frontend.serving.decide.placement import PlacementRefusal, place, reservation
from corral.frontend.serving.decide.replica import ON_THE_WAY, Replica, ReplicaState
from corral.frontend.serving.decide.scaling import LoadMore, ScaleAction, TakeBack, UnloadOne, plan
from corral.frontend.serving.decide.scaling_state import ScalingMemory, ScalingPolicy, remember
from corral.frontend.serving.decide.scheduling import RulesUpdate, SchedulingRule, SchedulingWish, in_words
from corral.frontend.serving.decide.snapshot import FleetSnapshot
from corral.wire.plans import plan_hash

_MOST_STEPS: Final = 200
"""Most simulated steps of scaling; each loads up to 20 replicas of a model."""
_UNLOADED: Final = "it is unloaded; the next request loads it again"


class RulesPreview(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the rules that was not made."""

    update: RulesUpdate
    in_force: Mapping[str, SchedulingWish]
    """The rules after it, by the model that serves."""
    unload: frozenset[str] = frozenset()
    """Models whose replicas are unloaded besides."""
    mark: str = ""
    """The rules that the change was decided on."""


def scheduling_plan(snapshot: FleetSnapshot, preview: RulesPreview, policy: ScalingPolicy) -> ActPlan:
    """What a change of the rules would lead to."""
    before = replace(_as_if_loaded(snapshot), is_braked=False)
    touched = {
        name for name in (*snapshot.rules, *preview.in_force) if snapshot.rules.get(name) != preview.in_force.get(name)
    } | preview.unload
    before = _Settling(before, policy).under(snapshot.rules, touched).snapshot
    settling = _Settling(_without(before, preview.unload), policy).under(preview.in_force, touched)
    ended, added = _difference(before, settling.snapshot, touched)
    effects = _replica_effects(ended, added, settling, preview.unload)
    effects += [
        ActEffect(kind=EffectKind.NOT_ADDED, subject=model, detail=why) for model, why in settling.problems.items()
    ]
    effects += [
        ActEffect(kind=EffectKind.DELETED, subject=f"the rule of {model}", about=EffectAbout.RULE)
        for model in preview.update.removed
    ]
    rule_hashes = sorted(f"{rule.model} {plan_hash(asdict(rule.wish))}" for rule in _changed(preview.update))
    return ActPlan(
        title=_title(preview),
        act=("schedule", *rule_hashes, "remove", *preview.update.removed, "unload", *sorted(preview.unload)),
        effects=tuple(effects),
        in_flight=requests_at(ended, snapshot),
        mark=preview.mark,
    )


def _changed(update: RulesUpdate) -> list[SchedulingRule]:
    """The rules that say something else after an update, or are new."""
    return [rule for rule in update.write if rule.model in (*update.added, *update.changed)]


def _title(preview: RulesPreview) -> str:
    changed, removed = _changed(preview.update), preview.update.removed
    if len(changed) == 1 and not removed:
        return f"{changed[0].model} {in_words(changed[0].wish)}"
    if not changed and len(removed) == 1:
        return f"{removed[0]} without a rule"
    if not changed and not removed:
        return f"Unload {listed(sorted(preview.unload))}" if preview.unload else "No rule changes"
    return f"Change {counted(len(changed) + len(removed), 'rule')} of scheduling"


def _as_if_loaded(snapshot: FleetSnapshot) -> FleetSnapshot:
    """The fleet after the loads that are under way, of which none counts as waiting any more."""
    replicas = tuple(
        replace(each, state=ReplicaState.LOADED, changed_at=snapshot.at) if each.state in ON_THE_WAY else each
        for each in snapshot.replicas
    )
    failed = tuple(job for job in snapshot.jobs if job.state is LoadState.FAILED)
    return replace(snapshot, replicas=replicas, jobs=failed)


def _without(snapshot: FleetSnapshot, models: Collection[str]) -> FleetSnapshot:
    for replica in [each for each in snapshot.replicas if each.model in models]:
        snapshot = _ended(snapshot, replica)
    return snapshot


def _ended(snapshot: FleetSnapshot, replica: Replica) -> FleetSnapshot:
    nodes = tuple(
        replace(seen, node=given_back(seen.node, [replica])) if seen.node.id == replica.node_id else seen
        for seen in snapshot.nodes
    )
    remaining = tuple(each for each in snapshot.replicas if each.id != replica.id)
    return replace(snapshot, nodes=nodes, replicas=remaining)


@dataclass(slots=True)
class _Settling:
    """Carries out the steps of scaling on a snapshot."""

    snapshot: FleetSnapshot
    policy: ScalingPolicy
    reasons: dict[ReplicaId, str] = field(default_factory=dict)
    """Why replicas ended, by their ids."""
    problems: dict[str, str] = field(default_factory=dict)
    """Models that do not get what their rule wants, and why."""

    def under(self, rules: Mapping[str, SchedulingWish], models: Collection[str]) -> "_Settling":
        """Do what these rules want for these models, until nothing is left to do."""
        self.snapshot, memory = replace(self.snapshot, rules=rules), ScalingMemory()
        for _ in range(_MOST_STEPS):
            memory = remember(memory, self.snapshot, self.policy)
            planned = plan(self.snapshot, memory, self.policy)
            actions = [action for action in planned.actions if _model_of(action) in models - self.problems.keys()]
            if not actions:
                problems = {model: counts.problem for model, counts in planned.counts.items() if model in models}
                self.problems |= {model: why for model, why in problems.items() if why}
                break
            for action in actions:
                self._do(action)
        return self

    def _do(self, action: ScaleAction) -> None:
        match action:
            case UnloadOne(replica=replica, why=why):
                self.reasons[replica.id] = why
                self.snapshot = _ended(self.snapshot, replica)
            case LoadMore():
                self._load(action)
            case TakeBack(job=job):
                remaining = tuple(other for other in self.snapshot.jobs if other.id != job.id)
                self.snapshot = replace(self.snapshot, jobs=remaining)

    def _load(self, action: LoadMore) -> None:
        spec, snapshot = self.snapshot.models[action.model], self.snapshot
        candidates = [
            each for each in snapshot.candidates(spec) if action.prefer is None or each.node.id == action.prefer
        ]
        choice = place(snapshot.request(spec, prefer=action.prefer), candidates)
        if isinstance(choice, PlacementRefusal):
            self.problems[action.model] = f"one more fits nowhere: {choice.message}"
            return
        id = ReplicaId(f"planned-{len(snapshot.replicas)}-{len(self.reasons)}-{choice.node.id}")
        reserved = reservation(spec, choice.verdict, choice.index, id=id, at=snapshot.at)
        self.snapshot = snapshot.with_replica(replace(reserved, state=ReplicaState.LOADED))


def _model_of(action: ScaleAction) -> str:
    match action:
        case LoadMore(model=model):
            return model
        case UnloadOne(replica=replica):
            return replica.model
        case TakeBack(job=job):
            return job.model


def _difference(
    before: FleetSnapshot, after: FleetSnapshot, models: Collection[str]
) -> tuple[list[Replica], list[Replica]]:
    """Replicas of these models that are there before and not after, and the reverse."""
    had = {each.id: each for each in before.replicas if each.model in models}
    has = {each.id: each for each in after.replicas if each.model in models}
    ended = [each for id, each in had.items() if id not in has and each.state is not ReplicaState.UNLOADING]
    return ended, [each for id, each in has.items() if id not in had]


def _replica_effects(
    ended: list[Replica], added: list[Replica], settling: _Settling, unload: Collection[str]
) -> list[ActEffect]:
    """One that ends and another one of its model that is added are one that moves."""
    snapshot, unmatched = settling.snapshot, list(added)
    effects = []
    for replica in sorted(ended, key=lambda each: (each.model, each.node_id, each.index)):
        to = next((other for other in unmatched if other.model == replica.model), None)
        if to is not None:
            unmatched.remove(to)
        why = _UNLOADED if replica.model in unload else settling.reasons.get(replica.id, "")
        effects.append(
            ActEffect(
                kind=EffectKind.ENDS if to is None else EffectKind.MOVES,
                subject=replica.model,
                node_id=replica.node_id,
                node=name_of(snapshot, replica.node_id),
                to_id=None if to is None else to.node_id,
                to="" if to is None else name_of(snapshot, to.node_id),
                detail=why,
            )
        )
    return effects + [
        ActEffect(kind=EffectKind.ADDED, subject=each.model, to_id=each.node_id, to=name_of(snapshot, each.node_id))
        for each in unmatched
    ]
