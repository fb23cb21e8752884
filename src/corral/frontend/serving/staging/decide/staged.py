"""What was brought to nodes for models, and what of it goes when a node's disk has too little room. Pure.

Only what a frontend brought is ever deleted, the longest unused first, and no more than is needed. If deleting all that
nobody needs would not be enough, nothing is deleted.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from corral.base.ids import NodeId
from corral.base.values import PartlyPrinted
from corral.base.words import format_size
from corral.frontend.serving.staging.decide.sources import StagingPolicy

ON_NODE: Final = "by the digests that the node tells"
ON_NODE_BEFORE: Final = "by the digests that the node tells; nothing had to be sent"
"""Rungs of the proof of a staging."""
MOST_RECORDED: Final = 5000
"""Files of one model that are recorded one by one. Models with more are never deleted by themselves."""
_SIDECARS: Final = (".sha256", ".sha256.target")
_MARGIN: Final = 20
"""One in so many bytes stays free: 5 %."""


class StagedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that was brought to a node."""

    path: str
    """Below the directory of the model on the node, as below the models directory here."""
    size: int
    digest: str = ""
    """`sha256:…`"""


class StagedModel(PartlyPrinted, frozen=True, kw_only=True):
    """What was brought to one node for one model."""

    unprinted = ("files",)

    node_id: NodeId
    model: str
    revision: str
    bytes: int
    files: tuple[StagedFile, ...] = ()
    """Empty when there are more than `MOST_RECORDED`, and when nothing was brought."""
    staged_at: datetime
    used_at: datetime

    @property
    def is_brought(self) -> bool:
        """False: the node has the files by itself. They are nobody's to delete."""
        return bool(self.bytes or self.files)


class StagedSummary(msgspec.Struct, frozen=True, kw_only=True):
    """That a node has the files of a model, as far as it decides where models run."""

    node_id: NodeId
    model: str
    revision: str
    deletable_bytes: int
    """What deleting them would free; 0 where they are not recorded one by one."""
    brought_at: datetime | None = None
    """None for files that the node had by itself."""


def missing_bytes(files: Iterable[StagedFile], staged: StagedModel | None) -> int:
    """How much of these files the node does not have, as far as is recorded."""
    there = frozenset(() if staged is None else staged.files)
    return sum(file.size for file in files if file not in there)


def needed_bytes(payload: int, policy: StagingPolicy) -> int:
    """What must be free on a disk before so many bytes are brought there."""
    return payload + max(payload // _MARGIN, policy.reserve_bytes) if payload else 0


class RoomPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What to do before files are brought to a node."""

    delete: tuple[str, ...] = ()
    """Models whose files go, the longest unused first."""
    lacking_bytes: int = 0
    """What would be missing even if all were deleted that may be; then nothing is."""


def make_room(
    payload: int, free: int | None, staged: Iterable[StagedModel], needed: Mapping[str, str], policy: StagingPolicy
) -> RoomPlan:
    """What has to be deleted on a node so that a payload fits; `free` is None where the node does not say.

    `needed` has the models that stay, each with the reason.
    """
    bytes_needed = needed_bytes(payload, policy)
    lacking = 0 if free is None else bytes_needed - free
    if lacking <= 0:
        return RoomPlan()
    idle = sorted(
        (model for model in staged if model.files and model.model not in needed), key=lambda model: model.used_at
    )
    chosen: list[StagedModel] = []
    for model in idle:
        if sum(other.bytes for other in chosen) < lacking:
            chosen.append(model)
    spare = sum(model.bytes for model in chosen) - lacking
    if spare < 0:
        return RoomPlan(lacking_bytes=-spare)
    for model in reversed(list(chosen)):  # what a larger one has made unnecessary, the last used first
        if model.bytes <= spare:
            chosen.remove(model)
            spare -= model.bytes
    return RoomPlan(delete=tuple(model.model for model in chosen))


def too_full(payload: int, free: int, plan: RoomPlan, needed: Mapping[str, str], policy: StagingPolicy) -> str:
    """Why the files do not fit, as a sentence."""
    kept = "; ".join(f"{model} stays: {why}" for model, why in sorted(needed.items())[:5])
    reserve = needed_bytes(payload, policy) - payload
    return (
        f"the disk has {format_size(free)} free, the files need {format_size(payload)}, and {format_size(reserve)} "
        f"shall stay free (node_min_free); {format_size(plan.lacking_bytes)} are missing after all that may be deleted"
        + (f" ({kept})" if kept else "")
    )


def strangers(listed: Sequence[str], staged: StagedModel) -> list[str]:
    """The files in a model's directory on a node that no frontend has brought there."""
    recorded = {file.path for file in staged.files}
    recorded |= {f"{path}{suffix}" for path in recorded for suffix in _SIDECARS}
    return [path for path in listed if path not in recorded]
