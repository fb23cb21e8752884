"""What frontends tell each other in LocalAI's words: progress of files and of backends, and what became stale.

A field with a default factory is always sent, any other default is not, as LocalAI's peers do it. Everybody hears its
own broadcasts too; applying one must be idempotent and never broadcasts again.
"""

from enum import StrEnum

import msgspec
from msgspec import UNSET, UnsetType

from corral.wire.backends import InstallBytes


class NodeProgressStatus(StrEnum):
    """The progress of an operation on one node."""

    QUEUED = "queued"
    DOWNLOADING = "downloading"
    RUNNING_ON_WORKER = "running_on_worker"
    SUCCESS = "success"
    ERROR = "error"


class StagingStatus(msgspec.Struct, kw_only=True):
    """How far the files of one model are on their way to one node."""

    model_id: str = ""
    node_name: str = ""
    file_name: str = ""
    bytes_sent: int = 0
    total_bytes: int = 0
    progress: float = 0
    """The share of all files that is there, from 0 to 100."""
    speed: str = ""
    file_index: int = 0
    """Number of the current file, counted from 1."""
    total_files: int = 0
    message: str = ""
    started_at: str = ""


class StagingProgress(msgspec.Struct, kw_only=True):
    """The message on `staging.<model>.progress`. The last one has only `done`."""

    model_id: str = ""
    status: StagingStatus | UnsetType = UNSET
    done: bool = False


class NodeProgress(msgspec.Struct, kw_only=True, omit_defaults=True):
    node_id: str = msgspec.field(default_factory=str)
    node_name: str = msgspec.field(default_factory=str)
    status: str = msgspec.field(default_factory=str)
    file_name: str = ""
    current: str = ""
    total: str = ""
    percentage: float = msgspec.field(default_factory=float)
    phase: str = ""
    error: str = ""


class OperationStatus(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How far an install, upgrade or delete is, on all nodes together."""

    deletion: bool = msgspec.field(default_factory=bool)
    file_name: str = msgspec.field(default_factory=str)
    error: str = ""
    processed: bool = msgspec.field(default_factory=bool)
    """Whether the operation has ended, successfully or not."""
    message: str = msgspec.field(default_factory=str)
    progress: float = msgspec.field(default_factory=float)
    phase: str = ""
    current_bytes: int = 0
    total_bytes: int = 0
    file_size: str = msgspec.field(default_factory=str)
    downloaded_size: str = msgspec.field(default_factory=str)
    gallery_element_name: str = msgspec.field(default_factory=str)
    cancelled: bool = msgspec.field(default_factory=bool)
    cancellable: bool = msgspec.field(default_factory=bool)
    nodes: list[NodeProgress] = []


class Sender(msgspec.Struct, kw_only=True):
    """Who broadcasts, if it is Corral: its operations are in the database that Corral's frontends share."""

    frontend: str = ""


class OperationNumbers(Sender, kw_only=True):
    """The progress of nodes in numbers, where there is any, by the id of the node."""

    nodes: dict[str, InstallBytes] = {}


class OperationProgress(msgspec.Struct, kw_only=True):
    """The message on `gallery.<operation>.progress`."""

    job_id: str = ""
    status: OperationStatus | None = None
    corral: OperationNumbers | UnsetType = UNSET


class OperationCancel(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The message on `gallery.<operation>.cancel`."""

    id: str = msgspec.field(default_factory=str)
    pause: bool = False
    corral: Sender | UnsetType = UNSET


class OperationMark(msgspec.Struct, kw_only=True):
    """The message on `gallery.opcache.start` and `gallery.opcache.end`.

    The one about the end names only the operation.
    """

    job_id: str = ""
    cache_key: str = ""
    is_backend: bool = False
    corral: Sender | UnsetType = UNSET


class Invalidation(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The message on `cache.invalidate.models` and `cache.invalidate.backends`: receivers read models or backends
    again."""

    element: str = ""
    op: str = ""
    """`install`, `upgrade` or `delete`."""
    config_revision: str = ""
    corral: Sender | UnsetType = UNSET
