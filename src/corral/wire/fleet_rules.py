"""Fleet rules as the admin API takes and shows them, with the drift of nodes from what was asked for."""

import msgspec
from msgspec import UNSET, UnsetType

from corral.wire.operation_views import OperationAsk, OperationView, PlannedView
from corral.wire.plans import PlanError


class RuleAsk(msgspec.Struct, kw_only=True):
    """A backend that every node with these labels shall have."""

    name: str
    backend: str
    """A name in a gallery; with a uri, what the backend shall be called."""
    labels: dict[str, str] = {}
    """Labels of the nodes that the rule is for; without labels it is for every node."""
    uri: str = ""
    alias: str = ""


class RulesAsk(msgspec.Struct, kw_only=True):
    """Body of `PUT /api/v1/fleet-rules`, and of its plan: the whole set."""

    rules: list[RuleAsk]
    prune: str = ""
    """What else is deleted: nothing, `demanded` for what rules demanded until now, `all` for what none demands."""
    plan_hash: str | UnsetType = UNSET
    """The plan that was seen; nothing is done if it is another one by now."""


class RuleView(msgspec.Struct, kw_only=True):
    name: str
    backend: str
    labels: dict[str, str]
    uri: str
    alias: str
    made_by: str
    made_at: str
    counts: dict[str, int]
    """Nodes that it applies to, by how far they are, in the words of operations."""
    unmet: dict[str, str]
    """Names of nodes that are `error` or `blocked`, and why."""
    doubt: str = ""
    """Why perhaps nobody can satisfy it: no gallery and no node is known to have the backend."""


class RuleSetView(msgspec.Struct, kw_only=True):
    revision: str
    """Changes with the demands. `If-Match` of a `PUT` names it."""
    items: list[RuleView]


class RuleChanges(msgspec.Struct, kw_only=True):
    """Names of the fleet rules that were added, changed and removed."""

    added: list[str]
    changed: list[str]
    removed: list[str]


class PlannedActView(msgspec.Struct, kw_only=True):
    verb: str
    backend: str
    rule: str
    """Because of which rule; empty for what none demands."""
    nodes: list[PlannedView]


class UnmetView(msgspec.Struct, kw_only=True):
    rule: str
    node_name: str
    status: str
    operation: str
    message: str


class RulesPlan(msgspec.Struct, kw_only=True):
    changes: RuleChanges
    acts: list[PlannedActView]
    unmet: list[UnmetView]
    """What is wanted there already, and not reached yet."""
    hash: str = ""
    """Hash of what would be done; `plan_hash` of the `PUT` can name it."""
    text: str = ""
    """The plan as the command line prints it."""
    doubts: dict[str, str] = {}
    """Names of rules that perhaps nobody can satisfy, and why."""


class StaleRulesPlan(msgspec.Struct, kw_only=True):
    """Answer to a set of rules on a plan that is not the plan of now."""

    error: PlanError
    plan: RulesPlan


class AppliedRules(msgspec.Struct, kw_only=True):
    revision: str
    changes: RuleChanges
    operations: list[OperationView]
    """All that follows, and is not over."""
    doubts: dict[str, str] = {}
    """Names of rules that perhaps nobody can satisfy, and why."""


# Drift: what nodes do not have as it was asked for, by fleet rules or by people.


class DriftFixView(msgspec.Struct, kw_only=True):
    """What would make it as it was asked for."""

    label: str
    """For the button that does it, such as `Install vllm on gpu-1`."""
    operation: OperationAsk
    """Body of `POST /api/v1/operations`."""


class DriftView(msgspec.Struct, kw_only=True):
    """A backend on one node that is not as it was asked for."""

    node_id: str
    node_name: str
    backend: str
    kind: str
    """`changed` by somebody else, `blocked`, `failing`, `waiting` for its node, or `missing` although a rule demands
    it."""
    wanted: str
    has: str
    since: str | None = None
    """When the drift began; null if that is unknown."""
    why: str
    rule: str = ""
    """The fleet rule that demands it."""
    operation_id: str = ""
    """The operation that asked for it: what failed or is blocked can be retried there."""
    fix: DriftFixView | None = None
    """Null where nothing need be asked for again, or nothing would help."""


class DriftList(msgspec.Struct, kw_only=True):
    """Answer of `GET /api/v1/drift`."""

    items: list[DriftView]
