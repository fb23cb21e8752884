"""Nodes: what administrators see of them, their log lines, their labels, and how much video memory models may use."""

import re
from collections.abc import Mapping
from typing import Final, Self

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from corral.wire.confinement import ConfinementReport


class NodeView(msgspec.Struct, kw_only=True):
    """A node in LocalAI's form: `GET /api/nodes`."""

    id: str
    name: str
    node_type: str
    address: str
    http_address: str
    status: str
    total_vram: int
    available_vram: int
    reserved_vram: int
    total_ram: int
    available_ram: int
    total_disk: int
    available_disk: int
    gpu_vendor: str
    gpu_compute_capability: str
    capability: str | UnsetType = UNSET
    max_replicas_per_model: int
    max_replicas_per_model_manually_set: bool
    vram_budget: str | UnsetType = UNSET
    vram_budget_bytes: int | UnsetType = UNSET
    vram_budget_manually_set: bool
    last_heartbeat: str
    created_at: str
    updated_at: str
    model_count: int
    in_flight_count: int
    labels: dict[str, str]


class PeerView(msgspec.Struct, kw_only=True):
    """What a Corral worker said of itself."""

    version: str
    features: list[str]
    platform: str = ""


class CardView(msgspec.Struct, kw_only=True):
    """One GPU of a node; numbers in bytes."""

    id: str
    name: str
    vendor: str
    total: int
    free: int
    index: int | None = None
    """Its number, as the engines of its vendor count; none where the node did not tell it."""
    shares_ram: bool = False
    """The GPU has no memory of its own: the numbers are those of the machine's RAM."""
    is_out: bool = False
    """Out of service: it gets nothing new."""
    replicas: list[str] = []
    """Replicas that may use it, as `model#index`; only in the list of a node's GPUs."""


class CardChange(msgspec.Struct, kw_only=True):
    """What becomes of a GPU."""

    is_out: bool


class NodeChangeView(msgspec.Struct, kw_only=True):
    """Something about a node that became another one without a person's doing."""

    at: str
    kind: str
    """`node.moved`, `node.changed`, or the alarm `node.suspected`."""
    before: dict[str, object] = {}
    after: dict[str, object] = {}
    """The facts that differ; of an alarm also those that say who the node is."""


class NodeDetail(NodeView, kw_only=True):
    """A node in Corral's form: `GET /api/v1/nodes`."""

    approved: bool
    approved_by: str
    approved_at: str | None
    draining: bool
    draining_by: str
    draining_since: str | None
    deregistered_at: str | None
    silent_seconds: float
    """Silence that counts: only while control could hear."""
    heard_seconds_ago: float
    """The age of the last heartbeat at any frontend."""
    heartbeat_seconds: float
    has_secret: bool
    incarnation: str
    corral: PeerView | None
    problems: list[str]
    admin_labels: dict[str, str]
    removed_labels: list[str]
    cards: list[CardView] = []
    """Its GPUs one by one; none where it tells only sums."""
    in_flight: int | None = 0
    """Requests under way there; null while a gateway is silent, whose share nobody knows."""
    fingerprint: str = ""
    """What the worker shows on its own screen, for people to compare; empty for a node without a secret."""
    nats_login: str | None = None
    """How it logs in to NATS: `own`, as the user that its frontend makes, or `shared`; null where it did not say."""
    invitation: str | None = None
    """The id of the invitation that it came with."""
    confinement: ConfinementReport | None = None
    """How far it can confine backends; null when it does not say."""
    changes: list[NodeChangeView] = []
    """The last of them, newest first; only where one node is asked for."""


class DrainedReplicaView(msgspec.Struct, kw_only=True):
    """A replica that is left on a node which is drained."""

    id: str
    model: str
    index: int
    state: str
    step: str
    """`moves`: another one is loaded elsewhere first; `ends`: its last requests finish; `loads`: it is still being
    loaded there; `stays`: nothing else can serve its model, and somebody has to force it."""
    why: str = ""
    nodes: dict[str, str] = {}
    """Why other nodes cannot take it, by their names."""
    in_flight: int | None = 0
    """Null while a gateway is silent."""


class DrainView(msgspec.Struct, kw_only=True):
    """How far the drain of a node is: `GET /api/v1/nodes/{id}/drain`. For a node that nobody drains, what that would
    mean."""

    node_id: str
    node: str
    state: str
    """`draining`, `drained` when nothing is left, or `not draining`."""
    by: str = ""
    since: str | None = None
    requests_within_seconds: float
    """How long the requests of a replica may go on once it gets no more."""
    replicas_left: int
    requests_left: int | None
    """Null while a gateway is silent."""
    stays: int
    """Replicas that stay until they are forced, or until there is room elsewhere."""
    replicas: list[DrainedReplicaView] = []


class NodePage(msgspec.Struct, kw_only=True):
    items: list[NodeDetail]
    next_cursor: str | None
    alarm: str = ""
    """Why nothing is evicted or rescheduled now; empty when all is well."""


class EventView(msgspec.Struct, kw_only=True):
    """One entry of the record, also the `data` of a server-sent event."""

    sequence: int
    kind: str
    at: str
    actor: str
    node_id: str | None
    data: dict[str, object]


class Finding(msgspec.Struct, kw_only=True):
    """What one diagnostic found: `ok`, `warning` or `problem`, with what to do about it."""

    check: str
    level: str
    summary: str
    remedy: str = ""


class DoctorReport(msgspec.Struct, kw_only=True):
    findings: list[Finding]


class VersionView(msgspec.Struct, kw_only=True):
    version: str
    frontend_id: str
    features: list[str]


class LocalAIFeatures(msgspec.Struct, kw_only=True):
    """Answer of `GET /api/features`, by which LocalAI's clients know whether there are nodes."""

    agents: bool = False
    distributed: bool = True
    fine_tuning: bool = False
    localai_assistant: bool = False
    mcp: bool = False
    quantization: bool = False


class LogLine(msgspec.Struct, kw_only=True):
    timestamp: str = ""
    """RFC 3339 with a fraction."""
    stream: str = ""
    """`stdout` or `stderr`."""
    text: str = ""
    length: int | UnsetType = UNSET
    """Bytes of the whole line, from Corral's workers where the text is only its beginning."""


class InitialLines(msgspec.Struct, kw_only=True, tag="initial", tag_field="type"):
    """First frame of a WebSocket: what is there already."""

    lines: list[LogLine] | None = None


class LiveLine(msgspec.Struct, kw_only=True, tag="line", tag_field="type"):
    """A later frame of a stream of log lines: one new line."""

    line: LogLine


class MissedLines(msgspec.Struct, kw_only=True, tag="missed", tag_field="type"):
    """A frame of Corral's workers for those who ask for it: so many lines were dropped here."""

    count: int = 0


class LogLineView(msgspec.Struct, kw_only=True):
    """A line that a backend wrote, also the `data` of a server-sent event `line`."""

    id: str
    """Its place in the log: `Last-Event-ID` of who goes on after it."""
    at: str
    """When, by the node's clock."""
    stream: str
    """`stdout` or `stderr`."""
    text: str
    truncated: bool = False
    """Whether the line was longer than what is shown."""
    length: int = 0
    """Bytes of the whole line."""


class LogGap(msgspec.Struct, kw_only=True):
    """`data` of a server-sent event `gap`: lines may be missing here."""

    gap: str
    """Why, as a sentence for people."""
    lost: int | None = None
    """How many; null while nobody knows, and 0 where none is missing so far."""


class LogPage(msgspec.Struct, kw_only=True):
    """The last lines of a model's processes on one node."""

    items: list[LogLineView]


WORKER_HEADER: Final = "X-Corral-Worker"
"""In answers of a worker's health check: which start of which worker this is, by its incarnation."""

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


_UNITS: Final = {
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)},
}
_NUMBER = r"(\d+(?:\.\d+)?|\.\d+)"
_PERCENT = re.compile(_NUMBER + r"\s*%")
_SIZE = re.compile(_NUMBER + r"\s*([kmgt]i?b|b)")
_BARE = re.compile(_NUMBER)
MAX_VRAM_BUDGET: Final = 32


class VramBudget(msgspec.Struct, frozen=True):
    """A share of the whole, or a number of bytes, or neither: no budget."""

    fraction: float | None = None
    size: int | None = None

    @classmethod
    def read(cls, text: str) -> Self:
        """Read the grammar; ValueError with a sentence when it does not fit."""
        cleaned = text.strip().lower()
        if not cleaned or cleaned == "0":
            return cls()
        if len(cleaned) > MAX_VRAM_BUDGET:
            raise ValueError(f"vram budget exceeds {MAX_VRAM_BUDGET} characters")
        if match := _PERCENT.fullmatch(cleaned):
            return cls(fraction=_checked_fraction(float(match[1]) / 100, text))
        if match := _SIZE.fullmatch(cleaned):
            return cls(size=_checked_size(float(match[1]) * _UNITS[match[2]], text))
        if not _BARE.fullmatch(cleaned):
            raise ValueError(f'vram budget "{text}" is not a percentage, a fraction or a size (80%, 0.8, 12GB, 8GiB)')
        number = float(cleaned)
        if number <= 1:
            return cls(fraction=_checked_fraction(number, text))
        if not number.is_integer():
            raise ValueError(f'vram budget "{text}" is neither a fraction up to 1 nor a whole number of bytes')
        return cls(size=_checked_size(number, text))

    @classmethod
    def read_lenient(cls, text: str) -> Self:
        """For what workers report: nonsense means no budget."""
        try:
            return cls.read(text)
        except ValueError:
            return cls()

    def ceiling(self, total: int) -> int:
        """The budget in bytes on a machine with so much memory; 0 when there is no budget."""
        if self.fraction is not None:
            return int(total * self.fraction)
        if self.size is not None:
            return min(self.size, total) if total else self.size
        return 0


def _checked_fraction(fraction: float, text: str) -> float:
    if fraction > 1:
        raise ValueError(f'vram budget "{text}" exceeds 100%')
    if fraction <= 0:
        raise ValueError(f'vram budget "{text}" must be more than zero')
    return fraction


def _checked_size(size: float, text: str) -> int:
    if size < 1:
        raise ValueError(f'vram budget "{text}" must be more than zero')
    if size >= 2**63:
        raise ValueError(f'vram budget "{text}" is larger than any machine')
    return int(size)
