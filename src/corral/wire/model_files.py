"""Files of models as the admin API takes and shows them: pulls, stagings, and what stores and nodes hold."""

import msgspec

from corral.wire.plans import PlanError


class PullStart(msgspec.Struct, kw_only=True):
    """Body of `POST /api/v1/pulls`, and of its plan."""

    reference: str
    """A gallery's name, `hf://…`, `ollama://…`, `oci://…`, `https://…`, `github:…`, `file://…` or a path."""
    name: str = ""
    """What the model shall be called."""
    build: str = ""
    """Which of several builds, such as `Q4_K_M`; empty: the best that fits the fleet."""
    dry_run: bool = False
    plan_hash: str = ""
    """The plan that was seen; nothing is done if it is another one by now."""


class PullFileView(msgspec.Struct, kw_only=True):
    path: str
    """Relative to the models directory."""
    url: str
    size: int | None = None
    """null: the server does not say."""
    digest: str = ""


class BuildChoiceView(msgspec.Struct, kw_only=True):
    name: str
    bytes: int
    files: int = 1
    needed_bytes: int = 0
    """Estimated memory to run it; 0: unknown."""
    fits: bool | None = None
    is_chosen: bool = False


class PullPlanView(msgspec.Struct, kw_only=True):
    """What a pull would do."""

    name: str
    config: str
    """The model's YAML."""
    files: list[PullFileView]
    bytes: int
    """Size of all files, as far as it is known."""
    needed_bytes: int
    """Disk space that is still needed."""
    free_bytes: int
    store: str
    """Where the files would be."""
    memory_bytes: int = 0
    """Estimated memory to run it; 0: unknown."""
    choices: list[BuildChoiceView] = []
    notes: list[str] = []
    licence: str = ""
    reference: str = ""
    resolved: str = ""
    refusal: str = ""
    """Why the pull would be refused now; empty: it would be accepted."""
    hash: str = ""
    """Hash of what would be done; `plan_hash` of the pull can name it."""
    text: str = ""
    """The plan as the command line prints it."""


class StalePullPlan(msgspec.Struct, kw_only=True):
    """Answer to a pull on a plan that is not the plan of now."""

    error: PlanError
    plan: PullPlanView


class StoreView(msgspec.Struct, kw_only=True):
    """A directory with files of models."""

    id: str
    name: str
    """Where the store is: `host:/directory`."""
    is_own: bool
    """Whether the frontend that answers has it."""
    is_away: bool
    """Whether no running frontend has it."""
    total_bytes: int
    free_bytes: int
    seen_at: str


class UnneededFileView(msgspec.Struct, kw_only=True):
    path: str
    bytes: int
    kept: str = ""
    """Why it stays; empty: a prune deletes it."""


class StorageView(msgspec.Struct, kw_only=True):
    """Answer of `GET /api/v1/model-storage`."""

    stores: list[StoreView]
    problem: str = ""
    """Why the frontend that answers has no store of its own; then nothing is known about files."""
    used_bytes: int = 0
    quota_bytes: int = 0
    """0: no limit."""
    models: dict[str, int] = {}
    """Bytes of the files of each model; files that several share count for each."""
    unneeded: list[UnneededFileView] = []
    """Files that no model needs."""
    partial_bytes: int = 0
    """Bytes of downloads that no pull will continue."""


class PruneAsk(msgspec.Struct, kw_only=True):
    """Body of `POST /api/v1/model-storage/prune`."""

    dry_run: bool = False


class PruneView(msgspec.Struct, kw_only=True):
    """What was deleted, or would be, and what stays."""

    dry_run: bool
    freed_bytes: int
    deleted: list[UnneededFileView]
    kept: list[UnneededFileView]
    """Files that no model needs and that stay, with the reasons."""
    partial_bytes: int = 0
    """Bytes of downloads that no pull will continue; they are deleted too."""


class StagingStart(msgspec.Struct, kw_only=True):
    """Body of `POST /api/v1/model-stagings`. Exactly one of `nodes`, `selector` and `all` says where."""

    model: str
    nodes: list[str] = []
    """Ids of the nodes."""
    selector: dict[str, str] = {}
    """Every node that has these labels."""
    all: bool = False
    """Every node that runs models."""


class StagedModelView(msgspec.Struct, kw_only=True):
    """What was brought to a node for a model."""

    model: str
    bytes: int
    files: int
    """How many; 0 for models with so many that they are not recorded one by one."""
    revision: str
    staged_at: str
    used_at: str
    needed: str = ""
    """Why it stays when room is made for others; empty: it may go."""


class NodeFilesView(msgspec.Struct, kw_only=True):
    """What frontends have brought to a node, the longest unused first. Files that came another way are not listed."""

    node_id: str
    node: str
    items: list[StagedModelView]
    bytes: int
    total_disk: int
    """0: the node does not say."""
    available_disk: int
