"""Galleries of backends, and what the fleet has of them, in LocalAI's form: its page and its lists for programs.

What is not there is `null` on the page and left out of the lists, as LocalAI's clients know it.
"""

import msgspec
from msgspec import UNSET, UnsetType

from corral.wire.install import Gallery
from corral.wire.operation_views import BackendNodeRow


class Reports(msgspec.Struct, kw_only=True):
    """What Corral adds: how much the list can be relied on."""

    oldest_seconds: float
    """The age of the oldest report of a node that it is made of."""
    unheard: list[str]
    """Names of nodes that have never said what they have."""


class GalleryItem(msgspec.Struct, kw_only=True, rename="camel"):
    """One backend on the page."""

    id: str
    name: str
    description: str
    icon: str
    license: str
    urls: list[str] | None
    tags: list[str] | None
    gallery: str
    installed: bool
    """On some node."""
    version: str
    """That the gallery offers."""
    processing: bool
    job_id: str = msgspec.field(name="jobID")
    is_deletion: bool
    is_meta: bool
    is_alias: bool
    """A build that some meta backend stands for."""
    is_development: bool
    capabilities: dict[str, str] | None
    meta_backend_for: str
    """The meta backend that stands for this build."""
    nodes: list[BackendNodeRow] | None


class GalleryPage(msgspec.Struct, kw_only=True, rename="camel"):
    """Answer of `GET /api/backends`."""

    backends: list[GalleryItem]
    repositories: list[Gallery]
    all_tags: list[str]
    processing_backends: dict[str, str]
    """What is under way: its key, and the id of its job."""
    task_types: dict[str, str]
    available_backends: int
    """How many match, on all pages."""
    installed_backends: int
    current_page: int
    total_pages: int
    prev_page: int
    next_page: int
    system_capability: str
    prefer_development_backends: bool
    corral: Reports


class AvailableBackend(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One item of `GET /backends/available`."""

    name: str = msgspec.field(default_factory=str)
    description: str = ""
    license: str = ""
    urls: list[str] = []
    icon: str = ""
    tags: list[str] = []
    size: str = ""
    gallery: Gallery = msgspec.field(default_factory=Gallery)
    installed: bool = False
    alias: str = ""
    uri: str = ""
    mirrors: list[str] = []
    capabilities: dict[str, str] = {}
    version: str = ""


class KnownBackend(msgspec.Struct, kw_only=True):
    """One item of `GET /backends/known`."""

    name: str
    modality: str = ""
    """Which kind of models it is for. Empty: galleries do not say."""
    auto_detect: bool = False
    """Whether an import would choose it by itself. Corral imports nothing."""
    description: str | UnsetType = UNSET
    installed: bool
