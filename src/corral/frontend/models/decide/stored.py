"""Models as the database has them: what each is, what it was after every change, and which file said so. Pure."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from corral.hubs.plans import ModelOrigin
from corral.hubs.weight_shape import WeightShape

_TICK: Final = timedelta(microseconds=1)


class ModelSource(StrEnum):
    """How the present configuration of a model came to be."""

    FILE = "file"
    """A file in a models directory says so; `origin.reference` is its name."""
    API = "api"
    PULL = "pull"


class ModelChangeKind(StrEnum):
    """What a change did to a model."""

    ADDED = "added"
    EDITED = "edited"
    FILE = "file"
    """A file was added or changed."""
    PULLED = "pulled"
    COPIED = "copied"
    ROLLED_BACK = "rolled_back"
    DISABLED = "disabled"
    ENABLED = "enabled"
    PINNED = "pinned"
    UNPINNED = "unpinned"
    REMOVED = "removed"


class WeightFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file, or a directory, that a model is loaded from."""

    path: str
    """Relative to the models directory."""
    size: int = 0
    digest: str = ""
    """`sha256:…`, or another digest that the source promised; empty when nobody did."""
    shape: WeightShape | None = None
    """What it says about the memory that it takes; None when nobody has looked into it, or it is no GGUF file."""


class StoredModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model as the database has it after its latest change."""

    name: str
    number: int
    """Counts the changes of the model, for ever: one that is removed and added again goes on counting."""
    revision: str
    """The hash of the configuration, and of nothing else."""
    text: str
    """Its YAML as it was written."""
    source: ModelSource
    origin: ModelOrigin | None = None
    files: tuple[WeightFile, ...] = ()
    is_disabled: bool = False
    is_pinned: bool = False
    changed_at: datetime
    changed_by: str

    @property
    def file(self) -> str:
        """The name of the file that says what it is; empty when that is no file."""
        return self.origin.reference if self.source is ModelSource.FILE and self.origin is not None else ""


class ModelRevision(msgspec.Struct, frozen=True, kw_only=True):
    """What a model was after one of its changes."""

    name: str
    number: int
    revision: str
    text: str
    origin: ModelOrigin | None = None
    files: tuple[WeightFile, ...] = ()
    change: ModelChangeKind
    changed_at: datetime
    changed_by: str


def revision_row(model: StoredModel, change: ModelChangeKind) -> ModelRevision:
    """The entry in the history that goes with a model as it is now."""
    return ModelRevision(
        name=model.name,
        number=model.number,
        revision=model.revision,
        text=model.text,
        origin=model.origin,
        files=model.files,
        change=change,
        changed_at=model.changed_at,
        changed_by=model.changed_by,
    )


class ImportedFile(msgspec.Struct, frozen=True, kw_only=True):
    """What a file of a store said when it was last taken over."""

    path: str
    digest: str
    """Digest of the file's content and of the templates that the file names."""
    names: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Digests of what it says about each model, by the model's name."""


class KnownStore(msgspec.Struct, frozen=True, kw_only=True):
    """A directory with files of models, as a frontend that has it last saw it."""

    id: str
    name: str
    """Where it is, for people: `host:/directory`."""
    frontend_id: str
    total_bytes: int
    free_bytes: int
    seen_at: datetime


class LastChange(NamedTuple):
    """When a model was changed last, and the number of that change."""

    number: int
    at: datetime

    def next_at(self, now: datetime) -> datetime:
        """The time of the next change: later than the last one, whatever the clocks of frontends say."""
        return max(now, self.at + _TICK)


NEVER_CHANGED: Final = LastChange(0, datetime.fromtimestamp(0, UTC))
