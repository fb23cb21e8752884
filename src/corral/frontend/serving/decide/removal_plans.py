"""Plans for taking something away: what draining or removing a node, or removing a model, would do. Pure.

A drain is planned by what carries it out (`decide/draining.py`); where replicas would go is what `decide/what_if.py`
finds, which gives no place away twice.
"""

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from corral.base.ids import NodeId
from corral.base.words import counted, listed
from corral.frontend.models.decide.model import ModelSpec
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
from corral.frontend.serving.decide.load_job import LoadState
from corral.frontend.serving.decide.replica import LIVE
from corral.frontend.serving.decide.scheduling import in_words
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
    effect = ActEffect(
        kind=EffectKind.STAYS,
        subject=replica.model,
        node_id=replica.node_id,
        node=name_of(snapshot, replica.node_id),
        detail=each.why,
    )
    if each.step is DrainStep.STAYS:
        return effect
    if each.step is DrainStep.ENDS:
        return replace(effect, kind=EffectKind.ENDS)
    moves_of_model = moves.get(replica.model, [])
    move = moves_of_model.pop(0) if moves_of_model else None
    if move is None or move.fate is Fate.MOVES:
        to = None if move is None else move.to
        return replace(effect, kind=EffectKind.MOVES, to_id=to, to=name_of(snapshot, to))
    return replace(effect, detail=f"no other node can take its model: {move.why}")


def _forced(effect: ActEffect, snapshot: FleetSnapshot) -> ActEffect:
    """What stays is ended; whether others of its model go on decides what that means."""
    if effect.kind is not EffectKind.STAYS:
        return effect
    other_replicas = [replica for replica in snapshot.of_model(effect.subject) if replica.node_id != effect.node_id]
    kind = EffectKind.ENDS if other_replicas else EffectKind.LOSES_SERVICE
    return replace(effect, kind=kind, detail=f"it is ended by force; {effect.detail}")


def node_removal_plan(snapshot: FleetSnapshot, node: Node, intents: Iterable[Intent]) -> ActPlan:
    """What it would mean to forget a node; `intents` are all of this node."""
    effects = [_left(each, snapshot) for each in consequences(snapshot, NodeDown(node_id=node.id))]
    effects += [_cancelled(intent, node) for intent in intents if may_cancel(intent)]
    forgotten = ActEffect(
        kind=EffectKind.DELETED, subject=node.name, about=EffectAbout.NODE, node_id=node.id, detail=_FORGOTTEN
    )
    kept_files = replace(forgotten, kind=EffectKind.KEPT, subject=f"what {node.name} has on its disk", detail=_ON_DISK)
    return ActPlan(
        title=f"Remove {node.name}",
        act=("remove node", node.id),
        effects=(*effects, forgotten, kept_files),
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


def _by_model(consequences: Iterable[Consequence]) -> dict[str, list[Consequence]]:
    moves: dict[str, list[Consequence]] = {}
    for each in consequences:
        moves.setdefault(each.model, []).append(each)
    return moves


class RemovedFiles(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of the files of a model that is removed."""

    deleted: tuple[str, ...] = ()
    """Paths in the models directory."""
    kept: tuple[str, ...] = ()
    """What stays there, and why, as sentences."""
    nodes: tuple[NodeId, ...] = ()
    """The nodes that are asked to delete what they have."""
    spared: tuple[NodeId, ...] = ()
    """The nodes that are not, since other models would lose files."""


def model_removal_plan(
    snapshot: FleetSnapshot, model: ModelSpec, files: RemovedFiles, aliases: Iterable[str], *, mark: str
) -> ActPlan:
    """What it would mean to remove a model, or only an alias."""
    replicas = [] if model.alias_of else [each for each in snapshot.of_model(model.name) if each.state in LIVE]
    ended = [
        ActEffect(
            kind=EffectKind.ENDS,
            subject=model.name,
            node_id=replica.node_id,
            node=name_of(snapshot, replica.node_id),
            detail="its requests end first",
        )
        for replica in replicas
    ]
    return ActPlan(
        title=f"Remove the model {model.name}",
        act=("remove model", model.name),
        effects=(*ended, *_service(snapshot, model, aliases), *_files(snapshot, model, files), *_rest(snapshot, model)),
        in_flight=requests_at(replicas, snapshot),
        mark=mark,
    )


def _service(snapshot: FleetSnapshot, model: ModelSpec, aliases: Iterable[str]) -> list[ActEffect]:
    explanation = "requests for this name are refused from then on"
    effects = [ActEffect(kind=EffectKind.LOSES_SERVICE, subject=model.name, detail=explanation)]
    if model.alias_of:
        alias_note = f"{model.name} was only another name for it"
        return [*effects, ActEffect(kind=EffectKind.KEPT, subject=model.alias_of, detail=alias_note)]
    effects += [
        ActEffect(kind=EffectKind.LOSES_SERVICE, subject=alias, detail=f"it is another name for {model.name}")
        for alias in aliases
    ]
    loads = [job for job in snapshot.jobs if job.model == model.name and job.state is not LoadState.FAILED]
    return effects + [
        ActEffect(kind=EffectKind.CANCELLED, subject=model.name, detail="a load of it is under way") for _ in loads
    ]


def _files(snapshot: FleetSnapshot, model: ModelSpec, files: RemovedFiles) -> list[ActEffect]:
    effects = [
        ActEffect(kind=EffectKind.DELETED, subject=path, about=EffectAbout.FILE, detail="in the models directory")
        for path in files.deleted
    ]
    effects += [ActEffect(kind=EffectKind.KEPT, subject=sentence, about=EffectAbout.FILE) for sentence in files.kept]
    if files.nodes:
        subject = f"what {counted(len(files.nodes), 'node')} may have of {model.name}"
        detail = listed(_names(snapshot, files.nodes))
        effects.append(ActEffect(kind=EffectKind.DELETED, subject=subject, about=EffectAbout.FILE, detail=detail))
    if files.spared:
        subject = f"what {counted(len(files.spared), 'node')} may have of {model.name}"
        detail = "a node that shares the models directory would delete files of other models with it"
        effects.append(ActEffect(kind=EffectKind.KEPT, subject=subject, about=EffectAbout.FILE, detail=detail))
    return effects


def _rest(snapshot: FleetSnapshot, model: ModelSpec) -> list[ActEffect]:
    rule = snapshot.rules.get(model.name)
    if rule is None or model.alias_of:
        return []
    detail = "it holds again if a model of this name is added"
    subject = f"the rule of scheduling of {model.name} ({in_words(rule)})"
    return [ActEffect(kind=EffectKind.KEPT, subject=subject, about=EffectAbout.RULE, detail=detail)]


def _names(snapshot: FleetSnapshot, ids: Iterable[NodeId]) -> list[str]:
    return sorted(name_of(snapshot, id) for id in ids)
