"""Plans for taking a machine away: what draining or removing a node would do. Pure.

A drain is planned by what carries it out (`decide/draining.py`); where replicas would go is what `decide/what_if.py`
finds, which gives no place away twice.
"""

from collections.abc import Iterable
from dataclasses import replace

from corral.frontend.nodes.decide.node import Node, drain_mark
from corral.frontend.operations.decide.intent import Intent, may_cancel
from corral.frontend.serving.decide.act_plan import (
    ActEffect,
    ActPlan,
    EffectAbout,
    EffectKind,
    name_of,
    requests_at,
)
from corral.frontend.serving.decide.draining import DrainedReplica, DrainStep, as_drained, plan_drain
from corral.frontend.serving.decide.snapshot import FleetSnapshot
from corral.frontend.serving.decide.what_if import Consequence, Fate, NodeDown, NodeDrained, consequences

_ON_DISK = "backends, models and the worker stay on the machine; a worker that still runs there may register again"
_FORGOTTEN = "its approval, labels, secret and keys are deleted"


def drain_plan(snapshot: FleetSnapshot, node: Node, *, is_forced: bool) -> ActPlan:
    """What it would mean to drain a node."""
    drained = plan_drain(as_drained(snapshot, node.id), node.id)
    moves = _by_model(consequences(snapshot, NodeDrained(node_id=node.id)))
    effects = [_drained(each, moves, snapshot) for each in drained.replicas]
    if is_forced:
        effects = [_forced(effect, snapshot) for effect in effects]
    ending = [
        each.replica
        for each, effect in zip(drained.replicas, effects, strict=True)
        if effect.kind is not EffectKind.STAYS
    ]
    return ActPlan(
        title=f"Drain {node.name}",
        act=("drain", node.id, "forced" if is_forced else ""),
        effects=tuple(effects),
        in_flight=requests_at(ending, snapshot),
        mark=drain_mark(node),
    )


def _drained(each: DrainedReplica, moves: dict[str, list[Consequence]], snapshot: FleetSnapshot) -> ActEffect:
    replica = each.replica
    here = ActEffect(
        kind=EffectKind.STAYS,
        subject=replica.model,
        node_id=replica.node_id,
        node=name_of(snapshot, replica.node_id),
        detail=each.why,
    )
    if each.step is DrainStep.STAYS:
        return here
    if each.step is DrainStep.ENDS:
        return replace(here, kind=EffectKind.ENDS)
    found = moves.get(replica.model, [])
    move = found.pop(0) if found else None
    if move is None or move.fate is Fate.MOVES:
        to = None if move is None else move.to
        return replace(here, kind=EffectKind.MOVES, to_id=to, to=name_of(snapshot, to))
    return replace(here, detail=f"no other node can take its model: {move.why}")


def _forced(effect: ActEffect, snapshot: FleetSnapshot) -> ActEffect:
    """What stays is ended; whether others of its model go on decides what that means."""
    if effect.kind is not EffectKind.STAYS:
        return effect
    others = [replica for replica in snapshot.of_model(effect.subject) if replica.node_id != effect.node_id]
    kind = EffectKind.ENDS if others else EffectKind.LOSES_SERVICE
    return replace(effect, kind=kind, detail=f"it is ended by force; {effect.detail}")


def node_removal_plan(snapshot: FleetSnapshot, node: Node, intents: Iterable[Intent]) -> ActPlan:
    """What it would mean to forget a node; `intents` are all of this node."""
    effects = [_left(each, snapshot) for each in consequences(snapshot, NodeDown(node_id=node.id))]
    effects += [_cancelled(intent, node) for intent in intents if may_cancel(intent)]
    forgotten = ActEffect(
        kind=EffectKind.DELETED, subject=node.name, about=EffectAbout.NODE, node_id=node.id, detail=_FORGOTTEN
    )
    kept = replace(forgotten, kind=EffectKind.KEPT, subject=f"what {node.name} has on its disk", detail=_ON_DISK)
    return ActPlan(
        title=f"Remove {node.name}",
        act=("remove node", node.id),
        effects=(*effects, forgotten, kept),
        in_flight=requests_at(snapshot.replicas_by_node.get(node.id, ()), snapshot),
    )


def _left(each: Consequence, snapshot: FleetSnapshot) -> ActEffect:
    kinds = {Fate.MOVES: EffectKind.MOVES, Fate.SERVICE_LOST: EffectKind.LOSES_SERVICE}
    detail = each.why
    if each.fate is Fate.MOVES:
        rule = snapshot.rules.get(each.model)
        is_wanted = rule is not None and bool(rule.min_replicas or rule.spread_all)
        detail = "its rule has it loaded again" if is_wanted else "it is loaded again when somebody asks"
        detail += ", and nothing answers until then" if each.is_interrupted else ""
    return ActEffect(
        kind=kinds.get(each.fate, EffectKind.ENDS),
        subject=each.model,
        node_id=each.on,
        node=name_of(snapshot, each.on),
        to_id=each.to,
        to=name_of(snapshot, each.to),
        detail=detail,
    )


def _cancelled(intent: Intent, node: Node) -> ActEffect:
    return ActEffect(
        kind=EffectKind.CANCELLED,
        subject=f"{intent.verb.value} {intent.subject}",
        about=EffectAbout.OPERATION,
        node_id=node.id,
        node=node.name,
        detail=f"of the operation {intent.operation_id}",
    )


def _by_model(found: Iterable[Consequence]) -> dict[str, list[Consequence]]:
    moves: dict[str, list[Consequence]] = {}
    for each in found:
        moves.setdefault(each.model, []).append(each)
    return moves
