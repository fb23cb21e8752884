"""What a change makes of a model, and what is written of it. Pure."""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Final, NamedTuple

from corral.base.careful_yaml import UNREADABLE
from corral.base.yaml_values import read_document, write_document
from corral.frontend.models.decide.model import ModelProblem
from corral.frontend.models.decide.reading import LIMITS, ReadModel, plain, read_stored
from corral.frontend.models.decide.stored import LastChange, ModelChangeKind, ModelSource, StoredModel, WeightFile
from corral.frontend.record.decide import Event, EventKind
from corral.hubs.plans import ModelOrigin

_NAME_LINE: Final = re.compile(r"^name:[^\n]*$", re.MULTILINE)


class ModelProvenance(NamedTuple):
    """Where the configuration and the files of a model come from."""

    source: ModelSource
    origin: ModelOrigin | None = None
    files: tuple[WeightFile, ...] = ()


BY_HAND: Final = ModelProvenance(ModelSource.API)


def next_model(
    read: ReadModel,
    before: StoredModel | None,
    last: LastChange,
    *,
    provenance: ModelProvenance,
    by: str,
    now: datetime,
) -> StoredModel:
    """The model after its next change. What it is disabled or pinned by stays, unless the text says otherwise now.

    `last` counts where there is no model `before`: it may have been removed.
    """
    last = last if before is None else last_change_of(before)
    is_disabled, is_pinned = read.is_disabled, read.is_pinned
    if before is not None and not isinstance(was := read_stored(before.text, source=""), ModelProblem):
        if (was.config.get("disabled") is True) == is_disabled:
            is_disabled = before.is_disabled
        if (was.config.get("pinned") is True) == is_pinned:
            is_pinned = before.is_pinned
    return StoredModel(
        name=read.spec.name,
        number=last.number + 1,
        revision=read.spec.revision,
        text=read.text,
        source=provenance.source,
        origin=provenance.origin,
        files=provenance.files,
        is_disabled=is_disabled,
        is_pinned=is_pinned,
        changed_at=last.next_at(now),
        changed_by=by,
    )


def last_change_of(model: StoredModel) -> LastChange:
    return LastChange(model.number, model.changed_at)


def change_event(model: StoredModel, change: ModelChangeKind) -> Event:
    data: dict[str, object] = {
        "model": model.name,
        "change": change.value,
        "number": model.number,
        "revision": model.revision,
    }
    if model.file:
        data["file"] = model.file
    return Event(kind=EventKind.MODEL_CHANGED, at=model.changed_at, actor=model.changed_by, data=data)


def merged(config: Mapping[str, object], over: Mapping[str, object]) -> dict[str, object]:
    """Lay a mapping over another: mappings are merged, None takes a key away, all else replaces what was there."""
    result = dict(config)
    for key, value in over.items():
        below = result.get(key)
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            result[key] = merged(below if isinstance(below, Mapping) else {}, value)
        else:
            result[key] = value
    return result


def renamed(text: str, name: str) -> str:
    """The YAML of a model with another name; with its comments, where the name is easily found."""
    config = plain(read_document(text, LIMITS))
    expected = {**config, "name": name} if isinstance(config, Mapping) else {"name": name}
    line = write_document({"name": name}).rstrip("\n")
    replaced = _NAME_LINE.sub(lambda _: line, text, count=1)
    try:
        if plain(read_document(replaced, LIMITS)) == expected:
            return replaced
    except UNREADABLE:
        pass
    return write_document(expected)
