"""The plan for the removal of a model: replicas and loads that end, names that lead nowhere, files that go. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from corral.base.ids import NodeId
from corral.base.words import counted, listed
from corral.frontend.models.decide.model import ModelSpec
from corral.frontend.serving.decide.act_plan import (
    ActEffect,
    ActPlan,
    EffectAbout,
    EffectKind,
    name_of,
    requests_at,
)
from corral.frontend.serving.decide.load_job import LoadState
from corral.frontend.serving.decide.replica import LIVE
from corral.frontend.serving.decide.scheduling import in_words
from corral.frontend.serving.decide.snapshot import FleetSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedFiles:
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
    gone = "requests for this name are refused from then on"
    effects = [ActEffect(kind=EffectKind.LOSES_SERVICE, subject=model.name, detail=gone)]
    if model.alias_of:
        kept = f"{model.name} was only another name for it"
        return [*effects, ActEffect(kind=EffectKind.KEPT, subject=model.alias_of, detail=kept)]
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
