"""Answers about nodes: what administrators see of them, and their log lines."""

import msgspec
from msgspec import UNSET, UnsetType


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
    """The age of the last heartbeat, whoever could hear it."""
    heartbeat_seconds: float
    has_secret: bool
    incarnation: str
    corral: PeerView | None
    problems: list[str]
    admin_labels: dict[str, str]
    removed_labels: list[str]
    in_flight: int | None = 0
    """Requests under way there; null while a gateway is silent, whose share nobody knows."""


class NodePage(msgspec.Struct, kw_only=True):
    items: list[NodeDetail]
    next_cursor: str | None
    alarm: str = ""
    """Why nothing is evicted or rescheduled now; empty when all is well."""


class KeyView(msgspec.Struct, kw_only=True):
    """An API key without its secret part."""

    id: str
    name: str
    scopes: list[str]
    created_at: str
    created_by: str
    expires_at: str | None
    revoked_at: str | None
    state: str
    """`active`, `expired` or `revoked`."""


class CreatedKey(KeyView, kw_only=True):
    key: str
    """Shown this once; only its hash is stored."""
    unconfirmed_gateways: list[str] = []
    """Gateways that did not say within two seconds that they know it; it may not work there yet."""


class RevokedKey(msgspec.Struct, kw_only=True):
    """The answer to a revocation that some gateways did not confirm."""

    id: str
    unconfirmed_gateways: list[str]
    """Gateways that did not say within two seconds that they refuse it; it may still work there."""


class CreateKey(msgspec.Struct, kw_only=True):
    """Body of `POST /api/v1/keys`."""

    name: str
    scopes: list[str]
    expires_in: str = ""
    """A duration such as `30d`; empty for a key that never expires."""


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


class InitialLines(msgspec.Struct, kw_only=True, tag="initial", tag_field="type"):
    """First frame of a WebSocket: what is there already."""

    lines: list[LogLine] | None = None


class LiveLine(msgspec.Struct, kw_only=True, tag="line", tag_field="type"):
    """Every later frame."""

    line: LogLine


LogFrame = InitialLines | LiveLine
