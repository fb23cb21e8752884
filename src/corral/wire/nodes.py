"""Nodes as administrators see them, with the limits that people set, and the answers about the fleet as a whole."""

import re
from typing import Final, Self

import msgspec
from msgspec import UNSET, UnsetType

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


WORKER_HEADER: Final = "X-Corral-Worker"
"""In answers of a worker's health check: which start of which worker this is, by its incarnation."""

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
