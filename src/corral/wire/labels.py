"""Labels of nodes: who set them, which Corral derives by itself, how many there may be, and which nodes they select."""

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

MAX_KEY: Final = 128
MAX_VALUE: Final = 255
MAX_LABELS: Final = 256
NODE_NAME: Final = "node.name"
REPLICA_SLOTS: Final = "node.replica-slots"
GPU_VENDOR: Final = "gpu.vendor"
GPU_VRAM: Final = "gpu.vram"
AUTOMATIC: Final = frozenset({NODE_NAME, REPLICA_SLOTS, GPU_VENDOR, GPU_VRAM})
_GIB = 1024**3
_VRAM_BUCKETS = ((80, "80GB+"), (48, "48GB"), (24, "24GB"), (16, "16GB"), (8, "8GB"))


class NodeLabels(msgspec.Struct, frozen=True, kw_only=True):
    """Three layers, so that a re-registration replaces the worker's words and keeps the people's."""

    reported: Mapping[str, str] = msgspec.field(default_factory=dict)
    """From the last registration, with the automatic ones."""
    admin: Mapping[str, str] = msgspec.field(default_factory=dict)
    removed: frozenset[str] = frozenset()
    """Reported labels that a person took away; they stay away when the worker reports them again."""

    @property
    def effective(self) -> dict[str, str]:
        reported = {key: value for key, value in self.reported.items() if key not in self.removed}
        return dict(sorted({**reported, **self.admin}.items()))

    def report(self, reported: Mapping[str, str], automatic: Mapping[str, str]) -> "NodeLabels":
        """Take in a registration. Labels once reported stay; automatic ones are facts and always come back.

        A node has at most MAX_LABELS, people's included. Of more, those go first whose last report is the oldest.
        """
        latest = {key: value for key, value in reported.items() if key not in automatic}
        earlier = {key: value for key, value in self.reported.items() if key not in latest and key not in automatic}
        oldest_first = {**earlier, **latest, **automatic}
        room = max(MAX_LABELS - len(self.admin.keys() - oldest_first.keys()), len(automatic))
        newest_labels = dict(list(oldest_first.items())[-room:])
        return replace(self, reported=newest_labels, removed=self.removed & newest_labels.keys() - AUTOMATIC)

    def replace_all(self, labels: Mapping[str, str]) -> "NodeLabels":
        """Set exactly these labels and no others."""
        return replace(self, admin=dict(labels), removed=frozenset(self.reported) - frozenset(labels))

    def merge(self, labels: Mapping[str, str]) -> "NodeLabels":
        """Set these labels and keep the others."""
        return replace(self, admin={**self.admin, **labels}, removed=self.removed - frozenset(labels))

    def remove(self, key: str) -> "NodeLabels":
        admin = {name: value for name, value in self.admin.items() if name != key}
        removed = self.removed | {key} if key in self.reported else self.removed
        return replace(self, admin=admin, removed=removed)


def automatic_labels(*, name: str, replica_slots: int, gpu_vendor: str, total_vram: int) -> dict[str, str]:
    """What Corral derives from the registration itself."""
    labels = {NODE_NAME: name, REPLICA_SLOTS: str(replica_slots)}
    if gpu_vendor:
        labels[GPU_VENDOR] = gpu_vendor
    if total_vram > 0:
        labels[GPU_VRAM] = vram_bucket(total_vram)
    return labels


def vram_bucket(total_vram: int) -> str:
    gib = total_vram // _GIB
    return next((name for least, name in _VRAM_BUCKETS if gib >= least), f"{gib}GB")


def label_growth_problem(before: NodeLabels, after: NodeLabels) -> str | None:
    """Why a node must not get these labels too; None when it may. What it has already, it may keep."""
    count = len(after.effective)
    if count <= MAX_LABELS or count <= len(before.effective):
        return None
    return f"the node would have {count} labels, and {MAX_LABELS} are the most"


def label_problem(labels: Mapping[str, str]) -> str | None:
    """Why these labels cannot be stored; None when they can."""
    if len(labels) > MAX_LABELS:
        return f"more than {MAX_LABELS} labels"
    for key, value in labels.items():
        if not key:
            return "a label has an empty key"
        if len(key) > MAX_KEY:
            return f"label key {key[:32]!r}… exceeds {MAX_KEY} characters"
        if len(value) > MAX_VALUE:
            return f"the value of label {key!r} exceeds {MAX_VALUE} characters"
    return None


def has_labels(labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    """Whether the labels contain every pair of the selector."""
    return all(labels.get(key) == value for key, value in selector.items())
