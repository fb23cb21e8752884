"""Replicas as the node routes show them: LocalAI's form, and Corral's own with what LocalAI cannot say."""

import msgspec
from msgspec import UNSET, UnsetType


class ReplicaRow(msgspec.Struct, kw_only=True):
    """A replica in LocalAI's form: `GET /api/nodes/{id}/models`."""

    id: str
    node_id: str
    model_name: str
    replica_index: int
    address: str
    state: str
    """Only LocalAI's words: a place that is merely reserved is `staging` here."""
    in_flight: int
    """As far as it is known."""
    last_used: str
    backend_type: str | UnsetType = UNSET
    config_revision: str | UnsetType = UNSET
    created_at: str
    updated_at: str


class ReplicaView(msgspec.Struct, kw_only=True):
    """A replica in Corral's form."""

    id: str
    node_id: str
    node: str
    model: str = ""
    index: int
    state: str
    """As [replicas](../concepts/replicas.md#states) tells, or `unserved`: loaded, and no request can be sent to it."""
    revision: str
    address: str
    url: str
    reason: str = ""
    in_flight: int | None = 0
    """Requests under way there; null while a gateway is silent, whose share nobody knows."""
    last_used_at: str | None = None
    """When a request was last under way there; null when this frontend heard of none."""
    created_at: str
    changed_at: str
