"""Operations as the admin API takes and shows them, in Corral's own form and in LocalAI's.

A field with a default factory is always sent, any other default is not, where LocalAI's clients read it.
"""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from corral.wire.broadcasts import NodeProgress
from corral.wire.plans import EndingReplicaView, PlanError

# Operations in Corral's own form.


class OperationAsk(msgspec.Struct, kw_only=True):
    """Body of `POST /api/v1/operations`, and of its plan."""

    verb: str
    """`install`, `upgrade` or `delete`."""
    backend: str = ""
    uri: str = ""
    name: str = ""
    alias: str = ""
    galleries: str = ""
    force: bool = False
    nodes: list[str] = []
    """Ids; none mean every node that has the labels."""
    labels: dict[str, str] = {}
    plan_hash: str | UnsetType = UNSET
    """The plan that was seen; nothing is started if it is another one by now."""


class NodesAsk(msgspec.Struct, kw_only=True):
    """Which targets are meant; none mean all."""

    nodes: list[str] = []


class FileShareView(msgspec.Struct, kw_only=True):
    """How far one file of a model is that is being pulled."""

    name: str
    state: str
    """`waiting`, `fetching`, `checking` or `done`."""
    current_bytes: int = 0
    total_bytes: int = 0
    """0 while unknown."""


class TargetView(msgspec.Struct, kw_only=True):
    node_id: str
    """`store:` and its id for the pull of a model: its files go into a store, which frontends share."""
    node_name: str
    backend: str
    status: str
    waits_for_node: bool
    message: str
    """Why it stands so, in words for people."""
    reason_code: str = ""
    """The message as a code, for programs; empty without a message, and from frontends that send no codes."""
    reason_fields: dict[str, Any] = {}
    """What the message names; a field may be a reason itself."""
    attempts: int
    next_try_at: str | None = None
    """When what failed is tried again by itself."""
    changed_at: str
    percentage: float
    phase: str = ""
    file_name: str = ""
    current_bytes: int = 0
    total_bytes: int = 0
    bytes_per_second: int = 0
    """0 where nothing moves, or the node does not say."""
    seconds_left: float | None = None
    files: list[FileShareView] = []
    """The files of a model that is being pulled."""


class OperationView(msgspec.Struct, kw_only=True):
    id: str
    verb: str
    backend: str
    uri: str
    state: str
    progress: float
    """The mean over all targets that do not wait for an absent node."""
    asked_by: str
    accepted_at: str
    changed_at: str
    counts: dict[str, int]
    """Targets by status."""
    current_bytes: int = 0
    total_bytes: int = 0
    """The sum over all targets that are under way."""
    bytes_per_second: int = 0
    seconds_left: float | None = None
    """The time that the slowest target needs until it has all bytes; null where that of one is unknown."""
    notes: list[str] = []
    """What to know about it, as sentences: the files that the removal of a model keeps, and why."""
    targets: list[TargetView]


class OperationUpdate(msgspec.Struct, kw_only=True):
    """One event of a stream of operations."""

    is_whole: bool
    """Otherwise only the targets are there that changed since the event before; the rest of the operation always is."""
    operation: OperationView


class OperationPage(msgspec.Struct, kw_only=True):
    items: list[OperationView]
    next_cursor: str | None = None


class Changed(msgspec.Struct, kw_only=True):
    """What a retry or a cancel came to."""

    operation: OperationView
    nodes: list[str]
    """Names of the nodes whose targets it changed."""
    already_sent: list[str] = []
    """For a cancel: nodes that may still finish what was sent to them."""


class PlannedView(msgspec.Struct, kw_only=True):
    node_id: str
    node_name: str
    node_status: str
    backend: str
    blocked: str = ""
    """Why nothing would be sent."""
    unknown: str = ""
    """What could not be decided beforehand: it would be sent, and the node decides."""
    reached: bool = False
    """The node has said already that it is as it should be: nothing would be fetched or removed."""
    download_bytes: int | None = None
    """What would be fetched; null when nobody knows."""
    digests: list[str] = []
    """By which the node will show that it has what is wanted; none when no registry could be asked."""


class PlanCounts(msgspec.Struct, kw_only=True):
    """How many nodes there are of each kind in a plan; each node is counted once."""

    fits: int = 0
    blocked: int = 0
    unknown: int = 0
    """What could not be decided beforehand: it would be sent, and the node decides."""
    already: int = 0
    """As it should be already."""


class Plan(msgspec.Struct, kw_only=True):
    """What an operation would do. Nothing was stored or sent."""

    items: list[PlannedView]
    hash: str = ""
    """Hash of what would be done; `plan_hash` of the operation can name it."""
    counts: PlanCounts = msgspec.field(default_factory=PlanCounts)
    replicas_end: list[EndingReplicaView] = []
    """Replicas that would end with their backend."""
    rules: list[str] = []
    """Fleet rules that are in the way, as sentences: with one of them the operation would be refused."""
    text: str = ""
    """The plan as the command line prints it."""


class StalePlan(msgspec.Struct, kw_only=True):
    """Answer to an operation on a plan that is not the plan of now."""

    error: PlanError
    plan: Plan


# Operations in LocalAI's form.


class NodeBackendAsk(msgspec.Struct, kw_only=True):
    """Body of the routes of one node, and of an install by uri."""

    backend: str = ""
    uri: str = ""
    name: str = ""
    alias: str = ""
    backend_galleries: str = ""


class ApplyAsk(msgspec.Struct, kw_only=True):
    """Body of `POST /backends/apply`."""

    id: str = ""
    force: bool = False


class JobStarted(msgspec.Struct, kw_only=True, rename="camel"):
    """What was asked for is accepted."""

    job_id: str = msgspec.field(name="jobID")
    message: str
    status_url: str | UnsetType = UNSET
    uuid: str | UnsetType = UNSET


class Applied(msgspec.Struct, kw_only=True):
    """What was asked for is accepted, in the form that programs read."""

    id: str
    status_url: str


class ModelApplied(msgspec.Struct, kw_only=True):
    """A request about a model is accepted, in LocalAI's words."""

    uuid: str
    status: str
    """The URL that tells how far it is."""


class NeedsTarget(msgspec.Struct, kw_only=True):
    """Why a build for certain hardware was not put on every node."""

    error: str
    code: str = "concrete_backend_requires_target"
    meta_alternative: str = ""
    """A name that means the right build on each node; empty without one."""


class Acknowledgement(msgspec.Struct, kw_only=True):
    success: bool = True
    message: str | UnsetType = UNSET


class NodeResults(msgspec.Struct, kw_only=True):
    """What Corral adds where LocalAI answers for all nodes in one word."""

    nodes: list[NodeProgress]


class Deleted(msgspec.Struct, kw_only=True):
    """A delete that was waited for."""

    message: str
    success: bool | UnsetType = UNSET
    corral: NodeResults


class NotDeleted(msgspec.Struct, kw_only=True):
    error: str
    corral: NodeResults


class OperationItem(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """One item of `GET /api/operations`."""

    id: str = msgspec.field(default_factory=str)
    name: str = msgspec.field(default_factory=str)
    full_name: str = msgspec.field(default_factory=str)
    job_id: str = msgspec.field(name="jobID", default_factory=str)
    progress: int = msgspec.field(default_factory=int)
    task_type: str = msgspec.field(default_factory=str)
    is_deletion: bool = msgspec.field(default_factory=bool)
    is_backend: bool = msgspec.field(default_factory=bool)
    is_queued: bool = msgspec.field(default_factory=bool)
    cancellable: bool = msgspec.field(default_factory=bool)
    message: str = msgspec.field(default_factory=str)
    node_id: str = msgspec.field(name="nodeID", default="")
    node_name: str = ""
    phase: str = ""
    current_bytes: int = 0
    total_bytes: int = 0
    error: str = ""
    nodes: list[NodeProgress] = []


class OperationItems(msgspec.Struct, kw_only=True):
    operations: list[OperationItem]


class HistoryItem(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """One item of `GET /api/operations/history`."""

    id: str = msgspec.field(default_factory=str)
    name: str = msgspec.field(default_factory=str)
    job_id: str = msgspec.field(name="jobID", default_factory=str)
    is_backend: bool = msgspec.field(default_factory=bool)
    node_id: str = msgspec.field(name="nodeID", default="")
    task_type: str = msgspec.field(default_factory=str)
    outcome: str = msgspec.field(default_factory=str)
    error: str = ""
    started_at: str = msgspec.field(default_factory=str)
    finished_at: str = msgspec.field(default_factory=str)


class MoreHistory(msgspec.Struct, kw_only=True):
    next_cursor: str


class History(msgspec.Struct, kw_only=True):
    operations: list[HistoryItem]
    corral: MoreHistory | UnsetType = UNSET
    """What Corral adds when there are more."""


class JobStatus(msgspec.Struct, kw_only=True, rename="camel"):
    """Answer of `GET /api/backends/job/<id>`."""

    progress: float = 0
    message: str = ""
    gallery_element_name: str = ""
    processed: bool = False
    deletion: bool = False
    queued: bool = False
    error: str | UnsetType = UNSET
    completed: bool | UnsetType = UNSET
