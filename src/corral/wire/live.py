"""The live stream, the fleet summary and the history, as the admin API shows them. Numbers of bytes are integers; what
is not known is null, and never 0.
"""

from typing import Any

import msgspec

# Rows of topics.


class MemoryUse(msgspec.Struct, kw_only=True, frozen=True):
    """Memory of a machine or of a fleet, in bytes."""

    total: int | None = None
    used: int | None = None
    """What is in use by anything on the machine, as it reports."""
    reserved: int | None = None
    """What placement counts for the replicas that are there, or about to be."""


class DiskUse(msgspec.Struct, kw_only=True, frozen=True):
    """The disk that models go to, in bytes."""

    total: int | None = None
    free: int | None = None


class NodeReplica(msgspec.Struct, kw_only=True, frozen=True):
    """A replica as its node's row shows it."""

    model: str
    state: str
    in_flight: int | None = None
    """Null while a gateway is silent, whose share nobody knows."""


class NodeRow(msgspec.Struct, kw_only=True, frozen=True):
    """One item of the topic `nodes`; its key is the node's id."""

    id: str
    name: str
    kind: str
    """`corral`, `localai` or `agent`."""
    version: str
    """Empty where the worker does not tell."""
    status: str
    reason: str
    """Why the status is as it is; empty for a node that is healthy."""
    since: str
    """When the status began, as far as that is known."""
    heard_at: str
    """Time of the last heartbeat."""
    address: str
    labels: dict[str, str]
    capability: str
    vram: MemoryUse
    ram: MemoryUse
    disk: DiskUse
    gpus: int | None
    """Null where the machine tells only sums."""
    slots: int
    """Replicas of one model that it takes."""
    replicas: list[NodeReplica]
    in_flight: int | None
    problems: list[str]
    pending_since: str | None = None
    """Since when it waits for approval."""
    fingerprint: str = ""
    draining_by: str = ""
    heartbeat_seconds: float = 0.0
    """How often it is heard when all is well."""


class LoadStepRow(msgspec.Struct, kw_only=True, frozen=True):
    """One step of a load: `place`, `install`, `stage`, `start` or `load`."""

    step: str
    seconds: int
    state: str
    """`done`, `running`, `failed`, or `waiting` while nobody works on the load."""


class LoadRow(msgspec.Struct, kw_only=True, frozen=True):
    """One item of the topic `loads`: a cold load that is under way, waits or failed. Its key is the load's id."""

    id: str
    model: str
    node: str
    """Empty while no node is chosen."""
    node_id: str
    phase: str
    """`pending` or `failed`; otherwise the word for what is being done, such as `staging` or `loading`."""
    since: str
    steps: list[LoadStepRow]
    bytes: int | None = None
    total_bytes: int | None = None
    bytes_per_second: float | None = None
    seconds_left: float | None = None
    message: str = ""
    is_permanent: bool = False
    retry_in_seconds: int | None = None
    why: str = ""
    """Who wanted it, in the words of replicas."""
    reason: str = ""
    """The code of what it waits for, or why it failed."""
    engine_lines: list[str] = []
    """What the engine wrote last before the load failed."""


class WorstTarget(msgspec.Struct, kw_only=True, frozen=True):
    """The target of an operation that needs somebody most."""

    node: str
    status: str
    message: str


class OperationRow(msgspec.Struct, kw_only=True, frozen=True):
    """One item of the topic `operations`: an operation without its targets. Its key is the operation's id."""

    id: str
    verb: str
    backend: str
    uri: str
    state: str
    progress: float
    asked_by: str
    accepted_at: str
    changed_at: str
    counts: dict[str, int]
    current_bytes: int = 0
    total_bytes: int = 0
    bytes_per_second: int = 0
    seconds_left: float | None = None
    notes: list[str] = []
    worst: WorstTarget | None = None


class NodeWork(msgspec.Struct, kw_only=True, frozen=True):
    """What a node is asked to do by an operation that is not over."""

    operation_id: str
    verb: str
    backend: str
    status: str
    message: str
    percentage: float
    waits_for_node: bool


# What needs somebody.


class AttentionSubject(msgspec.Struct, kw_only=True, frozen=True):
    type: str
    """`node`, `model`, `operation`, `backend` or `fleet`."""
    id: str = ""
    name: str = ""


class AttentionAct(msgspec.Struct, kw_only=True, frozen=True):
    """The one thing to do next."""

    label: str
    href: str
    """Where it is done in the web page."""
    command: str
    """How it is done in a terminal."""


class AttentionItem(msgspec.Struct, kw_only=True, frozen=True):
    """One item of the topic `attention`, and of the fleet summary: something that needs a person."""

    id: str
    """Stable as long as the item is about the same subject and problem."""
    kind: str
    severity: str
    """`alarm`, `warning` or `notice`."""
    title: str
    why: str
    since: str | None
    """When it began; null if that is unknown."""
    subject: AttentionSubject
    act: AttentionAct | None
    count: int = 1
    rank: int = 0
    """The place of its kind in the order in which they are shown."""


# The fleet in numbers.


class FirstSteps(msgspec.Struct, kw_only=True, frozen=True):
    """What a new fleet has already."""

    has_node: bool = False
    has_backend: bool = False
    has_model: bool = False
    has_answer: bool = False
    """A model answered a request, as far as this frontend heard."""


class FleetSummary(msgspec.Struct, kw_only=True, frozen=True):
    """The one item of the topic `summary`, whose key is `fleet`."""

    nodes: dict[str, int]
    """Number of nodes by status."""
    models: int
    loaded_models: int
    replicas: int
    in_flight: int | None
    waiting: int
    """Requests that wait for a replica."""
    vram: MemoryUse
    ram: MemoryUse
    operations: dict[str, int]
    """By state, of those that are not over."""
    attention: dict[str, int]
    """Number of items by severity."""
    brake: str
    """Why nothing is evicted or rescheduled now; empty when all is well."""
    control: str
    """`up` or `impaired`."""
    problems: list[str]
    """What control lacks; empty while it is up."""
    frontends: int
    started: FirstSteps


class FleetSummaryAnswer(msgspec.Struct, kw_only=True):
    """Answer of `GET /api/v1/fleet/summary`."""

    summary: FleetSummary
    attention: list[AttentionItem]
    """In the order in which they are to be read."""
    at: str
    frontend: str


# Frames of the stream.


class LiveFrame(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Data of the events `snapshot` and `change` of the live stream."""

    topic: str
    items: dict[str, Any]
    gone: list[str] = []
    """Keys of removed items; only in changes."""
    first: bool = False
    """The snapshot of the topic begins here: what was known of it before is void."""
    whole: bool = False
    """The snapshot of the topic ends here."""
    missing: bool = False
    """There is no node or operation of that id; there may be later."""


class LiveReady(msgspec.Struct, kw_only=True):
    """Data of the event `ready`: all snapshots were sent."""

    at: str
    frontend: str
    topics: list[str]
    """The topics that the caller may read."""


# History.


class HistorySeries(msgspec.Struct, kw_only=True):
    """One line of a plot."""

    name: str
    labels: dict[str, str]
    values: list[float | None]
    """One for each step, the oldest first; null where nothing is known."""


class HistoryAnswer(msgspec.Struct, kw_only=True):
    """Answer of `GET /api/v1/history`: what this frontend has heard itself, since it started."""

    step_seconds: int
    begins_at: str = msgspec.field(name="from")
    """The time of the first value."""
    series: list[HistorySeries]
    frontend: str
    left_out: int = 0
    """Series that were not kept, since there are too many."""
