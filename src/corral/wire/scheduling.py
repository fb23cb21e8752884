"""Rules of scheduling as the admin API takes and shows them, in LocalAI's form and in Corral's own."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

Count = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


class SchedulingAsk(msgspec.Struct, kw_only=True):
    """Body of `POST /api/nodes/scheduling`. The counts and the selector replace those that were there; of the others,
    what is left out stays as it is."""

    model_name: str = ""
    node_selector: dict[str, str] | None = None
    min_replicas: Count = 0
    max_replicas: Count = 0
    spread_all: bool = False
    route_policy: str | None = None
    balance_abs_threshold: Count | None = None
    balance_rel_threshold: float | None = None
    min_prefix_match: float | None = None


class SchedulingRow(msgspec.Struct, kw_only=True):
    """A rule in LocalAI's form."""

    id: str
    model_name: str
    node_selector: str | UnsetType = UNSET
    """A JSON object, as text."""
    min_replicas: int
    max_replicas: int
    spread_all: bool
    route_policy: str | UnsetType = UNSET
    balance_abs_threshold: int | UnsetType = UNSET
    balance_rel_threshold: float | UnsetType = UNSET
    min_prefix_match: float | UnsetType = UNSET
    unsatisfiable_ticks: int = 0
    """A counter of LocalAI's loop. Corral looks again by itself and counts nothing."""
    created_at: str
    updated_at: str


class SchedulingFields(msgspec.Struct, kw_only=True):
    """What a rule may say. `PATCH` keeps what is left out, `PUT` does not."""

    node_selector: dict[str, str] | UnsetType = UNSET
    """Labels that a node must have."""
    pinned_nodes: list[str] | UnsetType = UNSET
    """Ids of nodes, or names that only one node has: replicas are on these only."""
    min_replicas: Count | UnsetType = UNSET
    """0: loaded when somebody asks."""
    max_replicas: Count | UnsetType = UNSET
    """0: without limit."""
    spread_all: bool | UnsetType = UNSET
    """One replica on every node that it may be on; then there are no counts."""
    idle_seconds: Count | UnsetType | None = UNSET
    """Unload replicas above the minimum that were idle for so long. 0: never; null: as the settings say."""
    route_policy: str | UnsetType = UNSET
    balance_abs_threshold: Count | UnsetType = UNSET
    balance_rel_threshold: float | UnsetType = UNSET
    min_prefix_match: float | UnsetType = UNSET


class NamedScheduling(SchedulingFields, kw_only=True):
    """A rule of a set."""

    model: str


class SchedulingRevision(SchedulingFields, kw_only=True):
    """Body of `PUT` and `PATCH /api/v1/scheduling/{model}`."""

    plan_hash: str | UnsetType = UNSET
    """The plan that was seen; nothing is done if it is another one by now."""


class SchedulingSet(msgspec.Struct, kw_only=True):
    """Body of `PUT /api/v1/scheduling`: rules that a file declares."""

    rules: list[NamedScheduling] = []
    prune: str = ""
    """Which other rules are deleted: none, `demanded` for those that came from a file, or `all`."""
    plan_hash: str | UnsetType = UNSET
    """The plan that was seen; nothing is done if it is another one by now."""


class SchedulingPlanAsk(msgspec.Struct, kw_only=True):
    """Body of `POST /api/v1/scheduling/plan`."""

    rules: list[NamedScheduling] = []
    """Whole rules: what one leaves out is as in a model without a rule."""
    prune: str = ""
    """As in `PUT /api/v1/scheduling`."""
    remove: list[str] = []
    """Models whose rules are deleted."""
    unload: list[str] = []
    """Models that are unloaded besides, as `POST /api/v1/model-unloads` does."""


class SchedulingView(msgspec.Struct, kw_only=True):
    """A rule, and how far the fleet is with it."""

    model: str
    node_selector: dict[str, str]
    pinned_nodes: list[str]
    """Ids of nodes."""
    pinned_names: list[str] = []
    """Their names; the id of one that is gone."""
    min_replicas: int
    max_replicas: int
    spread_all: bool
    idle_seconds: int | None
    route_policy: str
    balance_abs_threshold: int
    balance_rel_threshold: float
    min_prefix_match: float
    source: str
    """`api`, `fleet file`, or `setting`: then it is written again when a frontend starts."""
    created_at: str
    updated_at: str
    updated_by: str
    loaded: int = 0
    """Replicas that can answer."""
    loading: int = 0
    """Replicas that are being loaded."""
    problem: str = ""
    """What keeps the fleet from what the rule wants; empty when nothing is known to."""


class SchedulingList(msgspec.Struct, kw_only=True):
    items: list[SchedulingView]


class SchedulingChanges(msgspec.Struct, kw_only=True):
    """Names of models whose rules changed."""

    added: list[str]
    changed: list[str]
    removed: list[str]


class ModelLoadAsk(msgspec.Struct, kw_only=True):
    """Body of `POST /api/v1/model-loads` and `POST /api/v1/model-unloads`."""

    name: str
    node: str = ""
    """The id of a node, or a name that only one node has; empty: any node, or all of them."""
