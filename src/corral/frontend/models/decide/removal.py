"""Removing a model: which of its files may go, and which names would take those of other models along. Pure."""

import json
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import PurePath
from typing import Final, NamedTuple

import msgspec

from corral.base.ids import OperationId
from corral.frontend.models.decide.model import ModelSpec, load_options
from corral.frontend.models.decide.stored import WeightFile
from corral.frontend.operations.decide.intent import Before, Intent, Sighting, Unproven
from corral.frontend.operations.decide.reasons import ReasonCode, because
from corral.hubs.choose import parts_of
from corral.hubs.plans import PullPlan
from corral.wire.models import OWN_FOLDER

REASON: Final = "the model was removed"
CONFIGURATIONS: Final = frozenset({".yaml", ".yml"})
"""How the names of files end that are read as models."""
_WEIGHTS: Final = ("ModelFile", "MMProj", "DraftModel")


class RemovedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that nobody has any more: its files are deleted, wherever they are left."""

    name: str
    removed_at: datetime
    operation_id: OperationId
    cleared: Mapping[str, Sequence[str]] = msgspec.field(default_factory=dict)
    """The stores where nothing is left to delete, by their ids, each with what was kept there and why."""


def evidence_of_removal(intent: Intent) -> Sighting:
    """No node reports which files of models it has: they count as there until the node answers that they are gone."""
    proof = Unproven(reason=because(ReasonCode.NOT_ASKED), answer_proves=True)
    return Sighting(proof=proof, had=Before(present=True), payload=intent.payload)


def weights_of(spec: ModelSpec) -> list[str]:
    """Paths below the models directory that the model is loaded from."""
    if spec.alias_of:
        return []
    options = load_options(spec, models=PurePath(), threads=1)
    paths = dict.fromkeys(str(options.get(name) or "") for name in _WEIGHTS)
    return [path for path in paths if path and not PurePath(path).is_absolute() and path != "."]


class NeededModel(NamedTuple):
    """A model that stays in the fleet, with the files that it needs."""

    spec: ModelSpec
    files: Sequence[WeightFile] = ()
    """What it was pulled with."""


class FilesOfModel(NamedTuple):
    """What becomes of the files of a model that is removed."""

    own: list[str]
    """Paths that go with it."""
    kept: list[str]
    """What stays, and why, as sentences."""


def is_no_weight(path: str) -> bool:
    """Whether a path is one of Corral's own, or a configuration of models: no model brings these along."""
    parts = PurePath(path).parts
    return parts[:1] == (OWN_FOLDER,) or (len(parts) == 1 and PurePath(path).suffix in CONFIGURATIONS)


def paths_of(spec: ModelSpec, files: Iterable[WeightFile]) -> list[str]:
    """All paths below the models directory that a model needs: what it is loaded from, all parts of a file that is
    split, and what it was pulled with."""
    loaded = [PurePath(path) for path in weights_of(spec)]
    parts = [str(path.with_name(part)) for path in loaded for part in parts_of(path.name)]
    pulled = [str(PurePath(file.path)) for file in files]
    return list(dict.fromkeys((*map(str, loaded), *parts, *pulled)))


def is_among(path: str, needed: Iterable[str]) -> bool:
    """Whether deleting a path would take something of what is needed: it, something in it, or a part of a directory."""
    place = str(PurePath(path))
    return any(other == place or other.startswith(f"{place}/") or place.startswith(f"{other}/") for other in needed)


def files_of(spec: ModelSpec, files: Iterable[WeightFile], other_models: Iterable[NeededModel]) -> FilesOfModel:
    """What the model is loaded from, and was pulled with; kept is what another model needs, or speaks of in whatever
    option, and what is no file of weights."""
    other_models = [other for other in other_models if other.spec.name != spec.name]
    texts = {other.spec.name: json.dumps(other.spec.config, default=str) for other in other_models}
    needed = {other.spec.name: paths_of(*other) for other in other_models}
    deleted_paths, kept_reasons = [], []
    for path in dict.fromkeys((*weights_of(spec), *(file.path for file in files))):
        needed_by = sorted(
            name for name, text in texts.items() if json.dumps(path)[1:-1] in text or is_among(path, needed[name])
        )
        if is_no_weight(path):
            kept_reasons.append(f"{path} stays: it is not a file of weights")
        elif needed_by:
            kept_reasons.append(
                f"{path} stays: {' and '.join(needed_by[:3])} need{'s' if len(needed_by) == 1 else ''} it"
            )
        else:
            deleted_paths.append(path)
    return FilesOfModel(deleted_paths, kept_reasons)


def awaited_by_none(paths: Iterable[str], pulls: Iterable[PullPlan], kept_reasons: list[str]) -> list[str]:
    """The paths without those that a pull brings or has brought already; what stays is added to `kept_reasons`."""
    coming = {file.path: plan.name for plan in pulls for file in plan.files}
    free = []
    for path in paths:
        owner = next((name for file, name in coming.items() if file == path or file.startswith(f"{path}/")), "")
        if owner:
            kept_reasons.append(f"{path} stays: {owner} is being pulled with it")
        else:
            free.append(path)
    return free


def kept_file(path: str, beside: Iterable[str]) -> str:
    """Why a YAML file stays."""
    return f"{path} stays: it also holds {', '.join(sorted(beside)[:3])}; take the model out of it"


def endangered(name: str, other_models: Iterable[NeededModel]) -> str:
    """What other models have in the models directory and a node that shares it would delete with this name; empty if
    nothing.

    Workers delete the directory of this name, or the file and all that begin with it and a dot. They read a name as a
    path: `/a` and `b/../a` are `a`.
    """
    place = posixpath.normpath(name.lstrip("/") or ".")
    if PurePath(place).parts[:1] == (OWN_FOLDER,):
        return f"{OWN_FOLDER}, which Corral needs"
    for other, files in other_models:
        for path in (other.source, *paths_of(other, files)):
            if other.name != name and (path == place or path.startswith((f"{place}/", f"{place}."))):
                return f"{path}, which {other.name} needs"
    return ""
