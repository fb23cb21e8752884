"""Plans of acts on the fleet: what would be done, as people and programs see it before anything is done.

Every plan has a hash of what would be done. A caller may state the hash of the plan that it has seen. If the current
plan has another hash, nothing is done, and the answer has the new plan. What changes all the time without changing what
would be done, such as requests under way or free memory, is not part of the hash.
"""

import hashlib

import msgspec
from msgspec import UNSET, UnsetType


def plan_hash(basis: object) -> str:
    """A hash of plain values: the same for the same values, in every frontend."""
    return hashlib.sha256(msgspec.json.encode(basis, order="deterministic")).hexdigest()[:16]


class EndingReplicaView(msgspec.Struct, kw_only=True):
    """A replica that would end, because its backend is replaced or deleted."""

    node_id: str
    node: str
    model: str
    in_flight: int | None = None
    """Requests under way there; null while nobody knows."""


class EffectView(msgspec.Struct, kw_only=True):
    """One consequence of an act."""

    kind: str
    """`moves`, `added`, `stays`, `ends`, `loses_service`, `not_added`, `cancelled`, `deleted` or `kept`."""
    subject: str
    """What it is about: the name of a model, an operation in words, a path."""
    about: str
    """What the subject is: `model`, `operation`, `node`, `file` or `rule`."""
    detail: str = ""
    """Why, or how; the rest of a sentence for people."""
    node: str = ""
    """The name of the node where that happens."""
    node_id: str = ""
    to_node: str = ""
    """Where it would go; another node may be chosen by then."""
    to_node_id: str = ""


class ActPlanView(msgspec.Struct, kw_only=True):
    """Plan of a drain, of a removal, or of a change of the rules of scheduling. Nothing was changed."""

    hash: str
    consequences: list[EffectView] = []
    text: str
    """The plan as the command line prints it."""
    in_flight: int | None = None
    """Requests under way at the replicas that would end; null while nobody knows."""


class PlanError(msgspec.Struct, kw_only=True):
    """The error of an act whose plan was outdated: nothing was done."""

    code: str = "stale_plan"
    message: str = "the fleet has changed since this plan was made, so nothing was done; here is the plan of now"


class StaleActPlan(msgspec.Struct, kw_only=True):
    """Answer to an act on a plan that is not the plan of now."""

    error: PlanError
    plan: ActPlanView


class DrainAsk(msgspec.Struct, kw_only=True):
    """Body of `POST /api/v1/nodes/{id}/drain`, which may be left out, and of its plan."""

    force: bool = False
    """Also end what no other node can take."""
    plan_hash: str | UnsetType = UNSET
    """The plan that was seen; nothing is done if it is another one by now."""


class ModelRemovalAsk(msgspec.Struct, kw_only=True):
    """Body of `POST /api/v1/model-removals/plan`."""

    name: str
