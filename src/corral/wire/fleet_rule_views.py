"""Fleet rules as the admin API takes and shows them."""

import msgspec

from corral.wire.operation_views import OperationView, PlannedView


class RuleAsk(msgspec.Struct, kw_only=True):
    """A backend that every node with these labels shall have."""

    name: str
    backend: str
    """A name in a gallery; with a uri, what the backend shall be called."""
    labels: dict[str, str] = {}
    """None mean every node."""
    uri: str = ""
    alias: str = ""


class RulesAsk(msgspec.Struct, kw_only=True):
    """Body of `PUT /api/v1/fleet-rules`, and of its plan: the whole set."""

    rules: list[RuleAsk]
    prune: str = ""
    """What else is deleted: nothing, `demanded` for what rules demanded until now, `all` for what none demands."""


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
    """Names of rules."""

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
    doubts: dict[str, str] = {}
    """Names of rules that perhaps nobody can satisfy, and why."""


class AppliedRules(msgspec.Struct, kw_only=True):
    revision: str
    changes: RuleChanges
    operations: list[OperationView]
    """All that follows, and is not over."""
    doubts: dict[str, str] = {}
    """Names of rules that perhaps nobody can satisfy, and why."""
