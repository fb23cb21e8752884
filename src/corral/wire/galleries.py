"""Answers about backends: what nodes have, what galleries offer, what is outdated."""

import msgspec
from msgspec import UNSET, UnsetType

from corral.wire.backends import Gallery


class NodeBackendView(msgspec.Struct, kw_only=True):
    node_id: str
    node_name: str
    node_status: str
    is_system: bool
    installed_at: str
    version: str
    uri: str
    digest: str
    seen_at: str
    """When the node reported this."""
    age_seconds: float = 0.0
    """How long ago that was."""


class FleetBackendView(msgspec.Struct, kw_only=True):
    name: str
    is_meta: bool
    nodes: list[NodeBackendView]


class FleetBackends(msgspec.Struct, kw_only=True):
    items: list[FleetBackendView]
    unheard: list[str] = []
    """Names of nodes that have never said what they have."""


class BackendMetadata(msgspec.Struct, kw_only=True, omit_defaults=True):
    name: str = msgspec.field(default_factory=str)
    gallery_url: str = ""
    installed_at: str = ""
    version: str = ""
    uri: str = ""
    digest: str = ""


class ReportAge(msgspec.Struct, kw_only=True):
    """What Corral adds: how old the word of a node is."""

    seen_at: str
    age_seconds: float


class BackendNodeRow(msgspec.Struct, kw_only=True, omit_defaults=True):
    node_id: str = msgspec.field(default_factory=str)
    node_name: str = msgspec.field(default_factory=str)
    node_status: str = msgspec.field(default_factory=str)
    version: str = ""
    digest: str = ""
    uri: str = ""
    installed_at: str = ""
    corral: ReportAge | UnsetType = UNSET


class BackendRow(msgspec.Struct, kw_only=True):
    """One item of `GET /backends`. Its upper fields are those of the first node that has the backend."""

    name: str = msgspec.field(name="Name")
    run_file: str = msgspec.field(name="RunFile", default="")
    is_meta: bool = msgspec.field(name="IsMeta")
    is_system: bool = msgspec.field(name="IsSystem")
    metadata: BackendMetadata = msgspec.field(name="Metadata")
    nodes: list[BackendNodeRow]


class Reports(msgspec.Struct, kw_only=True):
    """What Corral adds: how much the list can be relied on."""

    oldest_seconds: float
    """The age of the oldest report of a node that it is made of."""
    unheard: list[str]
    """Names of nodes that have never said what they have."""


class GalleryItem(msgspec.Struct, kw_only=True, rename="camel"):
    """One backend of `GET /api/backends`."""

    id: str
    name: str
    description: str
    icon: str
    license: str
    urls: list[str] | None
    tags: list[str] | None
    gallery: str
    installed: bool
    """Whether some node has the backend."""
    version: str
    """The version that the gallery offers."""
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


class FitView(msgspec.Struct, kw_only=True):
    """Whether a backend can be installed on one machine."""

    verdict: str
    """`fits`, `blocked` or `unknown`."""
    build: str = ""
    """The build that the name means there."""
    installed: bool = False
    reason: str = ""
    would_fit: list[str] = []


class NodesFitView(FitView, kw_only=True):
    """Whether a backend can be installed on some nodes of a fleet, which all get the same answer."""

    nodes: list[str]
    """Names of the nodes."""
    installed_on: list[str] = []
    """Names of those nodes that have the build."""


class GalleryEntryView(msgspec.Struct, kw_only=True):
    """One entry of a gallery."""

    id: str
    name: str
    gallery: str
    meta: bool
    development: bool
    alias: str
    description: str
    license: str
    version: str
    tags: list[str]
    urls: list[str]
    uri: str
    mirrors: list[str]
    capabilities: dict[str, str]


class BackendView(GalleryEntryView, kw_only=True):
    """An entry, and whether it can be installed on one machine."""

    fit: FitView


class FleetOfferView(GalleryEntryView, kw_only=True):
    """An entry, and which nodes of a fleet it can be installed on."""

    fits: list[NodesFitView]
    """Every node is in one of them; empty when the fleet has no nodes."""


class SkippedView(msgspec.Struct, kw_only=True):
    """An entry that cannot be used."""

    gallery: str
    name: str
    line: int
    problem: str


class GalleryView(msgspec.Struct, kw_only=True):
    """How a gallery is known."""

    name: str
    url: str
    read_from: str
    """The url or a mirror; empty when nothing is known of the gallery."""
    entries: int
    fetched_at: str | None
    checked_at: str | None
    age_seconds: float | None
    """Since it was last known to be the newest version; null for files of this machine."""
    stale: bool
    changed: bool
    problem: str
    skipped: list[SkippedView]


class GalleryListing(msgspec.Struct, kw_only=True):
    """Backends, and the galleries that they come from, as one machine reads them."""

    scope: str = "machine"
    capability: str
    """The capability of the machine that `fit` is about."""
    items: list[BackendView]
    galleries: list[GalleryView]


class FleetGalleryListing(msgspec.Struct, kw_only=True):
    """Backends, and the galleries that they come from, as the frontend of a fleet reads them."""

    scope: str = "fleet"
    items: list[FleetOfferView]
    galleries: list[GalleryView]
    near: list[str] = []
    """Names like what was searched for, when nothing was found."""


class NodeUpgradeView(msgspec.Struct, kw_only=True):
    """A backend on one node."""

    node_id: str
    node_name: str
    node_status: str
    version: str
    digest: str
    freshness: str
    """`current`, `outdated` or `unknown`."""
    reason: str = ""
    """Why it is `unknown`; empty when it is not."""
    differs: bool
    """Most nodes have another build."""


class BackendUpgradeView(msgspec.Struct, kw_only=True):
    """One backend across the fleet."""

    name: str
    needs_upgrade: bool
    installed_version: str
    """The version that most nodes have."""
    installed_digest: str
    available_version: str = ""
    available_digest: str = ""
    uri: str = ""
    """Where it is to be had; empty when nobody offers it."""
    looked_at: str | None = None
    """When its registry last answered what it offers."""
    nodes: list[NodeUpgradeView]


class UpgradesView(msgspec.Struct, kw_only=True):
    """Answer of `GET /api/v1/backends/upgrades`."""

    checked_at: str | None
    """When galleries and registries were last asked; null before the first time."""
    problem: str = ""
    """Why the galleries could not be read then."""
    items: list[BackendUpgradeView]


class NodeDrift(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A node that has another build than most; LocalAI's form."""

    node_id: str = msgspec.field(default_factory=str)
    node_name: str = msgspec.field(default_factory=str)
    version: str = ""
    digest: str = ""


class UpgradeInfo(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One value of `GET /api/backends/upgrades`, whose keys are names; LocalAI's form."""

    backend_name: str = msgspec.field(default_factory=str)
    installed_version: str = msgspec.field(default_factory=str)
    available_version: str = msgspec.field(default_factory=str)
    installed_digest: str = ""
    available_digest: str = ""
    node_drift: list[NodeDrift] = []
