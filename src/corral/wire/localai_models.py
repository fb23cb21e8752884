"""LocalAI's answers about models: what galleries offer, what the fleet has, what became of a change.

A field with a default factory is always sent, any other default is not: LocalAI's clients tell absent from empty.
"""

from typing import Any

import msgspec

from corral.wire.backends import Gallery


class OfferedFile(msgspec.Struct, kw_only=True):
    filename: str
    sha256: str
    uri: str


class AvailableModel(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One item of `GET /models/available`."""

    url: str = ""
    name: str = msgspec.field(default_factory=str)
    description: str = ""
    license: str = ""
    urls: list[str] = []
    icon: str = ""
    tags: list[str] = []
    size: str = ""
    backend: str = ""
    files: list[OfferedFile] = []
    gallery: Gallery = msgspec.field(default_factory=Gallery)
    installed: bool = False


class ModelItem(msgspec.Struct, kw_only=True):
    """One model on a page of the galleries."""

    id: str
    name: str
    description: str
    icon: str
    license: str
    urls: list[str] | None
    tags: list[str] | None
    gallery: str
    installed: bool
    processing: bool
    job_id: str = msgspec.field(name="jobID")
    is_deletion: bool = msgspec.field(name="isDeletion")
    trust_remote_code: bool = msgspec.field(name="trustRemoteCode")
    additional_files: list[OfferedFile] | None = msgspec.field(name="additionalFiles")
    backend: str
    voice_cloning: None = None
    """Corral knows nothing of voices."""
    has_variants: bool | msgspec.UnsetType = msgspec.UNSET
    """Only sent where it is true, as LocalAI does it."""


class GalleryState(msgspec.Struct, kw_only=True):
    """What Corral adds: which galleries could not be read."""

    failures: list[str]


class ModelPageView(msgspec.Struct, kw_only=True, rename="camel"):
    """Answer of `GET /api/models`."""

    models: list[ModelItem]
    repositories: list[Gallery]
    all_tags: list[str]
    all_backends: list[str]
    processing_models: dict[str, str]
    """What is under way: its key, and the id of its job."""
    task_types: dict[str, str]
    available_models: int
    """How many match, on all pages."""
    installed_models: int
    ram_total: int
    ram_used: int
    """Bytes in use on all working nodes together. The frontend itself runs no models."""
    ram_usage_percent: float
    current_page: int
    total_pages: int
    prev_page: int
    next_page: int
    corral: GalleryState


class LoadedOn(msgspec.Struct, kw_only=True):
    """A node that has a model in memory."""

    node_id: str
    node_name: str
    state: str
    node_status: str


class CapableModel(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One item of `GET /api/models/capabilities`."""

    id: str
    capabilities: list[str]
    """What it is for, as LocalAI writes it: `FLAG_CHAT`."""
    backend: str = msgspec.field(default_factory=str)
    disabled: bool = msgspec.field(default_factory=bool)
    pinned: bool = msgspec.field(default_factory=bool)
    loaded_on: list[LoadedOn] = []
    """The nodes that run the model, for administrators only."""
    source: str = ""
    """`registry-only` for a model that nodes run, but that has no configuration any more."""


class ModelCapabilities(msgspec.Struct, kw_only=True):
    data: list[CapableModel]


class MemoryAt(msgspec.Struct, kw_only=True, rename="camel"):
    """The memory that a model needs with a context of this length."""

    context_length: int
    vram_bytes: int
    vram_display: str


class ModelEstimate(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """Answer of `GET /api/models/estimate/ID`; zero and null where nothing could be learned."""

    size_bytes: int = msgspec.field(default_factory=int)
    size_display: str = msgspec.field(default_factory=str)
    estimates: dict[str, MemoryAt] | None = msgspec.field(default_factory=lambda: None)
    """By the length of the context, in words."""
    model_max_context: int = 0


class VariantItem(msgspec.Struct, kw_only=True, omit_defaults=True):
    model: str
    """What to ask for as `variant`."""
    backend: str = msgspec.field(default_factory=str)
    memory_bytes: int = 0
    fits: bool = msgspec.field(default_factory=bool)
    is_base: bool = msgspec.field(default_factory=bool)
    quantization: str = ""
    features: list[str] = []


class VariantList(msgspec.Struct, kw_only=True):
    """Answer of `GET /api/models/variants/ID`."""

    variants: list[VariantItem]
    auto_selected: str


class LoadedModel(msgspec.Struct, kw_only=True):
    id: str


class SystemView(msgspec.Struct, kw_only=True):
    """Answer of `GET /system`."""

    backends: list[str]
    """Names of backends that some node has."""
    loaded_models: list[LoadedModel]


class ModelResponse(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What became of a change of a model's configuration."""

    success: bool = msgspec.field(default_factory=bool)
    message: str = ""
    filename: str = ""
    config: Any = None
    error: str = ""
    details: list[str] = []
    config_revision: str = ""
    pending_cleanup: int | None = None
    """Replicas of the old configuration that are still to be replaced."""


class ModelText(msgspec.Struct, kw_only=True):
    """Answer of `GET /api/models/edit/NAME`."""

    config: str
    """The model's YAML."""
    name: str


class ModelApplyAsk(msgspec.Struct, kw_only=True):
    """Body of `POST /models/apply`."""

    id: str = ""
    """The name of a gallery's model, or any reference."""
    url: str = ""
    """Where a definition is, if there is no id."""
    config_url: str = ""
    """Another name of `url`, which clients use as well."""
    name: str = ""
    variant: str = ""
    overrides: dict[str, Any] = {}
    """Values that replace those of the configuration."""
    files: list[dict[str, Any]] = []
    """Files beside those of the model: `filename`, `uri`, `sha256`."""


class ImportPreferences(msgspec.Struct, kw_only=True):
    name: str = ""
    description: str = ""
    backend: str = ""
    type: str = ""
    quantizations: str = ""
    """Separated by commas, the best first."""


class ImportAsk(msgspec.Struct, kw_only=True):
    """Body of `POST /models/import-uri`."""

    uri: str = ""
    preferences: ImportPreferences = msgspec.field(default_factory=ImportPreferences)
